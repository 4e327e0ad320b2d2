"""Fuzz targets for replies of servers: HTTP requests to a whole app, and bytes on connections.

The agent behind the app answers everything, so every failure is a fault of the server. Bytes arrive
in any pieces, over HTTP and WebSockets, without a network.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import parse_uri

from parley.model.operations import (
    BY_NAME,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from parley.server.http1.serving import Upgrades
from parley.server.limits import ByteReservation, UnsentBytes
from parley.server.settings import Settings
from parley.server.websocket.serving import Handed, SocketServing
from parley.wire import sse, versions
from tests.fuzz import inputs
from tests.fuzz.asked import DIALECTS
from tests.kit.scripted import Scripted, app_of, card_of
from tests.kit.websocket import ASKS, CLOSE, CONT, PING, TEXT, echo, frame
from tests.server.connection.corpus import BEHIND, RIGHT, SMUGGLED, STRICTER
from tests.server.connection.wire import answers, said

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
    """A request: ``VERB path version`` on a line, and the version's header if there is one."""
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
            for request in inputs.requests_of(operation):
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


_LONGEST = 20_000


def connections(data: bytes) -> None:
    """Bytes get the same whole responses in one piece and in several.

    A response that rejects is the last one. Of several faults, the response names the first that
    the server detects, which depends on the bytes received.
    """
    data = data[:_LONGEST]
    size = zlib.crc32(data) % 97 + 1
    pieces = [data[at : at + size] for at in range(0, len(data), size)]

    async def both() -> tuple[tuple[bytes, bool], tuple[bytes, bool]]:
        return await said([data] if data else []), await said(pieces)

    (whole, has_ended), (parted, _) = asyncio.run(both())
    if b"HEAD " in data:
        return  # a HEAD response declares the length of the omitted body
    if b"100-continue" not in data.lower():
        assert read(whole) == read(parted), (whole, parted)
    statuses = [status for status, _ in answers(whole) if status != 100]
    refused = [n for n, status in enumerate(statuses) if status >= 400]
    assert not refused or (refused == [len(statuses) - 1] and has_ended), whole


def read(written: bytes) -> list[tuple[int, bytes]]:
    """Return the responses of a connection, with one status for all rejections."""
    return [(400, b"") if status >= 400 else (status, body) for status, body in answers(written)]


def connection_seeds() -> Iterator[bytes]:
    """Valid requests and smuggled ones, followed by another request."""
    for each in (RIGHT, SMUGGLED, STRICTER):
        for data in each.values():
            yield data + BEHIND


SETTINGS = Settings(max_socket_message_bytes=2000)
HEAD = b"\r\n\r\n"


class Wire(asyncio.Transport):
    """The transport of a connection; it keeps the written bytes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = b""
        self.is_paused = self.is_over = False
        self.protocol: Any = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: Any) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    abort = close


def sockets(data: bytes) -> None:
    """Frames of a client, after a line with the size of the pieces in which they arrive."""
    line, _, frames = data.partition(b"\n")
    size = int(line[:4]) if line[:4].isdigit() else 7
    written = asyncio.run(_served(frames, max(1, size)))
    answer, separator, rest = written.partition(HEAD)
    assert answer.startswith(b"HTTP/1.1 101")
    assert separator
    client = ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN, max_size=None)
    client.receive_data(rest)
    assert client.parser_exc is None, client.parser_exc


async def _served(frames: bytes, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    raised: list[Any] = []
    loop.set_exception_handler(lambda _, context: raised.append(context))
    request_bytes, unsent_bytes = ByteReservation(SETTINGS), UnsentBytes(SETTINGS)
    serving = SocketServing(
        SETTINGS,
        request_bytes=request_bytes,
        unsent_bytes=unsent_bytes,
        unread_timeout=75,
        closes=True,
    )
    headers = [(name.lower().encode(), value.encode()) for name, value in ASKS.items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/echo",
        "query_string": b"",
        "headers": headers,
    }
    wire, tasks, connections = Wire(), set[Any](), set[Any]()
    upgrades = Upgrades(serving, lambda _: True)
    assert upgrades.takes(scope)
    upgrades.hand_over(wire, Handed(scope, frames[:size], echo, connections, tasks, False))
    position = size
    for _ in range(10 + len(frames)):
        await asyncio.sleep(0)
        if not wire.is_paused and position < len(frames) and not wire.is_over:
            wire.protocol.data_received(frames[position : position + size])
            position += size
    [connection] = connections
    if not wire.is_over:
        connection.eof_received()
    connection.connection_lost(None)
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)
    assert not raised, raised
    assert not connections
    assert request_bytes.total == unsent_bytes.total == 0
    return wire.written


def socket_seeds() -> Iterator[bytes]:
    """Messages whole and in fragments, control frames, and ends of all kinds."""
    yield b"1\n" + frame(TEXT, b"hello") + frame(CLOSE, b"\x03\xe8bye")
    yield b"7\n" + frame(TEXT, b"one", fin=False) + frame(PING, b"?") + frame(CONT, b"two")
    yield b"4096\n" + frame(TEXT, b"x" * 2000) + frame(TEXT, b"x" * 200) * 40
    yield b"50\n" + frame(TEXT, b"x" * 2001)
    yield b"100\n" + frame(TEXT, "☃".encode(), fin=False) + frame(CONT, b"", fin=False)
    yield b"9\n" + frame(TEXT, b"\xff") + frame(TEXT, b"late")
