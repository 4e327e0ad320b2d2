// What the JavaScript programs share. The packages are those of the directory that the first argument
// names. For clients: commands come in as lines of JSON, what comes of them goes out as such.

const { createRequire } = require("node:module");
const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const { pathToFileURL } = require("node:url");

const peer = createRequire(path.join(process.argv[2], "package.json"));
const home = path.join(process.argv[2], "node_modules", "@a2a-js", "sdk");
const { exports: entries } = JSON.parse(fs.readFileSync(path.join(home, "package.json")));

/**
 * Import one of the SDK's entry points as an ES module: those share their classes, and the ones for
 * `require` do not.
 */
function sdk(entry) {
  return import(pathToFileURL(path.join(home, entries[entry].import)));
}

/** The name that an error has in the Python SDK; in these, the binding may be part of it. */
function nameOf(error) {
  const name = error.constructor.name.replace(/^(JsonRpc|Rest|Grpc)|JSONRPC/g, "");
  return name === "RequestMalformedError" ? "InvalidParamsError" : name;
}

function write(line) {
  process.stdout.write(JSON.stringify(line) + "\n");
}

/** Have `perform(command, give)` do each command; it gives what comes of it. */
function drive(perform) {
  const running = new Set();
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    const command = JSON.parse(line);
    const done = perform(command, (item) => write({ id: command.id, item: item ?? null }))
      .then(() => write({ id: command.id, end: true }))
      .catch((error) => {
        const said = String(error.message ?? error);
        write({ id: command.id, end: true, error: nameOf(error), said });
      })
      .finally(() => running.delete(done));
    running.add(done);
  });
  // Kept connections would hold the process.
  lines.on("close", () => Promise.allSettled(running).then(() => process.exit(0)));
}

module.exports = { peer, sdk, drive };
