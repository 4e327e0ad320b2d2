"""The official Rust SDK's command line, driven as the README describes.

This project's own interpreter runs it; the argument is the program.
"""

import base64
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = sys.argv[1]
TRANSPORTS = {"JSONRPC": "jsonrpc", "HTTP+JSON": "rest"}


class Refused(Exception):
    """The command ended with an error; says what it wrote."""


def run(command: dict[str, Any], *words: str) -> list[Any]:
    """Return the JSON that a command writes, a line of it for each event of a stream."""
    where = ["-a", command["url"], "--transport", TRANSPORTS[command["binding"]]]
    words = (PROGRAM, *words, *where, "-o", "json", "--compact")
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise Refused(done.stderr.strip())
    return [json.loads(line) for line in done.stdout.splitlines()]


def perform(command: dict[str, Any]) -> Iterator[Any]:
    """Do one command, and yield its items."""
    do = command["do"]
    if do == "card":
        [card] = run(command, "card", "get")
        yield {"name": card["name"]}
        return
    [first, *others] = command["texts"]
    if do == "stream":
        for event in run(command, "send", "--stream", first):
            yield {"text": item(event)["text"] if "artifactUpdate" in event else ""}
    elif do == "cancel":
        [started] = run(command, "send", "--async", "--return-immediately", first)
        yield item(*run(command, "task", "cancel", inner(started)["id"]))
    elif do == "file":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / command["file"]["name"]
            path.write_bytes(base64.b64decode(command["file"]["bytes"]))
            parts = ["--text-part", first, "--file-part", str(path)]
            yield item(*run(command, "send", *parts, "--media-type", command["file"]["media_type"]))
    else:
        [answer] = run(command, "send", first)
        yield item(answer)
        for text in others:
            yield item(*run(command, "send", "--task-id", inner(answer)["id"], text))


def inner(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what is wrapped, if it is."""
    [*wrapped] = answer.values()
    return wrapped[0] if len(wrapped) == 1 else answer


def item(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the text and the state of an answer."""
    answer = inner(answer)
    status = answer.get("status", {})
    said = [answer["artifact"]] if "artifact" in answer else answer.get("artifacts", [])
    if "parts" in answer:
        said = [answer]
    elif not said and status.get("message"):
        said = [status["message"]]
    text = "".join(part.get("text", "") for each in said for part in each["parts"])
    return {"text": text, **({"state": status["state"]} if status else {})}


def write(**line: Any) -> None:
    print(json.dumps(line), flush=True)


for line in sys.stdin:
    asked = json.loads(line)
    try:
        for found in perform(asked):
            write(id=asked["id"], item=found)
    except Exception as error:
        write(id=asked["id"], end=True, error=type(error).__name__, said=str(error))
    else:
        write(id=asked["id"], end=True)
