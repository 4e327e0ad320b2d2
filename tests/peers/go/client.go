package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2aclient/agentcard"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	grpc03 "github.com/a2aproject/a2a-go/v2/a2agrpc/v0"
	grpc10 "github.com/a2aproject/a2a-go/v2/a2agrpc/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// A command says what to do, for which agent, by which of its interfaces.
type command struct {
	ID      int                 `json:"id"`
	Do      string              `json:"do"`
	URL     string              `json:"url"`
	Binding string              `json:"binding"`
	Version a2a.ProtocolVersion `json:"version"`
	Params  json.RawMessage     `json:"params"`
	Headers map[string]string   `json:"headers"`
}

// The names that the official Python SDK gives to the errors.
var names = []struct {
	err  error
	name string
}{
	{a2a.ErrTaskNotFound, "TaskNotFoundError"},
	{a2a.ErrTaskNotCancelable, "TaskNotCancelableError"},
	{a2a.ErrPushNotificationNotSupported, "PushNotificationNotSupportedError"},
	{a2a.ErrUnsupportedOperation, "UnsupportedOperationError"},
	{a2a.ErrUnsupportedContentType, "ContentTypeNotSupportedError"},
	{a2a.ErrInvalidAgentResponse, "InvalidAgentResponseError"},
	{a2a.ErrExtendedCardNotConfigured, "ExtendedAgentCardNotConfiguredError"},
	{a2a.ErrExtensionSupportRequired, "ExtensionSupportRequiredError"},
	{a2a.ErrVersionNotSupported, "VersionNotSupportedError"},
	{a2a.ErrInvalidParams, "InvalidParamsError"},
	{a2a.ErrMethodNotFound, "MethodNotFoundError"},
	{a2a.ErrParseError, "JSONParseError"},
	{a2a.ErrUnauthenticated, "UnauthenticatedError"},
	{a2a.ErrUnauthorized, "UnauthorizedError"},
	{a2a.ErrInvalidRequest, "InvalidRequestError"},
	{a2a.ErrInternalError, "InternalError"},
	{a2a.ErrServerError, "ServerError"},
}

func nameOf(err error) string {
	for _, known := range names {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	return "Error"
}

// drive does the commands side by side, and writes what comes of each as lines of JSON.
func drive() error {
	var writing sync.Mutex
	write := func(line map[string]any) {
		encoded, err := json.Marshal(line)
		if err != nil {
			encoded, _ = json.Marshal(map[string]any{
				"id": line["id"], "end": true, "error": "Unreadable", "said": err.Error(),
			})
		}
		writing.Lock()
		defer writing.Unlock()
		fmt.Println(string(encoded))
	}
	kept := &clients{byKey: map[string]*connection{}}
	var running sync.WaitGroup
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var asked command
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		running.Go(func() {
			give := func(item any) { write(map[string]any{"id": asked.ID, "item": item}) }
			end := map[string]any{"id": asked.ID, "end": true}
			if err := kept.perform(asked, give); err != nil {
				end["error"], end["said"] = nameOf(err), err.Error()
			}
			write(end)
		})
	}
	running.Wait()
	return lines.Err()
}

type connection struct {
	card   *a2a.AgentCard
	client *a2aclient.Client
}

// clients are kept once they are there, one for each interface of an agent.
type clients struct {
	lock  sync.Mutex
	byKey map[string]*connection
}

func (c *clients) of(ctx context.Context, asked command) (*connection, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	key := fmt.Sprint(asked.URL, " ", asked.Binding, " ", asked.Version)
	if there := c.byKey[key]; there != nil {
		return there, nil
	}
	resolver := agentcard.NewResolver(nil)
	if asked.Version == a2av0.Version {
		resolver.CardParser = a2av0.NewAgentCardParser()
	}
	card, err := resolver.Resolve(ctx, asked.URL)
	if err != nil {
		return nil, err
	}
	only := *card
	only.Capabilities.ExtendedAgentCard = true // the SDK asks only where it is promised
	only.SupportedInterfaces = nil
	for _, offered := range card.SupportedInterfaces {
		binding := string(offered.ProtocolBinding)
		if binding == asked.Binding && offered.ProtocolVersion == asked.Version {
			only.SupportedInterfaces = append(only.SupportedInterfaces, offered)
		}
	}
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	client, err := a2aclient.NewFromCard(ctx, &only,
		grpc10.WithGRPCTransport(plain),
		a2aclient.WithCompatTransport(a2av0.Version, a2a.TransportProtocolJSONRPC,
			a2av0.NewJSONRPCTransportFactory(a2av0.JSONRPCTransportConfig{})),
		a2aclient.WithCompatTransport(a2av0.Version, a2a.TransportProtocolHTTPJSON,
			a2av0.NewRESTTransportFactory(a2av0.RESTTransportConfig{})),
		a2aclient.WithCompatTransport(a2av0.Version, a2a.TransportProtocolGRPC,
			grpc03.NewGRPCTransportFactory(plain)),
	)
	if err != nil {
		return nil, err
	}
	c.byKey[key] = &connection{card, client}
	return c.byKey[key], nil
}

func (c *clients) perform(asked command, give func(any)) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for header, value := range asked.Headers {
		params := a2aclient.ServiceParams{header: []string{value}}
		ctx = a2aclient.AttachServiceParams(ctx, params)
	}
	to, err := c.of(ctx, asked)
	if err != nil {
		return err
	}
	switch asked.Do {
	case "card":
		give(to.card)
		return nil
	case "send":
		return one(ctx, asked, give, func(ctx context.Context, request *a2a.SendMessageRequest) (any, error) {
			result, err := to.client.SendMessage(ctx, request)
			return a2a.StreamResponse{Event: result}, err
		})
	case "stream":
		return several(ctx, asked, give, to.client.SendStreamingMessage)
	case "subscribe":
		return several(ctx, asked, give, to.client.SubscribeToTask)
	case "get":
		return one(ctx, asked, give, to.client.GetTask)
	case "list":
		return one(ctx, asked, give, to.client.ListTasks)
	case "cancel":
		return one(ctx, asked, give, to.client.CancelTask)
	case "extended_card":
		return one(ctx, asked, give, to.client.GetExtendedAgentCard)
	case "create_push":
		return one(ctx, asked, give, to.client.CreateTaskPushConfig)
	case "get_push":
		return one(ctx, asked, give, to.client.GetTaskPushConfig)
	case "list_push":
		return one(ctx, asked, give, func(ctx context.Context, request *a2a.ListTaskPushConfigRequest) (any, error) {
			configs, err := to.client.ListTaskPushConfigs(ctx, request)
			return map[string]any{"configs": configs}, err
		})
	case "delete_push":
		return one(ctx, asked, give, func(ctx context.Context, request *a2a.DeleteTaskPushConfigRequest) (any, error) {
			return nil, to.client.DeleteTaskPushConfig(ctx, request)
		})
	}
	return fmt.Errorf("no client does %q", asked.Do)
}

func one[Q, R any](
	ctx context.Context, asked command, give func(any), call func(context.Context, *Q) (R, error),
) error {
	request := new(Q)
	if err := json.Unmarshal(asked.Params, request); err != nil {
		return err
	}
	result, err := call(ctx, request)
	if err == nil {
		give(result)
	}
	return err
}

func several[Q any](
	ctx context.Context, asked command, give func(any),
	call func(context.Context, *Q) iter.Seq2[a2a.Event, error],
) error {
	request := new(Q)
	if err := json.Unmarshal(asked.Params, request); err != nil {
		return err
	}
	for event, err := range call(ctx, request) {
		if err != nil {
			return err
		}
		give(a2a.StreamResponse{Event: event})
	}
	return nil
}
