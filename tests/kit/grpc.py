"""gRPC: calls with the bytes of our codecs, and HTTP/2 as bytes.

``rpc_to(app)`` serves an app and yields an ``Rpc`` to it. ``http2(port)`` is a connection that can
write frames that no library lets a client write.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import msgspec

from parley.model.errors import A2AError
from parley.model.operations import BY_NAME, SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.model.tasks import Event
from parley.server.app import App
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.wire import versions
from parley.wire.protobuf.errors import STATUS_KEY, read_status

WAIT = 5.0
HI = SendMessageRequest(
    message=Message(message_id="m-1", role=Role.USER, parts=(Part(text="What time is it?"),))
)

Metadata = Sequence[tuple[str, str]]


class Refused(NamedTuple):
    """The status of a call without a response."""

    status: str
    words: str
    initial: dict[str, Any]
    trailing: dict[str, Any]

    @property
    def error(self) -> A2AError:
        return read_status(self.status, self.words, self.trailing.get(STATUS_KEY))


class Rpc:
    """A channel to a server, and the messages of one version."""

    def __init__(self, channel: grpc.aio.Channel, version: str = "1.0") -> None:
        self.channel = channel
        self.codec = versions.dialect(version).grpc()
        self.metadata: Metadata = (("a2a-version", version),)

    def path(self, operation: str) -> str:
        return f"/{self.codec.service}/{self.codec.names[operation]}"

    def start(self, name: str, request: Any, metadata: Metadata | None, **options: Any) -> Any:
        operation = BY_NAME[name]
        if isinstance(request, msgspec.Struct):
            request = self.codec.write_request(operation, request)
        make = self.channel.unary_stream if operation.streaming else self.channel.unary_unary
        metadata = self.metadata if metadata is None else metadata
        return make(self.path(name))(request, metadata=metadata, **options)

    async def ask(
        self, name: str, request: Any = HI, metadata: Metadata | None = None, **options: Any
    ) -> Any:
        """Return the response, without its wrapper."""
        call = self.start(name, request, metadata, **options)
        answer = await asyncio.wait_for(_whole(call), WAIT)
        return self.codec.read_result(BY_NAME[name], answer)

    async def refused(
        self, name: str, request: Any = HI, metadata: Metadata | None = None, **options: Any
    ) -> Refused:
        """Return the error of a call that must have no response and no event."""
        call = self.start(name, request, metadata, **options)
        try:
            if BY_NAME[name].streaming:
                answer = [each async for each in call]
            else:
                answer = await asyncio.wait_for(_whole(call), WAIT)
        except grpc.aio.AioRpcError as error:
            return refusal(error)
        raise AssertionError(f"not refused: {answer!r}")

    @asynccontextmanager
    async def stream(
        self, name: str = "SubscribeToTask", request: Any = None, metadata: Metadata | None = None
    ) -> AsyncIterator[Stream]:
        """Open a stream of events, canceled at the end."""
        if request is None:
            request = BY_NAME[name].request(id="t-1") if name == "SubscribeToTask" else HI
        call = self.start(name, request, metadata)
        try:
            yield Stream(self, call)
        finally:
            call.cancel()


class Stream:
    """A stream, read event by event."""

    def __init__(self, rpc: Rpc, call: Any) -> None:
        self._rpc = rpc
        self._events = call.__aiter__()
        self.call = call

    async def next(self) -> Event:
        return self._rpc.codec.read_event(await asyncio.wait_for(anext(self._events), WAIT))

    async def rest(self) -> list[Event]:
        """Return all remaining events; the stream must end without an error."""
        events = []
        while True:
            try:
                events.append(await self.next())
            except StopAsyncIteration:
                return events


def refusal(error: grpc.aio.AioRpcError) -> Refused:
    return Refused(
        error.code().name,
        error.details() or "",
        dict(error.initial_metadata() or ()),
        dict(error.trailing_metadata() or ()),
    )


async def _whole(call: Any) -> bytes:
    return await call


@asynccontextmanager
async def rpc_to(app: App, version: str = "1.0", **options: Any) -> AsyncIterator[Rpc]:
    """Serve an app on its own server, and open a channel to it."""
    grpc_options = GrpcOptions(port=0, **options)
    async with serving(app, grpc=grpc_options) as url:
        target = app.grpc.beside(url)
        async with grpc.aio.insecure_channel(target) as channel:
            yield Rpc(channel, version)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_LARGEST = 16384


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """Return an HPACK header that needs no table and no Huffman code."""
    parts = [b"\x00"]
    for text in (name, value):
        assert len(text) < 127
        parts += [bytes([len(text)]), text.encode()]
    return b"".join(parts)


class Http2:
    """A connection that acknowledges settings and pings, and grants windows only on request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next = 1
        self._windows: dict[int, int] = {0: 65535}
        self._initial = 65535
        self._news = asyncio.Condition()
        self.resets: set[int] = set()
        self.ended: dict[int, bytes] = {}
        self.is_over = False
        self.received = 0

    async def call(self, path: str, *more: tuple[str, str]) -> int:
        """Begin a call by its headers; return its stream."""
        stream, self._next = self._next, self._next + 2
        self._windows[stream] = self._initial
        headers = [
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
            ("te", "trailers"), ("content-type", "application/grpc"), *more,
        ]  # fmt: skip
        block = b"".join(_literal(name, value) for name, value in headers)
        self._writer.write(frame(HEADERS, _END_HEADERS, stream, block))
        await self._writer.drain()
        return stream

    async def data(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        """Send data within the server's window, until all is sent or the stream ends."""
        rest = memoryview(data)
        while rest:
            async with self._news:
                await self._news.wait_for(
                    lambda: min(self._windows[0], self._windows[stream]) > 0 or self.gone(stream)
                )
            if self.gone(stream):
                return
            size = min(_LARGEST, len(rest), self._windows[0], self._windows[stream])
            self._windows[0] -= size
            self._windows[stream] -= size
            last = _END_STREAM if ends and size == len(rest) else 0
            self._writer.write(frame(DATA, last, stream, bytes(rest[:size])))
            await self._writer.drain()
            rest = rest[size:]

    def gone(self, stream: int) -> bool:
        return self.is_over or stream in self.resets or stream in self.ended

    async def over(self, *streams: int) -> None:
        """Wait until the server has ended all of these streams."""
        async with self._news:
            await self._news.wait_for(lambda: all(map(self.gone, streams)))

    async def listen(self) -> None:
        """Read the server's frames until the connection is closed."""
        try:
            while True:
                head = await self._reader.readexactly(9)
                length = int.from_bytes(head[:3], "big")
                kind, flags, stream = struct.unpack(">BBI", head[3:])
                payload = await self._reader.readexactly(length)
                async with self._news:
                    self._take(kind, flags, stream, payload)
                    self._news.notify_all()
        except (OSError, asyncio.IncompleteReadError):
            async with self._news:
                self.is_over = True
                self._news.notify_all()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == SETTINGS and not flags & _ACK:
            for n in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[n : n + 6])
                if name == 4:
                    for each in self._windows:
                        self._windows[each] += (value - self._initial) if each else 0
                    self._initial = value
            self._writer.write(frame(SETTINGS, _ACK, 0, b""))
        elif kind == PING and not flags & _ACK:
            self._writer.write(frame(PING, _ACK, 0, payload))
        elif kind == WINDOW:
            self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(payload, "big")
        elif kind == RESET:
            self.resets.add(stream)
        elif kind == HEADERS and flags & _END_STREAM:
            self.ended[stream] = payload
        elif kind == DATA:
            self.received += len(payload)


@asynccontextmanager
async def http2(port: int, *, window: int = 65535) -> AsyncIterator[Http2]:
    """Open a connection with a window of this size for each stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    settings = struct.pack(">HI", 4, window)
    writer.write(PREFACE + frame(SETTINGS, 0, 0, settings))
    http = Http2(reader, writer)
    listening = asyncio.create_task(http.listen())
    try:
        yield http
    finally:
        listening.cancel()
        await asyncio.wait({listening})
        writer.transport.abort()
