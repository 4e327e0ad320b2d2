// OpenID Connect and OAuth 2.0 by redirect: an authorization code with PKCE (RFC 7636), for this page as
// a public client. The issuer sends the browser back to the page's own address.

import { isObject } from "../client/types";
import { ofTab } from "../state/storage";
import type { Scheme } from "./schemes";

interface Endpoints {
  authorize: string;
  token: string;
  issuer: string;
}

const encoded = (bytes: Uint8Array): string =>
  btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

const random = (): string => encoded(crypto.getRandomValues(new Uint8Array(32)));

export const returnAddress = (): string => location.origin + location.pathname;

// Issuers are asked over HTTPS; on this machine HTTP is enough.
function checked(address: unknown): string {
  const url = new URL(String(address));
  const isLoopback = ["localhost", "127.0.0.1", "[::1]"].includes(url.hostname);
  if (url.protocol !== "https:" && !(url.protocol === "http:" && isLoopback)) throw new Error(`${url.origin} is not HTTPS`);
  return url.href;
}

async function endpointsOf({ scheme }: Scheme): Promise<Endpoints> {
  const discovery = scheme.openIdConnectSecurityScheme?.openIdConnectUrl;
  if (!discovery) {
    const flow = scheme.oauth2SecurityScheme?.flows?.authorizationCode;
    return { authorize: checked(flow?.authorizationUrl), token: checked(flow?.tokenUrl), issuer: "" };
  }
  const answer = await fetch(checked(discovery), { credentials: "omit", referrerPolicy: "no-referrer" });
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  const found: unknown = await answer.json();
  if (!isObject(found)) throw new Error("the discovery document is no object");
  const issuer = String(found.issuer ?? "");
  if (!discovery.startsWith(issuer) || !issuer) throw new Error("the discovery document is another issuer's");
  return { authorize: checked(found.authorization_endpoint), token: checked(found.token_endpoint), issuer };
}

export const rememberedClient = (name: string): string => String(ofTab.read("clients")?.[name] ?? "");

export async function begin(base: string, scheme: Scheme, client: string): Promise<void> {
  if (!crypto.subtle) throw new Error("this needs HTTPS");
  const endpoints = await endpointsOf(scheme);
  const isOidc = Boolean(scheme.scheme.openIdConnectSecurityScheme);
  const [state, nonce, verifier] = [random(), random(), random()];
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier)));
  const scopes = [...new Set([...(isOidc ? ["openid"] : []), ...scheme.scopes])].join(" ");
  ofTab.write("clients", { ...ofTab.read("clients"), [scheme.name]: client });
  ofTab.write("login", { base, state, nonce: isOidc ? nonce : "", verifier, client, ...endpoints });
  const url = new URL(endpoints.authorize);
  const asked = {
    response_type: "code", client_id: client, redirect_uri: returnAddress(), state,
    code_challenge: encoded(digest), code_challenge_method: "S256",
    ...(scopes ? { scope: scopes } : {}), ...(isOidc ? { nonce } : {}),
  };
  for (const [name, value] of Object.entries(asked)) url.searchParams.set(name, value);
  location.assign(url.href);
}

// What the browser came back with; null unless it comes from an issuer. Throws what is wrong.
export async function finish(base: string): Promise<string | null> {
  const query = new URLSearchParams(location.search);
  if (!query.has("state") || !(query.has("code") || query.has("error"))) return null;
  history.replaceState(null, "", location.pathname + location.hash);
  const kept = ofTab.read("login");
  ofTab.write("login", null);
  if (!kept || kept.base !== base || kept.state !== query.get("state")) throw new Error("the answer belongs to no login of this tab");
  const issuer = String(kept.issuer ?? "");
  if (issuer && query.has("iss") && query.get("iss") !== issuer) throw new Error("the answer is another issuer's");
  if (query.has("error")) throw new Error(query.get("error_description") || query.get("error") || "");
  const body = new URLSearchParams({
    grant_type: "authorization_code", code: query.get("code") ?? "", redirect_uri: returnAddress(),
    client_id: String(kept.client), code_verifier: String(kept.verifier),
  });
  const answer = await fetch(checked(kept.token), { method: "POST", body, credentials: "omit", referrerPolicy: "no-referrer" });
  const found: unknown = await answer.json().catch(() => null);
  if (!isObject(found)) throw new Error(`HTTP ${answer.status}`);
  if (!answer.ok) throw new Error(String(found.error_description ?? found.error ?? `HTTP ${answer.status}`));
  if (typeof found.access_token !== "string") throw new Error("there is no access token in the answer");
  if (kept.nonce) checkId(found.id_token, String(kept.nonce), issuer, String(kept.client));
  return found.access_token;
}

// The id token came from the issuer itself, so its claims are compared and its signature is not needed.
function checkId(token: unknown, nonce: string, issuer: string, client: string): void {
  const payload = String(token ?? "").split(".")[1] ?? "";
  const claims: unknown = JSON.parse(atob(payload.replaceAll("-", "+").replaceAll("_", "/")));
  if (!isObject(claims) || claims.nonce !== nonce) throw new Error("the id token is of another login");
  const audience = Array.isArray(claims.aud) ? claims.aud : [claims.aud];
  if (claims.iss !== issuer || !audience.includes(client)) throw new Error("the id token is for somebody else");
}
