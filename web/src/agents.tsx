// A server of several agents: what they are, and whether they answer.

import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { AgentClient, Problem } from "./client/client";
import type { Card } from "./client/types";
import { say } from "./i18n/words";
import { plain } from "./render/text";
import { isRequired } from "./signin/schemes";

const TOGETHER = 6;

type State = { kind: "reading" } | { kind: "answers" | "signIn"; card: Card | null } | { kind: "fails"; words: string };

async function stateOf(base: string): Promise<State> {
  try {
    const card = await new AgentClient(base).readCard();
    return { kind: isRequired(card) ? "signIn" : "answers", card };
  } catch (error) {
    if (error instanceof Problem && (error.status === 401 || error.status === 403)) return { kind: "signIn", card: null };
    return { kind: "fails", words: error instanceof Error ? error.message : String(error) };
  }
}

export function Agents({ base, paths }: { base: string; paths: readonly string[] }): JSX.Element {
  document.title = say("agents");
  return (
    <main id="main" class="agents">
      <h1>{say("agents")}</h1>
      {!paths.length && <p class="quiet">{say("noAgents")}</p>}
      <h2 class="unseen">{say("agents")}</h2>
      <AgentList base={base} paths={paths} />
    </main>
  );
}

// The agents beside the one that the page is about.
export function Others({ base, paths }: { base: string; paths: readonly string[] }): JSX.Element | null {
  if (!paths.length) return null;
  return (
    <section class="others" aria-labelledby="others-title">
      <h2 id="others-title">{say("others")}</h2>
      <AgentList base={base} paths={paths} />
    </section>
  );
}

function AgentList({ base, paths }: { base: string; paths: readonly string[] }): JSX.Element {
  const [states, setStates] = useState<Record<string, State>>({});
  useEffect(() => {
    const left = [...paths];
    const work = async (): Promise<void> => {
      for (let path = left.shift(); path !== undefined; path = left.shift()) {
        const [name, state] = [path, await stateOf(`${base}/${path}`)];
        setStates((before) => ({ ...before, [name]: state }));
      }
    };
    for (let each = 0; each < TOGETHER; each += 1) void work();
  }, []);
  return <ul>{paths.map((path) => <AgentRow key={path} href={`${base}/${path}`} path={path} state={states[path] ?? { kind: "reading" }} />)}</ul>;
}

function AgentRow({ href, path, state }: { href: string; path: string; state: State }): JSX.Element {
  const card = "card" in state ? state.card : null;
  const words = {
    reading: () => say("stateReading"), answers: () => say("stateAnswers"), signIn: () => say("stateSignIn"),
    fails: () => say("stateFails", { words: state.kind === "fails" ? plain(state.words, 200) : "" }),
  }[state.kind]();
  return (
    <li>
      <h3><a href={href}><bdi>{plain(card?.name, 200) || path}</bdi></a></h3>
      {card?.description && <p dir="auto">{plain(card.description, 500)}</p>}
      <p class="quiet"><span class="code">/{path}</span> · <span class={state.kind === "fails" ? "bad" : state.kind === "answers" ? "good" : ""} data-agent-state={state.kind}>{words}</span></p>
    </li>
  );
}
