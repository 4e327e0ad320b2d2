"""Requests of both HTTP bindings to a whole app, without a network in between.

The agent behind it answers everything, so whatever goes wrong is the server's doing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from parley.model.operations import (
    BY_NAME,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from parley.wire import sse, versions
from tests.fuzz import messages
from tests.fuzz.asked import DIALECTS
from tests.kit.scripted import Scripted, app_of, card_of

LONGEST_ANSWER = 20_000
_WEBHOOK = TaskPushNotificationConfig(id="p", task_id="t", url="https://x.example")
_CARD = card_of(push_notifications=True, extended_agent_card=True)


def _answering(value: Any) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        return value

    return answer


SERVICE = Scripted(
    create_task_push_notification_config=_answering(_WEBHOOK),
    get_task_push_notification_config=_answering(_WEBHOOK),
    list_task_push_notification_configs=_answering(
        ListTaskPushNotificationConfigsResponse(configs=(_WEBHOOK,))
    ),
    get_extended_agent_card=_answering(_CARD(())),
)
APP = app_of(SERVICE, card=_CARD)


def server(data: bytes) -> None:
    """A request: ``VERB path version`` on a line, with the version's header if there is one."""
    line, _, body = data.partition(b"\n")
    verb, _, rest = line.decode("latin-1").partition(" ")
    address, _, version = rest.partition(" ")
    path, _, query = address.partition("?")
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    if version:
        headers.append((b"a2a-version", version.encode("latin-1")))
    raw = path.encode("latin-1")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": verb,
        "scheme": "http",
        "path": unquote(raw.decode("utf-8", "replace"), errors="replace"),
        "raw_path": raw,
        "root_path": "",
        "query_string": query.encode("latin-1"),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    SERVICE.asked.clear()
    status, given, answer = asyncio.run(_exchanged(scope, body))
    assert status < 500, answer
    kind = given.get(b"content-type", b"")
    if kind == b"text/event-stream":
        assert [event for event in sse.SseParser().feed(answer) if json.loads(event.data)]
    elif kind.endswith(b"json") and answer:
        told = json.loads(answer)
        error = told.get("error", told) if isinstance(told, dict) else {}
        assert not isinstance(error, dict) or error.get("code") not in (-32603, 500), answer
        assert status == 200 or len(answer) <= LONGEST_ANSWER


async def _exchanged(scope: Any, body: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[Any] = []
    received = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if received:
            return received.pop()
        return await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(20):
        await APP(scope, receive, send)
    return (
        sent[0]["status"],
        dict(sent[0]["headers"]),
        b"".join(message.get("body", b"") for message in sent[1:]),
    )


def server_seeds() -> Iterator[bytes]:
    for version, dialect in DIALECTS.items():
        called = {route.operation.name for route in dialect.http_json.routes}
        for operation in BY_NAME.values():
            for request in messages.requests_of(operation):
                name = dialect.jsonrpc.names.get(operation.name)
                if name is not None:
                    params = dialect.jsonrpc.write_request(operation, request).decode()
                    yield (
                        f"POST / {version}\n"
                        f'{{"jsonrpc":"2.0","id":1,"method":"{name}","params":{params}}}'
                    ).encode()
                if operation.name in called:
                    verb, path, query, body = dialect.http_json.write_request(operation, request)
                    yield f"{verb} {path}?{query} {version}\n".encode() + (body or b"")
    for path in (
        "/.well-known/agent-card.json",
        "/.well-known/agent.json",
        "/openapi.json",
        "/docs",
        "/health/ready",
        "/a2a/x",
    ):
        yield f"GET {path} {versions.LATEST}\n".encode()
        yield f"GET {path}\n".encode()
    yield b'POST /?A2A-Version=1.0 \n{"jsonrpc":"2.0","method":"GetTask","params":{"id":"t"}}'
