// The client of one agent: its HTTP+JSON binding of A2A 1.0, at an address relative to the page.

import { framesOf } from "./sse";
import {
  type Card, type ErrorBody, type Message, type Span, type StreamEvent, type StreamResponse, type Task, type Violation,
  FILE_TRANSFER, IDEMPOTENT, RESUMABLE, SKILL_SCHEMAS, TASK_SPANS, TYPED_QUESTIONS, isObject, listOf,
} from "./types";

const JSON_TYPE = "application/a2a+json";
const ASKED = [SKILL_SCHEMAS, TASK_SPANS, TYPED_QUESTIONS];

// An answer that is an error. `status` is 0 for an agent that could not be reached.
export class Problem extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly reason = "",
    readonly violations: Violation[] = [],
    readonly retryAfter = 0,
    readonly challenges = "",
  ) {
    super(message);
  }

  get isPassing(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

export function problemOf(status: number, body: ErrorBody | undefined, words = "", retryAfter = 0, challenges = ""): Problem {
  const details = listOf(body?.details).filter(isObject) as NonNullable<ErrorBody["details"]>;
  const reason = details.find((each) => each.reason)?.reason ?? String(body?.status ?? "");
  const violations = details.flatMap((each) => [...listOf(each.fieldViolations)]);
  return new Problem(status, String(body?.message ?? (words || `HTTP ${status}`)), reason, violations, retryAfter, challenges);
}

export type Credentials = () => { headers: Record<string, string>; query: Record<string, string> };

export interface Uploaded {
  url: string;
}

export class AgentClient {
  card: Card = { name: "" };

  // `base` is the path of the agent, without a slash at the end.
  constructor(readonly base: string, public credentials: Credentials = () => ({ headers: {}, query: {} })) {}

  get address(): string {
    return location.origin + this.base;
  }

  has(uri: string): boolean {
    return this.params(uri) !== undefined;
  }

  params(uri: string): Record<string, unknown> | undefined {
    const found = listOf(this.card.capabilities?.extensions).find((each) => isObject(each) && each.uri === uri);
    return found && (isObject(found.params) ? found.params : {});
  }

  get streams(): boolean {
    return this.card.capabilities?.streaming === true;
  }

  get resumes(): boolean {
    return this.has(RESUMABLE);
  }

  get repeats(): boolean {
    return this.has(IDEMPOTENT);
  }

  // The path on this server of an address that the card or the agent names; null for another server.
  here(url: string): string | null {
    const own = listOf(this.card.supportedInterfaces).filter((each) => each.protocolBinding === "HTTP+JSON");
    for (const { url: advertised } of own) {
      const start = String(advertised).replace(/\/$/, "");
      if (start && url.startsWith(`${start}/`)) return this.base + url.slice(start.length);
    }
    return url.startsWith(`${this.address}/`) ? url.slice(location.origin.length) : null;
  }

  async readCard(signal?: AbortSignal): Promise<Card> {
    const found = await this.json<Card>("GET", "/.well-known/agent-card.json", { signal });
    if (!isObject(found) || typeof found.name !== "string") throw new Problem(200, "this is no agent card");
    this.card = found;
    return found;
  }

  get(taskId: string, signal?: AbortSignal): Promise<Task> {
    return this.json<Task>("GET", `/tasks/${encodeURIComponent(taskId)}`, { signal });
  }

  // The spans of a task, where the server makes them; only those of the process that answers.
  async spans(taskId: string, signal: AbortSignal): Promise<Span[]> {
    if (!this.has(TASK_SPANS)) return [];
    const found = await this.json<{ spans?: Span[] }>("GET", `/tasks/${encodeURIComponent(taskId)}/spans`, { signal });
    return listOf(found.spans).filter(isObject) as unknown as Span[];
  }

  list(contextId: string): Promise<{ tasks?: Task[] }> {
    return this.json("GET", `/tasks?contextId=${encodeURIComponent(contextId)}`);
  }

  cancel(taskId: string): Promise<Task> {
    return this.json<Task>("POST", `/tasks/${encodeURIComponent(taskId)}:cancel`, { body: "{}" });
  }

  send(body: string, signal?: AbortSignal): Promise<{ task?: Task; message?: Message }> {
    return this.json("POST", "/message:send", { body, signal });
  }

  async *stream(body: string, signal: AbortSignal): AsyncGenerator<StreamEvent[]> {
    yield* this.events(await this.fetch("POST", "/message:stream", { body, signal, accept: "text/event-stream" }), false);
  }

  async *subscribe(taskId: string, after: string, signal: AbortSignal): AsyncGenerator<StreamEvent[]> {
    const headers: Record<string, string> = after === "" ? {} : { "Last-Event-ID": after };
    const path = `/tasks/${encodeURIComponent(taskId)}:subscribe`;
    yield* this.events(await this.fetch("GET", path, { headers, signal, accept: "text/event-stream" }), true);
  }

  // A file that is too large for a message. Returns the address for the part.
  async upload(file: File): Promise<Uploaded> {
    if (!this.has(FILE_TRANSFER)) throw new Problem(413, `${file.name} is too large for this agent`);
    const about = { filename: file.name, mediaType: file.type || "application/octet-stream", size: file.size };
    const made = await this.json<{ url: string; uploadUrl: string }>("POST", "/files", {
      body: JSON.stringify(about), type: "application/json",
    });
    const path = this.here(made.uploadUrl);
    if (path === null) throw new Problem(0, "the agent takes files at another address than this page's");
    const answer = await reached(fetch(path, {
      method: "PATCH", body: file, headers: { ...this.credentials().headers, "Upload-Offset": "0", "Upload-Complete": "?1" },
    }));
    if (!answer.ok) throw await refusal(answer);
    return { url: made.url };
  }

  // The bytes of a file of this server.
  async file(path: string): Promise<Blob> {
    const answer = await reached(fetch(path, { headers: this.credentials().headers, cache: "no-store" }));
    if (!answer.ok) throw await refusal(answer);
    return answer.blob();
  }

  private async *events(answer: Response, isHeard: boolean): AsyncGenerator<StreamEvent[]> {
    if (!(answer.headers.get("Content-Type") ?? "").startsWith("text/event-stream") || !answer.body) {
      yield [{ id: "", value: (await answer.json()) as StreamResponse }];
      return;
    }
    const frames = framesOf(answer.body, isHeard);
    try {
      for (;;) {
        const { done, value } = await reached(frames.next());
        if (done) return;
        const events = value.map(({ id, data }): StreamEvent => ({ id, value: parsed(data) }));
        yield events.filter((each) => isObject(each.value));
      }
    } finally {
      await frames.return(undefined).catch(() => undefined);
    }
  }

  private async json<T>(verb: string, path: string, options: Sending = {}): Promise<T> {
    const answer = await this.fetch(verb, path, options);
    return (await reached(answer.json())) as T;
  }

  private async fetch(verb: string, path: string, options: Sending = {}): Promise<Response> {
    const { headers, query } = this.credentials();
    const added = new URLSearchParams(query).toString();
    const url = this.base + path + (added ? (path.includes("?") ? "&" : "?") + added : "");
    const uris = ASKED.filter((uri) => this.has(uri)).join(", ");
    const answer = await reached(fetch(url, {
      method: verb,
      body: options.body,
      // A password that was typed here and is wrong is asked for here again, not by the browser.
      credentials: headers.Authorization?.startsWith("Basic ") ? "omit" : "same-origin",
      signal: options.signal,
      cache: "no-store",
      headers: {
        Accept: options.accept ? `${options.accept}, ${JSON_TYPE}` : `${JSON_TYPE}, application/json`,
        "A2A-Version": "1.0",
        ...(uris ? { "A2A-Extensions": uris } : {}),
        ...(options.body === undefined ? {} : { "Content-Type": options.type ?? JSON_TYPE }),
        ...options.headers,
        ...headers,
      },
    }));
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }
}

function parsed(data: string): StreamResponse {
  try {
    return JSON.parse(data) as StreamResponse;
  } catch {
    throw new Problem(200, "an event of the stream is no JSON");
  }
}

interface Sending {
  body?: string;
  type?: string;
  accept?: string;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

// A request that got no answer is a passing problem, unless the reader stopped it.
async function reached<T>(asked: Promise<T>): Promise<T> {
  try {
    return await asked;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, error instanceof Error ? error.message : String(error));
  }
}

async function refusal(answer: Response): Promise<Problem> {
  const retryAfter = Number(answer.headers.get("Retry-After")) || 0;
  const challenges = answer.headers.get("WWW-Authenticate") ?? "";
  const text = await answer.text().catch(() => "");
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    return problemOf(answer.status, undefined, text.slice(0, 300), retryAfter, challenges);
  }
  const error = isObject(body) ? body.error : undefined;
  const found = isObject(error) ? (error as ErrorBody) : undefined;
  return problemOf(answer.status, found, typeof error === "string" ? error : "", retryAfter, challenges);
}
