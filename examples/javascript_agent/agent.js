// A local guide on the official JavaScript SDK: it asks for the city, and streams what to see there.
//
//     npm install && npm start

import { randomUUID } from "node:crypto";
import { AGENT_CARD_PATH, AgentCard, Message, Task } from "@a2a-js/sdk";
import { TaskArtifactUpdateEvent, TaskStatusUpdateEvent } from "@a2a-js/sdk";
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { UserBuilder, agentCardHandler, jsonRpcHandler } from "@a2a-js/sdk/server/express";
import express from "express";

const PORT = Number(process.env.PORT ?? 4000);
const SIGHTS = {
  helsinki: ["The fortress of Suomenlinna", "The market square", "A sauna by the sea"],
  london: ["The Tower", "The South Bank on foot", "The British Museum"],
  tokyo: ["The garden of Rikugien", "Tsukiji in the morning", "Yanaka, the old town"],
};

const textOf = (message) => Message.toJSON(message).parts.map((part) => part.text ?? "").join(" ");

class LocalGuide {
  async execute({ taskId, contextId, userMessage, task }, bus) {
    const ids = { taskId, contextId };
    const status = (state, text) => {
      const message = text && { messageId: randomUUID(), role: "ROLE_AGENT", parts: [{ text }] };
      const event = { ...ids, status: { state, message, timestamp: new Date().toISOString() } };
      bus.publish(AgentEvent.statusUpdate(TaskStatusUpdateEvent.fromJSON(event)));
    };

    const begun = { id: taskId, contextId, status: { state: "TASK_STATE_SUBMITTED" } };
    bus.publish(AgentEvent.task(task ?? { ...Task.fromJSON(begun), history: [userMessage] }));
    const asked = textOf(userMessage).toLowerCase();
    const city = Object.keys(SIGHTS).find((name) => asked.includes(name));
    if (!city) {
      status("TASK_STATE_INPUT_REQUIRED", "Which city: Helsinki, London or Tokyo?");
      return bus.finished();
    }
    status("TASK_STATE_WORKING", `I know ${city} well`);
    SIGHTS[city].forEach((sight, number, all) => {
      const artifact = { artifactId: "sights", name: "sights", parts: [{ text: `${sight}. ` }] };
      const chunk = { append: number > 0, lastChunk: number === all.length - 1 };
      const event = TaskArtifactUpdateEvent.fromJSON({ ...ids, ...chunk, artifact });
      bus.publish(AgentEvent.artifactUpdate(event));
    });
    status("TASK_STATE_COMPLETED");
    bus.finished();
  }

  async cancelTask() {}
}

const app = express();
const server = app.listen(PORT, "127.0.0.1", () => {
  const url = `http://localhost:${server.address().port}`;
  const card = AgentCard.fromJSON({
    name: "Local guide",
    description: "Knows what to see in a city",
    version: "1.0.0",
    supportedInterfaces: [{ url, protocolBinding: "JSONRPC", protocolVersion: "1.0" }],
    capabilities: { streaming: true },
    defaultInputModes: ["text/plain"],
    defaultOutputModes: ["text/plain"],
    skills: [
      {
        id: "sights",
        name: "Sights",
        description: "Says what to see in a city",
        tags: ["travel"],
        examples: ["What is there to see in Helsinki?"],
      },
    ],
  });
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new LocalGuide());
  app.use(`/${AGENT_CARD_PATH}`, agentCardHandler({ agentCardProvider: requestHandler }));
  app.use("/", jsonRpcHandler({ requestHandler, userBuilder: UserBuilder.noAuthentication }));
  console.log(url);
});
