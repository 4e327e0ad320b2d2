"use strict";

// Forms of JSON Schemas: of what a skill takes, and of what a question wants to know. A form writes
// JSON text and not values, so that numbers stay as they were typed. What is left empty is left out.

const SKILL_SCHEMAS = "urn:parley:skill-schemas:v1";
const TYPED_QUESTIONS = "urn:parley:typed-questions:v1";
const SCHEMA_MEDIA_TYPE = "application/schema+json";
const MOST_REFERENCES = 20;
const DEEPEST = 12;
const MOST_ROWS = 20;
const JSON_NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const SHAPES = { "date-time": "2026-01-31T12:00:00Z", time: "12:30:00", duration: "PT1H30M", uuid: "00000000-0000-0000-0000-000000000000" };

let fieldCount = 0;

// -- reading a schema -----------------------------------------------------------------------------

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function pointed(reference, root) {
  if (!reference.startsWith("#")) return {};
  let found = root;
  for (const step of reference.slice(1).split("/").filter(Boolean)) {
    const name = decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~");
    found = isObject(found) && Object.hasOwn(found, name) ? found[name] : undefined;
  }
  return isObject(found) ? found : {};
}

// A schema without references at its top, and with what `allOf` adds to it.
function resolved(schema, root, count = 0) {
  if (!isObject(schema) || count > MOST_REFERENCES) return {};
  const { $ref, allOf, ...own } = schema;
  if (typeof $ref === "string") return resolved({ ...pointed($ref, root), ...own }, root, count + 1);
  if (!Array.isArray(allOf)) return schema;
  const all = [...allOf.map((each) => resolved(each, root, count + 1)), own];
  const properties = Object.assign({}, ...all.map((each) => each.properties || {}));
  const required = all.flatMap((each) => each.required || []);
  const merged = Object.assign({}, ...all);
  if (Object.keys(properties).length) Object.assign(merged, { properties, required });
  return merged;
}

const isNull = (schema) => schema.type === "null" || ("const" in schema && schema.const === null);

// What a form needs to know of a schema: `arms` are its alternatives, null is none of them.
function reading(schema, root) {
  let whole = resolved(schema, root);
  let nullable = isNull(whole);
  if (Array.isArray(whole.type)) {
    nullable = whole.type.includes("null");
    const types = whole.type.filter((each) => each !== "null");
    const { type, ...own } = whole;
    whole = types.length === 1 ? { ...own, type: types[0] } : { ...own, anyOf: types.map((each) => ({ type: each })) };
  }
  const { anyOf, oneOf, ...own } = whole;
  const given = anyOf || oneOf;
  if (Array.isArray(given)) {
    const found = given.map((each) => resolved(each, root));
    const arms = found.filter((each) => !isNull(each));
    nullable = nullable || arms.length < found.length;
    if (arms.length === 1) {
      const inner = reading({ ...arms[0], ...own }, root);
      return { ...inner, nullable: nullable || inner.nullable };
    }
    if (arms.length && arms.every((each) => "const" in each)) whole = { ...own, enum: arms.map((each) => each.const) };
    else return { schema: own, nullable, arms };
  }
  if (Array.isArray(whole.enum) && whole.enum.includes(null)) {
    return { schema: { ...whole, enum: whole.enum.filter((each) => each !== null) }, nullable: true, arms: [] };
  }
  return { schema: whole, nullable, arms: [] };
}

// -- one field ------------------------------------------------------------------------------------

// It begins with what is `given`, else with the default of its schema. `isItem`: a row that was added.
// An editor has a `node`; `json(report)`, its JSON text or undefined; `child(step)`, the editor below
// it; `problem(words)` and `clear()`; `focus()`; and `titled(words)`, which changes its label.

function editor(about) {
  const { schema, nullable, arms } = reading(about.schema, about.root);
  const whole = { ...about, schema, nullable, arms, initial: about.given === undefined ? schema.default : about.given };
  if (about.deep > DEEPEST) return raw(whole);
  if (arms.length) return alternatives(whole);
  if ("const" in schema) return fixed(whole);
  if (Array.isArray(schema.enum)) return choice(whole, schema.enum);
  const isMap = isObject(schema.additionalProperties);
  if (isObject(schema.properties) || (schema.type === "object" && isMap)) return group(whole);
  if (Array.isArray(schema.prefixItems)) return group(whole);
  if (schema.type === "array" && isObject(schema.items)) return list(whole);
  switch (schema.type) {
    case "boolean": return about.required || typeof whole.initial === "boolean" ? tick(whole) : choice(whole, [true, false], ["yes", "no"]);
    case "integer": case "number": return number(whole);
    case "string": return string(whole);
    default: return raw(whole);
  }
}

const nothing = ({ required, nullable }) => (required && nullable ? "null" : undefined);

function kindOf(schema, arms) {
  if (arms.length || "const" in schema || schema.enum || schema.type === "boolean" || schema.properties) return "";
  const kind = typeOf(schema);
  const length = [["minLength", "at least"], ["maxLength", "at most"]].filter(([each]) => schema[each] > 0)
    .map(([each, words]) => `${words} ${schema[each]} characters`).join(", ");
  return [kind === "string" || kind === "object" ? "" : kind, length].filter(Boolean).join(", ");
}

function headed(about) {
  const title = make("span", {}, about.name);
  const kind = kindOf(about.schema, about.arms);
  const isMarked = about.required && !about.nullable && !about.isItem && about.schema.type !== "boolean";
  const marks = [isMarked ? make("span", { className: "need" }, "required") : "", kind ? make("small", {}, " " + kind) : ""];
  return { title, marks };
}

function problems(target) {
  const node = make("p", { className: "problem", id: `wrong-${fieldCount += 1}`, hidden: true });
  return {
    node,
    problem(words) {
      node.append(...(node.hidden ? [] : [make("br")]), words);
      node.hidden = false;
      target.setAttribute("aria-invalid", "true");
    },
    clear() {
      node.replaceChildren();
      node.hidden = true;
      target.removeAttribute("aria-invalid");
    },
  };
}

function simple(about, input, json, isTick = false) {
  const { title, marks } = headed(about);
  const wrong = problems(input);
  const hint = about.schema.description ? make("p", { className: "hint quiet", id: `hint-${fieldCount += 1}` }, about.schema.description) : "";
  input.setAttribute("aria-describedby", [hint && hint.id, wrong.node.id].filter(Boolean).join(" "));
  if (about.required && !about.nullable) input.setAttribute("aria-required", "true");
  const words = isTick ? [input, make("span", {}, title, ...marks)] : [title, ...marks, input];
  return {
    node: make("div", { className: "entry" }, make("label", { className: isTick ? "tick" : "" }, ...words), hint, wrong.node),
    json,
    child: () => undefined,
    problem: wrong.problem,
    clear: wrong.clear,
    focus: () => input.focus(),
    titled: (given) => { title.textContent = given; },
  };
}

function text(options = {}) {
  return make("input", { autocomplete: "off", autocapitalize: "none", spellcheck: false, ...options });
}

function string(about) {
  const { format, maxLength, contentMediaType } = about.schema;
  const isLong = maxLength >= 300 || contentMediaType;
  const input = isLong ? make("textarea", { rows: 4 }) : text({ type: format === "date" ? "date" : "text", placeholder: SHAPES[format] || "" });
  if (typeof about.initial === "string") input.value = about.initial;
  return simple(about, input, () => (input.value === "" ? nothing(about) : JSON.stringify(input.value)));
}

function number(about) {
  const { type, minimum, maximum } = about.schema;
  const input = text({ type: "number", step: type === "integer" ? "1" : "any" });
  if (typeof minimum === "number") input.min = minimum;
  if (typeof maximum === "number") input.max = maximum;
  if (typeof about.initial === "number") input.value = String(about.initial);
  const self = simple(about, input, (report) => {
    if (input.validity.badInput) report(self, type === "integer" ? "expected an integer" : "expected a number");
    if (input.value === "") return nothing(about);
    return JSON_NUMBER.test(input.value) ? input.value : String(Number(input.value));
  });
  return self;
}

function tick(about) {
  const input = make("input", { type: "checkbox", checked: about.initial === true });
  return simple(about, input, () => String(input.checked), true);
}

function choice(about, values, words) {
  const shown = values.map((each, place) => (words ? words[place] : typeof each === "string" ? each : JSON.stringify(each)));
  const input = make("select", {}, make("option", { value: "" }, ""), ...shown.map((each, place) => make("option", { value: String(place) }, each)));
  const initial = values.indexOf(about.initial);
  if (initial >= 0) input.value = String(initial);
  return simple(about, input, () => (input.value === "" ? nothing(about) : JSON.stringify(values[Number(input.value)])));
}

function fixed(about) {
  const value = JSON.stringify(about.schema.const);
  const output = text({ type: "text", readOnly: true, value: typeof about.schema.const === "string" ? about.schema.const : value });
  return simple(about, output, () => value);
}

function raw(about) {
  const input = make("textarea", { rows: 3, spellcheck: false, placeholder: "JSON" });
  if (about.initial !== undefined && about.initial !== null) input.value = JSON.stringify(about.initial, null, 2);
  const self = simple({ ...about, schema: { description: about.schema.description, type: "JSON" }, arms: [] }, input, (report) => {
    const given = input.value.trim();
    if (given === "") return nothing(about);
    try {
      JSON.parse(given);
    } catch (error) {
      report(self, `expected JSON: ${error.message}`);
    }
    return given;
  });
  return self;
}

// -- several fields -------------------------------------------------------------------------------

// A box of fields with a legend. One that may be left out is made when it is opened, and left out until
// then: a value may hold values of its own kind.
function boxed(about, fill) {
  const { title, marks } = headed(about);
  const described = about.schema.description ? make("p", { className: "hint quiet" }, about.schema.description) : "";
  const content = make("div", {});
  const isTop = about.deep === 0;
  const isLazy = !isTop && (!about.required || about.nullable);
  let isMade = !isLazy;
  const node = isTop ? make("div", {})
    : isLazy ? make("details", { className: "group" }, make("summary", {}, title, ...marks))
    : make("fieldset", { className: "group" }, make("legend", {}, title, ...marks));
  const wrong = problems(node);
  node.append(described, wrong.node, content);
  const open = () => {
    if (!isMade) { isMade = true; fill(content); }
    if (isLazy) node.open = true;
  };
  if (isLazy) node.addEventListener("toggle", () => node.open && open());
  else fill(content);
  const isGiven = isLazy && about.given !== undefined && about.given !== null;
  return {
    node, open, wrong, isGiven,
    isLeftOut: () => !isMade || (isLazy && !node.open),
    titled: (given) => { title.textContent = given; },
    focus() { open(); (content.querySelector("input, select, textarea, button") || node).focus(); },
  };
}

function group(about) {
  const { schema } = about;
  const isTuple = Array.isArray(schema.prefixItems);
  const editors = new Map();
  let others = null;
  const given = about.given !== null && typeof about.given === "object" ? about.given : {};
  const below = (name, inner, required, step = name) => editor({
    name, schema: inner, root: about.root, required, deep: about.deep + 1, given: Object.hasOwn(given, step) ? given[step] : undefined,
  });
  const box = boxed(about, (content) => {
    if (isTuple) schema.prefixItems.forEach((each, place) => editors.set(String(place), below(String(place + 1), each, true, place)));
    for (const [name, each] of Object.entries(isTuple ? {} : schema.properties || {})) {
      editors.set(name, below(name, each, (schema.required || []).includes(name)));
    }
    content.append(...[...editors.values()].map((each) => each.node));
    if (!isTuple && isObject(schema.additionalProperties)) {
      const added = Object.entries(given).filter(([name]) => !editors.has(name));
      others = rows(about, schema.additionalProperties, { isNamed: true, word: editors.size ? "other member" : "member", given: added });
      content.append(others.node);
    }
    if (!content.childNodes.length) content.append(make("p", { className: "quiet" }, "It has no members."));
  });
  if (box.isGiven) box.open();
  return {
    ...box,
    problem: box.wrong.problem,
    clear() { box.wrong.clear(); for (const each of editors.values()) each.clear(); if (others) others.clear(); },
    child(step) { box.open(); return editors.get(step) || (others ? others.child(step) : undefined); },
    json(report) {
      if (box.isLeftOut()) return nothing(about);
      if (isTuple) return `[${[...editors.values()].map((each) => each.json(report) ?? "null").join(",")}]`;
      const found = [...editors].map(([name, each]) => [name, each.json(report)]).filter(([, each]) => each !== undefined);
      const members = found.map(([name, each]) => `${JSON.stringify(name)}:${each}`);
      if (others) members.push(...others.members(report));
      return `{${members.join(",")}}`;
    },
  };
}

function list(about) {
  let items = null;
  const box = boxed(about, (content) => {
    const empty = Array(Math.min(about.schema.minItems || 0, MOST_ROWS)).fill(undefined);
    const given = Array.isArray(about.given) ? about.given : empty;
    items = rows(about, about.schema.items, { isNamed: false, word: "item", given: given.map((each) => ["", each]) });
    content.append(items.node);
  });
  if (box.isGiven) box.open();
  return {
    ...box,
    problem: box.wrong.problem,
    clear() { box.wrong.clear(); if (items) items.clear(); },
    child(step) { box.open(); return items.child(step); },
    json(report) {
      return box.isLeftOut() ? nothing(about) : `[${items.values(report).join(",")}]`;
    },
  };
}

// Rows that are added and removed: items of a list, or members of a map, which have names.
function rows(about, schema, { isNamed, word, given }) {
  const found = [];
  const node = make("div", { className: "rows" });
  const add = make("button", { type: "button", className: "plain" }, `Add ${word}`);
  const label = (place) => (isNamed ? `value ${place + 1}` : `${about.name || word} ${place + 1}`);
  const relabel = () => found.forEach((row, place) => {
    row.value.titled(label(place));
    row.remove.setAttribute("aria-label", `Remove ${label(place)}`);
  });
  const grow = (key, one) => {
    const name = isNamed ? text({ "aria-label": "name", placeholder: "name", value: key }) : null;
    const value = editor({ name: label(found.length), schema, root: about.root, required: true, deep: about.deep + 1, isItem: true, given: one });
    const remove = make("button", { type: "button", className: "plain remove" }, "Remove");
    const row = { name, value, remove, node: make("div", { className: "item" }, make("div", {}, name || "", value.node), remove) };
    remove.addEventListener("click", () => {
      found.splice(found.indexOf(row), 1);
      row.node.remove();
      relabel();
      add.focus();
      add.dispatchEvent(new Event("input", { bubbles: true }));
    });
    found.push(row);
    add.before(row.node);
    relabel();
    return row;
  };
  add.addEventListener("click", () => {
    const row = grow("", undefined);
    if (row.name) row.name.focus();
    else row.value.focus();
  });
  node.append(add);
  for (const [key, one] of given) grow(key, one);
  return {
    node,
    clear() { for (const { value } of found) value.clear(); },
    child: (step) => (isNamed ? found.find(({ name }) => name.value === step) : found[Number(step)])?.value,
    values: (report) => found.map(({ value }) => value.json(report) ?? "null"),
    members: (report) => found.filter(({ name }) => name.value).map(({ name, value }) => `${JSON.stringify(name.value)}:${value.json(report) ?? "null"}`),
  };
}

function alternatives(about) {
  const words = about.arms.map((each, place) => each.title || typeOf(each) || `choice ${place + 1}`);
  const content = make("div", { className: "arm" });
  const made = new Map();
  let current = null;
  const input = make("select", {}, make("option", { value: "" }, ""), ...words.map((each, place) => make("option", { value: String(place) }, each)));
  const show = () => {
    const place = input.value;
    if (place !== "" && !made.has(place)) {
      made.set(place, editor({ name: words[Number(place)], schema: about.arms[Number(place)], root: about.root, required: true, deep: about.deep + 1 }));
    }
    current = place === "" ? null : made.get(place);
    content.replaceChildren(...(current ? [current.node] : []));
  };
  input.addEventListener("change", show);
  const self = simple(about, input, (report) => (current ? current.json(report) : nothing(about)));
  self.node.append(content);
  const clear = self.clear;
  return {
    ...self,
    child: (step) => current?.child(step),
    clear() { clear(); if (current) current.clear(); },
  };
}

// -- a whole form ---------------------------------------------------------------------------------

// The steps of a field's path such as `stops[0].city`. "$" is the whole value.
function stepsOf(field) {
  const below = field.replace(/^(?:\$\.?|(?:request\.)?(?:message\.)?parts\[\d+\]\.data\.?)/, "");
  return below.match(/[^.[\]]+/g) || [];
}

function place(root, violations) {
  for (const { field, description } of violations) {
    let at = root;
    let steps = stepsOf(field || "$");
    for (let next; steps.length && (next = at.child(steps[0])); steps = steps.slice(1)) at = next;
    at.problem(steps.length ? `${field}: ${description}` : description);
  }
}

// A form of a schema. `body(json)` makes the request's body of what is filled in.
function schemaForm({ label, schema, body, given, found = [], after }) {
  const root = editor({ name: "value", schema, root: schema, required: true, deep: 0, given });
  const asked = (isQuiet) => {
    const wrong = [];
    let json = root.json((each, words) => wrong.push([each, words]));
    if (json === undefined) {
      json = "null";
      wrong.push([root, "required"]);
    }
    if (isQuiet) return toAgent(body(json));
    root.clear();
    for (const [each, words] of wrong) each.problem(words);
    if (wrong.length) { wrong[0][0].focus(); return null; }
    return toAgent(body(json));
  };
  const made = sendable({ label, children: [root.node], asked, after });
  made.form.noValidate = true;
  made.form.place = ({ details = [] } = {}) => {
    root.clear();
    place(root, details.flatMap((each) => each.fieldViolations || []));
    const first = made.form.querySelector("[aria-invalid]");
    if (first) (first.matches("input, select, textarea") ? first : first.querySelector("input, select, textarea, button") || first).focus();
  };
  place(root, found);
  return made;
}

const dataPart = (json) => `{"data":${json},"mediaType":"application/json"}`;

function messageOf(part, about, rest = "") {
  const members = { messageId: random(), role: "ROLE_USER", ...about };
  return `{"message":${JSON.stringify(members).slice(0, -1)},"parts":[${part}]}${rest}}`;
}

// The request that sends a message: with its events as they come, if the agent streams.
function toAgent(body) {
  const { path, verb, about } = operations.SendStreamingMessage || operations.SendMessage;
  const asked = request(path, verb, [], body, about);
  const said = (asked.headers["A2A-Extensions"] || "").split(", ").filter(Boolean);
  const more = [SKILL_SCHEMAS, TYPED_QUESTIONS].filter((uri) => offered.has(uri) && !said.includes(uri));
  if (said.length + more.length) asked.headers["A2A-Extensions"] = [...said, ...more].join(", ");
  return asked;
}

function skillForm(id, schema) {
  const rest = `,"metadata":${JSON.stringify({ skill: id })}`;
  const made = schemaForm({ label: `Input of ${id}`, schema, body: (json) => messageOf(dataPart(json), {}, rest) });
  return make("details", { className: "input" }, make("summary", {}, "Fill in its input"), made.node);
}

// -- questions ------------------------------------------------------------------------------------

const ASKING = ["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"];

// The task that an answer is about: its ids, and its question if it waits for its caller; else null.
function heard(value) {
  const said = isObject(value) && (value.task || value.statusUpdate || (value.status && value.id ? value : null));
  if (!isObject(said) || !isObject(said.status)) return null;
  const ids = { taskId: said.taskId || said.id, contextId: said.contextId };
  return { ids, question: ASKING.includes(said.status.state) ? said.status.message || {} : null };
}

function schemaIn(question) {
  const parts = (question.parts || []).filter((part) => isObject(part.data) && isObject(part.data.schema));
  return (parts.find((part) => part.mediaType === SCHEMA_MEDIA_TYPE) || parts.at(-1))?.data;
}

const answers = new Map(); // what was answered last, by task: it is there to be put right when it is wrong

// A form for the answer to a question; once it is answered, the form gives way to what follows.
function replyForm({ ids, question }) {
  const typed = schemaIn(question);
  const label = "Answer the question";
  const after = (isAnswered) => { if (isAnswered) made.form.hidden = true; };
  let made;
  if (typed) {
    const found = Array.isArray(typed.problems) ? typed.problems.filter(isObject) : [];
    const given = found.length ? answers.get(ids.taskId) : undefined;
    made = schemaForm({
      label, schema: typed.schema, found, given, after,
      body(json) { answers.set(ids.taskId, parsed(json)); return messageOf(dataPart(json), ids); },
    });
  } else {
    const input = make("textarea", { rows: 2 });
    const asked = (isQuiet) => {
      if (!isQuiet && input.value === "") { input.focus(); return null; }
      return toAgent(messageOf(JSON.stringify({ text: input.value }), ids));
    };
    made = sendable({ label, children: [make("label", {}, "Your answer", input)], asked, after });
  }
  made.node.classList.add("reply");
  made.form.prepend(make("h3", {}, label));
  return made.node;
}
