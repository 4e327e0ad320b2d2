// The measured agents on the JavaScript SDK's server, with its store in memory.
//
// Arguments: the directory that holds node_modules, the port, and what the agent does: reply, task,
// stream, wait or talk.

const { randomUUID } = require("node:crypto");
const { createRequire } = require("node:module");
const fs = require("node:fs");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const [home, port, does] = process.argv.slice(2);
const express = createRequire(path.join(home, "package.json"))("express");
const sdkHome = path.join(home, "node_modules", "@a2a-js", "sdk");
const { exports: entries } = JSON.parse(fs.readFileSync(path.join(sdkHome, "package.json")));
// Its modules share their classes only when all of them are imported, and none is required.
const load = (entry) => import(pathToFileURL(path.join(sdkHome, entries[entry].import)));

async function main() {
  const sdk = await load(".");
  const { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } = await load("./server");
  const { UserBuilder, jsonRpcHandler } = await load("./server/express");

  const agent = {
    async execute({ userMessage, taskId, contextId }, bus) {
      const text = sdk.Message.toJSON(userMessage).parts[0].text;
      const said = (text) => ({
        messageId: randomUUID(),
        role: "ROLE_AGENT",
        parts: [{ text }],
        contextId,
      });
      const status = (state) => ({ state: `TASK_STATE_${state}`, timestamp: new Date().toISOString() });
      const state = (name) =>
        bus.publish(
          AgentEvent.statusUpdate(
            sdk.TaskStatusUpdateEvent.fromJSON({ taskId, contextId, status: status(name) }),
          ),
        );
      const artifact = (artifactId, text, append) =>
        bus.publish(
          AgentEvent.artifactUpdate(
            sdk.TaskArtifactUpdateEvent.fromJSON({
              taskId,
              contextId,
              append,
              artifact: { artifactId, name: "result", parts: [{ text }] },
            }),
          ),
        );

      if (does === "reply") {
        bus.publish(AgentEvent.message(sdk.Message.fromJSON(said(text))));
        return bus.finished();
      }
      const task = sdk.Task.fromJSON({ id: taskId, contextId, status: status("SUBMITTED") });
      task.history = [userMessage];
      if (does === "talk")
        for (let n = 1; n < 20; n++)
          task.history.push(
            sdk.Message.fromJSON({ ...said(`message ${n} of a conversation`), taskId }),
          );
      bus.publish(AgentEvent.task(task));
      state("WORKING");
      if (does === "wait") return new Promise(() => {});
      if (does === "task") artifact(randomUUID(), text, false);
      if (does === "stream")
        for (let n = 0; n < Number(text); n++) artifact("report", `chunk ${n} `, n > 0);
      state("COMPLETED");
      bus.finished();
    },
    async cancelTask() {},
  };

  const card = sdk.AgentCard.fromJSON({
    name: "Benchmark",
    description: "An agent to be measured",
    version: "1.0.0",
    supportedInterfaces: [
      { url: `http://127.0.0.1:${port}/`, protocolBinding: "JSONRPC", protocolVersion: "1.0" },
    ],
    capabilities: { streaming: true },
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [{ id: "work", name: "work", description: "works", tags: ["work"] }],
  });
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), agent);
  const app = express();
  app.use("/", jsonRpcHandler({ requestHandler, userBuilder: UserBuilder.noAuthentication }));
  app.listen(Number(port), "127.0.0.1");
}

main();
