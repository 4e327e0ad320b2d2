// A form of editors: fields with labels, hints and what is wrong beside them; and the same as JSON.

import { useComputed, useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { Problem } from "../client/client";
import type { Schema, Violation } from "../client/types";
import { say } from "../i18n/words";
import { plain } from "../render/text";
import {
  type Editor, ArmsEditor, BoxEditor, ChoiceEditor, FixedEditor, GroupEditor, RowsEditor, TextEditor, TickEditor, formOf, isTooLarge, place,
} from "./editors";

const HINTS: Record<string, string> = { "date-time": "2026-01-31T12:00:00Z", time: "12:30:00", duration: "PT1H30M" };

interface FormProps {
  schema: Schema;
  given?: unknown;
  problems?: readonly Violation[];
  label: string;
  submit: string;
  disabled: boolean;
  actions?: ComponentChildren;
  onSend: (json: string) => Promise<Problem | null>;
}

export function Form({ schema, given, problems = [], label, submit, disabled, actions, onSend }: FormProps): JSX.Element {
  const root = useMemo(() => {
    const made = formOf(schema, given);
    place(made, problems);
    return made;
  }, [schema]);
  const asJson = useSignal<TextEditor | null>(null);
  const node = useRef<HTMLFormElement>(null);
  const focusWrong = (): void => {
    setTimeout(() => {
      const wrong = node.current?.querySelector("[aria-invalid=true]");
      const field = wrong?.matches("input, select, textarea") ? wrong : wrong?.querySelector("input, select, textarea, button, summary");
      (field as HTMLElement | null | undefined)?.focus();
    });
  };
  const toggle = (): void => {
    if (asJson.value) asJson.value = null;
    else {
      const text = root.json(() => undefined) ?? "";
      const made = new TextEditor({ ...root.about, name: say("input") }, {}, false, "json", undefined);
      made.text.value = pretty(text);
      asJson.value = made;
    }
  };
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    if (disabled) return;
    const editor = asJson.value ?? root;
    editor.clear();
    let isWrong = false;
    const report = (each: Editor, words: string): void => { each.problem.value = words; isWrong = true; };
    const json = editor.json(report);
    if (json === undefined) report(editor, say("needed"));
    if (isWrong || json === undefined) { focusWrong(); return; }
    const problem = await onSend(json);
    if (problem?.violations.length) {
      if (asJson.value) editor.problem.value = problem.violations.map((each) => `${each.field}: ${each.description}`).join("\n");
      else place(root, problem.violations);
      focusWrong();
    }
  };
  const keys = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); node.current?.requestSubmit(); }
  };
  return (
    <form ref={node} class="form" aria-label={label} noValidate onSubmit={send} onKeyDown={keys}>
      <div class="fields">
        {asJson.value ? <Field editor={asJson.value} /> : isTooLarge(root) ? <><p class="quiet">{say("tooLargeForForm")}</p><Field editor={root} label={say("input")} /></> : <Field editor={root} />}
      </div>
      <div class="actions">
        <button type="submit" disabled={disabled}>{submit}</button>
        <button type="button" class="plain" aria-pressed={asJson.value !== null} onClick={toggle}>{say("asJson")}</button>
        {actions}
      </div>
    </form>
  );
}

function pretty(json: string): string {
  // Numbers that JavaScript would round stay as they are.
  if (/\d{16}/.test(json)) return json;
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function Field({ editor, label }: { editor: Editor; label?: string }): JSX.Element {
  if (editor instanceof GroupEditor || editor instanceof RowsEditor) return <Box editor={editor} />;
  return <Simple editor={editor} label={label} />;
}

function kindOf({ schema }: Editor): string {
  const words: string[] = [];
  const number = (keyword: string): number | null => (typeof schema[keyword] === "number" ? (schema[keyword] as number) : null);
  if (schema.type === "integer" || schema.type === "number") {
    words.push(say(schema.type));
    for (const [keyword, word] of [["minimum", "atLeast"], ["exclusiveMinimum", "above"], ["maximum", "atMost"], ["exclusiveMaximum", "below"]] as const) {
      const bound = number(keyword);
      if (bound !== null && Math.abs(bound) < 1e15) words.push(say(word, { count: bound }));
    }
  }
  const [least, most] = [number("minLength"), number("maxLength")];
  if (least) words.push(say("characters", { words: say("atLeast", { count: least }) }));
  if (most) words.push(say("characters", { words: say("atMost", { count: most }) }));
  return words.join(", ");
}

function Heading({ editor, label }: { editor: Editor; label?: string | undefined }): JSX.Element {
  const kind = kindOf(editor);
  return (
    <>
      <bdi class="name">{plain(label ?? editor.name.value, 200)}</bdi>
      {editor.isNeeded && editor.about.depth > 0 && <span class="need">{say("needed")}</span>}
      {kind && <small>{kind}</small>}
    </>
  );
}

function Simple({ editor, label }: { editor: Editor; label?: string | undefined }): JSX.Element {
  const { key } = editor;
  const wrong = editor.problem.value;
  const common = {
    id: key,
    "aria-invalid": wrong ? ("true" as const) : undefined,
    "aria-required": editor.isNeeded ? ("true" as const) : undefined,
    "aria-describedby": [editor.description && `${key}-hint`, wrong && `${key}-wrong`].filter(Boolean).join(" ") || undefined,
  };
  const isTick = editor instanceof TickEditor;
  return (
    <div class="entry">
      {!isTick && <label for={key}><Heading editor={editor} label={label} /></label>}
      {isTick && (
        <label class="tick">
          <input type="checkbox" {...common} checked={editor.ticked.value} onChange={(event) => { editor.ticked.value = event.currentTarget.checked; }} />
          <span><Heading editor={editor} /></span>
        </label>
      )}
      {editor.description && <p id={`${key}-hint`} class="hint">{plain(editor.description, 1000)}</p>}
      <Control editor={editor} common={common} />
      {wrong && <p id={`${key}-wrong`} class="wrong">{plain(wrong, 1000)}</p>}
      {editor instanceof ArmsEditor && editor.current && <div class="arm" key={editor.place.value}><Field editor={editor.current} /></div>}
    </div>
  );
}

type Common = Record<string, string | undefined>;

function Control({ editor, common }: { editor: Editor; common: Common }): JSX.Element | null {
  if (editor instanceof ChoiceEditor || editor instanceof ArmsEditor) {
    const options = editor instanceof ChoiceEditor ? editor.values.map((each) => editor.label(each)) : editor.arms.map((_, at) => editor.label(at));
    return (
      <select {...common} value={editor.place.value} onChange={(event) => { editor.place.value = event.currentTarget.value; }}>
        <option value="">{editor.isNeeded ? say("choose") : ""}</option>
        {options.map((each, at) => <option key={at} value={String(at)}>{plain(each, 200)}</option>)}
      </select>
    );
  }
  if (editor instanceof FixedEditor) {
    const value = typeof editor.schema.const === "string" ? editor.schema.const : editor.json();
    return <input {...common} type="text" readOnly value={value} />;
  }
  if (!(editor instanceof TextEditor)) return null;
  const { schema, kind } = editor;
  const text = { ...common, value: editor.text.value, autocomplete: "off", autocapitalize: "none", spellcheck: false } as const;
  const onInput = (event: { currentTarget: { value: string } }): void => { editor.text.value = event.currentTarget.value; };
  if (kind === "bytes") return <BytesField editor={editor} common={common} />;
  const isLong = kind === "json" || (typeof schema.maxLength === "number" && schema.maxLength >= 300) || schema.contentMediaType !== undefined;
  if (isLong) return <textarea {...text} rows={kind === "json" ? 5 : 4} onInput={onInput} class={kind === "json" ? "code" : ""} />;
  const format = typeof schema.format === "string" ? schema.format : "";
  const type = kind === "text" && format === "date" ? "date" : "text";
  if (type === "date") return <input {...text} type="date" onInput={onInput} />;
  return <input {...text} type="text" inputMode={kind === "number" ? "decimal" : format === "email" ? "email" : undefined} placeholder={HINTS[format] ?? ""} onInput={onInput} />;
}

function BytesField({ editor, common }: { editor: TextEditor; common: Common }): JSX.Element {
  const read = async (files: FileList | null): Promise<void> => {
    const file = files?.[0];
    editor.text.value = file ? await base64Of(file) : "";
  };
  return <input {...common} type="file" onChange={(event) => { void read(event.currentTarget.files); }} />;
}

export async function base64Of(file: Blob): Promise<string> {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let binary = "";
  for (let at = 0; at < bytes.length; at += 0x8000) binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(binary);
}

function Box({ editor }: { editor: BoxEditor }): JSX.Element {
  const isTop = editor.about.depth === 0;
  const wrong = editor.problem.value;
  const content = (
    <>
      {editor.description && !isTop && <p class="hint">{plain(editor.description, 1000)}</p>}
      {wrong && <p class="wrong" id={`${editor.key}-wrong`}>{plain(wrong, 1000)}</p>}
      {editor.isOpen.value && (editor instanceof GroupEditor ? <Group editor={editor} /> : <Rows editor={editor as RowsEditor} />)}
    </>
  );
  const invalid = wrong ? ("true" as const) : undefined;
  if (isTop) return <div aria-invalid={invalid}>{content}</div>;
  if (!editor.isLazy) return <fieldset class="group" aria-invalid={invalid}><legend><Heading editor={editor} /></legend>{content}</fieldset>;
  const toggle = (event: { currentTarget: HTMLDetailsElement }): void => {
    if (event.currentTarget.open) editor.open();
    else editor.isOpen.value = false;
  };
  return <details class="group" open={editor.isOpen.value} onToggle={toggle} aria-invalid={invalid}><summary><Heading editor={editor} /></summary>{content}</details>;
}

function Group({ editor }: { editor: GroupEditor }): JSX.Element {
  const fields = [...editor.fields.values()];
  return (
    <>
      {fields.map((each) => <Field key={each.key} editor={each} />)}
      {editor.others && <Rows editor={editor.others} />}
      {!fields.length && !editor.others && <p class="quiet">{say("noMembers")}</p>}
    </>
  );
}

function Rows({ editor }: { editor: RowsEditor }): JSX.Element {
  const rows = useComputed(() => editor.rows.value);
  const node = useRef<HTMLDivElement>(null);
  const isAdding = useRef(false);
  useEffect(() => {
    if (!isAdding.current) return;
    isAdding.current = false;
    const items = node.current?.querySelectorAll(":scope > .item");
    (items?.[items.length - 1]?.querySelector("input, select, textarea") as HTMLElement | null | undefined)?.focus();
  });
  return (
    <div class="rows" ref={node}>
      {rows.value.map((row) => (
        <div class="item" key={row.key}>
          {editor.isNamed && (
            <label class="member"><span>{say("memberName")}</span>
              <input type="text" value={row.name.value} autocomplete="off" onInput={(event) => { row.name.value = event.currentTarget.value; }} />
            </label>
          )}
          <Field editor={row.value} />
          <button type="button" class="plain small" onClick={() => editor.remove(row)}>{say("remove", { words: row.value.name.value })}</button>
        </div>
      ))}
      <button type="button" class="plain small" onClick={() => { isAdding.current = true; editor.add(); }}>{say(editor.isNamed ? "addMember" : "addItem")}</button>
    </div>
  );
}
