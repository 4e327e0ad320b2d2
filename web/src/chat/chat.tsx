// The conversation: what was sent, what came of it, and the question that waits for an answer.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { AgentClient } from "../client/client";
import { type Message, listOf } from "../client/types";
import { CopyMenu } from "../copy/copy-menu";
import { say, stateWord } from "../i18n/words";
import { Parts } from "../render/parts";
import { plain } from "../render/text";
import type { Conversation, Entry } from "../state/conversation";
import type { Item, TaskView } from "../state/task";
import { timelineTask } from "../timeline/timeline";
import { Composer } from "./composer";
import { Question, hasForm } from "./question";

const MOST_ITEMS = 100;
const NEAR = 120;

// What is read out: states, and whole answers, but not every chunk of them.
const announced = signal("");

export function Chat({ client, conversation }: { client: AgentClient; conversation: Conversation }): JSX.Element {
  const log = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const [more, setMore] = useState(0);
  const entries = conversation.entries.value;
  const { task } = conversation;
  const version = task?.version.value ?? 0;
  useLayoutEffect(() => {
    const box = scrolled(log.current);
    if (isAtEnd.current) box.scrollTop = box.scrollHeight;
  }, [version, entries]);
  useAnnouncements(conversation);
  const shown = lines(entries);
  const count = MOST_ITEMS + more;
  const onScroll = (): void => {
    const { scrollTop, scrollHeight, clientHeight } = scrolled(log.current);
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < NEAR;
  };
  useEffect(() => {
    const sized = new ResizeObserver(() => {
      const box = scrolled(log.current);
      if (isAtEnd.current) box.scrollTop = box.scrollHeight;
    });
    if (log.current) sized.observe(log.current);
    addEventListener("scroll", onScroll, { passive: true });
    return () => {
      sized.disconnect();
      removeEventListener("scroll", onScroll);
    };
  }, []);
  return (
    <section class="chat" aria-labelledby="chat-title">
      <div class="bar">
        <h2 id="chat-title">{say("conversation")}</h2>
        {entries.length > 0 && <button type="button" class="plain small" onClick={() => { conversation.forget(); announced.value = ""; }}>{say("newChat")}</button>}
      </div>
      <div class="log" ref={log} onScroll={onScroll} tabIndex={0} role="group" aria-label={say("conversation")}>
        {!entries.length && <p class="quiet empty">{say("emptyChat")}</p>}
        {shown.length > count && (
          <button type="button" class="plain small" onClick={() => setMore(more + MOST_ITEMS)}>{say("earlierItems", { count: Math.min(MOST_ITEMS, shown.length - count) })}</button>
        )}
        <ol>
          {shown.slice(-count).map((line) => <LineView key={line.key} line={line} client={client} conversation={conversation} />)}
        </ol>
        {conversation.asking && <Question key={conversation.asking.question?.messageId} task={conversation.asking} client={client} conversation={conversation} />}
        <Running conversation={conversation} />
      </div>
      <p class="unseen" role="status" aria-live="polite">{announced.value}</p>
      {(conversation.busy.value || !hasForm(conversation.asking)) && <Composer client={client} conversation={conversation} />}
    </section>
  );
}

// What scrolls: the conversation, or on a narrow screen the page.
function scrolled(log: HTMLElement | null): Element {
  return log && getComputedStyle(log).overflowY === "auto" ? log : document.documentElement;
}

interface Line {
  key: string;
  item?: Item;
  message?: Message;
  // The message as it was sent: what begins a task did not have its id.
  sent?: Message;
  task: TaskView | null;
  isLast: boolean;
}

function lines(entries: readonly Entry[]): Line[] {
  const found: Line[] = [];
  entries.forEach(({ sent, reply, task }, at) => {
    if (!task) {
      found.push({ key: `${at}-sent`, message: sent, task: null, isLast: false });
      if (reply) found.push({ key: `${at}-reply`, message: reply, task: null, isLast: false });
      return;
    }
    if (task.version.value < 0) return; // its items are read anew whenever it changes
    const first = task.items.find((each) => each.kind === "message" && each.message.role === "ROLE_USER");
    task.items.forEach((item, place) => {
      const id = item.kind === "message" ? item.message.messageId : `a-${item.artifact.artifactId}`;
      const begun = item === first && item.kind === "message" ? begins(item.message, at > 0) : undefined;
      found.push({ key: `${at}-${id}-${item.kind === "message" && !id ? place : ""}`, item, sent: begun, task, isLast: place === task.items.length - 1 });
    });
  });
  return found;
}

// A message that is not first in its conversation names its context.
function begins({ taskId: _, contextId, ...message }: Message, isLater: boolean): Message {
  return isLater ? { ...message, contextId } : message;
}

function LineView({ line, client, conversation }: { line: Line; client: AgentClient; conversation: Conversation }): JSX.Element {
  const { item, task } = line;
  const message = item?.kind === "message" ? item.message : line.message;
  const isOwn = message?.role === "ROLE_USER";
  return (
    <li class={isOwn ? "own" : "theirs"}>
      <article aria-label={isOwn ? say("you") : say("agent")}>
        <h3 class={item?.kind === "artifact" ? "artifact-name" : "unseen"}>{item?.kind === "artifact" ? <bdi>{plain(item.artifact.name ?? "", 120)}</bdi> : isOwn ? say("you") : say("agent")}</h3>
        <Parts parts={item?.kind === "artifact" ? item.artifact.parts : message?.parts} client={client} isOwn={isOwn} />
        {isOwn && message && <CopyMenu client={client} message={line.sent ?? message} skill={conversation.skillOf(message)} />}
      </article>
      {line.isLast && task && task.state !== "" && <TaskLine task={task} />}
    </li>
  );
}

function TaskLine({ task }: { task: TaskView }): JSX.Element {
  const isBad = ["TASK_STATE_FAILED", "TASK_STATE_REJECTED", "TASK_STATE_CANCELED"].includes(task.state);
  return (
    <p class="task-line">
      <span class={isBad ? "bad" : task.isEnded ? "good" : "quiet"} data-state={task.state}>{stateWord(task.state)}</span>
      {" · "}
      <button type="button" class="link" onClick={() => { timelineTask.value = task; }}>{say("events", { count: task.version.value < 0 ? 0 : task.rows.length })}</button>
    </p>
  );
}

function Running({ conversation }: { conversation: Conversation }): JSX.Element | null {
  const since = conversation.reconnecting.value || conversation.task?.reconnecting.value || 0;
  const [, setNow] = useState(0);
  useEffect(() => {
    if (!since) return undefined;
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, [since]);
  const problem = conversation.problem.value;
  if (since) return <p class="notice" role="status" data-reconnecting>{say("reconnecting", { seconds: Math.round((Date.now() - since) / 1000) })}</p>;
  if (conversation.busy.value) return <p class="quiet working"><span class="dots" aria-hidden="true" />{say("working")}</p>;
  if (!problem) return null;
  return <p class="notice bad" role="alert">{say(problem.status ? "notSent" : "offline", { words: plain(problem.message, 1000) })}</p>;
}

function useAnnouncements(conversation: Conversation): void {
  const { task } = conversation;
  const state = task?.version.value !== undefined ? task.state : "";
  const reply = conversation.entries.value.at(-1)?.reply ?? null;
  useEffect(() => {
    if (reply) announced.value = wordsOf(reply);
  }, [reply]);
  useEffect(() => {
    if (!task || !state) return;
    const last = task.items.at(-1);
    const parts = task.isEnded && last ? (last.kind === "message" ? last.message.parts : last.artifact.parts) : task.question?.parts;
    announced.value = `${stateWord(state)}. ${wordsOf({ parts: [...listOf(parts)] })}`;
  }, [task, state]);
}

const wordsOf = (message: Pick<Message, "parts">): string => listOf(message.parts).map((each) => plain(each.text, 500)).join(" ").trim().slice(0, 700);
