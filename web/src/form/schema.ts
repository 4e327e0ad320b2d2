// JSON Schemas, read for forms: without references, with their alternatives, and null apart.

import { type Schema, isObject } from "../client/types";

const MOST_REFERENCES = 20;

function pointed(reference: string, root: Schema): Schema {
  if (!reference.startsWith("#")) return {};
  let found: unknown = root;
  for (const step of reference.slice(1).split("/").filter(Boolean)) {
    let name = step;
    try {
      name = decodeURIComponent(step).replaceAll("~1", "/").replaceAll("~0", "~");
    } catch {
      return {};
    }
    found = isObject(found) && Object.hasOwn(found, name) ? found[name] : undefined;
  }
  return isObject(found) ? found : {};
}

// A schema without references at its top, and with what `allOf` adds to it.
export function resolved(schema: unknown, root: Schema, count = 0): Schema {
  if (!isObject(schema) || count > MOST_REFERENCES) return {};
  const { $ref, allOf, ...own } = schema;
  if (typeof $ref === "string") return resolved({ ...pointed($ref, root), ...own }, root, count + 1);
  if (!Array.isArray(allOf)) return schema;
  const all = [...allOf.slice(0, MOST_REFERENCES).map((each) => resolved(each, root, count + 7)), own];
  const properties = Object.assign({}, ...all.map((each) => propertiesOf(each))) as Schema;
  const required = all.flatMap((each) => requiredOf(each));
  const merged = Object.assign({}, ...all) as Schema;
  return Object.keys(properties).length ? { ...merged, properties, required } : merged;
}

export const propertiesOf = (schema: Schema): Record<string, unknown> => (isObject(schema.properties) ? schema.properties : {});

export const requiredOf = (schema: Schema): string[] => (Array.isArray(schema.required) ? schema.required.filter((each) => typeof each === "string") : []);

const isNull = (schema: Schema): boolean => schema.type === "null" || ("const" in schema && schema.const === null);

export interface Reading {
  schema: Schema;
  nullable: boolean;
  arms: Schema[];
}

export function reading(given: unknown, root: Schema, count = 0): Reading {
  let whole = resolved(given, root);
  let nullable = isNull(whole);
  if (Array.isArray(whole.type)) {
    nullable = whole.type.includes("null");
    const types = whole.type.filter((each) => each !== "null");
    const { type: _, ...own } = whole;
    whole = types.length === 1 ? { ...own, type: types[0] } : { ...own, anyOf: types.map((each) => ({ type: each as unknown })) };
  }
  const { anyOf, oneOf, ...own } = whole;
  const alternatives = anyOf ?? oneOf;
  if (Array.isArray(alternatives)) {
    const found = alternatives.slice(0, 100).map((each) => resolved(each, root));
    const arms = found.filter((each) => !isNull(each));
    nullable = nullable || arms.length < found.length;
    const [only] = arms;
    if (arms.length === 1 && only && count < MOST_REFERENCES) {
      const inner = reading({ ...only, ...own }, root, count + 1);
      return { ...inner, nullable: nullable || inner.nullable };
    }
    if (!arms.length || !arms.every((each) => "const" in each)) return { schema: own, nullable, arms };
    whole = { ...own, enum: arms.map((each) => each.const) };
  }
  if (Array.isArray(whole.enum) && whole.enum.includes(null)) {
    return { schema: { ...whole, enum: whole.enum.filter((each) => each !== null) }, nullable: true, arms: [] };
  }
  return { schema: whole, nullable, arms: [] };
}
