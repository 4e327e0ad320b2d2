// The official JavaScript SDK's client of 1.x, driven line by line; requests and results are the
// JSON of 1.0, whichever version it speaks.

const { sdk: load, drive } = require("../driven.cjs");

async function main() {
  const sdk = await load(".");
  const { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } =
    await load("./client");
  const { GrpcTransportFactory } = await load("./client/grpc");

  const both = { legacyCompat: { enabled: true } };
  const factory = new ClientFactory({
    transports: [
      new JsonRpcTransportFactory(both),
      new RestTransportFactory(both),
      new GrpcTransportFactory(both),
    ],
  });

  const CALLS = {
    send: ["sendMessage", sdk.SendMessageRequest, null],
    stream: ["sendMessageStream", sdk.SendMessageRequest, sdk.StreamResponse],
    subscribe: ["resubscribeTask", sdk.SubscribeToTaskRequest, sdk.StreamResponse],
    get: ["getTask", sdk.GetTaskRequest, sdk.Task],
    list: ["listTasks", sdk.ListTasksRequest, sdk.ListTasksResponse],
    cancel: ["cancelTask", sdk.CancelTaskRequest, sdk.Task],
    create_push: [
      "createTaskPushNotificationConfig",
      sdk.TaskPushNotificationConfig,
      sdk.TaskPushNotificationConfig,
    ],
    get_push: [
      "getTaskPushNotificationConfig",
      sdk.GetTaskPushNotificationConfigRequest,
      sdk.TaskPushNotificationConfig,
    ],
    list_push: [
      "listTaskPushNotificationConfig",
      sdk.ListTaskPushNotificationConfigsRequest,
      sdk.ListTaskPushNotificationConfigsResponse,
    ],
    delete_push: [
      "deleteTaskPushNotificationConfig",
      sdk.DeleteTaskPushNotificationConfigRequest,
      null,
    ],
  };

  function sent(result) {
    return "messageId" in result
      ? { message: sdk.Message.toJSON(result) }
      : { task: sdk.Task.toJSON(result) };
  }

  const clients = new Map();

  /** The card and the client for one interface of an agent, kept once they are there. */
  async function clientOf(url, binding, version) {
    const key = [url, binding, version].join(" ");
    if (!clients.has(key)) {
      const card = await new DefaultAgentCardResolver(both).resolve(url);
      const only = sdk.AgentCard.fromJSON(sdk.AgentCard.toJSON(card));
      only.supportedInterfaces = card.supportedInterfaces.filter(
        (i) => i.protocolBinding === binding && i.protocolVersion === version,
      );
      // The SDK asks for the extended card only where it is promised.
      only.capabilities.extendedAgentCard = true;
      clients.set(key, [card, await factory.createFromAgentCard(only)]);
    }
    return clients.get(key);
  }

  drive(async (command, give) => {
    const { do: what, params, headers } = command;
    const [card, client] = await clientOf(command.url, command.binding, command.version);
    if (what === "card") return give(sdk.AgentCard.toJSON(card));
    const options = { serviceParameters: headers, signal: AbortSignal.timeout(30000) };
    if (what === "extended_card") {
      return give(sdk.AgentCard.toJSON(await client.getAgentCard(options)));
    }
    const [method, Request, Result] = CALLS[what];
    const answer = client[method](Request.fromJSON(params), options);
    if (answer[Symbol.asyncIterator]) {
      for await (const event of answer) give(Result.toJSON(event));
      return;
    }
    const result = await answer;
    give(what === "send" ? sent(result) : Result && Result.toJSON(result));
  });
}

main();
