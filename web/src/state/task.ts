// A task as its reader sees it: the fold of its events, and one row for each event.

import { signal } from "@preact/signals";
import type { Followed } from "../client/following";
import {
  type Artifact, type Message, type Part, type StreamEvent, type Task, type TaskStatus, ENDED, PROGRESS, isObject, listOf,
} from "../client/types";

const REDRAW = 60;

export type Item = { kind: "message"; message: Message } | { kind: "artifact"; artifact: Artifact; chunks: number };

// `kind` is the member of the stream's response. A task that was read without a number has none.
export interface EventRow {
  id: string;
  kind: "task" | "status" | "artifact" | "progress";
  state: string;
  time: string;
  words: string;
  artifact: string;
  chunk: number;
  replaces: boolean;
}

export class TaskView implements Followed {
  id = "";
  contextId = "";
  status: TaskStatus = { state: "" };
  lastEventId = "";
  readonly items: Item[] = [];
  readonly rows: EventRow[] = [];
  readonly version = signal(0);
  readonly reconnecting = signal(0);
  private readonly artifacts = new Map<string, Item & { kind: "artifact" }>();
  private timer = 0;

  // A component that reads the state is drawn anew with every change.
  get state(): string {
    return this.version.value < 0 ? "" : this.status.state;
  }

  get isEnded(): boolean {
    return ENDED.includes(this.state);
  }

  get question(): Message | null {
    const waits = this.state === "TASK_STATE_INPUT_REQUIRED" || this.state === "TASK_STATE_AUTH_REQUIRED";
    return waits ? (this.status.message ?? { messageId: "", role: "ROLE_AGENT" }) : null;
  }

  connected(): void {
    this.reconnecting.value = 0;
  }

  waiting(since: number): void {
    this.reconnecting.value = since;
  }

  // Events that are known are skipped by their numbers.
  take(events: StreamEvent[]): void {
    for (const { id, value } of events) {
      const isKnown = id !== "" && this.lastEventId !== "" && Number(id) <= Number(this.lastEventId);
      if (value.task && isObject(value.task) && !(isKnown && this.rows.length)) this.takeTask(value.task, id);
      else if (isKnown) continue;
      else if (value.statusUpdate) this.takeStatus(value.statusUpdate.status, id, value.statusUpdate.metadata);
      else if (value.artifactUpdate) this.takeArtifact(value.artifactUpdate.artifact, value.artifactUpdate.append === true, id);
      if (id !== "" && !isKnown) this.lastEventId = id;
    }
    this.redraw();
  }

  // A message of the caller, that the log does not have as an event.
  sent(message: Message): void {
    if (!this.hasMessage(message.messageId)) this.items.push({ kind: "message", message });
    this.redraw();
  }

  unsent(message: Message): void {
    const at = this.items.findIndex((each) => each.kind === "message" && each.message === message);
    if (at >= 0) this.items.splice(at, 1);
    this.redraw();
  }

  // Messages of a task that was read, at their places between the known ones.
  takeHistory(history: readonly Message[]): void {
    let place = 0;
    for (const message of history) {
      if (!isObject(message)) continue;
      const at = this.items.findIndex((each) => each.kind === "message" && each.message.messageId === message.messageId);
      if (at >= 0) place = at + 1;
      else this.items.splice(place++, 0, { kind: "message", message });
    }
    this.redraw();
  }

  private takeTask(task: Task, id: string): void {
    const isFirst = this.rows.length === 0;
    this.id = task.id;
    this.contextId = task.contextId ?? "";
    this.takeHistory(listOf(task.history));
    for (const artifact of listOf(task.artifacts)) this.fold(artifact, false);
    if (isObject(task.status)) this.foldStatus(task.status);
    const isSame = !isFirst && id !== "" && id === this.lastEventId;
    if ((id !== "" || isFirst) && !isSame) this.row({ id, kind: "task", state: this.state, time: task.status?.timestamp ?? "" });
  }

  private takeStatus(status: TaskStatus, id: string, metadata?: Record<string, unknown>): void {
    const progress = metadata?.[PROGRESS];
    this.foldStatus(status);
    if (isObject(progress)) {
      const words = [progress.kind, progress.name, progress.text].filter((each) => typeof each === "string").join(" · ");
      this.row({ id, kind: "progress", state: status.state, time: status.timestamp ?? "", words });
    } else {
      const words = listOf(status.message?.parts).map((each) => each.text ?? "").join(" ");
      this.row({ id, kind: "status", state: status.state, time: status.timestamp ?? "", words });
    }
  }

  private takeArtifact(artifact: Artifact, append: boolean, id: string): void {
    const isKnown = this.artifacts.has(artifact.artifactId);
    const folded = this.fold(artifact, append);
    const words = listOf(artifact.parts).map((each) => each.text ?? each.filename ?? "").join(" ");
    this.row({
      id, kind: "artifact", state: "", time: "", words,
      artifact: folded.artifact.name || artifact.artifactId, chunk: folded.chunks, replaces: isKnown && !append,
    });
  }

  private row(about: Partial<EventRow> & Pick<EventRow, "id" | "kind">): void {
    const row = { state: "", time: "", words: "", artifact: "", chunk: 0, replaces: false, ...about };
    this.rows.push({ ...row, words: row.words.slice(0, 200) });
  }

  private foldStatus(status: TaskStatus): void {
    this.status = status;
    const { message } = status;
    if (isObject(message) && !this.hasMessage(message.messageId)) this.items.push({ kind: "message", message });
  }

  private fold(artifact: Artifact, append: boolean): Item & { kind: "artifact" } {
    const known = this.artifacts.get(artifact.artifactId);
    if (!known) {
      const item: Item & { kind: "artifact" } = { kind: "artifact", artifact: { ...artifact, parts: [...listOf(artifact.parts)] }, chunks: 1 };
      this.artifacts.set(artifact.artifactId, item);
      this.items.push(item);
      return item;
    }
    const parts = append ? joined(listOf(known.artifact.parts), listOf(artifact.parts)) : [...listOf(artifact.parts)];
    known.chunks = append ? known.chunks + 1 : 1;
    known.artifact = { ...known.artifact, ...artifact, parts };
    return known;
  }

  private hasMessage(id: string): boolean {
    return this.items.some((each) => each.kind === "message" && each.message.messageId === id);
  }

  private redraw(): void {
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      this.version.value += 1;
    }, REDRAW) as unknown as number;
  }
}

// Chunks of text are one text.
function joined(before: readonly Part[], added: readonly Part[]): Part[] {
  const all = [...before];
  for (const part of added) {
    const last = all.at(-1);
    const isText = typeof part.text === "string" && typeof last?.text === "string";
    if (isText && last.mediaType === part.mediaType && !part.filename) all[all.length - 1] = { ...last, text: (last.text ?? "") + part.text };
    else all.push(part);
  }
  return all;
}
