// The question of a task that waits: a form for an answer with a schema, a login, or nothing but its text.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { AgentClient } from "../client/client";
import { type Message, type Schema, type Violation, isObject, listOf } from "../client/types";
import { Form } from "../form/form";
import { say } from "../i18n/words";
import { AUTHORIZATION_TYPE, SCHEMA_TYPE } from "../render/parts";
import { openable, plain } from "../render/text";
import type { Conversation } from "../state/conversation";
import type { TaskView } from "../state/task";

interface Asked {
  schema: Schema;
  problems: Violation[];
}

function askedIn(question: Message): Asked | null {
  const parts = listOf(question.parts).filter((part) => isObject(part.data) && isObject(part.data.schema));
  const data = (parts.find((part) => part.mediaType === SCHEMA_TYPE) ?? parts.at(-1))?.data;
  if (!isObject(data) || !isObject(data.schema)) return null;
  return { schema: data.schema, problems: listOf(data.problems as Violation[]).filter(isObject) as Violation[] };
}

// The question that is answered in words, though it has a form.
export const inWords = signal("");

// Whether a question has a form of its own.
export const hasForm = (task: TaskView | null): boolean =>
  task?.question ? task.state === "TASK_STATE_AUTH_REQUIRED" || (askedIn(task.question) !== null && inWords.value !== task.question.messageId) : false;

// The last answer of each task: what did not fit is put right in it.
const answers = new WeakMap<TaskView, unknown>();

interface QuestionProps {
  task: TaskView;
  client: AgentClient;
  conversation: Conversation;
}

export function Question({ task, client, conversation }: QuestionProps): JSX.Element | null {
  const node = useRef<HTMLDivElement>(null);
  const { question } = task;
  const asked = question && askedIn(question);
  const busy = conversation.busy.value;
  useEffect(() => {
    if (!asked || busy) return;
    const wrong = node.current?.querySelector("[aria-invalid=true]:is(input, select, textarea)");
    const field = wrong ?? node.current?.querySelector(".fields :is(input, select, textarea, summary)");
    (field as HTMLElement | null | undefined)?.focus({ preventScroll: true });
    node.current?.scrollIntoView?.({ block: "nearest" });
  }, [question?.messageId, busy]);
  if (!question) return null;
  if (task.state === "TASK_STATE_AUTH_REQUIRED") return <Authorization question={question} client={client} conversation={conversation} />;
  if (!asked || busy || !hasForm(task)) return null;
  const send = async (json: string): ReturnType<Conversation["send"]> => {
    answers.set(task, JSON.parse(json));
    return conversation.send({ json });
  };
  return (
    <div class="question" ref={node}>
      <h3>{say("answer")}</h3>
      <Form schema={asked.schema} problems={asked.problems} given={asked.problems.length ? answers.get(task) : undefined}
        label={say("answer")} submit={say("sendAnswer")} disabled={busy} onSend={send}
        actions={<button type="button" class="plain" onClick={() => { inWords.value = question.messageId; }}>{say("inWords")}</button>} />
    </div>
  );
}

// A credential that a task needs goes to the agent's address for it, and into no message.
function Authorization({ question, client, conversation }: { question: Message; client: AgentClient; conversation: Conversation }): JSX.Element {
  const [secret, setSecret] = useState("");
  const [problem, setProblem] = useState("");
  const parts = listOf(question.parts).filter((part) => isObject(part.data) && isObject(part.data.authorizationRequest));
  const data = (parts.find((part) => part.mediaType === AUTHORIZATION_TYPE) ?? parts.at(-1))?.data;
  const request = isObject(data) && isObject(data.authorizationRequest) ? data.authorizationRequest : {};
  const login = openable(request.authorizationUrl);
  const callback = typeof request.callback === "string" ? client.here(request.callback) : null;
  const scheme = isObject(request.scheme) ? request.scheme : {};
  const member = isObject(scheme.apiKeySecurityScheme) ? "api_key" : "access_token";
  const give = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (callback === null || !secret) return;
    const { headers } = client.credentials();
    const body = JSON.stringify({ [member]: secret, ...(member === "access_token" ? { token_type: "Bearer" } : {}) });
    try {
      const answer = await fetch(callback, { method: "POST", body, headers: { "Content-Type": "application/json", ...headers } });
      setProblem(answer.ok ? "" : `HTTP ${answer.status}`);
      if (answer.ok) setSecret("");
    } catch (error) {
      setProblem(String(error));
    }
  };
  return (
    <div class="question">
      <h3>{say("loginNeeded")}</h3>
      {login && <p><a class="button" href={login} target="_blank" rel="noopener noreferrer">{say("login")}</a> <span class="quiet">{plain(new URL(login).host)}</span></p>}
      {callback !== null && (
        <form class="form" onSubmit={(event) => { void give(event); }}>
          <label for="credential">{say("credential")}</label>
          <input id="credential" type="password" autocomplete="off" value={secret} onInput={(event) => setSecret(event.currentTarget.value)} />
          <div class="actions">
            <button type="submit">{say("giveCredential")}</button>
            <button type="button" class="plain" onClick={() => { void conversation.cancel(); }}>{say("cancel")}</button>
          </div>
          {problem && <p class="wrong" role="alert">{plain(problem)}</p>}
        </form>
      )}
    </div>
  );
}
