// The fields of a form as values. A form writes JSON text and not values, so that numbers stay as they
// were typed. What is left empty is left out.

import { type Signal, signal } from "@preact/signals";
import { type Schema, type Violation, isObject } from "../client/types";
import { say } from "../i18n/words";
import { propertiesOf, reading, requiredOf } from "./schema";

const DEEPEST = 12;
const MOST_FIELDS = 150;
const MOST_EDITORS = 600;
const MOST_ROWS = 20;
const MOST_CHOICES = 500;
const JSON_NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;

export type Report = (editor: Editor, words: string) => void;

export interface About {
  name: string;
  schema: unknown;
  root: Schema;
  required: boolean;
  depth: number;
  given?: unknown;
  isItem?: boolean;
  budget: { left: number };
}

// The whole form of a schema. `given` is what it begins with.
export const formOf = (schema: Schema, given?: unknown): Editor =>
  editorOf({ name: "", schema, root: schema, required: true, depth: 0, given, budget: { left: MOST_EDITORS } });

let count = 0;

export abstract class Editor {
  readonly key = `f${(count += 1)}`;
  readonly problem = signal("");
  readonly name: Signal<string>;
  readonly description: string;

  constructor(readonly about: About, readonly schema: Schema, readonly nullable: boolean) {
    this.name = signal(about.name);
    this.description = typeof schema.description === "string" ? schema.description : "";
  }

  get isNeeded(): boolean {
    return this.about.required && !this.nullable && !this.about.isItem;
  }

  protected get nothing(): string | undefined {
    return this.about.required && this.nullable ? "null" : undefined;
  }

  // The JSON text, undefined for what is left out.
  abstract json(report: Report): string | undefined;

  child(_step: string): Editor | undefined {
    return undefined;
  }

  clear(): void {
    this.problem.value = "";
  }
}

export class TextEditor extends Editor {
  readonly text: Signal<string>;

  constructor(about: About, schema: Schema, nullable: boolean, readonly kind: "text" | "number" | "bytes" | "json", initial: unknown) {
    super(about, schema, nullable);
    const isJson = kind === "json" && initial !== undefined && initial !== null;
    const isSimple = typeof initial === "string" || typeof initial === "number";
    this.text = signal(isJson ? JSON.stringify(initial, null, 2) : isSimple && kind !== "json" ? String(initial) : "");
  }

  json(report: Report): string | undefined {
    const text = this.text.value;
    if (this.kind === "text" || this.kind === "bytes") return text === "" ? this.nothing : JSON.stringify(text);
    const given = text.trim();
    if (given === "") return this.nothing;
    if (this.kind === "number") {
      const isInteger = this.schema.type === "integer";
      if (!JSON_NUMBER.test(given) || (isInteger && !Number.isInteger(Number(given)))) {
        report(this, say(isInteger ? "expectedInteger" : "expectedNumber"));
      }
      return given;
    }
    try {
      JSON.parse(given);
    } catch (error) {
      report(this, say("expectedJson", { words: error instanceof Error ? error.message : "" }));
    }
    return given;
  }
}

export class ChoiceEditor extends Editor {
  readonly place: Signal<string>;

  constructor(about: About, schema: Schema, nullable: boolean, readonly values: readonly unknown[], initial: unknown) {
    super(about, schema, nullable);
    const at = values.indexOf(initial);
    this.place = signal(at < 0 ? "" : String(at));
  }

  label(value: unknown): string {
    if (typeof value === "boolean" && this.schema.type === "boolean") return say(value ? "yes" : "no");
    return typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  }

  json(): string | undefined {
    return this.place.value === "" ? this.nothing : JSON.stringify(this.values[Number(this.place.value)]);
  }
}

export class TickEditor extends Editor {
  readonly ticked: Signal<boolean>;

  constructor(about: About, schema: Schema, nullable: boolean, initial: unknown) {
    super(about, schema, nullable);
    this.ticked = signal(initial === true);
  }

  override get isNeeded(): boolean {
    return false;
  }

  json(): string {
    return String(this.ticked.value);
  }
}

export class FixedEditor extends Editor {
  json(): string {
    return JSON.stringify(this.schema.const) ?? "null";
  }
}

// Fields that may be left out together are made when they are opened: a value may hold its own kind.
export abstract class BoxEditor extends Editor {
  readonly isLazy: boolean;
  readonly isOpen: Signal<boolean>;

  constructor(about: About, schema: Schema, nullable: boolean) {
    super(about, schema, nullable);
    this.isLazy = about.depth > 0 && (!about.required || nullable);
    this.isOpen = signal(!this.isLazy);
  }

  protected start(): void {
    if (!this.isLazy || isObject(this.about.given) || Array.isArray(this.about.given)) this.open();
  }

  open(): void {
    this.isOpen.value = true;
    this.fill();
  }

  protected abstract fill(): void;

  protected get isLeftOut(): boolean {
    return this.isLazy && !this.isOpen.value;
  }
}

export interface Row {
  key: string;
  name: Signal<string>;
  value: Editor;
}

export class GroupEditor extends BoxEditor {
  readonly fields = new Map<string, Editor>();
  others: RowsEditor | null = null;
  readonly isTuple: boolean;
  private isFilled = false;

  constructor(about: About, schema: Schema, nullable: boolean) {
    super(about, schema, nullable);
    this.isTuple = Array.isArray(schema.prefixItems);
    this.start();
  }

  protected fill(): void {
    if (this.isFilled) return;
    this.isFilled = true;
    const { schema, about } = this;
    const given = about.given !== null && typeof about.given === "object" ? (about.given as Record<string, unknown>) : {};
    const below = (step: string, name: string, inner: unknown, required: boolean): void => {
      const value = Object.hasOwn(given, step) ? given[step] : undefined;
      this.fields.set(step, editorOf({ name, schema: inner, root: about.root, required, depth: about.depth + 1, given: value, budget: about.budget }));
    };
    if (Array.isArray(schema.prefixItems)) schema.prefixItems.slice(0, MOST_FIELDS).forEach((each, at) => below(String(at), String(at + 1), each, true));
    else for (const [name, each] of Object.entries(propertiesOf(schema))) below(name, name, each, requiredOf(schema).includes(name));
    if (!this.isTuple && isObject(schema.additionalProperties)) {
      const added = Object.entries(given).filter(([name]) => !this.fields.has(name));
      this.others = new RowsEditor({ ...about, required: true, depth: about.depth + 1 }, schema.additionalProperties, true, added);
    }
  }

  json(report: Report): string | undefined {
    if (this.isLeftOut) return this.nothing;
    if (this.isTuple) return `[${[...this.fields.values()].map((each) => each.json(report) ?? "null").join(",")}]`;
    const members: string[] = [];
    for (const [name, each] of this.fields) {
      const json = each.json(report);
      if (json !== undefined) members.push(`${JSON.stringify(name)}:${json}`);
    }
    return `{${[...members, ...(this.others?.members(report) ?? [])].join(",")}}`;
  }

  override child(step: string): Editor | undefined {
    this.open();
    return this.fields.get(step) ?? this.others?.child(step);
  }

  override clear(): void {
    super.clear();
    for (const each of this.fields.values()) each.clear();
    this.others?.clear();
  }
}

// Rows that are added and removed: the items of a list, or the members of a map, which have names.
export class RowsEditor extends BoxEditor {
  readonly rows = signal<readonly Row[]>([]);
  private isFilled = false;

  constructor(about: About, readonly inner: unknown, readonly isNamed: boolean, private readonly begun: [string, unknown][], schema: Schema = {}, nullable = false) {
    super(about, schema, nullable);
    this.start();
  }

  protected fill(): void {
    if (this.isFilled) return;
    this.isFilled = true;
    for (const [name, value] of this.begun) this.add(name, value);
  }

  add(name = "", given?: unknown): Row {
    const { root, depth, budget } = this.about;
    const value = editorOf({ name: "", schema: this.inner, root, required: true, depth: depth + 1, given, isItem: true, budget });
    const row = { key: value.key, name: signal(name), value };
    this.rows.value = [...this.rows.value, row];
    this.rename();
    return row;
  }

  remove(row: Row): void {
    this.rows.value = this.rows.value.filter((each) => each !== row);
    this.rename();
  }

  private rename(): void {
    this.rows.value.forEach(({ value }, at) => { value.name.value = say("item", { words: this.about.name, count: at + 1 }).trim(); });
  }

  json(report: Report): string | undefined {
    return this.isLeftOut ? this.nothing : `[${this.rows.value.map(({ value }) => value.json(report) ?? "null").join(",")}]`;
  }

  members(report: Report): string[] {
    return this.rows.value.filter(({ name }) => name.value).map(({ name, value }) => `${JSON.stringify(name.value)}:${value.json(report) ?? "null"}`);
  }

  override child(step: string): Editor | undefined {
    this.open();
    return (this.isNamed ? this.rows.value.find(({ name }) => name.value === step) : this.rows.value[Number(step)])?.value;
  }

  override clear(): void {
    super.clear();
    for (const { value } of this.rows.value) value.clear();
  }
}

export class ArmsEditor extends Editor {
  readonly place = signal("");
  private readonly made = new Map<string, Editor>();

  constructor(about: About, schema: Schema, nullable: boolean, readonly arms: readonly Schema[]) {
    super(about, schema, nullable);
  }

  label(at: number): string {
    const arm = this.arms[at];
    return String(arm?.title ?? arm?.type ?? say("choice", { count: at + 1 }));
  }

  get current(): Editor | null {
    const at = this.place.value;
    if (at === "") return null;
    let found = this.made.get(at);
    if (!found) {
      const { root, depth, budget } = this.about;
      found = editorOf({ name: this.label(Number(at)), schema: this.arms[Number(at)], root, required: true, depth: depth + 1, budget });
      this.made.set(at, found);
    }
    return found;
  }

  json(report: Report): string | undefined {
    return this.current ? this.current.json(report) : this.nothing;
  }

  override child(step: string): Editor | undefined {
    return this.current?.child(step);
  }

  override clear(): void {
    super.clear();
    this.current?.clear();
  }
}

export function editorOf(about: About): Editor {
  const { schema, nullable, arms } = reading(about.schema, about.root);
  const initial = about.given === undefined ? schema.default : about.given;
  const raw = (): Editor => new TextEditor(about, schema, nullable, "json", initial);
  about.budget.left -= 1;
  if (about.depth > DEEPEST || about.budget.left < 0) return raw();
  if (arms.length) return new ArmsEditor(about, schema, nullable, arms);
  if ("const" in schema) return new FixedEditor(about, schema, nullable);
  if (Array.isArray(schema.enum)) return schema.enum.length > MOST_CHOICES ? raw() : new ChoiceEditor(about, schema, nullable, schema.enum, initial);
  const isMap = isObject(schema.additionalProperties);
  const isBig = Object.keys(propertiesOf(schema)).length > MOST_FIELDS;
  if (isBig) return raw();
  if (isObject(schema.properties) || (schema.type === "object" && isMap) || Array.isArray(schema.prefixItems)) return new GroupEditor(about, schema, nullable);
  if (schema.type === "array" && isObject(schema.items)) {
    const least = typeof schema.minItems === "number" ? Math.min(schema.minItems, MOST_ROWS) : 0;
    const given = Array.isArray(about.given) ? about.given.slice(0, MOST_FIELDS) : Array<unknown>(Math.max(least, 0)).fill(undefined);
    return new RowsEditor(about, schema.items, false, given.map((each): [string, unknown] => ["", each]), schema, nullable);
  }
  switch (schema.type) {
    case "boolean":
      if (about.required || typeof initial === "boolean") return new TickEditor(about, schema, nullable, initial);
      return new ChoiceEditor(about, schema, nullable, [true, false], initial);
    case "integer": case "number": return new TextEditor(about, schema, nullable, "number", initial);
    case "string": return new TextEditor(about, schema, nullable, schema.contentEncoding === "base64" ? "bytes" : "text", initial);
    default: return raw();
  }
}

// A form whose schema is too large for fields is written as JSON.
export const isTooLarge = (editor: Editor): boolean => editor instanceof TextEditor && editor.kind === "json" && Object.keys(propertiesOf(editor.schema)).length > MOST_FIELDS;

// The steps of a field's path such as `stops[0].city`. "$" is the whole value.
function stepsOf(field: string): string[] {
  const below = field.replace(/^(?:\$\.?|(?:request\.)?(?:message\.)?parts\[\d+\]\.data\.?)/, "");
  return below.match(/[^.[\]]+/g) ?? [];
}

export function place(root: Editor, violations: readonly Violation[]): void {
  for (const { field, description } of violations.slice(0, MOST_FIELDS)) {
    let at = root;
    let steps = stepsOf(String(field ?? "$"));
    for (let next = at.child(steps[0] ?? ""); steps.length && next; next = at.child(steps[0] ?? "")) {
      at = next;
      steps = steps.slice(1);
      if (!steps.length) break;
    }
    const words = steps.length ? `${field}: ${description}` : String(description ?? "");
    at.problem.value = at.problem.value ? `${at.problem.value}\n${words}` : words;
  }
}
