"""The replies of the scripted server: cards, tasks, streams and errors, by version and binding."""

from __future__ import annotations

import json
from typing import Any

from parley.conformance.client_server import CARD_PATHS, ReceivedCall, ScenarioReply, Visit

TASK_ID = "5e1f7a52-task"
CONTEXT_ID = "0b9c4d11-context"
STREAM_HEADERS = (("content-type", "text/event-stream"), ("cache-control", "no-cache"))
NOT_FOUND = (-32001, 404, "NOT_FOUND", "TASK_NOT_FOUND", "there is no such task")


def card(
    visit: Visit,
    *,
    binding: str = "JSONRPC",
    version: str = "1.0",
    path: str = "/a2a",
    streaming: bool = True,
    tenant: str = "",
    before: tuple[dict[str, Any], ...] = (),
    **more: Any,
) -> dict[str, Any]:
    """Return a card with one interface of the scripted server."""
    common: dict[str, Any] = {
        "name": "Scripted agent",
        "description": "Tries clients",
        "version": "1.0.0",
        "capabilities": {"streaming": streaming, "pushNotifications": False},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "try", "name": "Try", "description": "Tries clients", "tags": ["test"]}],
    }
    url = visit.url + path
    if version == "0.3":
        common |= {"url": url, "preferredTransport": binding, "protocolVersion": "0.3.0"}
    else:
        interface = {"url": url, "protocolBinding": binding, "protocolVersion": version}
        if tenant:
            interface["tenant"] = tenant
        common["supportedInterfaces"] = [*before, interface]
    capabilities = more.pop("capabilities", {})
    common["capabilities"] |= capabilities
    return {**common, **more}


class Forms:
    """Encodes replies in one version. Arguments have the form of 1.0, and are converted for
    ``0.3``.

    ``is_proto``: 0.3 over HTTP+JSON, whose JSON follows the protobuf definition.
    """

    def __init__(self, version: str = "1.0", *, is_proto: bool = False) -> None:
        self.is_old = version == "0.3" and not is_proto
        self.is_proto = is_proto

    def message(self, text: str, *, role: str = "ROLE_AGENT", in_task: bool = False) -> Any:
        """Return a message of the agent."""
        said: dict[str, Any] = {"messageId": f"said-{len(text)}", "contextId": CONTEXT_ID}
        if in_task:
            said["taskId"] = TASK_ID
        if self.is_old:
            parts = [{"kind": "text", "text": text}]
            old = "agent" if role == "ROLE_AGENT" else "user"
            return {"kind": "message", "role": old, "parts": parts, **said}
        return {"role": role, "content" if self.is_proto else "parts": [{"text": text}], **said}

    def status(self, state: str, text: str = "") -> dict[str, Any]:
        """Return a status."""
        name = state.lower().replace("_", "-") if self.is_old else f"TASK_STATE_{state}"
        found: dict[str, Any] = {"state": name, "timestamp": "2026-01-31T12:00:00.000Z"}
        if text:
            found["message"] = self.message(text, in_task=True)
        return found

    def artifact(self, text: str, parts: list[Any] | None = None) -> dict[str, Any]:
        """Return an artifact."""
        part = {"kind": "text", "text": text} if self.is_old else {"text": text}
        return {"artifactId": "answer", "name": "answer", "parts": parts or [part]}

    def task(
        self, state: str, *, said: str = "", text: str = "", parts: list[Any] | None = None
    ) -> dict[str, Any]:
        """Return a task: ``said`` is the status message, ``text`` or ``parts`` are an artifact."""
        found: dict[str, Any] = {
            "id": TASK_ID,
            "contextId": CONTEXT_ID,
            "status": self.status(state, said),
        }
        if text or parts:
            found["artifacts"] = [self.artifact(text, parts)]
        return {"kind": "task", **found} if self.is_old else found

    def named(self, kind: str, value: dict[str, Any]) -> dict[str, Any]:
        """Return a value wrapped as in responses to messages, and in events."""
        return value if self.is_old else {kind: value}

    def updated(self, state: str, text: str = "", *, final: bool = False) -> dict[str, Any]:
        """Return the event of a new status."""
        event: dict[str, Any] = {
            "taskId": TASK_ID,
            "contextId": CONTEXT_ID,
            "status": self.status(state, text),
        }
        if self.is_old:
            return {"kind": "status-update", "final": final, **event}
        if self.is_proto and final:
            event["final"] = True
        return {"statusUpdate": event}

    def chunk(self, text: str, *, append: bool, last: bool = False) -> dict[str, Any]:
        """Return the event of a chunk of the artifact."""
        event = {
            "taskId": TASK_ID,
            "contextId": CONTEXT_ID,
            "artifact": self.artifact(text),
            "append": append,
            "lastChunk": last,
        }
        return {"kind": "artifact-update", **event} if self.is_old else {"artifactUpdate": event}

    def story(self) -> list[dict[str, Any]]:
        """Return the events of a stream whose artifact is ``one two three``."""
        return [
            self.named("task", self.task("SUBMITTED")),
            self.updated("WORKING"),
            self.chunk("one ", append=False),
            self.chunk("two ", append=True),
            self.chunk("three", append=True, last=True),
            self.updated("COMPLETED", final=True),
        ]


def result(request: ReceivedCall, value: Any) -> ScenarioReply:
    """Return a response in the binding of its request."""
    return ScenarioReply(body=json.dumps(_enclosed(request, value)).encode())


def stream(
    request: ReceivedCall, events: list[dict[str, Any]], *, cut: bool = False
) -> ScenarioReply:
    """Return a stream of events in the binding of its request."""
    frames = tuple(frame(json.dumps(_enclosed(request, event))) for event in events)
    return ScenarioReply(headers=STREAM_HEADERS, pieces=frames, cut=cut)


def frame(data: str, end: str = "\n") -> bytes:
    """Return one event of a stream."""
    return f"data: {data}{end}{end}".encode()


def error(
    request: ReceivedCall, code: int, status: int, name: str, reason: str, text: str
) -> ScenarioReply:
    """Return an error in the binding of its request."""
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": reason,
        "domain": "a2a-protocol.org",
    }
    if "jsonrpc" in request.json:
        said = {"code": code, "message": text, "data": [info]}
        body = {"jsonrpc": "2.0", "id": request.json.get("id"), "error": said}
        return ScenarioReply(body=json.dumps(body).encode())
    aip = {"error": {"code": status, "status": name, "message": text, "details": [info]}}
    return ScenarioReply(status=status, body=json.dumps(aip).encode())


def is_card(request: ReceivedCall) -> bool:
    """Return whether the request is for the card."""
    return request.path.partition("?")[0] in CARD_PATHS


def card_reply(members: dict[str, Any]) -> ScenarioReply:
    """Return a card as a response."""
    return ScenarioReply(body=json.dumps(members).encode())


def _enclosed(request: ReceivedCall, value: Any) -> Any:
    if "jsonrpc" in request.json:
        return {"jsonrpc": "2.0", "id": request.json.get("id"), "result": value}
    return value
