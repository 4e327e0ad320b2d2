// The page: what is at its address decides whether it is about one agent or about several.

import { effect, signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { About, Skills } from "./about";
import { Agents, Others } from "./agents";
import { Chat } from "./chat/chat";
import { AgentClient, Problem } from "./client/client";
import { type Language, type Word, LANGUAGES, language, say, speak } from "./i18n/words";
import { plain } from "./render/text";
import { finish } from "./signin/redirect";
import { SignIn, challenged, isRequired, schemesOf } from "./signin/schemes";
import { SignInPanel } from "./signin/signin";
import { Conversation } from "./state/conversation";
import { ofBrowser } from "./state/storage";
import { Timeline, timelineTask } from "./timeline/timeline";
import { type View, view } from "./view";

const THEMES = { auto: "themeAuto", light: "themeLight", dark: "themeDark" } as const;

const theme = signal(ofBrowser.read("theme") || "auto");

effect(() => {
  document.documentElement.lang = language.value;
  document.documentElement.dataset.theme = theme.value;
});

// The server names the agents below this address, or beside the one that is at it.
function pathsIn(name: string): string[] | null {
  const content = document.querySelector(`meta[name="parley-${name}"]`)?.getAttribute("content");
  return content === null || content === undefined ? null : content.split(" ").filter(Boolean);
}

export function App(): JSX.Element {
  const base = location.pathname.replace(/\/+$/, "");
  const paths = useMemo(() => pathsIn("agents"), []);
  return (
    <>
      <a class="skip" href="#main">{say("skip")}</a>
      {paths ? <><header class="top"><Choices /></header><Agents base={base} paths={paths} /></> : <AgentPage base={base} />}
    </>
  );
}

function Choices(): JSX.Element {
  const choose = (value: string): void => {
    theme.value = value;
    ofBrowser.write("theme", value);
  };
  return (
    <div class="choices">
      <label class="inline"><span>{say("language")}</span>
        <select value={language.value} onChange={(event) => speak(event.currentTarget.value as Language)}>
          {Object.entries(LANGUAGES).map(([name, words]) => <option key={name} value={name} lang={name}>{words}</option>)}
        </select>
      </label>
      <label class="inline"><span>{say("theme")}</span>
        <select value={theme.value} onChange={(event) => choose(event.currentTarget.value)}>
          {Object.entries(THEMES).map(([name, word]) => <option key={name} value={name}>{say(word)}</option>)}
        </select>
      </label>
    </div>
  );
}

function AgentPage({ base }: { base: string }): JSX.Element {
  const signIn = useMemo(() => new SignIn(base), []);
  const client = useMemo(() => {
    const made: AgentClient = new AgentClient(base, () => signIn.credentials(made.card));
    return made;
  }, []);
  const conversation = useMemo(() => new Conversation(client), []);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [failure, setFailure] = useState("");
  const [isReady, setReady] = useState(false);
  const start = async (isAgain = false): Promise<void> => {
    setProblem(null);
    try {
      await client.readCard();
    } catch (error) {
      const found = error instanceof Problem ? error : new Problem(0, String(error));
      if (found.status === 401) {
        client.card = challenged(found.challenges);
        if (signIn.isDone && !isAgain) { void start(true); return; }
        signIn.forget();
      }
      setProblem(found);
      if (found.isPassing) setTimeout(() => { void start(); }, Math.max(2, found.retryAfter) * 1000);
      return;
    }
    document.title = plain(client.card.name, 100);
    try {
      const found = await finish(base);
      if (found) signIn.set("Bearer", found);
    } catch (error) {
      setFailure(error instanceof Error ? error.message : String(error));
    }
    setReady(true);
    if (signIn.isDone || !isRequired(client.card)) await conversation.resume();
  };
  useEffect(() => { void start(); }, []);
  const refusal = conversation.problem.value;
  useEffect(() => {
    // The agent knows nobody without credentials, and these credentials no more.
    if (refusal?.status === 401) {
      signIn.forget();
      signIn.wanted.value = true;
    }
  }, [refusal]);
  if (problem) {
    return (
      <main id="main" class="agents">
        <p class="notice bad" role="alert">{say(problem.status === 401 ? "refused" : "unreachable", { words: plain(problem.message, 400) })}</p>
        {problem.status === 401
          ? <SignInPanel client={client} signIn={signIn} problem={failure} onChange={() => { void start(); }} />
          : <p><button type="button" onClick={() => { void start(); }}>{say("again")}</button></p>}
      </main>
    );
  }
  if (!isReady) return <main id="main" class="agents"><p role="status">{say("loading")}</p></main>;
  const changed = (): void => {
    signIn.wanted.value = false;
    setFailure("");
    if (refusal?.status === 401) conversation.problem.value = null;
    if (signIn.isDone && !conversation.entries.value.length) void conversation.resume();
  };
  const views: View[] = ["chat", "skills", "timeline"];
  return (
    <>
      <header class="top"><About client={client} /><Choices /></header>
      <nav aria-label={say("views")}>
        {views.map((each) => (
          <button key={each} type="button" class="plain" aria-pressed={view.value === each} onClick={() => { view.value = each; }}>{say(each satisfies Word)}</button>
        ))}
      </nav>
      <main id="main" class="columns" data-view={view.value} tabIndex={-1}>
        <div class="side"><Skills client={client} /><Others base={base} paths={pathsIn("others") ?? []} /></div>
        <div class="middle">
          {schemesOf(client.card).length > 0 && <SignInPanel client={client} signIn={signIn} problem={failure} onChange={changed} />}
          <Chat client={client} conversation={conversation} />
        </div>
        <div class="side"><Timeline client={client} conversation={conversation} /></div>
      </main>
    </>
  );
}

// A task that is chosen is looked at.
effect(() => { if (timelineTask.value) view.value = "timeline"; });
