// An agent on the official JavaScript SDK's server of 0.3.

const { randomUUID } = require("node:crypto");
const { peer, sdk: load } = require("../driven.cjs");
const { agent, listen } = require("../served.cjs");
const express = peer("express");
const grpc = peer("@grpc/grpc-js");

async function main() {
  const {
    DefaultExecutionEventBusManager,
    DefaultPushNotificationSender,
    DefaultRequestHandler,
    InMemoryPushNotificationStore,
    InMemoryTaskStore,
  } = await load("./server");
  const { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } = await load("./server/express");
  const onGrpc = await load("./server/grpc");

  const ENDS = ["completed", "failed", "canceled", "input-required"];

  const textOf = (message) => message.parts.map((p) => p.text ?? "").join("");

  const filesOf = (message) =>
    message.parts
      .filter((p) => p.kind === "file")
      .map(({ file }) => ({ bytes: file.bytes, type: file.mimeType }));

  const say = (bus, taskId, contextId) => {
    const message = (text) => ({
      kind: "message",
      messageId: randomUUID(),
      role: "agent",
      parts: [{ kind: "text", text }],
      contextId,
    });
    const status = (state, text) => ({
      state,
      timestamp: new Date().toISOString(),
      message: text ? { ...message(text), taskId } : undefined,
    });
    return {
      message: (text) => bus.publish(message(text)),
      task: (known, asked) =>
        known ||
        bus.publish({
          kind: "task",
          id: taskId,
          contextId,
          status: status("submitted", ""),
          history: [asked],
          artifacts: [],
        }),
      whole: (task, state) =>
        bus.publish({ ...task, status: { state: state.toLowerCase().replace("_", "-") } }),
      status: (state, text) =>
        bus.publish({
          kind: "status-update",
          taskId,
          contextId,
          status: status(state, text),
          final: ENDS.includes(state),
        }),
      artifact: (artifactId, name, text, append, lastChunk) =>
        bus.publish({
          kind: "artifact-update",
          taskId,
          contextId,
          append,
          lastChunk,
          artifact: { artifactId, name, parts: [{ kind: "text", text }] },
        }),
    };
  };

  const cardOf = (url, grpcAddress) => ({
    name: "Official agent",
    description: "An agent on the official SDK",
    version: "1.0.0",
    protocolVersion: "0.3.0",
    url: `${url}/jsonrpc`,
    preferredTransport: "JSONRPC",
    additionalInterfaces: [
      { url: `${url}/rest`, transport: "HTTP+JSON" },
      { url: grpcAddress, transport: "GRPC" },
    ],
    capabilities: { streaming: true, pushNotifications: true },
    supportsAuthenticatedExtendedCard: true,
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
      new DefaultPushNotificationSender(pushes),
      card,
    );
    const options = { requestHandler, userBuilder: UserBuilder.noAuthentication };
    app.use("/.well-known/agent-card.json", agentCardHandler({ agentCardProvider: requestHandler }));
    app.use("/jsonrpc", jsonRpcHandler(options));
    app.use("/rest", restHandler(options));
    const quiet = { requestHandler, userBuilder: onGrpc.UserBuilder.noAuthentication };
    server.addService(onGrpc.A2AService, onGrpc.grpcService(quiet));
  });
}

main();
