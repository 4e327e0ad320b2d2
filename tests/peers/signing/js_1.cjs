// Signs and verifies cards with the official JavaScript SDK of 1.x; commands as in python_1.py.

const fs = require("node:fs");
const { sdk: load, peer } = require("../driven.cjs");

async function main() {
  console.debug = () => {}; // it says there which signatures do not count
  const sdk = await load(".");
  const { ClientFactory, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory } =
    await load("./client");
  const jose = await import(peer.resolve("jose"));

  function verifier(keys) {
    const known = Object.fromEntries(keys.keys.map((key) => [key.kid, key]));
    return sdk.verifyAgentCardSignature(async (kid) => jose.importJWK(known[kid]));
  }

  function resolver(headers) {
    const fetchImpl = (url, options = {}) =>
      fetch(url, { ...options, headers: { ...options.headers, ...headers } });
    return { fetchImpl, cards: new DefaultAgentCardResolver({ fetchImpl }) };
  }

  const DOES = {
    async fetch({ url, keys, version, path, raw }) {
      // Without a version it gets the card for all, as older clients of it do.
      const fetchImpl = (where, options = {}) =>
        fetch(where, { ...options, headers: version ? { "A2A-Version": version } : {} });
      const card = raw
        ? await (await fetchImpl(new URL("/.well-known/agent-card.json", url))).json()
        : await new DefaultAgentCardResolver({ fetchImpl }).resolve(url, path || undefined);
      await verifier(keys)(card);
      return { name: card.name, description: card.description };
    },
    async extended({ url, keys, binding, token }) {
      const { fetchImpl, cards } = resolver({ Authorization: `Bearer ${token}` });
      const Transport = binding === "JSONRPC" ? JsonRpcTransportFactory : RestTransportFactory;
      const factory = new ClientFactory({ transports: [new Transport({ fetchImpl })] });
      const client = await factory.createFromAgentCard(await cards.resolve(url));
      const card = await client.getAgentCard(undefined, verifier(keys));
      return { name: card.name, description: card.description };
    },
    async sign({ card, key, header }) {
      const sign = sdk.generateAgentCardSignature(await jose.importJWK(key, key.alg), header);
      return { card: sdk.AgentCard.toJSON(await sign(sdk.AgentCard.fromJSON(card))) };
    },
  };

  const answers = [];
  for (const { do: name, ...command } of JSON.parse(fs.readFileSync(0))) {
    try {
      answers.push(await DOES[name](command));
    } catch (error) {
      answers.push({ error: error.constructor.name, said: String(error.message ?? error) });
    }
  }
  fs.writeSync(1, JSON.stringify(answers));
  process.exit(0);
}

main();
