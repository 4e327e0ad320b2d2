// An agent on the official JavaScript SDK's server of 1.x, with 0.3 beside it.

const { randomUUID } = require("node:crypto");
const { peer, sdk: load } = require("../driven.cjs");
const { agent, listen } = require("../served.cjs");
const express = peer("express");
const grpc = peer("@grpc/grpc-js");

async function main() {
  const sdk = await load(".");
  const {
    AgentEvent,
    DefaultExecutionEventBusManager,
    DefaultRequestHandler,
    InMemoryPushNotificationStore,
    InMemoryTaskStore,
  } = await load("./server");
  const { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } = await load("./server/express");
  const onGrpc = await load("./server/grpc");
  const { LegacyA2AService, legacyGrpcService } = await load("./compat/v0_3/server/grpc");
  const { createLegacyAwarePushNotificationSender } = await load("./compat/v0_3/server");

  const legacyCompat = { enabled: true };

  const textOf = (message) => sdk.Message.toJSON(message).parts.map((p) => p.text ?? "").join("");

  const filesOf = (message) =>
    sdk.Message.toJSON(message)
      .parts.filter((p) => p.raw)
      .map((p) => ({ bytes: p.raw, type: p.mediaType }));

  const say = (bus, taskId, contextId) => {
    const message = (text) => ({
      messageId: randomUUID(),
      role: "ROLE_AGENT",
      parts: [{ text }],
      taskId,
      contextId,
    });
    const status = (state, text) => ({
      state: `TASK_STATE_${state.toUpperCase().replace("-", "_")}`,
      timestamp: new Date().toISOString(),
      message: text ? message(text) : undefined,
    });
    return {
      message: (text) =>
        bus.publish(AgentEvent.message(sdk.Message.fromJSON({ ...message(text), taskId: "" }))),
      task: (known, asked) =>
        bus.publish(
          AgentEvent.task(
            known ?? {
              ...sdk.Task.fromJSON({ id: taskId, contextId, status: status("submitted", "") }),
              history: [asked],
            },
          ),
        ),
      whole: (task, state) => {
        const { status } = sdk.Task.fromJSON({ status: { state: `TASK_STATE_${state}` } });
        bus.publish(AgentEvent.task({ ...task, status }));
      },
      status: (state, text) =>
        bus.publish(
          AgentEvent.statusUpdate(
            sdk.TaskStatusUpdateEvent.fromJSON({ taskId, contextId, status: status(state, text) }),
          ),
        ),
      artifact: (artifactId, name, text, append, lastChunk) =>
        bus.publish(
          AgentEvent.artifactUpdate(
            sdk.TaskArtifactUpdateEvent.fromJSON({
              taskId,
              contextId,
              append,
              lastChunk,
              artifact: { artifactId, name, parts: [{ text }] },
            }),
          ),
        ),
    };
  };

  const cardOf = (url, grpcAddress) =>
    sdk.AgentCard.fromJSON({
      name: "Official agent",
      description: "An agent on the official SDK",
      version: "1.0.0",
      supportedInterfaces: ["1.0", "0.3"].flatMap((protocolVersion) => [
        { url: `${url}/jsonrpc`, protocolBinding: "JSONRPC", protocolVersion },
        { url: `${url}/rest`, protocolBinding: "HTTP+JSON", protocolVersion },
        { url: grpcAddress, protocolBinding: "GRPC", protocolVersion },
      ]),
      capabilities: { streaming: true, pushNotifications: true, extendedAgentCard: true },
      defaultInputModes: ["text/plain"],
      defaultOutputModes: ["text/plain"],
      skills: [{ id: "all", name: "All", description: "Does it all", tags: ["test"] }],
    });

  const app = express();
  const server = new grpc.Server();
  listen(app, grpc, server, (url, grpcAddress) => {
    const card = cardOf(url, grpcAddress);
    const pushes = new InMemoryPushNotificationStore();
    const requestHandler = new DefaultRequestHandler(
      card,
      new InMemoryTaskStore(),
      agent(textOf, filesOf, say),
      new DefaultExecutionEventBusManager(),
      pushes,
      createLegacyAwarePushNotificationSender(pushes),
      card,
    );
    const userBuilder = UserBuilder.noAuthentication;
    const options = { requestHandler, userBuilder, legacyCompat };
    const cards = agentCardHandler({ agentCardProvider: requestHandler, legacyCompat });
    app.use(`/${sdk.AGENT_CARD_PATH}`, cards);
    app.use("/jsonrpc", jsonRpcHandler(options));
    app.use("/rest", restHandler(options));
    const quiet = { requestHandler, userBuilder: onGrpc.UserBuilder.noAuthentication };
    server.addService(onGrpc.A2AService, onGrpc.grpcService(quiet));
    server.addService(LegacyA2AService, legacyGrpcService(quiet));
  });
}

main();
