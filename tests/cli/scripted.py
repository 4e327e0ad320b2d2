"""An agent that gives scripted answers over real HTTP, in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

TASK_ID = "task-1"
CONTEXT_ID = "context-1"


class Asked(NamedTuple):
    """One received request."""

    method: str
    params: dict[str, Any]
    headers: dict[str, str]
    path: str


class Answer(NamedTuple):
    """A scripted answer: a result, an error, a status, or events and the end of the stream."""

    result: Any = None
    error: dict[str, Any] | None = None
    status: int = 200
    events: Sequence[dict[str, Any]] | None = None
    end: str = "close"  # or "cut" in the middle of a chunk, or "hang" until the test ends
    raw: bytes | None = None


def status(state: str, text: str = "") -> dict[str, Any]:
    """Return a TaskStatus."""
    said = {"state": f"TASK_STATE_{state}"}
    if text:
        parts = [{"text": text}]
        said["message"] = {"messageId": "m-1", "role": "ROLE_AGENT", "parts": parts}  # type: ignore
    return said


def task(state: str = "COMPLETED", text: str = "", **more: Any) -> dict[str, Any]:
    """Return a Task."""
    return {"id": TASK_ID, "contextId": CONTEXT_ID, "status": status(state, text), **more}


def status_update(state: str, text: str = "") -> dict[str, Any]:
    """Return a StreamResponse with a status."""
    update = {"taskId": TASK_ID, "contextId": CONTEXT_ID, "status": status(state, text)}
    return {"statusUpdate": update}


def artifact_update(
    text: str, *, append: bool = False, last: bool = False, id: str = "a-1"
) -> dict[str, Any]:
    """Return a StreamResponse with a chunk of an artifact."""
    artifact = {"artifactId": id, "name": "report.md", "parts": [{"text": text}]}
    update = {"taskId": TASK_ID, "contextId": CONTEXT_ID, "artifact": artifact}
    return {"artifactUpdate": {**update, "append": append, "lastChunk": last}}


def message(text: str = "It is noon.") -> dict[str, Any]:
    """Return a Message of the agent."""
    return {"messageId": "m-9", "role": "ROLE_AGENT", "parts": [{"text": text}]}


class ScriptedAgent:
    """Gives each method its scripted answers in order; the last answer repeats."""

    def __init__(self) -> None:
        agent = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                agent.get(self)

            def do_POST(self) -> None:
                agent.post(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.over = threading.Event()
        self.asked: list[Asked] = []
        self.fetched: list[Asked] = []
        self.answers: dict[str, list[Answer]] = {}
        self.card: Any = {
            "name": "Scripted agent",
            "description": "Says what it is told",
            "version": "1.2.3",
            "supportedInterfaces": [self.interface()],
            "capabilities": {"streaming": True},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "s", "name": "S", "description": "Says", "tags": ["t"]}],
        }
        self.card_status = 200
        self.challenge = ""

    def interface(self, **more: Any) -> dict[str, Any]:
        """Return the interface with this agent's address."""
        return {
            "url": f"{self.url}/rpc",
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        } | more

    def says(self, method: str, *answers: Answer) -> None:
        """Set the answers to a method."""
        self.answers[method] = list(answers)

    def params(self, method: str) -> dict[str, Any]:
        """Return the parameters of the last request for a method."""
        return [asked.params for asked in self.asked if asked.method == method][-1]

    def count(self, method: str) -> int:
        """Return the number of requests for a method."""
        return sum(asked.method == method for asked in self.asked)

    def close(self) -> None:
        """Stop serving."""
        self.over.set()
        self.server.shutdown()
        self.thread.join(5)
        self.server.server_close()

    def get(self, request: Any) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.fetched.append(Asked("GET", {}, headers, request.path))
        body = self.card if isinstance(self.card, bytes) else json.dumps(self.card).encode()
        self._reply(request, self.card_status, body)

    def post(self, request: Any) -> None:
        body = json.loads(request.rfile.read(int(request.headers["content-length"])))
        headers = {name.lower(): value for name, value in request.headers.items()}
        if "jsonrpc" not in body:  # a request to a callback address
            self.asked.append(Asked("callback", body, headers, request.path))
            self._reply(request, 200, b"")
            return
        method = body["method"]
        self.asked.append(Asked(method, body.get("params") or {}, headers, request.path))
        script = self.answers.get(method)
        if not script:
            missing = {"code": -32601, "message": f"no {method} here"}
            answer = Answer(error=missing)
        else:
            answer = script.pop(0) if len(script) > 1 else script[0]
        if answer.status != 200 or answer.raw is not None:
            self._reply(request, answer.status, answer.raw or b"")
        elif answer.events is not None:
            self._stream(request, body["id"], answer)
        else:
            reply = {"jsonrpc": "2.0", "id": body["id"]}
            reply |= {"error": answer.error} if answer.error else {"result": answer.result}
            self._reply(request, 200, json.dumps(reply).encode())

    def _reply(self, request: Any, code: int, body: bytes) -> None:
        request.send_response(code)
        if code == 401 and self.challenge:
            request.send_header("www-authenticate", self.challenge)
        request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _stream(self, request: Any, id: Any, answer: Answer) -> None:
        request.send_response(200)
        request.send_header("content-type", "text/event-stream")
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        for event in answer.events or ():
            error = event if "error" in event else {"result": event}
            data = json.dumps({"jsonrpc": "2.0", "id": id, **error})
            frame = f"data: {data}\n\n".encode()
            request.wfile.write(b"%x\r\n%s\r\n" % (len(frame), frame))
            request.wfile.flush()
        if answer.end == "hang":
            self.over.wait(30)
        if answer.end != "cut":
            request.wfile.write(b"0\r\n\r\n")
        request.close_connection = True
