// The spans of a task: what it spent its time on, nested as they were made.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { AgentClient } from "../client/client";
import type { Span } from "../client/types";
import { say } from "../i18n/words";
import { plain } from "../render/text";
import type { TaskView } from "../state/task";

// Spans end shortly after the events that they cause.
const DELAY = 300;
const WIDTH = 1000;
const INDENT = "\u2003";

export function Spans({ client, task }: { client: AgentClient; task: TaskView }): JSX.Element | null {
  const [spans, setSpans] = useState<Span[]>([]);
  const count = task.version.value >= 0 ? task.rows.length : 0;
  useEffect(() => {
    const stop = new AbortController();
    // Nothing is shown where they cannot be read: the events tell the same story.
    const timer = setTimeout(() => client.spans(task.id, stop.signal).then(setSpans, () => undefined), DELAY);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [client, task.id, count]);
  if (!spans.length) return null;
  const begin = Math.min(...spans.map((each) => each.start));
  const whole = Math.max(...spans.map((each) => each.start + each.duration)) - begin || 1;
  return (
    <section class="spans" aria-labelledby="spans-title">
      <h3 id="spans-title">{say("spans")}</h3>
      <p class="quiet">{say("spansOf")}</p>
      <ol>{nested(spans).map(([span, depth]) => <Line key={span.id} span={span} depth={depth} from={(span.start - begin) / whole} part={span.duration / whole} />)}</ol>
    </section>
  );
}

function Line({ span, depth, from, part }: { span: Span; depth: number; from: number; part: number }): JSX.Element {
  const about = Object.values(span.attributes ?? {}).map((each) => plain(each, 40)).join(" · ");
  return (
    <li class={span.error ? "failed" : ""} data-depth={depth} title={about}>
      <div class="line">
        <bdi>{INDENT.repeat(depth)}{plain(span.name, 80)} {span.error && <b>{plain(span.error, 60)}</b>}</bdi>
        <span>{timeOf(span.duration)}</span>
      </div>
      <svg viewBox={`0 0 ${WIDTH} 1`} preserveAspectRatio="none" aria-hidden="true">
        <rect x={from * WIDTH} y="0" width={Math.max(part * WIDTH, 4)} height="1" />
      </svg>
    </li>
  );
}

// Each span below its parent, with its depth. A parent that is not here leaves its children at the top.
function nested(spans: Span[]): [Span, number][] {
  const known = new Set(spans.map((each) => each.id));
  const found: [Span, number][] = [];
  const add = (parent: string, depth: number): void => {
    for (const span of spans) {
      if ((known.has(span.parent) ? span.parent : "") === parent) {
        found.push([span, depth]);
        add(span.id, depth + 1);
      }
    }
  };
  add("", 0);
  return found;
}

function timeOf(ms: number): string {
  return ms < 1000 ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
