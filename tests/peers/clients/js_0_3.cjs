// The official JavaScript SDK's client of 0.3, driven line by line; requests and results are the
// JSON of 0.3.

const { sdk: load, drive } = require("../driven.cjs");

async function main() {
  const { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } =
    await load("./client");
  const { GrpcTransportFactory } = await load("./client/grpc");

  const factory = new ClientFactory({
    transports: [
      new JsonRpcTransportFactory(),
      new RestTransportFactory(),
      new GrpcTransportFactory(),
    ],
  });

  const CALLS = {
    send: "sendMessage",
    stream: "sendMessageStream",
    subscribe: "resubscribeTask",
    get: "getTask",
    cancel: "cancelTask",
    create_push: "setTaskPushNotificationConfig",
    get_push: "getTaskPushNotificationConfig",
    list_push: "listTaskPushNotificationConfig",
    delete_push: "deleteTaskPushNotificationConfig",
  };

  const clients = new Map();

  /** The card and the client for one binding of an agent, kept once they are there. */
  async function clientOf(url, binding) {
    const key = [url, binding].join(" ");
    if (!clients.has(key)) {
      const card = await new DefaultAgentCardResolver().resolve(url);
      const offered = [
        { url: card.url, transport: card.preferredTransport ?? "JSONRPC" },
        ...(card.additionalInterfaces ?? []),
      ];
      const spoken = offered.find((i) => i.transport === binding);
      const only = {
        ...card,
        url: spoken.url,
        preferredTransport: spoken.transport,
        additionalInterfaces: [],
      };
      clients.set(key, [card, await factory.createFromAgentCard(only)]);
    }
    return clients.get(key);
  }

  drive(async (command, give) => {
    const { do: what, params, headers } = command;
    const [card, client] = await clientOf(command.url, command.binding);
    if (what === "card") return give(card);
    const options = { serviceParameters: headers, signal: AbortSignal.timeout(30000) };
    if (what === "extended_card") return give(await client.transport.getExtendedAgentCard(options));
    const answer = client.transport[CALLS[what]](params, options);
    if (answer[Symbol.asyncIterator]) {
      for await (const event of answer) give(event);
      return;
    }
    give(await answer);
  });
}

main();
