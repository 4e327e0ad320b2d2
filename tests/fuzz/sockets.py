"""Bytes of a client to a WebSocket connection, without a network in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from websockets.client import ClientProtocol
from websockets.protocol import State
from websockets.uri import parse_uri

from parley.server.http1.serving import Upgrades
from parley.server.limits import ByteReservation, UnsentBytes
from parley.server.settings import Settings
from parley.server.websocket.serving import Handed, SocketServing
from tests.kit.websocket import ASKS, CLOSE, CONT, PING, TEXT, echo, frame

SETTINGS = Settings(max_socket_message_bytes=2000)
HEAD = b"\r\n\r\n"


class Wire(asyncio.Transport):
    """The transport of a connection: keeps what is written."""

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
    """What a client sends: the size of the pieces that it arrives in on a line, then frames."""
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
