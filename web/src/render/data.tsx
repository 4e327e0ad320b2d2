// JSON data: a list of objects with the same members is a table, everything else a tree.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { isObject } from "../client/types";
import { say } from "../i18n/words";

const STEP = 100;
const OPEN_DEPTH = 2;
const MOST_COLUMNS = 12;
const MOST_CHARACTERS = 5_000;

export function Data({ value }: { value: unknown }): JSX.Element {
  const columns = columnsOf(value);
  return columns ? <DataTable rows={value as Record<string, unknown>[]} columns={columns} /> : <div class="data"><Tree value={value} depth={0} /></div>;
}

function columnsOf(value: unknown): string[] | null {
  if (!Array.isArray(value) || value.length < 2 || !value.slice(0, STEP).every(isObject)) return null;
  const columns = [...new Set(value.slice(0, STEP).flatMap((row) => Object.keys(row as object)))];
  const isFlat = value.slice(0, STEP).every((row) => Object.values(row as object).every((each) => each === null || typeof each !== "object"));
  return columns.length && columns.length <= MOST_COLUMNS && isFlat ? columns : null;
}

function DataTable({ rows, columns }: { rows: Record<string, unknown>[]; columns: string[] }): JSX.Element {
  const [count, setCount] = useState(STEP);
  return (
    <div class="wide" tabIndex={0} role="group" aria-label={say("data")}>
      <table>
        <thead><tr>{columns.map((name) => <th key={name} scope="col">{name.slice(0, 100)}</th>)}</tr></thead>
        <tbody>
          {rows.slice(0, count).map((row, place) => (
            <tr key={place}>{columns.map((name) => <td key={name}>{name in row ? <Leaf value={row[name]} /> : ""}</td>)}</tr>
          ))}
        </tbody>
      </table>
      <More left={rows.length - count} onMore={() => setCount(count + STEP)} />
    </div>
  );
}

function Tree({ value, depth }: { value: unknown; depth: number }): JSX.Element {
  const [count, setCount] = useState(STEP);
  if (value === null || typeof value !== "object") return <Leaf value={value} />;
  const members: [string, unknown][] = Array.isArray(value) ? value.slice(0, count).map((each, place) => [String(place), each]) : Object.entries(value).slice(0, count);
  const size = Array.isArray(value) ? value.length : Object.keys(value).length;
  if (!size) return <span class="leaf">{Array.isArray(value) ? "[]" : "{}"}</span>;
  return (
    <>
      <ul class="tree">
        {members.map(([name, each]) => <Member key={name} name={name} value={each} depth={depth} />)}
      </ul>
      <More left={size - count} onMore={() => setCount(count + STEP)} />
    </>
  );
}

function Member({ name, value, depth }: { name: string; value: unknown; depth: number }): JSX.Element {
  const isDeep = value !== null && typeof value === "object" && Object.keys(value).length > 0;
  const [isOpen, setOpen] = useState(depth < OPEN_DEPTH);
  const key = <bdi class="key">{name.slice(0, 200)}</bdi>;
  if (!isDeep) return <li>{key}: <Leaf value={value} /></li>;
  return (
    <li>
      <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>{key} <span class="quiet">{Array.isArray(value) ? `[${value.length}]` : `{${Object.keys(value).length}}`}</span></summary>
        {isOpen && <Tree value={value} depth={depth + 1} />}
      </details>
    </li>
  );
}

function Leaf({ value }: { value: unknown }): JSX.Element {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  const shown = text.slice(0, MOST_CHARACTERS);
  return (
    <bdi class={`leaf ${typeof value}`}>
      {shown}
      {text.length > shown.length && <span class="quiet">{say("cut", { count: text.length - shown.length })}</span>}
    </bdi>
  );
}

export function More({ left, onMore }: { left: number; onMore: () => void }): JSX.Element | null {
  return left > 0 ? <button type="button" class="plain small" onClick={onMore}>{say("more", { count: Math.min(left, STEP) })} ({left})</button> : null;
}
