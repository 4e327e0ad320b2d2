package main

import (
	"context"
	"os"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv/push"
)

// send sends the events of a task with the push sender of the official SDK: `webhooks send URL TOKEN`.
func send() {
	task := a2a.NewSubmittedTask(a2a.TaskInfo{TaskID: "t1", ContextID: "c1"}, a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart("hi")))
	events := []a2a.Event{
		task,
		a2a.NewStatusUpdateEvent(task, a2a.TaskStateWorking, nil),
		a2a.NewArtifactEvent(task, a2a.NewTextPart("made")),
		a2a.NewStatusUpdateEvent(task, a2a.TaskStateCompleted, nil),
	}
	sender := push.NewHTTPPushSender(&push.HTTPSenderConfig{AllowPrivateNetworks: true, FailOnError: true})
	config := &a2a.PushConfig{TaskID: "t1", ID: "w", URL: os.Args[2], Token: os.Args[3]}
	for _, event := range events {
		if err := sender.SendPush(context.Background(), config, event); err != nil {
			panic(err)
		}
	}
}
