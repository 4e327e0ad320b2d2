// The issuer of the package oidc-provider: a real one, which lets "ada" in and consents by itself.
//
//     node oidc_provider.mjs <directory with node_modules>
//
// It prints its address, and serves until its standard input closes.

import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

// Standard output is for the address.
console.info = console.warn = console.log = console.error;
const { Provider } = await import(
  pathToFileURL(`${process.argv[2]}/node_modules/oidc-provider/lib/index.js`)
);

const BANK = "https://bank.example.com/";
let handle;
const server = createServer((request, response) => handle(request, response));
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const issuer = `http://127.0.0.1:${server.address().port}`;

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "service",
      client_secret: "secret-of-the-service",
      grant_types: ["client_credentials"],
      redirect_uris: [],
      response_types: [],
    },
  ],
  scopes: ["openid", "offline_access"],
  cookies: { keys: ["only for tests"] },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    introspection: { enabled: true },
    revocation: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: (_, __, oneOf) => oneOf ?? BANK,
      useGrantedResource: () => true,
      getResourceServerInfo: (_, resource) => ({
        scope: "read pay",
        audience: resource === "https://hotel.example.com/" ? "hotel" : "bank",
        accessTokenFormat: "jwt",
        accessTokenTTL: 300,
      }),
    },
  },
});

async function consent(request, response) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    return provider.interactionFinished(request, response, { login: { accountId: "ada" } });
  }
  const grant = grantId
    ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  const { missingOIDCScope, missingResourceScopes } = prompt.details;
  if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(" "));
  for (const [resource, scopes] of Object.entries(missingResourceScopes ?? {})) {
    grant.addResourceScope(resource, scopes.join(" "));
  }
  const result = { consent: { grantId: await grant.save() } };
  await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

const answer = provider.callback();
handle = (request, response) => {
  if (!request.url.startsWith("/interaction/")) return answer(request, response);
  consent(request, response).catch((error) => response.writeHead(500).end(String(error)));
};

process.stdout.write(`${issuer}\n`);
process.stdin.on("end", () => process.exit(0)).resume();
