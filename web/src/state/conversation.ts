// A conversation with one agent: what was sent, and what came of it. The tab remembers its ids.

import { signal } from "@preact/signals";
import { type AgentClient, Problem } from "../client/client";
import { follow, isSettled, pause, raise } from "../client/following";
import { type Message, type Part, type StreamEvent, isObject, listOf } from "../client/types";
import { ofTab } from "./storage";
import { TaskView } from "./task";

const MOST_ATTEMPTS = 8;
const MOST_ENTRIES = 200;
const MOST_REPLAYED = 5;

// What was said once: with a task, or with a direct reply, or (yet) without either.
export interface Entry {
  readonly sent: Message;
  readonly skill: string;
  reply: Message | null;
  task: TaskView | null;
}

// A message before it has an id. `json` is its data as the form wrote it, so numbers stay as typed.
export interface Draft {
  text?: string;
  json?: string;
  files?: Part[];
  skill?: string;
}

export class Conversation {
  readonly entries = signal<readonly Entry[]>([]);
  readonly busy = signal(false);
  readonly reconnecting = signal(0);
  readonly problem = signal<Problem | null>(null);
  contextId = "";
  private readonly skills = new Map<string, string>();
  private stopping: AbortController | null = null;

  constructor(private readonly client: AgentClient) {}

  get task(): TaskView | null {
    return this.entries.value.findLast((each) => each.task)?.task ?? null;
  }

  // The task that waits for an answer.
  get asking(): TaskView | null {
    const last = this.entries.value.at(-1)?.task ?? null;
    return last?.question ? last : null;
  }

  skillOf(message: Message): string {
    return this.skills.get(message.messageId) ?? "";
  }

  // Sends a message, and follows what comes of it. Returns the problem of a message that was refused.
  async send(draft: Draft): Promise<Problem | null> {
    if (this.busy.value) return null;
    const asking = this.asking;
    const message = messageOf(draft, asking, this.contextId);
    const body = bodyOf(message, draft);
    const skill = draft.skill ?? "";
    const entry: Entry = { sent: message, skill, reply: null, task: asking };
    if (skill) this.skills.set(message.messageId, skill);
    if (asking) asking.sent(message);
    else this.entries.value = [...this.entries.value, entry];
    this.problem.value = null;
    return this.run(async (signal) => {
      const problem = await this.exchange(body, entry, signal);
      if (problem && !asking) this.entries.value = this.entries.value.filter((each) => each !== entry);
      else if (problem) asking?.unsent(message);
      if (!problem && entry.task) await follow(this.client, entry.task, signal);
      return problem;
    });
  }

  async cancel(): Promise<void> {
    const task = this.entries.value.at(-1)?.task ?? null;
    const isCutOff = this.reconnecting.value || task?.reconnecting.value;
    if (task && !task.isEnded && task.id && !isCutOff) {
      try {
        const found = await this.client.cancel(task.id);
        // A stream brings the events; without one this is the end.
        if (!this.busy.value) task.take([{ id: "", value: { task: found } }]);
      } catch (error) {
        this.fail(error);
      }
    } else this.stopping?.abort();
  }

  forget(): void {
    this.stopping?.abort();
    this.entries.value = [];
    this.contextId = "";
    this.problem.value = null;
    ofTab.write(`chat:${this.client.base}`, null);
  }

  // Resumes what the tab remembers of this agent.
  async resume(): Promise<void> {
    const kept = ofTab.read(`chat:${this.client.base}`);
    if (!kept) return;
    this.contextId = String(kept.context ?? "");
    const found: Entry[] = [];
    for (const each of listOf(kept.entries as Record<string, unknown>[]).filter(isObject)) {
      const task = typeof each.task === "string" ? new TaskView() : null;
      if (task) task.id = String(each.task);
      const sent = (isObject(each.sent) ? each.sent : { messageId: "", role: "ROLE_USER" }) as unknown as Message;
      found.push({ sent, skill: "", reply: (each.reply as Message | null) ?? null, task });
    }
    for (const [id, skill] of Object.entries(isObject(kept.skills) ? kept.skills : {})) this.skills.set(id, String(skill));
    this.entries.value = found;
    await this.run(async (signal) => {
      const tasks = found.flatMap(({ task }) => (task ? [task] : []));
      for (const [at, task] of tasks.entries()) {
        const problem = await this.restore(task, at >= tasks.length - MOST_REPLAYED, signal);
        // For a caller who is not known (any more), the conversation waits where it is kept.
        if (problem?.status === 401) this.entries.value = [];
        if (problem) return problem;
      }
      return null;
    });
  }

  private async restore(task: TaskView, isReplayed: boolean, signal: AbortSignal): Promise<Problem | null> {
    try {
      if (isReplayed && this.client.resumes && this.client.streams) {
        task.lastEventId = "0";
        const reading = new AbortController();
        const both = AbortSignal.any([signal, reading.signal]);
        const found = await this.patient(task, () => this.client.get(task.id, both), signal);
        try {
          for await (const events of this.client.subscribe(task.id, "0", both)) {
            task.take(events);
            if (isSettled(task.state) && task.status.timestamp === found.status.timestamp) break;
            if (!isSettled(found.status.state)) break;
          }
        } finally {
          reading.abort();
        }
        task.takeHistory(listOf(found.history));
      } else {
        const found = await this.patient(task, () => this.client.get(task.id, signal), signal);
        task.take([{ id: "", value: { task: found } }]);
      }
      await follow(this.client, task, signal);
      return null;
    } catch (error) {
      if (signal.aborted) throw error;
      if (error instanceof Problem && error.status === 404) {
        this.entries.value = this.entries.value.filter((each) => each.task !== task);
        return null;
      }
      return asProblem(error);
    }
  }

  // Asks again while the agent cannot be reached.
  private async patient<T>(task: TaskView | null, ask: () => Promise<T>, signal: AbortSignal): Promise<T> {
    let since = 0;
    for (let count = 0; ; count += 1) {
      try {
        const found = await ask();
        this.reconnecting.value = 0;
        task?.connected();
        return found;
      } catch (error) {
        if (signal.aborted || !(error instanceof Problem) || !error.isPassing || count >= MOST_ATTEMPTS) throw error;
        since ||= Date.now();
        this.reconnecting.value = since;
        await pause(Math.min(500 * 2 ** count, 10_000), signal);
      }
    }
  }

  // The message and the first events. A message that may have been lost is sent again where that is safe.
  private async exchange(body: string, entry: Entry, signal: AbortSignal): Promise<Problem | null> {
    let isHeard = false;
    const once = async (): Promise<void> => {
      try {
        if (this.client.streams) {
          for await (const events of this.client.stream(body, signal)) {
            isHeard = this.hear(events, entry) || isHeard;
            raise(events);
          }
        } else {
          const { task, message } = await this.client.send(body, signal);
          isHeard = this.hear([{ id: "", value: { task, message } }], entry);
        }
      } catch (error) {
        // A stream that breaks after its first event is followed.
        if (isHeard && error instanceof Problem && error.isPassing) return;
        throw error;
      }
    };
    try {
      await (this.client.repeats ? this.patient(null, once, signal) : once());
      return null;
    } catch (error) {
      if (signal.aborted) throw error;
      return asProblem(error);
    }
  }

  private hear(events: StreamEvent[], entry: Entry): boolean {
    const task = events.find((each) => each.value.task)?.value.task;
    const reply = events.find((each) => each.value.message)?.value.message;
    if (task && !entry.task) {
      entry.task = new TaskView();
      entry.task.sent({ ...entry.sent, taskId: task.id });
    }
    if (reply) entry.reply = reply;
    if (entry.task) entry.task.take(events);
    this.contextId = entry.task?.contextId || reply?.contextId || this.contextId;
    if (task || reply) {
      this.entries.value = [...this.entries.value];
      this.remember();
    }
    return Boolean(entry.task?.id || reply);
  }

  private async run(work: (signal: AbortSignal) => Promise<Problem | null>): Promise<Problem | null> {
    const stopping = new AbortController();
    this.stopping = stopping;
    this.busy.value = true;
    try {
      const problem = await work(stopping.signal);
      this.problem.value = problem;
      return problem;
    } catch (error) {
      if (!stopping.signal.aborted) return this.fail(error);
      return null;
    } finally {
      if (this.stopping === stopping) {
        this.busy.value = false;
        this.reconnecting.value = 0;
        this.task?.connected();
        if (this.entries.value.length) this.remember();
      }
    }
  }

  private fail(error: unknown): Problem {
    const problem = asProblem(error);
    this.problem.value = problem;
    return problem;
  }

  private remember(): void {
    const entries = this.entries.value.slice(-MOST_ENTRIES).map(({ sent, reply, task }) =>
      task ? { task: task.id, last: task.lastEventId } : { sent: light(sent), reply });
    const skills = Object.fromEntries(this.skills);
    ofTab.write(`chat:${this.client.base}`, { context: this.contextId, entries, skills });
  }
}

const asProblem = (error: unknown): Problem =>
  error instanceof Problem ? error : new Problem(0, error instanceof Error ? error.message : String(error));

// A message without the bytes of its files.
const light = (message: Message): Message => ({
  ...message,
  parts: listOf(message.parts).map((part) => (part.raw ? { filename: part.filename, mediaType: part.mediaType, raw: "" } : part)),
});

export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `m-${Array.from(bytes, (each) => each.toString(16).padStart(2, "0")).join("")}`;
}

function messageOf(draft: Draft, asking: TaskView | null, contextId: string): Message {
  const parts: Part[] = [];
  if (draft.json !== undefined) parts.push({ data: JSON.parse(draft.json), mediaType: "application/json" });
  if (draft.text) parts.push({ text: draft.text });
  parts.push(...(draft.files ?? []));
  const task = asking ? { taskId: asking.id, contextId: asking.contextId } : contextId ? { contextId } : {};
  return { messageId: newId(), role: "ROLE_USER", parts, ...task };
}

// The request of a message, with its data as text.
function bodyOf(message: Message, draft: Draft): string {
  const parts = listOf(message.parts).map((part) =>
    part.data !== undefined && draft.json !== undefined
      ? `{"data":${draft.json},"mediaType":"application/json"}`
      : JSON.stringify(part));
  const { parts: _, ...rest } = message;
  const metadata = draft.skill ? `,"metadata":${JSON.stringify({ skill: draft.skill })}` : "";
  return `{"message":${JSON.stringify(rest).slice(0, -1)},"parts":[${parts.join(",")}]}${metadata}}`;
}
