// What a stranger's client does, with the WebSocket that it is given: of the package ws, or of a browser.
"use strict";

async function converse(WebSocket, url) {
  let count = 0;
  const source = { agentId: "stranger-" + Math.random().toString(36).slice(2) };

  async function connect() {
    const socket = new WebSocket(url, ["parley.envelope.v1"]);
    const inbox = [];
    let wake = () => {};
    socket.onmessage = (frame) => { inbox.push(JSON.parse(frame.data)); wake(); };
    await new Promise((done, fail) => { socket.onopen = done; socket.onerror = fail; });
    async function next(id) {
      for (;;) {
        const at = inbox.findIndex((each) => each.message.correlationId === id);
        if (at >= 0) return inbox.splice(at, 1)[0];
        await new Promise((done) => { wake = done; });
      }
    }
    function send(type, payload, more = {}, id = `stranger-${Math.random()}-${++count}`) {
      const message = { version: "1.0", messageId: id, timestamp: new Date().toISOString(), source,
        message: { type, ...more }, payload };
      socket.send(JSON.stringify(message));
      return id;
    }
    async function ended() {
      if (socket.readyState !== 3) await new Promise((done) => { socket.onclose = done; socket.close(); });
    }
    return { socket, send, next, ended };
  }

  const first = await connect();
  const query = await first.next(first.send("REQUEST", { action: "search", parameters: { query: "tides" } }));
  const beat = await first.next(first.send("HEARTBEAT", {}));
  const command = first.send("REQUEST", { action: "count" }, { subType: "command" });
  const seen = [await first.next(command)];
  while (seen.length < 3) seen.push(await first.next(command));
  await first.ended();

  // The same message over another connection: it goes on after the last event.
  const second = await connect();
  const after = seen[seen.length - 1].payload.metadata.sequence;
  second.send("REQUEST", { action: "count", metadata: { after, retryCount: 1 } }, { subType: "command" }, command);
  for (;;) {
    const message = await second.next(command);
    seen.push(message);
    if (message.message.type === "EVENT" && message.payload.status !== "partial") break;
  }
  const wrong = await second.next(second.send("REQUEST", { action: "nothing" }));
  await second.ended();
  return {
    subprotocol: first.socket.protocol,
    results: query.payload.results,
    heartbeat: beat.message.type,
    statuses: seen.map((each) => each.payload.status),
    numbers: seen.map((each) => each.payload.metadata.sequence).filter((each) => each !== undefined),
    tasks: [...new Set(seen.map((each) => each.payload.metadata.taskId).filter(Boolean))].length,
    code: wrong.payload.error.code,
  };
}

if (typeof require === "function") {
  const { WebSocket } = require(`${process.argv[2]}/node_modules/ws`);
  converse(WebSocket, process.argv[3]).then((said) => console.log(JSON.stringify(said)));
}
