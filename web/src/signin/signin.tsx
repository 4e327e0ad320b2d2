// The panel to sign in: one form for each scheme that the card asks for.

import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { AgentClient } from "../client/client";
import { say } from "../i18n/words";
import { plain } from "../render/text";
import { begin, rememberedClient, returnAddress } from "./redirect";
import { type Scheme, type SignIn, basicOf, isRequired, schemesOf, secretOf } from "./schemes";

interface PanelProps {
  client: AgentClient;
  signIn: SignIn;
  problem: string;
  onChange: () => void;
}

export function SignInPanel({ client, signIn, problem, onChange }: PanelProps): JSX.Element | null {
  const schemes = schemesOf(client.card);
  if (!schemes.length) return null;
  const forget = (): void => { signIn.forget(); onChange(); };
  if (signIn.isDone) {
    return (
      <section class="signin" aria-labelledby="signin-title">
        <div class="bar"><h2 id="signin-title">{say("signedIn")}</h2><button type="button" class="plain small" onClick={forget}>{say("signOut")}</button></div>
      </section>
    );
  }
  return (
    <section class="signin" aria-labelledby="signin-title">
      <h2 id="signin-title">{say("signIn")} {!isRequired(client.card) && <small>({say("optional")})</small>}</h2>
      {problem && <p class="notice bad" role="alert">{say("signInFailed", { words: plain(problem, 400) })}</p>}
      {signIn.wanted.value && <p class="notice" role="alert">{say("refused")}</p>}
      {schemes.map((scheme) => <SchemeForm key={scheme.name} scheme={scheme} client={client} signIn={signIn} onChange={onChange} />)}
      <p class="quiet">{say("signInHint")}</p>
    </section>
  );
}

function SchemeForm({ scheme, client, signIn, onChange }: { scheme: Scheme; client: AgentClient; signIn: SignIn; onChange: () => void }): JSX.Element {
  const { kind, name } = scheme;
  const user = useSignal("");
  const secret = useSignal(kind === "login" ? rememberedClient(name) : "");
  const problem = useSignal("");
  const id = `signin-${name}`;
  if (kind === "certificate") return <p>{say("certificate")}</p>;
  if (kind === "unsupported") return <p>{scheme.place === "cookie" ? say("keyUnsupported") : say("schemeUnsupported", { words: plain(scheme.field || name, 80) })}</p>;
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    const given = secret.value.trim();
    if (!given) return;
    if (kind === "login") {
      try {
        await begin(client.base, scheme, given);
      } catch (error) {
        problem.value = error instanceof Error ? error.message : String(error);
      }
      return;
    }
    signIn.set(secretOf(scheme), kind === "basic" ? basicOf(user.value, secret.value) : given);
    onChange();
  };
  const onInput = (event: { currentTarget: { value: string } }): void => { secret.value = event.currentTarget.value; };
  const label = kind === "key" ? say("apiKey", { words: plain(scheme.field, 80) }) : say(kind === "login" ? "clientId" : kind === "basic" ? "password" : "token");
  return (
    <form onSubmit={(event) => { void submit(event); }} aria-label={say("signInWith", { words: plain(name, 80) })}>
      {scheme.description && <p class="quiet">{plain(scheme.description, 500)}</p>}
      {kind === "basic" && (
        <>
          <label for={`${id}-user`}>{say("user")}</label>
          <input id={`${id}-user`} type="text" autocomplete="username" value={user.value} onInput={(event) => { user.value = event.currentTarget.value; }} />
        </>
      )}
      <label for={id}>{label}</label>
      {kind === "login"
        ? <input id={id} type="text" autocomplete="off" spellcheck={false} value={secret.value} aria-describedby={`${id}-hint`} onInput={onInput} />
        : <input id={id} type="password" autocomplete={kind === "basic" ? "current-password" : "off"} value={secret.value} onInput={onInput} />}
      {kind === "login" && <p class="hint" id={`${id}-hint`}>{say("clientIdHint", { words: returnAddress() })}</p>}
      {problem.value && <p class="wrong" role="alert">{say("signInFailed", { words: plain(problem.value, 400) })}</p>}
      <div class="actions"><button type="submit">{say("signInWith", { words: plain(name, 40) })}</button></div>
    </form>
  );
}
