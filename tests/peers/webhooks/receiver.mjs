// A receiver of webhooks on standardwebhooks and jose.
//
//     node receiver.mjs <directory with node_modules> hmac SECRET
//     node receiver.mjs <directory with node_modules> jwt ADDRESS_OF_KEYS ISSUER
//
// It prints its address, then a line of JSON for each delivery, and ends when its standard input does.

import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";

const [home, scheme, key, issuer] = process.argv.slice(2);
const peer = createRequire(`${home}/package.json`);
const { Webhook } = peer("standardwebhooks");
const { createRemoteJWKSet, jwtVerify } = peer("jose");
const keys = scheme === "jwt" && createRemoteJWKSet(new URL(key));
let url;

async function verify(headers, body) {
  if (scheme === "hmac") {
    new Webhook(key).verify(body.toString("utf8"), headers);
    return;
  }
  const token = headers.authorization.replace(/^Bearer /, "");
  const options = { issuer, audience: url, algorithms: ["ES256"], requiredClaims: ["exp", "iat", "jti"] };
  const { payload } = await jwtVerify(token, keys, options);
  if (payload.jti !== headers["webhook-id"]) throw new Error("another delivery");
  const digest = createHash("sha256").update(body).digest("hex");
  if (payload.request_body_sha256 !== digest) throw new Error("another body");
}

const server = createServer(async (request, response) => {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  let why = "";
  try {
    await verify(request.headers, Buffer.concat(pieces));
  } catch (error) {
    why = error.constructor.name;
  }
  console.log(JSON.stringify({ id: request.headers["webhook-id"], why }));
  response.writeHead(why ? 401 : 204).end();
});
server.listen(0, "127.0.0.1", () => {
  url = `http://127.0.0.1:${server.address().port}/hook`;
  console.log(url);
});
process.stdin.resume().on("end", () => process.exit());
