// Markdown as nodes: the lexer of marked, and no HTML. What is not known is shown as its text.

import { type Token, type Tokens, Lexer } from "marked";
import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { say } from "../i18n/words";
import { openable } from "./text";

const MOST_CHARACTERS = 100_000;
const MOST_TOKENS = 5_000;
const MOST_SIGNS = 3_000;
const DEEPEST = 24;
const HEADINGS = ["h3", "h4", "h5", "h6", "h6", "h6"] as const;

interface Budget {
  left: number;
}

export function Markdown({ text }: { text: string }): JSX.Element {
  const tokens = useMemo(() => lexed(text), [text]);
  if (!tokens) return <PlainText text={text} />;
  const budget = { left: MOST_TOKENS };
  return <div class="markdown" dir="auto">{nodes(tokens, budget, 0)}</div>;
}

export function PlainText({ text }: { text: string }): JSX.Element {
  const shown = text.slice(0, 2 * MOST_CHARACTERS);
  return (
    <p class="plain" dir="auto">
      {shown}
      {text.length > shown.length && <span class="quiet">{say("cut", { count: text.length - shown.length })}</span>}
    </p>
  );
}

function lexed(text: string): Token[] | null {
  if (text.length > MOST_CHARACTERS) return null;
  // Pairs of emphasis are searched in the square of their number, within a paragraph.
  if (text.split(/\n\s*\n/).some((each) => (each.match(/[_*~]/g)?.length ?? 0) > MOST_SIGNS)) return null;
  try {
    return new Lexer({ gfm: true, breaks: true }).lex(text);
  } catch {
    return null;
  }
}

function nodes(tokens: readonly Token[] | undefined, budget: Budget, depth: number): ComponentChildren[] {
  return (tokens ?? []).map((token, place) => {
    budget.left -= 1;
    if (budget.left < 0) return null;
    if (depth > DEEPEST) return token.raw;
    return <Node key={place} token={token} budget={budget} depth={depth + 1} />;
  });
}

function Node({ token, budget, depth }: { token: Token; budget: Budget; depth: number }): JSX.Element | null {
  const inner = (): ComponentChildren => ("tokens" in token && token.tokens ? nodes(token.tokens, budget, depth) : unescaped((token as Tokens.Text).text ?? token.raw));
  switch (token.type) {
    case "space": case "def": return null;
    case "paragraph": return <p>{inner()}</p>;
    case "heading": {
      const Heading = HEADINGS[Math.min((token as Tokens.Heading).depth, 6) - 1] ?? "h6";
      return <Heading>{inner()}</Heading>;
    }
    case "blockquote": return <blockquote>{inner()}</blockquote>;
    case "hr": return <hr />;
    case "br": return <br />;
    case "strong": return <strong>{inner()}</strong>;
    case "em": return <em>{inner()}</em>;
    case "del": return <del>{inner()}</del>;
    case "codespan": return <code>{unescaped((token as Tokens.Codespan).text)}</code>;
    case "code": return <pre tabIndex={0}><code>{(token as Tokens.Code).text}</code></pre>;
    case "list": return <List list={token as Tokens.List} budget={budget} depth={depth} />;
    case "checkbox": return <input type="checkbox" disabled checked={(token as Tokens.Checkbox).checked} aria-label={token.raw} />;
    case "table": return <Table table={token as Tokens.Table} budget={budget} depth={depth} />;
    case "link": {
      const href = openable((token as Tokens.Link).href, ["mailto:"]);
      return href === null ? <>{inner()}</> : <a href={href} target="_blank" rel="noopener noreferrer">{inner()}</a>;
    }
    case "image": {
      // Pictures at other addresses would tell them who reads: they are links.
      const { href, text } = token as Tokens.Image;
      const address = openable(href);
      const words = say("imageOf", { words: text || href.slice(0, 200) });
      return address === null ? <span>{words}</span> : <a href={address} target="_blank" rel="noopener noreferrer">{words}</a>;
    }
    case "text": case "escape": return <>{inner()}</>;
    default: return <>{token.raw}</>;
  }
}

function List({ list, budget, depth }: { list: Tokens.List; budget: Budget; depth: number }): JSX.Element {
  const items = list.items.map((item, place) => <li key={place}>{nodes(item.tokens, budget, depth)}</li>);
  return list.ordered ? <ol start={list.start === "" ? 1 : list.start}>{items}</ol> : <ul>{items}</ul>;
}

function Table({ table, budget, depth }: { table: Tokens.Table; budget: Budget; depth: number }): JSX.Element {
  const cell = (each: Tokens.TableCell): ComponentChildren => nodes(each.tokens, budget, depth);
  return (
    <div class="wide" tabIndex={0} role="group" aria-label={say("data")}>
      <table>
        <thead><tr>{table.header.map((each, place) => <th key={place} scope="col">{cell(each)}</th>)}</tr></thead>
        <tbody>
          {table.rows.map((row, place) => <tr key={place}>{row.map((each, at) => <td key={at}>{cell(each)}</td>)}</tr>)}
        </tbody>
      </table>
    </div>
  );
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };

// Text nodes show entities as they are written; the usual ones are meant as characters.
const unescaped = (text: string): string => text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (whole, name: string) => ENTITIES[name] ?? whole);
