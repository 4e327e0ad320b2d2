// What an agent's card asks callers for, and what the caller gave. Secrets stay in the tab.

import { signal } from "@preact/signals";
import type { Credentials } from "../client/client";
import { type Card, type SecurityScheme, isObject, listOf } from "../client/types";
import { ofTab } from "../state/storage";

export type Kind = "key" | "bearer" | "basic" | "login" | "certificate" | "unsupported";

export interface Scheme {
  name: string;
  kind: Kind;
  // Where an API key goes: header or query, and its name there.
  place: string;
  field: string;
  description: string;
  scopes: string[];
  scheme: SecurityScheme;
}

export function schemesOf(card: Card): Scheme[] {
  const scopes = new Map<string, string[]>();
  for (const requirement of listOf(card.securityRequirements)) {
    for (const [name, each] of Object.entries(isObject(requirement?.schemes) ? requirement.schemes : {})) {
      scopes.set(name, [...(scopes.get(name) ?? []), ...listOf((each as { list?: string[] }).list)]);
    }
  }
  const declared = isObject(card.securitySchemes) ? card.securitySchemes : {};
  return Object.entries(declared).slice(0, 20).filter(([name, each]) => scopes.has(name) && isObject(each)).map(([name, scheme]) => ({
    name, scheme, ...kindOf(scheme), scopes: [...new Set(scopes.get(name) ?? [])],
  }));
}

function kindOf(scheme: SecurityScheme): Pick<Scheme, "kind" | "place" | "field" | "description"> {
  const { apiKeySecurityScheme: key, httpAuthSecurityScheme: http, oauth2SecurityScheme: oauth } = scheme;
  const oidc = scheme.openIdConnectSecurityScheme;
  const made = (kind: Kind, description = "", place = "", field = ""): ReturnType<typeof kindOf> => ({ kind, place, field, description });
  if (key) return made(key.location === "header" || key.location === "query" ? "key" : "unsupported", key.description, key.location, key.name);
  if (http) {
    const name = (http.scheme ?? "").toLowerCase();
    return made(name === "bearer" ? "bearer" : name === "basic" ? "basic" : "unsupported", http.description, "", http.scheme);
  }
  if (oidc?.openIdConnectUrl) return made("login", oidc.description);
  if (oauth) return made(oauth.flows?.authorizationCode ? "login" : "unsupported", oauth.description, "", "OAuth 2.0");
  return scheme.mtlsSecurityScheme ? made("certificate", scheme.mtlsSecurityScheme.description) : made("unsupported");
}

// Whether nobody is served without credentials.
export const isRequired = (card: Card): boolean => {
  const requirements = listOf(card.securityRequirements);
  return requirements.length > 0 && requirements.every((each) => Object.keys(each?.schemes ?? {}).length > 0);
};

// Where a secret is kept. Those of HTTP are the same whatever a card calls their schemes.
export const secretOf = ({ kind, name }: Scheme): string =>
  kind === "bearer" || kind === "login" ? "Bearer" : kind === "basic" ? "Basic" : `scheme ${name}`;

// What a card that is for callers only asks for, by the challenges of its refusal.
export function challenged(challenges: string): Card {
  const names = ["Bearer", "Basic"].filter((each) => new RegExp(`(^|[,\\s])${each}\\b`, "i").test(challenges));
  const securitySchemes = Object.fromEntries(names.map((each) => [each, { httpAuthSecurityScheme: { scheme: each } }]));
  return { name: "", securitySchemes, securityRequirements: names.map((each) => ({ schemes: { [each]: {} } })) };
}

export type Secrets = Record<string, string>;

export class SignIn {
  readonly secrets = signal<Secrets>({});
  readonly wanted = signal(false);

  constructor(private readonly base: string) {
    const kept = ofTab.read(`secrets:${base}`) ?? {};
    this.secrets.value = Object.fromEntries(Object.entries(kept).map(([name, value]) => [name, String(value)]));
  }

  get isDone(): boolean {
    return Object.keys(this.secrets.value).length > 0;
  }

  set(name: string, secret: string): void {
    const { [name]: _, ...others } = this.secrets.value;
    this.secrets.value = secret ? { ...others, [name]: secret } : others;
    ofTab.write(`secrets:${this.base}`, this.isDone ? this.secrets.value : null);
  }

  forget(): void {
    this.secrets.value = {};
    ofTab.write(`secrets:${this.base}`, null);
  }

  credentials(card: Card): ReturnType<Credentials> {
    const found: ReturnType<Credentials> = { headers: {}, query: {} };
    for (const scheme of schemesOf(card)) {
      const { kind, place, field } = scheme;
      const secret = this.secrets.value[secretOf(scheme)];
      if (secret === undefined) continue;
      if (kind === "bearer" || kind === "login") found.headers.Authorization = `Bearer ${secret}`;
      else if (kind === "basic") found.headers.Authorization = `Basic ${secret}`;
      else if (kind === "key" && place === "header") found.headers[field] = secret;
      else if (kind === "key") found.query[field] = secret;
    }
    return found;
  }
}

export const basicOf = (user: string, password: string): string =>
  btoa(String.fromCharCode(...new TextEncoder().encode(`${user}:${password}`)));

// Where the secrets of the first scheme go, without them.
export function placeholders(card: Card): { headers: Record<string, string>; query: Record<string, string>; python: string[]; command: string[] } {
  const [first] = schemesOf(card).filter(({ kind }) => kind !== "unsupported" && kind !== "certificate");
  if (!first) return { headers: {}, query: {}, python: [], command: [] };
  const { kind, place, field } = first;
  if (kind === "key") {
    const secret = { [field]: "YOUR-KEY" };
    return { headers: place === "header" ? secret : {}, query: place === "query" ? secret : {}, python: ['api_key="YOUR-KEY"'], command: ["--api-key YOUR-KEY"] };
  }
  if (kind === "basic") {
    const header = "Basic BASE64-OF-USER-AND-PASSWORD";
    return { headers: { Authorization: header }, query: {}, python: [`headers={"Authorization": "${header}"}`], command: [`--svc-param 'Authorization:${header}'`] };
  }
  return { headers: { Authorization: "Bearer YOUR-TOKEN" }, query: {}, python: ['bearer="YOUR-TOKEN"'], command: ["--bearer YOUR-TOKEN"] };
}
