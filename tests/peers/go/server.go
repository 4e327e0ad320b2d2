package main

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpc03 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	grpc10 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/a2aproject/a2a-go/v2/a2asrv/push"
	"github.com/a2aproject/a2a-go/v2/a2asrv/taskstore"
	"google.golang.org/grpc"
)

// An agent does what the first word of a message says.
type agent struct{}

type yielding = func(a2a.Event, error) bool

func (agent) Execute(ctx context.Context, run *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield yielding) {
		words := strings.Fields(textOf(run.Message))
		if run.StoredTask == nil && words[0] == "hello" {
			reply := a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart("hello yourself"))
			reply.ContextID = run.ContextID
			yield(reply, nil)
			return
		}
		if run.StoredTask == nil && !yield(a2a.NewSubmittedTask(run, run.Message), nil) {
			return
		}
		status := func(state a2a.TaskState, text string) bool {
			var said *a2a.Message
			if text != "" {
				said = a2a.NewMessageForTask(a2a.MessageRoleAgent, run, a2a.NewTextPart(text))
			}
			return yield(a2a.NewStatusUpdateEvent(run, state, said), nil)
		}
		if words[0] == "answer" {
			answer(run, yield, status, words[1], words[2:])
			return
		}
		if !status(a2a.TaskStateWorking, "working on it") {
			return
		}
		switch words[0] {
		case "draft":
			draft := a2a.NewArtifactUpdateEvent(run, "draft", a2a.NewTextPart("draft. "))
			draft.Artifact.Name, draft.Append = "draft", false
			if yield(draft, nil) {
				status(a2a.TaskStateInputRequired, "which?")
			}
		case "report":
			if report(run, yield, words) {
				status(a2a.TaskStateCompleted, "done")
			}
		case "book":
			status(a2a.TaskStateInputRequired, "where to?")
		case "file":
			said := a2a.NewArtifactEvent(run, a2a.NewTextPart(filesOf(run.Message)))
			said.LastChunk = true
			if yield(said, nil) {
				status(a2a.TaskStateCompleted, "")
			}
		case "slow":
			<-ctx.Done()
			yield(nil, ctx.Err())
		case "fail":
			status(a2a.TaskStateFailed, "it did not work")
		case "raise":
			panic("a bug in the agent")
		default:
			ticket := a2a.NewArtifactEvent(run, a2a.NewTextPart("booked: "+strings.Join(words, " ")))
			ticket.Artifact.Name, ticket.LastChunk = "ticket", true
			if yield(ticket, nil) {
				status(a2a.TaskStateCompleted, "")
			}
		}
	}
}

func (agent) Cancel(_ context.Context, run *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield yielding) {
		yield(a2a.NewStatusUpdateEvent(run, a2a.TaskStateCanceled, nil), nil)
	}
}

// Go on with a task that asked: what comes first, and how it ends, is for `how` to say.
func answer(
	run *a2asrv.ExecutorContext, yield yielding, status func(a2a.TaskState, string) bool,
	how string, words []string,
) {
	switch how {
	case "chunks":
		if report(run, yield, append([]string{how}, words...)) {
			status(a2a.TaskStateCompleted, "")
		}
	case "more":
		more := a2a.NewArtifactUpdateEvent(run, "draft", a2a.NewTextPart("more. "))
		more.Artifact.Name, more.Append = "draft", true
		if yield(more, nil) {
			status(a2a.TaskStateCompleted, "")
		}
	case "again":
		if status(a2a.TaskStateWorking, "thinking") {
			status(a2a.TaskStateInputRequired, "and when?")
		}
	case "bare":
		status(a2a.TaskStateCompleted, "")
	case "said":
		status(a2a.TaskStateCompleted, "that is it")
	case "failed":
		status(a2a.TaskStateFailed, "it did not work")
	case "whole":
		whole := *run.StoredTask
		whole.Status = a2a.TaskStatus{State: a2a.TaskState("TASK_STATE_" + words[0])}
		if yield(&whole, nil) && report(run, yield, []string{how, "2", "0"}) {
			status(a2a.TaskStateCompleted, "")
		}
	}
}

func report(run *a2asrv.ExecutorContext, yield yielding, words []string) bool {
	count, _ := strconv.Atoi(words[1])
	pause, _ := strconv.ParseFloat(words[2], 64)
	for n := range count {
		text := a2a.NewTextPart(fmt.Sprintf("chunk %d. ", n))
		chunk := a2a.NewArtifactUpdateEvent(run, "report", text)
		chunk.Artifact.Name, chunk.Append, chunk.LastChunk = "report.txt", n > 0, n == count-1
		if !yield(chunk, nil) {
			return false
		}
		time.Sleep(time.Duration(pause * float64(time.Second)))
	}
	return true
}

func textOf(message *a2a.Message) string {
	var text strings.Builder
	for _, part := range message.Parts {
		text.WriteString(part.Text())
	}
	return text.String()
}

func filesOf(message *a2a.Message) string {
	var said []string
	for _, part := range message.Parts {
		if raw := part.Raw(); raw != nil {
			said = append(said, fmt.Sprintf("%d bytes of %s", len(raw), part.MediaType))
		}
	}
	return strings.Join(said, ", ")
}

func cardOf(url, grpcAddress string) *a2a.AgentCard {
	card := &a2a.AgentCard{
		Name:        "Official agent",
		Description: "An agent on the official SDK",
		Version:     "1.0.0",
		Capabilities: a2a.AgentCapabilities{
			Streaming: true, PushNotifications: true, ExtendedAgentCard: true,
		},
		DefaultInputModes:  []string{"text/plain", "image/png"},
		DefaultOutputModes: []string{"text/plain"},
		Skills: []a2a.AgentSkill{
			{ID: "all", Name: "All", Description: "Does it all", Tags: []string{"test"}},
		},
	}
	for _, version := range []a2a.ProtocolVersion{"1.0", "0.3"} {
		for _, offered := range []a2a.AgentInterface{
			{ProtocolBinding: a2a.TransportProtocolJSONRPC, URL: fmt.Sprintf("%s/%s/jsonrpc", url, version)},
			{ProtocolBinding: a2a.TransportProtocolHTTPJSON, URL: fmt.Sprintf("%s/%s/rest", url, version)},
			{ProtocolBinding: a2a.TransportProtocolGRPC, URL: grpcAddress},
		} {
			offered.ProtocolVersion = version
			card.SupportedInterfaces = append(card.SupportedInterfaces, &offered)
		}
	}
	return card
}

func serve() error {
	http1, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	http2, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	url := fmt.Sprintf("http://%s", http1.Addr())
	card := cardOf(url, http2.Addr().String())
	store := push.NewInMemoryStore()
	// The store that is taken by itself lists tasks for nobody whom it does not know.
	everybody := func(context.Context) (string, error) { return "everybody", nil }
	tasks := taskstore.NewInMemory(&taskstore.InMemoryStoreConfig{Authenticator: everybody})
	handler := a2asrv.NewHandler(agent{},
		a2asrv.WithTaskStore(tasks),
		a2asrv.WithPushNotifications(store, push.NewHTTPPushSender(nil)),
		a2asrv.WithExtendedAgentCard(card),
		a2asrv.WithExecutionPanicHandler(func(any) error { return a2a.ErrInternalError }),
	)

	paths := http.NewServeMux()
	paths.Handle(a2asrv.WellKnownAgentCardPath,
		a2asrv.NewAgentCardHandler(a2av0.NewStaticAgentCardProducer(card)))
	paths.Handle("/1.0/jsonrpc", a2asrv.NewJSONRPCHandler(handler))
	paths.Handle("/0.3/jsonrpc", a2av0.NewJSONRPCHandler(handler))
	paths.Handle("/1.0/rest/", http.StripPrefix("/1.0/rest", a2asrv.NewRESTHandler(handler)))
	paths.Handle("/0.3/rest/", http.StripPrefix("/0.3/rest", a2av0.NewRESTHandler(handler)))

	services := grpc.NewServer()
	grpc10.NewHandler(handler).RegisterWith(services)
	grpc03.NewHandler(handler).RegisterWith(services)

	ended := make(chan error, 3)
	go func() { ended <- http.Serve(http1, paths) }()
	go func() { ended <- services.Serve(http2) }()
	go func() { _, err := io.Copy(io.Discard, os.Stdin); ended <- err }()
	fmt.Println(url)
	return <-ended
}
