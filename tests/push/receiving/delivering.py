"""Deliveries to an in-process receiver, and a sender's proofs, for tests only."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from typing import Any, NamedTuple

from parley.push import PushNotification

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


async def deliver(
    app: Any,
    body: bytes,
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    *,
    method: str = "POST",
    path: str = "/hook",
    content_type: str = "application/a2a+json",
) -> Answer:
    """Send a request to an ASGI app."""
    pairs = list((headers or {}).items()) if not isinstance(headers, list) else headers
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", content_type.encode()),
            *[(name.lower().encode(), value.encode()) for name, value in pairs],
        ],
        "server": ("hooks.test", 80),
        "client": ("192.0.2.1", 4711),
    }
    sent: list[dict[str, Any]] = []
    pieces = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return pieces.pop(0) if pieces else await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    content = b"".join(each.get("body", b"") for each in sent[1:])
    found = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, content)


def update(task_id: str = "t1", text: str = "", state: str = "TASK_STATE_WORKING") -> bytes:
    """Return the body of a 1.0 status update."""
    status: dict[str, Any] = {"state": state}
    if text:
        status["message"] = {"messageId": text, "role": "ROLE_AGENT", "parts": [{"text": text}]}
    told = {"taskId": task_id, "contextId": "c1", "status": status}
    return json.dumps({"statusUpdate": told}).encode()


def hmac_headers(
    body: bytes, id: str = "t1/default/1", *, secret: str = SECRET, at: float | None = None
) -> dict[str, str]:
    """Return the headers of a delivery signed as in Standard Webhooks."""
    moment = str(int(time.time() if at is None else at))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{id}.{moment}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": id,
        "A2A-Notification-Id": id,
        "webhook-timestamp": moment,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


class Handled:
    """A handler that records notifications, waits at ``gate``, and raises ``errors``."""

    def __init__(self) -> None:
        self.begun: list[PushNotification] = []
        self.got: list[PushNotification] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.errors: list[Exception] = []

    async def __call__(self, notification: PushNotification) -> None:
        self.begun.append(notification)
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.got.append(notification)

    @property
    def ids(self) -> list[str]:
        return [each.id for each in self.got]
