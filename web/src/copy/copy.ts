// An exchange in other words: as curl, as Python, as a command. Secrets are never in them, only places.

import type { AgentClient } from "../client/client";
import { type Message, type Part, SKILL_SCHEMAS, TYPED_QUESTIONS, listOf } from "../client/types";
import { placeholders } from "../signin/schemes";

export type Way = "curl" | "python" | "command";

const shell = (words: string): string => `'${words.replaceAll("'", "'\\''")}'`;
const python = (value: unknown): string => {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each)}`).join(", ")}}`;
  return typeof value === "string" ? JSON.stringify(value) : String(value);
};

const isFile = (part: Part): boolean => part.raw !== undefined || part.url !== undefined;
const fileName = (part: Part): string => part.url ?? part.filename ?? "FILE";

export function written(way: Way, client: AgentClient, message: Message, skill: string): string {
  if (way === "curl") return asCurl(client, message, skill);
  return way === "python" ? asPython(client, message, skill) : asCommand(client, message, skill);
}

function asCurl(client: AgentClient, message: Message, skill: string): string {
  const parts = listOf(message.parts).map((part) => (part.raw === undefined ? part : { ...part, raw: part.raw.length > 1000 ? "…" : part.raw }));
  const body = { message: { ...message, parts }, ...(skill ? { metadata: { skill } } : {}) };
  const secrets = placeholders(client.card);
  const query = Object.entries(secrets.query).map(([name, value]) => `${encodeURIComponent(name)}=${value}`).join("&");
  const path = `${client.address}/message:${client.streams ? "stream" : "send"}${query ? `?${query}` : ""}`;
  const uris = [SKILL_SCHEMAS, TYPED_QUESTIONS].filter((uri) => client.has(uri)).join(", ");
  const headers = { "A2A-Version": "1.0", "Content-Type": "application/a2a+json", ...(uris ? { "A2A-Extensions": uris } : {}), ...secrets.headers };
  const lines = [`curl -N ${shell(path)}`, ...Object.entries(headers).map(([name, value]) => `-H ${shell(`${name}: ${value}`)}`), `-d ${shell(JSON.stringify(body))}`];
  return lines.join(" \\\n  ");
}

function asPython(client: AgentClient, message: Message, skill: string): string {
  const given: string[] = [];
  const parts = listOf(message.parts);
  const text = parts.find((part) => part.text !== undefined)?.text;
  const data = parts.find((part) => part.data !== undefined);
  const files = parts.filter(isFile).map(fileName);
  if (text !== undefined) given.push(python(text));
  if (data) given.push(`data=${python(data.data)}`);
  if (files.length) given.push(`files=${python(files)}`);
  if (skill) given.push(`skill=${python(skill)}`);
  if (message.taskId) given.push(`task_id=${python(message.taskId)}`);
  else if (message.contextId) given.push(`context_id=${python(message.contextId)}`);
  const options = placeholders(client.card).python;
  return [
    "import asyncio", "", "import parley", "", "",
    "async def main() -> None:",
    `    async with parley.connect(${[python(client.address), ...options].join(", ")}) as agent:`,
    `        print(await agent.send(${given.join(", ")}))`,
    "", "", "asyncio.run(main())", "",
  ].join("\n");
}

function asCommand(client: AgentClient, message: Message, skill: string): string {
  const { command } = placeholders(client.card);
  const words = ["parley send --stream", `-a ${shell(client.address)}`, ...command];
  let before = "";
  for (const part of listOf(message.parts)) {
    if (part.text !== undefined) words.push(`--text ${shell(part.text)}`);
    else if (isFile(part)) words.push(`--file ${shell(fileName(part))}`);
    else if (part.data !== undefined) {
      before = `echo ${shell(JSON.stringify(part.data))} | `;
      words.push("--data -");
    }
  }
  if (skill) words.push(`--skill ${shell(skill)}`);
  if (message.taskId) words.push(`--task-id ${shell(message.taskId)}`);
  else if (message.contextId) words.push(`--context-id ${shell(message.contextId)}`);
  return before + words.join(" ");
}
