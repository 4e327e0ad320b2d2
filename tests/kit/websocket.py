"""WebSockets as bytes: a client's raw frames, without corrections."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from parley.server.app import App
from parley.server.websocket.socket import ServerSocket
from tests.kit.http import WAIT, Connection, Response, connection
from tests.kit.scripted import app_of

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # of RFC 6455, §1.3
ASKS = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
}


class RawFrame(NamedTuple):
    kind: int
    data: bytes

    @property
    def code(self) -> int:
        return struct.unpack("!H", self.data[:2])[0]

    @property
    def reason(self) -> str:
        return self.data[2:].decode()


def frame(
    kind: int, data: bytes = b"", *, fin: bool = True, mask: bool = True, rsv: int = 0
) -> bytes:
    """Return a frame of a client."""
    first, bit = (0x80 if fin else 0) | rsv | kind, 0x80 if mask else 0
    if len(data) < 126:
        head = struct.pack("!BB", first, bit | len(data))
    elif len(data) < 2**16:
        head = struct.pack("!BBH", first, bit | 126, len(data))
    else:
        head = struct.pack("!BBQ", first, bit | 127, len(data))
    if not mask:
        return head + data
    key = b"\x01\x02\x03\x04"
    whole = key * (len(data) // 4 + 1)
    masked = int.from_bytes(data, "big") ^ int.from_bytes(whole[: len(data)], "big")
    return head + key + masked.to_bytes(len(data), "big")


def closing(code: int, reason: bytes = b"") -> bytes:
    return frame(CLOSE, struct.pack("!H", code) + reason)


def head_of(
    path: str = "/echo", *, method: str = "GET", version: str = "1.1", **changes: str | None
) -> bytes:
    """Return the head of a handshake; header names have _ for -, ``None`` omits one."""
    given: dict[str, Any] = {"Host": "localhost", **ASKS}
    for name, value in changes.items():
        given[name.replace("_", "-")] = value
    lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "", ""]).encode("latin-1")


class RawSocket:
    def __init__(self, http: Connection) -> None:
        self.http = http
        self.subprotocol: str | None = None

    async def write(self, *frames: bytes) -> None:
        await self.http.write(b"".join(frames))

    async def read(self) -> RawFrame:
        """Read the server's next frame, which must be whole and unmasked."""
        async with asyncio.timeout(WAIT):
            reader = self.http.reader
            first, length = await reader.readexactly(2)
            assert first & 0xF0 == 0x80
            assert length < 128
            if length == 126:
                [length] = struct.unpack("!H", await reader.readexactly(2))
            elif length == 127:
                [length] = struct.unpack("!Q", await reader.readexactly(8))
            return RawFrame(first & 0x0F, await reader.readexactly(length))

    async def echoed(self, text: str) -> None:
        await self.write(frame(TEXT, text.encode()))
        assert await self.read() == (TEXT, text.encode())

    async def at_end(self) -> None:
        """Wait until the server has closed the connection."""
        async with asyncio.timeout(WAIT):
            assert await self.http.reader.read() == b""


@asynccontextmanager
async def raw_socket(
    url: str, path: str = "/echo", **changes: str | None
) -> AsyncIterator[RawSocket]:
    async with connection(url) as http:
        await http.write(head_of(path, **changes))
        status, headers = await http.head()
        assert status == 101, headers
        yield RawSocket(http)


async def refused(url: str, path: str = "/echo", **changes: str | None) -> Response:
    """Return the response to a handshake that opens no socket."""
    async with connection(url) as http:
        await http.write(head_of(path, **changes))
        answer = await http.response()
        assert answer.status != 101
        return answer


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """A handler that echoes every message; over HTTP it says that it accepts sockets."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 426, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    socket = ServerSocket(scope, receive, send)
    await socket.accept(socket.subprotocols[0] if socket.subprotocols else None)
    while (text := await socket.receive()) is not None:
        await socket.send(text)


class Held:
    """A handler that keeps its sockets, and responds when the test says so."""

    def __init__(self) -> None:
        self.sockets: list[ServerSocket] = []
        self.received: list[str] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.ended = asyncio.Event()
        self.answer: Callable[[ServerSocket, str], Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = ServerSocket(scope, receive, send)
        self.sockets.append(socket)
        try:
            await socket.accept()
            while True:
                await self.reads.wait()
                text = await socket.receive()
                if text is None:
                    break
                self.received.append(text)
                if self.answer is not None:
                    await self.answer(socket, text)
        finally:
            self.ended.set()


def socket_app(handler: Any = echo, **options: Any) -> App:
    app = app_of(**options)
    app.serve_at("/echo", handler, sockets=True)
    return app
