// Follows a task to its end or its question, across broken streams and servers that come back.

import { type AgentClient, Problem, problemOf } from "./client";
import { type StreamEvent, ASKING, ENDED } from "./types";

const FIRST_WAIT = 500;
const LONGEST_WAIT = 10_000;
const POLL = 2_000;

export interface Followed {
  readonly id: string;
  readonly state: string;
  readonly lastEventId: string;
  take(events: StreamEvent[]): void;
  connected(): void;
  waiting(since: number): void;
}

export const pause = (milliseconds: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve, reject) => {
    const stop = (): void => { clearTimeout(timer); reject(new DOMException("stopped", "AbortError")); };
    const timer = setTimeout(() => { signal.removeEventListener("abort", stop); resolve(); }, milliseconds);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });

export const isSettled = (state: string): boolean => ENDED.includes(state) || ASKING.includes(state);

// A task that waits for a login goes on by itself, so it is followed too.
export async function follow(client: AgentClient, task: Followed, signal: AbortSignal): Promise<void> {
  let failures = 0;
  let since = 0;
  while (!ENDED.includes(task.state) && task.state !== "TASK_STATE_INPUT_REQUIRED") {
    try {
      if (client.streams && (client.resumes || failures < 2)) {
        for await (const events of client.subscribe(task.id, client.resumes ? task.lastEventId : "", signal)) {
          failures = 0;
          since = 0;
          task.connected();
          task.take(events);
          raise(events);
        }
      } else {
        const found = await client.get(task.id, signal);
        failures = 0;
        since = 0;
        task.connected();
        task.take([{ id: "", value: { task: found } }]);
      }
      if (isSettled(task.state) && task.state !== "TASK_STATE_AUTH_REQUIRED") return;
      await pause(POLL, signal);
    } catch (error) {
      if (signal.aborted) throw error;
      if (error instanceof Problem && error.reason === "UNSUPPORTED_OPERATION") {
        task.take([{ id: "", value: { task: await client.get(task.id, signal) } }]);
        continue;
      }
      if (error instanceof Problem && !error.isPassing) throw error;
      failures += 1;
      since ||= Date.now();
      task.waiting(since);
      const asked = error instanceof Problem ? error.retryAfter * 1000 : 0;
      await pause(Math.max(asked, Math.min(FIRST_WAIT * 2 ** (failures - 1), LONGEST_WAIT)), signal);
    }
  }
}

// An error that ends a stream: its last event.
export function raise(events: StreamEvent[]): void {
  const error = events.at(-1)?.value.error;
  if (error) throw problemOf(error.code ?? 500, error);
}
