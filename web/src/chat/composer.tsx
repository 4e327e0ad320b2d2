// Where a message is written: as text, with files, or as the form of a skill.

import { type Signal, signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { type AgentClient, Problem } from "../client/client";
import { type Card, type Part, type Schema, type Skill, FILE_TRANSFER, SKILL_SCHEMAS, isObject, listOf } from "../client/types";
import { Form, base64Of } from "../form/form";
import { say } from "../i18n/words";
import { size } from "../render/parts";
import { plain } from "../render/text";
import type { Conversation } from "../state/conversation";

const INLINE = 1024 * 1024;
const MOST_SKILLS = 200;

// What a message will be, before it is sent. Other parts of the page begin it.
export const draft = {
  text: signal(""),
  skill: signal(""),
  asForm: signal(false),
  files: signal<readonly File[]>([]) as Signal<readonly File[]>,
  focus: signal(0),
};

export function begin(skill: string, text: string, asForm: boolean): void {
  draft.skill.value = skill;
  if (text) draft.text.value = text;
  draft.asForm.value = asForm;
  draft.focus.value += 1;
}

export function schemaOf(client: AgentClient, skill: string): Schema | null {
  const skills = client.params(SKILL_SCHEMAS)?.skills;
  const found = isObject(skills) && Object.hasOwn(skills, skill) ? skills[skill] : null;
  const input = isObject(found) ? found.input : null;
  return isObject(input) ? input : null;
}

export const skillsOf = (card: Card): readonly Skill[] => listOf(card.skills).filter((each) => isObject(each) && typeof each.id === "string").slice(0, MOST_SKILLS);

export function Composer({ client, conversation }: { client: AgentClient; conversation: Conversation }): JSX.Element {
  const node = useRef<HTMLDivElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  const busy = conversation.busy.value;
  const skill = draft.skill.value;
  const schema = schemaOf(client, skill);
  const isForm = schema !== null && draft.asForm.value && !conversation.asking;
  const focus = (): void => {
    const field = node.current?.querySelector(isForm ? ".fields input, .fields select, .fields textarea" : "textarea.message");
    (field as HTMLElement | null | undefined)?.focus();
  };
  useEffect(() => { if (draft.focus.value) focus(); }, [draft.focus.value]);
  const question = conversation.asking?.question;
  useEffect(() => {
    // The composer is here for a question in prose: one with a schema has a form of its own.
    if (question && !busy) focus();
  }, [question?.messageId, busy]);
  const send = async (): Promise<void> => {
    const text = draft.text.value.trim();
    const files = draft.files.value;
    if (busy || (!text && !files.length)) return;
    const parts = await partsOf(client, files).catch((error: unknown) => {
      conversation.problem.value = error instanceof Problem ? error : new Problem(0, String(error));
      return null;
    });
    if (!parts) return;
    draft.text.value = "";
    draft.files.value = [];
    const problem = await conversation.send({ text, files: parts, skill });
    if (problem && !draft.text.value) {
      draft.text.value = text;
      draft.files.value = files;
    }
  };
  const keys = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); void send(); }
    if (event.key === "Escape" && busy) (node.current?.querySelector("button.cancel") as HTMLElement | null)?.focus();
  };
  const skills = skillsOf(client.card);
  const options = (
    <div class="options">
      {skills.length > 0 && !conversation.asking && (
        <label class="inline"><span>{say("skill")}</span>
          <select value={skill} onChange={(event) => { draft.skill.value = event.currentTarget.value; draft.asForm.value = schemaOf(client, event.currentTarget.value) !== null; }}>
            <option value="">{say("anySkill")}</option>
            {skills.map((each) => <option key={each.id} value={each.id}>{plain(each.name || each.id, 80)}</option>)}
          </select>
        </label>
      )}
      {schema && !conversation.asking && (
        <div role="group" aria-label={say("input")} class="switch">
          <button type="button" class="plain small" aria-pressed={isForm} onClick={() => begin(skill, "", true)}>{say("asForm")}</button>
          <button type="button" class="plain small" aria-pressed={!isForm} onClick={() => begin(skill, "", false)}>{say("asText")}</button>
        </div>
      )}
    </div>
  );
  const cancel = busy && <button type="button" class="plain cancel" onClick={() => { void conversation.cancel(); }}>{say("cancel")}</button>;
  if (isForm && schema) {
    return (
      <div class="composer" ref={node}>
        {options}
        <Form key={skill} schema={schema} label={plain(skill, 100)} submit={say("send")} disabled={busy} actions={cancel}
          onSend={(json) => conversation.send({ json, skill })} />
      </div>
    );
  }
  const label = question ? say("answer") : say("message");
  return (
    <div class="composer" ref={node}>
      {options}
      <form onSubmit={(event) => { event.preventDefault(); void send(); }} aria-label={label}>
        <label for="message">{label} <small id="message-hint">{say("messageHint")}</small></label>
        <textarea id="message" class="message" rows={3} dir="auto" aria-describedby="message-hint" value={draft.text.value}
          onInput={(event) => { draft.text.value = event.currentTarget.value; }} onKeyDown={keys} />
        {draft.files.value.length > 0 && (
          <ul class="attached" aria-label={say("files")}>
            {draft.files.value.map((file) => (
              <li key={file.name}>
                <bdi>{plain(file.name, 80)}</bdi> <span class="quiet">{size(file.size)}</span>{" "}
                <button type="button" class="plain small" aria-label={say("remove", { words: file.name })}
                  onClick={() => { draft.files.value = draft.files.value.filter((each) => each !== file); }}>×</button>
              </li>
            ))}
          </ul>
        )}
        <div class="actions">
          <button type="submit" disabled={busy}>{question ? say("sendAnswer") : say("send")}</button>
          <button type="button" class="plain" onClick={() => picker.current?.click()}>{say("attach")}</button>
          <input ref={picker} type="file" multiple hidden tabIndex={-1} aria-label={say("attach")} onChange={(event) => {
            draft.files.value = [...draft.files.value, ...(event.currentTarget.files ?? [])];
            event.currentTarget.value = "";
          }} />
          {cancel}
        </div>
      </form>
    </div>
  );
}

// Small files go into the message, larger ones to the server of the agent.
async function partsOf(client: AgentClient, files: readonly File[]): Promise<Part[]> {
  const declared = client.params(FILE_TRANSFER)?.inlineBytes;
  const limit = typeof declared === "number" ? declared : INLINE;
  return Promise.all(files.map(async (file): Promise<Part> => {
    const about = { filename: file.name, mediaType: file.type || "application/octet-stream" };
    return file.size <= limit ? { raw: await base64Of(file), ...about } : { url: (await client.upload(file)).url, ...about };
  }));
}
