// The measured agents on the Go SDK's server, with its store in memory.
//
// Arguments: the port, and what the agent does: reply, task, stream, wait or talk.
package main

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"os"
	"strconv"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

type agent struct{ does string }

func (agent agent) Execute(
	ctx context.Context, run *a2asrv.ExecutorContext,
) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		text := run.Message.Parts[0].Text()
		if agent.does == "reply" {
			reply := a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart(text))
			reply.ContextID = run.ContextID
			yield(reply, nil)
			return
		}
		task := a2a.NewSubmittedTask(run, run.Message)
		if agent.does == "talk" {
			for n := 1; n < 20; n++ {
				part := a2a.NewTextPart(fmt.Sprintf("message %d of a conversation", n))
				said := a2a.NewMessageForTask(a2a.MessageRoleAgent, run, part)
				task.History = append(task.History, said)
			}
		}
		state := func(state a2a.TaskState) bool {
			return yield(a2a.NewStatusUpdateEvent(run, state, nil), nil)
		}
		if !yield(task, nil) || !state(a2a.TaskStateWorking) {
			return
		}
		switch agent.does {
		case "task":
			result := a2a.NewArtifactEvent(run, a2a.NewTextPart(text))
			result.Artifact.Name = "result"
			if !yield(result, nil) {
				return
			}
		case "stream":
			chunks, _ := strconv.Atoi(text)
			for n := range chunks {
				part := a2a.NewTextPart(fmt.Sprintf("chunk %d ", n))
				chunk := a2a.NewArtifactUpdateEvent(run, "report", part)
				chunk.Artifact.Name, chunk.Append = "report", n > 0
				if !yield(chunk, nil) {
					return
				}
			}
		case "wait":
			<-ctx.Done()
			yield(nil, ctx.Err())
			return
		}
		state(a2a.TaskStateCompleted)
	}
}

func (agent) Cancel(_ context.Context, run *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		yield(a2a.NewStatusUpdateEvent(run, a2a.TaskStateCanceled, nil), nil)
	}
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: measured PORT reply|task|stream|wait|talk")
		os.Exit(2)
	}
	slog.SetDefault(slog.New(slog.DiscardHandler)) // nobody else writes a log here either
	handler := a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(agent{os.Args[2]}))
	if err := http.ListenAndServe("127.0.0.1:"+os.Args[1], handler); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
