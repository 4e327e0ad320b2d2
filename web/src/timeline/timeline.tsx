// The timeline of a task: its events from its log, a page of them at a time.

import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { AgentClient } from "../client/client";
import { language, say, stateWord } from "../i18n/words";
import { plain } from "../render/text";
import type { Conversation } from "../state/conversation";
import type { EventRow, TaskView } from "../state/task";
import { Spans } from "./spans";

const PAGE = 100;

// The task that is looked at; null for the latest.
export const timelineTask = signal<TaskView | null>(null);

export function Timeline({ client, conversation }: { client: AgentClient; conversation: Conversation }): JSX.Element {
  const entries = conversation.entries.value;
  const chosen = timelineTask.value;
  const task = chosen && entries.some((each) => each.task === chosen) ? chosen : conversation.task;
  return (
    <section class="timeline" aria-labelledby="timeline-title">
      <h2 id="timeline-title">{say("timeline")}</h2>
      {task ? <Events key={task.id} task={task} isWhole={client.resumes} /> : <p class="quiet">{say("noTask")}</p>}
      {task?.id && <Spans key={task.id} client={client} task={task} />}
    </section>
  );
}

function Events({ task, isWhole }: { task: TaskView; isWhole: boolean }): JSX.Element {
  // Null follows the latest events.
  const [place, setPlace] = useState<number | null>(null);
  const count = task.version.value >= 0 ? task.rows.length : 0;
  const last = Math.max(0, Math.ceil(count / PAGE) - 1) * PAGE;
  const first = place === null ? Math.max(0, count - PAGE) : Math.min(place, last);
  const shown = task.rows.slice(first, first + PAGE);
  useEffect(() => { if (place !== null && place >= count) setPlace(null); }, [count]);
  const go = (to: number): void => setPlace(Math.max(0, Math.min(to, last)));
  return (
    <>
      <p class="quiet"><bdi class="code">{plain(task.id, 80)}</bdi><br />
        <span data-state={task.state}>{stateWord(task.state)}</span> · <span data-count={count}>{say("eventsShown", { first: count ? first + 1 : 0, last: first + shown.length, count })}</span>
      </p>
      {count > PAGE && (
        <div class="actions" role="group" aria-label={say("timeline")}>
          <button type="button" class="plain small" disabled={first === 0} onClick={() => go(0)}>{say("firstEvents")}</button>
          <button type="button" class="plain small" disabled={first === 0} onClick={() => go(first - PAGE)}>{say("earlier")}</button>
          <button type="button" class="plain small" disabled={first + PAGE >= count} onClick={() => go(first + PAGE)}>{say("later")}</button>
          <button type="button" class="plain small" aria-pressed={place === null} onClick={() => setPlace(null)}>{say("latest")}</button>
        </div>
      )}
      {!isWhole && <p class="quiet">{say("partial")}</p>}
      <ol class="events" tabIndex={0} aria-label={say("timeline")}>
        {shown.map((row, at) => <Row key={first + at} row={row} place={first + at + 1} count={count} />)}
      </ol>
    </>
  );
}

function Row({ row, place, count }: { row: EventRow; place: number; count: number }): JSX.Element {
  const kind = row.kind === "artifact" ? "artifactUpdate" : row.kind === "task" ? "task" : "statusUpdate";
  return (
    <li class={row.kind} aria-posinset={place} aria-setsize={count}>
      <span class="number">{row.id || "·"}</span>
      <span class="kind">{kind}</span>
      {row.state && <b>{stateWord(row.state)}</b>}
      {row.artifact && <bdi>{plain(row.artifact, 80)}</bdi>}
      {row.chunk > 1 && <span class="quiet">{say("chunk", { count: row.chunk })}</span>}
      {row.replaces && <em>{say("replaced")}</em>}
      {row.time && <time dateTime={row.time}>{timeOf(row.time)}</time>}
      {row.words && <bdi class="words">{plain(row.words, 160)}</bdi>}
    </li>
  );
}

function timeOf(text: string): string {
  const found = new Date(text);
  if (Number.isNaN(found.getTime())) return plain(text, 40);
  return found.toLocaleTimeString(language.value, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23" });
}
