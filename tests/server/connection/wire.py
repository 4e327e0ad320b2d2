"""A server connection without a network: a test supplies its input and collects its output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

from parley.server.app import Settings
from parley.server.http1.connection import HttpConnection
from parley.server.http1.serving import HttpServing
from parley.server.limits import ByteReservation, UnsentBytes

WAIT = 20.0


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Echo the body, as JSON."""
    if scope["type"] != "http":
        return
    body, has_more = b"", True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        has_more = message["more_body"]
    seen = [scope["method"], scope["raw_path"].decode(), scope["query_string"].decode("latin-1")]
    data = json.dumps([*seen, body.decode("latin-1")]).encode()
    headers = [(b"content-length", b"%d" % len(data)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": data})


class Wire(asyncio.Transport):
    """A transport without a peer."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4000), "sockname": ("127.0.0.1", 80)})
        self.written: list[bytes] = []
        self.has_ended = self.is_reading_paused = False
        self.unsent = 0
        self.on_write: Callable[[], None] | None = None

    def write(self, data: Any) -> None:
        assert not self.has_ended, f"{data!r} came after the end"
        self.written.append(bytes(data))
        if self.on_write is not None:
            self.on_write()

    def write_eof(self) -> None:
        self.has_ended = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.has_ended = True

    abort = close

    def is_closing(self) -> bool:
        return self.has_ended

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        self.is_reading_paused = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


def serving_of(app: Any, **more: Any) -> HttpServing:
    """The shared state of connections, with an app."""
    settings = Settings()
    given: dict[str, Any] = {"max_connections": 10, "head_timeout": 60, "body_timeout": 60}
    return HttpServing(
        app,
        **{**given, "idle_timeout": 60, **more},
        request_bytes=ByteReservation(settings),
        unsent_bytes=UnsentBytes(settings),
    )


async def said(pieces: Iterable[bytes], app: Any = echo) -> tuple[bytes, bool]:
    """Return the responses to pieces of data, without dates, and whether the connection ended."""
    serving, wire = serving_of(app), Wire()
    connection = HttpConnection(serving, asyncio.get_running_loop())
    connection.connection_made(wire)
    try:
        for piece in pieces:
            connection.data_received(piece)
            for _ in range(4):
                await asyncio.sleep(0)
        before = -1
        while before != len(wire.written) or serving.tasks:
            before = len(wire.written)
            for _ in range(4):
                await asyncio.sleep(0)
            if connection._exchange is not None and (connection._rest or connection._body):
                break  # the body never arrives
        answered = b"".join(wire.written)
        has_ended = wire.has_ended
    finally:
        connection.connection_lost(None)
        while serving.tasks:
            await asyncio.sleep(0)
    assert serving.request_bytes.total == 0
    assert not serving.connections
    return undated(answered), has_ended


def undated(answered: bytes) -> bytes:
    """Return responses without their dates."""
    lines = answered.split(b"\r\n")
    return b"\r\n".join(line for line in lines if not line.startswith(b"date: "))


def answers(answered: bytes) -> list[tuple[int, Any]]:
    """Return the statuses and bodies of responses, which have a length."""
    found = []
    while answered:
        head, _, answered = answered.partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        lengths = [
            int(line.partition(b":")[2])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ]
        length = lengths[0] if lengths else 0
        body, answered = answered[:length], answered[length:]
        is_echo = status == 200
        found.append((status, json.loads(body) if is_echo and body else None))
    return found
