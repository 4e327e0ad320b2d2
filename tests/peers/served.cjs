// What the JavaScript servers share: the agent, which does what the first word of a message says,
// and listening. A server prints its address, then serves until its standard input closes.

const { randomUUID } = require("node:crypto");

async function report(tell, count, pause) {
  for (let n = 0; n < count; n++) {
    tell.artifact("report", "report.txt", `chunk ${n}. `, n > 0, n === count - 1);
    await new Promise((done) => setTimeout(done, 1000 * pause));
  }
}

/** Go on with a task that asked: what comes first, and how it ends, is for `how` to say. */
async function answer(tell, request, how, words) {
  if (how !== "whole") tell.task(request.task, request.userMessage);
  switch (how) {
    case "chunks":
      await report(tell, Number(words[0]), Number(words[1]));
      return tell.status("completed", "");
    case "more":
      tell.artifact("draft", "draft", "more. ", true, false);
      return tell.status("completed", "");
    case "again":
      tell.status("working", "thinking");
      return tell.status("input-required", "and when?");
    case "bare":
      return tell.status("completed", "");
    case "said":
      return tell.status("completed", "that is it");
    case "failed":
      return tell.status("failed", "it did not work");
    case "whole":
      tell.whole(request.task, words[0]);
      await report(tell, 2, 0);
      return tell.status("completed", "");
  }
}

/**
 * Return an executor for an SDK. `filesOf` gives the bytes, in base64, and the type of each file of
 * a message. `say` publishes what happens, in the SDK's own form: message(text),
 * task(known, userMessage), whole(task, state), status(state, text),
 * artifact(id, name, text, append, last).
 */
function agent(textOf, filesOf, say) {
  const canceled = new Set();

  const executor = {
    async execute(request, bus) {
      const words = textOf(request.userMessage).split(/\s+/);
      const tell = say(bus, request.taskId, request.contextId);
      if (!request.task && words[0] === "hello") {
        tell.message("hello yourself");
        return bus.finished();
      }
      if (words[0] === "answer") {
        await answer(tell, request, words[1], words.slice(2));
        return bus.finished();
      }
      tell.task(request.task, request.userMessage);
      tell.status("working", "working on it");
      switch (words[0]) {
        case "report":
          await report(tell, Number(words[1]), Number(words[2]));
          tell.status("completed", "done");
          break;
        case "draft":
          tell.artifact("draft", "draft", "draft. ", false, false);
          tell.status("input-required", "which?");
          break;
        case "book":
          tell.status("input-required", "where to?");
          break;
        case "file": {
          const files = filesOf(request.userMessage).map(
            ({ bytes, type }) => `${Buffer.from(bytes, "base64").length} bytes of ${type}`,
          );
          tell.artifact(randomUUID(), "files", files.join(", "), false, true);
          tell.status("completed", "");
          break;
        }
        case "slow":
          while (!canceled.has(request.taskId)) await new Promise((done) => setTimeout(done, 10));
          tell.status("canceled", "");
          break;
        case "fail":
          tell.status("failed", "it did not work");
          break;
        case "raise":
          throw new Error("a bug in the agent");
        default:
          tell.artifact(randomUUID(), "ticket", `booked: ${words.join(" ")}`, false, true);
          tell.status("completed", "");
      }
      bus.finished();
    },
    async cancelTask(taskId) {
      canceled.add(taskId);
    },
  };
  return executor;
}

/** Listen with an Express app and a gRPC server; `mount(url, grpcAddress)` puts the agent on them. */
function listen(app, grpc, server, mount) {
  server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, grpcPort) => {
    if (error) throw error;
    const http = app.listen(0, "127.0.0.1", () => {
      const url = `http://127.0.0.1:${http.address().port}`;
      mount(url, `127.0.0.1:${grpcPort}`);
      process.stdout.write(`${url}\n`);
    });
  });
  process.stdin.resume();
  process.stdin.on("end", () => process.exit(0));
}

module.exports = { agent, listen };
