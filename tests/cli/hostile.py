"""A malicious agent: every string that it sends contains terminal control sequences."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from typing import Any

from tests.cli.scripted import Answer, ScriptedAgent

CONTROLS = [*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0x7F, 0xA0), 0x2028, 0x2029]
DIRECTIONS = [0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x2070)]
HIDDEN = [0xFFF9, 0xFFFA, 0xFFFB, *range(0xE0000, 0xE0080)]
UNSAFE = "".join(map(chr, [*CONTROLS, *DIRECTIONS, *HIDDEN]))

# A title, a link, an overwritten line, a false end of line, reversed text, markup.
TRICKS = (
    "\x1b]0;title\x07\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\\x9b2J\x9d0;t\x9c\rover\n"
    "error: forged\r\nState: FORGED\u202egnp.exe\u2066 [link=http://evil.example]x[/link] :bomb:"
)
HARMLESS = "שלום العربية 👩\u200d🚀 क्\u200dष"  # looks odd, but is normal text
SAID = f"{TRICKS}{UNSAFE}{HARMLESS}"


def unsafe_in(written: bytes) -> set[str]:
    """Return the unsafe characters in the bytes that a command wrote."""
    return set(written.decode("utf-8")) & {*UNSAFE, "\r"}


def bytes_in(written: bytes) -> list[bytes]:
    """Return the unsafe sequences in bytes: C0 and C1 controls, and direction marks."""
    pattern = (
        rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xaf]"
    )
    return re.findall(pattern + rb"|\xd8\x9c|\xf3\xa0[\x80\x81]|\xef\xbf[\xb9-\xbb]", written)


def card(agent: ScriptedAgent) -> dict[str, Any]:
    """Return a card with every string hostile."""
    scopes = {"schemes": {SAID: {"list": [SAID]}, "h": {"list": []}}}
    return {
        "name": SAID,
        "description": SAID,
        "version": SAID,
        "provider": {"organization": SAID, "url": SAID},
        "documentationUrl": SAID,
        "iconUrl": SAID,
        "supportedInterfaces": [
            {"url": SAID, "protocolBinding": SAID, "protocolVersion": SAID},
            {"url": SAID, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            agent.interface(tenant=SAID),
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": True,
            "extendedAgentCard": True,
            "extensions": [{"uri": SAID, "description": SAID, "params": {SAID: SAID}}],
        },
        "securitySchemes": {
            SAID: {"apiKeySecurityScheme": {"location": "header", "name": SAID}},
            "h": {"httpAuthSecurityScheme": {"scheme": SAID, "bearerFormat": SAID}},
            "o": {"openIdConnectSecurityScheme": {"openIdConnectUrl": SAID}},
        },
        "securityRequirements": [scopes],
        "signatures": [{"protected": SAID, "signature": SAID}],
        "defaultInputModes": [SAID],
        "defaultOutputModes": [SAID],
        "skills": [
            {
                "id": SAID,
                "name": SAID,
                "description": SAID,
                "tags": [SAID],
                "examples": [SAID, "a\n" + SAID],
                "inputModes": [SAID],
                "outputModes": [SAID],
                "securityRequirements": [scopes],
            }
        ],
    }


def parts() -> list[dict[str, Any]]:
    """Return a hostile part of each kind."""
    about = {"filename": SAID, "mediaType": SAID, "metadata": {SAID: {"k": [SAID]}}}
    return [
        {"text": SAID, **about},
        {"text": SAID.partition("\n")[0]},
        {"data": {SAID: [SAID, {"k": SAID}]}, **about},
        {"data": SAID},
        {"raw": "QQ==", **about},
        {"url": SAID, **about},
    ]


def message() -> dict[str, Any]:
    """Return a hostile message of the agent."""
    return {
        "messageId": SAID,
        "contextId": SAID,
        "taskId": SAID,
        "role": "ROLE_AGENT",
        "parts": parts(),
        "extensions": [SAID],
        "referenceTaskIds": [SAID],
        "metadata": {SAID: SAID},
    }


def artifact() -> dict[str, Any]:
    """Return a hostile artifact."""
    named = {"artifactId": SAID, "name": SAID, "description": SAID}
    return {**named, "parts": parts(), "extensions": [SAID], "metadata": {SAID: SAID}}


def task(state: str = "INPUT_REQUIRED") -> dict[str, Any]:
    """Return a hostile task."""
    return {
        "id": SAID,
        "contextId": SAID,
        "status": {"state": f"TASK_STATE_{state}", "message": message()},
        "artifacts": [artifact()],
        "history": [message()],
        "metadata": {SAID: SAID},
    }


def events() -> list[dict[str, Any]]:
    """Return the events of a whole hostile stream."""
    ids = {"taskId": SAID, "contextId": SAID, "metadata": {SAID: SAID}}
    return [
        {"task": task("WORKING")},
        {"artifactUpdate": {**ids, "artifact": artifact()}},
        {"artifactUpdate": {**ids, "artifact": artifact(), "append": True, "lastChunk": True}},
        {"statusUpdate": {**ids, "status": task()["status"]}},
    ]


def config() -> dict[str, Any]:
    """Return a hostile webhook configuration."""
    secret = {"scheme": SAID, "credentials": SAID}
    return {"id": SAID, "taskId": SAID, "url": SAID, "token": SAID, "authentication": secret}


def hostile_agent() -> ScriptedAgent:
    """Return an agent that answers every method with hostile content."""
    agent = ScriptedAgent()
    agent.card = card(agent)
    page = {"tasks": [task(), task("FAILED")], "nextPageToken": SAID, "pageSize": 2, "totalSize": 9}
    agent.says("SendMessage", Answer(result={"task": task()}))
    agent.says("SendStreamingMessage", Answer(events=events()))
    agent.says("SubscribeToTask", Answer(events=events()))
    agent.says("GetTask", Answer(result=task()))
    agent.says("CancelTask", Answer(result=task("CANCELED")))
    agent.says("ListTasks", Answer(result=page))
    agent.says("GetExtendedAgentCard", Answer(result=card(agent)))
    for name in ("CreateTaskPushNotificationConfig", "GetTaskPushNotificationConfig"):
        agent.says(name, Answer(result=config()))
    configs = {"configs": [config(), config()], "nextPageToken": SAID}
    agent.says("ListTaskPushNotificationConfigs", Answer(result=configs))
    agent.says("DeleteTaskPushNotificationConfig", Answer(result={}))
    return agent


def hostile_error(code: int = -32001) -> dict[str, Any]:
    """Return a hostile protocol error."""
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": SAID, "domain": SAID}
    bad = {"@type": "type.googleapis.com/google.rpc.BadRequest"}
    bad["fieldViolations"] = [{"field": SAID, "description": SAID}]  # type: ignore[assignment]
    return {"code": code, "message": SAID, "data": [{**info, "metadata": {SAID: SAID}}, bad]}


class HostileGrpc:
    """A gRPC server that rejects every connection, with a hostile message."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.turned_away = 0
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                line, _ = self.listener.accept()
                with line, contextlib.suppress(OSError):
                    line.settimeout(10)
                    line.recv(4096)
                    # An internal error (2), after no stream (0). A frame cannot be longer.
                    refusal = struct.pack(">II", 0, 2) + SAID.encode()[:2000]
                    line.sendall(_frame(4, b"") + _frame(7, refusal))
                    self.turned_away += 1
                    while line.recv(4096):
                        pass

    def close(self) -> None:
        """Stop serving."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(15)


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, 0]) + bytes(4) + payload
