"""``FaultProxy``: a server behind a line that breaks as a test says, request by request."""

from __future__ import annotations

import asyncio
import fnmatch
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec

from parley.conformance.faults.cards import CARD, led_here, operation_of
from parley.conformance.faults.fault import Fault, FaultGate

# -- http message -----------------------------------------------------------------------------
#
# HTTP/1.1 messages as a proxy needs them: a head, and a body however it is framed.


MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024


class Malformed(Exception):
    """Bytes that are no HTTP/1.1 message."""


class MessageHead(NamedTuple):
    """The first line and the headers, in order, names as they came."""

    line: str
    headers: list[tuple[str, str]]

    def value(self, name: str) -> str:
        """Return a header's value, empty if there is none."""
        return next((value for known, value in self.headers if known.lower() == name), "")

    def replaced(self, *without: str, **added: str) -> MessageHead:
        """Return the head without some headers, and with others (``_`` stands for ``-``)."""
        new = {name.replace("_", "-"): value for name, value in added.items()}
        gone = {name.lower() for name in (*without, *new)}
        kept = [(name, value) for name, value in self.headers if name.lower() not in gone]
        return MessageHead(self.line, [*kept, *new.items()])

    def encode(self) -> bytes:
        """Return the bytes."""
        lines = [self.line, *(f"{name}: {value}" for name, value in self.headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> MessageHead | None:
    """Read a head; ``None`` where the connection ends instead. Raises ``Malformed``."""
    try:
        data = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise Malformed("the head of a message broke off") from None
        return None
    except asyncio.LimitOverrunError:
        raise Malformed(f"the head of a message is larger than {MAX_HEAD:,} bytes") from None
    line, *lines = data.decode("latin-1")[:-4].split("\r\n")
    headers = []
    for each in lines:
        name, colon, value = each.partition(":")
        if not colon:
            raise Malformed(f"{each[:60]!r} is no header")
        headers.append((name.strip(), value.strip()))
    return MessageHead(line, headers)


async def read_body(
    reader: asyncio.StreamReader, head: MessageHead, *, to_end: bool
) -> AsyncIterator[bytes]:
    """Yield a body. Without a length it is empty, or (``to_end``) lasts as the connection does."""
    if "chunked" in head.value("transfer-encoding").lower():
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            if size > MAX_BODY:
                raise Malformed(f"a chunk is larger than {MAX_BODY:,} bytes")
            yield await reader.readexactly(size)
            await reader.readexactly(2)
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass
        return
    length = head.value("content-length")
    if not length and not to_end:
        return
    left = int(length) if length else None
    while left is None or left:
        data = await reader.read(65536 if left is None else min(left, 65536))
        if not data:
            if left:
                raise asyncio.IncompleteReadError(b"", left)
            return
        if left is not None:
            left -= len(data)
        yield data


async def whole_body(reader: asyncio.StreamReader, head: MessageHead) -> bytes:
    """Return the body of a request. Raises ``Malformed`` for one that is too large."""
    pieces, size = [], 0
    async for piece in read_body(reader, head, to_end=False):
        size += len(piece)
        if size > MAX_BODY:
            raise Malformed(f"a request is larger than {MAX_BODY:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)


class FrameSplitter:
    """Cuts the bytes of a stream into frames, each with its closing empty line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the frames that a chunk completes."""
        self._rest += chunk
        frames: list[bytes] = []
        while True:
            ends = [
                (at + len(end))
                for end in (b"\n\n", b"\r\n\r\n", b"\r\r")
                if (at := self._rest.find(end)) >= 0
            ]
            if not ends:
                return frames
            frames.append(self._rest[: min(ends)])
            self._rest = self._rest[min(ends) :]

    @property
    def rest(self) -> bytes:
        """What has no end yet."""
        return self._rest


def has_data(frame: bytes) -> bool:
    """Return whether a frame is an event, and no comment."""
    lines = frame.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return any(line.startswith(b"data") for line in lines)


# -- proxy ------------------------------------------------------------------------------------


START_SECONDS = 10.0
SMALL_BUFFER = 4096
_BROKEN = (OSError, asyncio.IncompleteReadError, Malformed, ValueError)


class ProxiedRequest(msgspec.Struct, kw_only=True):
    """A request that came to the proxy, and what became of it.

    ``operation`` is in the words of 1.0, ``card`` for a card, or empty. ``status`` is that of the
    answer, 0 if the client got none; ``sent`` counts the bytes of its body that the client got.
    For ``tcp://`` targets a request is a connection.
    """

    method: str = ""
    path: str = ""
    headers: dict[str, str] = {}
    body: bytes = b""
    operation: str = ""
    faults: tuple[Fault, ...] = ()
    status: int = 0
    sent: int = 0


On = str | Callable[[ProxiedRequest], bool] | None


_ACCEPT_PASSES = 8
"""Passes of the event loop from an accepted socket to the first step of its task."""


class _Rule:
    def __init__(self, faults: tuple[Fault, ...], on: On, times: int | None, after: int) -> None:
        self.faults = faults
        self._on = on
        self._left = times
        self._after = after

    def takes(self, request: ProxiedRequest) -> bool:
        """Return whether the request has these faults, and count it."""
        if self._left == 0 or not self._fits(request):
            return False
        if self._after:
            self._after -= 1
            return False
        if self._left is not None:
            self._left -= 1
        return True

    def _fits(self, request: ProxiedRequest) -> bool:
        if self._on is None:
            return request.operation != CARD
        if callable(self._on):
            return self._on(request)
        if "/" in self._on:
            return fnmatch.fnmatchcase(request.path.partition("?")[0], self._on)
        return request.operation == self._on


class FaultProxy:
    """Serves ``target`` at another address (``url``), with faults.

        with FaultProxy("http://127.0.0.1:9999") as proxy:
            proxy.fault(faults.cut(after_frames=2), on="SendStreamingMessage")
            ...  # the client under test calls proxy.url

    ``target`` is the address of a server over HTTP/1.1. Its agent cards lead to the proxy; other
    interfaces, such as gRPC, are left out of them, as are signatures. ``tcp://host:port`` is any
    server: then ``drop``, ``delay``, ``cut(after_bytes=...)`` and ``slow`` apply to connections.

    Without faults it passes everything on. It runs in a thread of its own, so ``with`` and
    ``async with`` both do. ``requests`` has what came, in order.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        if parts.scheme not in ("http", "https", "tcp") or not parts.hostname:
            raise ValueError(
                f"{target!r} is not an address of the form http://host:port or tcp://host:port"
            )
        if parts.scheme == "tcp" and not parts.port:
            raise ValueError(f"{target!r} has no port")
        self.target = target.rstrip("/")
        self.requests: list[ProxiedRequest] = []
        self._parts = parts
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._overtaken: list[FaultGate] = []
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._port = self._socket.getsockname()[1]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="parley-faults", daemon=True)

    @property
    def url(self) -> str:
        """The address of the proxy, with the path of the target."""
        if self._parts.scheme == "tcp":
            return f"127.0.0.1:{self._port}"
        return f"{self._origin}{self._parts.path.rstrip('/')}"

    @property
    def _origin(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def fault(self, *faults: Fault, on: On = None, times: int | None = 1, after: int = 0) -> None:
        """Have requests go wrong: each request takes the first rule that fits.

        ``on`` is an operation (``"SendMessage"``, also for its forms in 0.3; ``"card"``), a
        pattern of paths (``"/rest/*"``), a function of the ``ProxiedRequest``, or nothing for all
        but cards. ``times`` requests take the rule, ``None`` for all; ``after`` so many others.
        """
        if not faults:
            raise ValueError("name what goes wrong, as in proxy.fault(faults.drop())")
        if self._parts.scheme == "tcp":
            wrong = [each for each in faults if each.kind not in _OF_CONNECTIONS]
            if wrong:
                raise ValueError(f"{wrong[0]} needs HTTP, and the target is {self.target}")
        with self._lock:
            self._rules.append(_Rule(faults, on, times, after))

    def clear(self) -> None:
        """Take all rules back."""
        with self._lock:
            self._rules.clear()

    def of(self, operation: str) -> list[ProxiedRequest]:
        """Return the requests for an operation."""
        return [each for each in self.requests if each.operation == operation]

    # -- its life ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            raise TimeoutError(f"the proxy did not start within {START_SECONDS:g} seconds")
        return self

    def __exit__(self, *error: object) -> None:
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(stop.set)
            self._thread.join(START_SECONDS)
        self._socket.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.__exit__, *error)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        takes = self._connection if self._parts.scheme == "tcp" else self._exchange
        server = await asyncio.start_server(
            lambda reader, writer: self._tracked(takes, reader, writer),
            sock=self._socket,
            limit=MAX_HEAD,
        )
        self._started.set()
        await self._stop.wait()
        # asyncio forgets what it accepts while its server closes.
        with suppress(NotImplementedError):  # on Windows
            self._loop.remove_reader(self._socket)
        for _ in range(_ACCEPT_PASSES):
            await asyncio.sleep(0)
        server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # in which the transports close their sockets

    async def _tracked(
        self,
        takes: Callable[..., Coroutine[Any, Any, None]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await takes(reader, writer)
        except (*_BROKEN, asyncio.CancelledError):
            pass  # the connection ends, which is what the client sees
        finally:
            self._tasks.discard(task)
            if self._stop is not None and self._stop.is_set():
                writer.transport.abort()  # does not wait for a reader
            writer.close()

    # -- one request ---------------------------------------------------------------------------

    def _faults_of(self, request: ProxiedRequest) -> dict[str, Fault]:
        with self._lock:
            self.requests.append(request)
            for rule in self._rules:
                if rule.takes(request):
                    request.faults = rule.faults
                    break
        return {fault.kind: fault for fault in request.faults}

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        if head is None:
            return
        if "100-continue" in head.value("expect").lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await whole_body(reader, head)
        method, path, _ = head.line.split(" ", 2)
        request = ProxiedRequest(
            method=method,
            path=path,
            headers={name.lower(): value for name, value in head.headers},
            body=body,
            operation=operation_of(method, path, body),
        )
        faults = self._faults_of(request)
        overtaken = [] if "overtaken" in faults else self._overtaken
        if "overtaken" in faults:
            gate = FaultGate()
            self._overtaken = [*self._overtaken, gate]
            await gate.wait()
        else:
            self._overtaken = []
        try:
            await self._answer(request, head, faults, writer)
        finally:
            for gate in overtaken:
                gate.open()

    async def _answer(
        self,
        request: ProxiedRequest,
        head: MessageHead,
        faults: dict[str, Fault],
        writer: asyncio.StreamWriter,
    ) -> None:
        if "drop" in faults:
            return
        if refused := faults.get("status"):
            await _hold(faults.get("delay"))
            request.status = refused.number
            again = f"Retry-After: {refused.text}\r\n" if refused.text else ""
            writer.write(
                f"HTTP/1.1 {refused.number} Refused\r\n{again}Content-Length: 0\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            await writer.drain()
            return
        outward = head.replaced(
            *("Connection", "Upgrade", "HTTP2-Settings", "Transfer-Encoding", "Expect"),
            Host=self._parts.netloc.rpartition("@")[2],
            Content_Length=str(len(request.body)),
            Connection="close",
            Accept_Encoding="identity",
        )
        if version := faults.get("wrong_version"):
            outward = outward.replaced(A2A_Version=version.text)
        sent = outward.encode() + request.body
        if "duplicate" in faults:
            await self._send_and_forget(sent)
        far_reader, far_writer = await self._connect(is_slow="slow" in faults)
        try:
            far_writer.write(sent)
            answer = await read_head(far_reader)
            if answer is None or "drop_answer" in faults:
                if answer is not None:  # the server has done what it was asked
                    async for _ in read_body(far_reader, answer, to_end=True):
                        if answer.value("content-type").startswith("text/event-stream"):
                            break
                return
            await self._pass_back(request, answer, far_reader, faults, writer)
        finally:
            far_writer.close()

    async def _connect(
        self, *, is_slow: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = self._parts
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        far_reader, far_writer = await asyncio.open_connection(
            parts.hostname, port, ssl=secure or None, limit=SMALL_BUFFER if is_slow else MAX_HEAD
        )
        if is_slow:  # so that the server feels it
            far_writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER
            )
        return far_reader, far_writer

    async def _send_and_forget(self, sent: bytes) -> None:
        reader, writer = await self._connect()
        try:
            writer.write(sent)
            answer = await read_head(reader)
            if answer is not None and "event-stream" not in answer.value("content-type"):
                async for _ in read_body(reader, answer, to_end=True):
                    pass
        finally:
            writer.close()

    async def _pass_back(
        self,
        request: ProxiedRequest,
        answer: MessageHead,
        reader: asyncio.StreamReader,
        faults: dict[str, Fault],
        writer: asyncio.StreamWriter,
    ) -> None:
        body = read_body(reader, answer, to_end=request.method != "HEAD")
        is_stream = answer.value("content-type").startswith("text/event-stream")
        length = answer.value("content-length")
        delay = faults.get("delay")
        if delay is not None and not delay.number:
            await _hold(delay)
        if request.operation in (CARD, "GetExtendedAgentCard") and not is_stream:
            whole = b"".join([piece async for piece in body])
            whole = led_here(whole, self.target, self._origin)
            body, length = _of(whole), str(len(whole))
        head = answer.replaced("Transfer-Encoding", "Keep-Alive", Connection="close")
        is_chunked = not length and answer.line.split()[1] not in ("204", "304")
        if is_chunked:
            head = head.replaced("Content-Length", Transfer_Encoding="chunked")
        else:
            head = head.replaced(Content_Length=length or "0")
        request.status = int(answer.line.split()[1])
        writer.write(head.encode())
        await writer.drain()
        units = _frames(body, faults) if is_stream else body
        limit = faults["cut_bytes"].number if "cut_bytes" in faults else None
        async for unit in units:
            if limit is not None:
                unit = unit[: max(limit - request.sent, 0)]
            for piece in _pieces(unit, faults.get("slow")):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
                await writer.drain()
                request.sent += len(piece)
                if pace := faults.get("slow"):
                    await asyncio.sleep(len(piece) / pace.number)
            if limit is not None and request.sent >= limit:
                return
        if is_chunked and "cut_frames" not in faults and limit is None:
            writer.write(b"0\r\n\r\n")
            await writer.drain()

    # -- one connection ------------------------------------------------------------------------

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = ProxiedRequest(method="tcp", path=self.target)
        faults = self._faults_of(request)
        if "drop" in faults:
            return
        far_reader, far_writer = await self._connect(is_slow="slow" in faults)
        onward = asyncio.create_task(_copy(reader, far_writer))
        limit = faults["cut_bytes"].number if "cut_bytes" in faults else None
        try:
            await _hold(faults.get("delay"))
            while data := await far_reader.read(65536):
                if limit is not None:
                    data = data[: max(limit - request.sent, 0)]
                for piece in _pieces(data, faults.get("slow")):
                    writer.write(piece)
                    await writer.drain()
                    request.sent += len(piece)
                    if pace := faults.get("slow"):
                        await asyncio.sleep(len(piece) / pace.number)
                if limit is not None and request.sent >= limit:
                    return
        finally:
            onward.cancel()
            await asyncio.gather(onward, return_exceptions=True)
            far_writer.close()


_OF_CONNECTIONS = ("drop", "delay", "cut_bytes", "slow")


async def _hold(delay: Fault | None) -> None:
    if delay is not None and delay.gate is not None:
        await delay.gate.wait()
    elif delay is not None:
        await asyncio.sleep(delay.seconds)


async def _of(whole: bytes) -> AsyncIterator[bytes]:
    if whole:
        yield whole


def _pieces(data: bytes, pace: Fault | None) -> list[bytes]:
    size = len(data) if pace is None else pace.other
    return [data[at : at + size] for at in range(0, len(data), size)] if data else []


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _frames(body: AsyncIterator[bytes], faults: dict[str, Fault]) -> AsyncIterator[bytes]:
    """Yield the frames of a stream as the faults have them."""
    cut, delay = faults.get("cut_frames"), faults.get("delay")
    moved, held = faults.get("reorder"), b""
    splitter, number = FrameSplitter(), 0
    if cut is not None and not cut.number:
        return
    async for chunk in body:
        for frame in splitter.feed(chunk):
            if not has_data(frame):
                yield frame
                continue
            number += 1
            if delay is not None and delay.number == number:
                await _hold(delay)
            if (lost := faults.get("drop_frame")) and lost.number == number:
                continue
            if moved is not None and moved.number == number:
                held = frame
                continue
            yield frame
            if (twice := faults.get("duplicate_frame")) and twice.number == number:
                yield frame
            if moved is not None and moved.other == number and held:
                yield held
                held = b""
            if cut is not None and number >= cut.number:
                return
    if held:
        yield held
    if splitter.rest:
        yield splitter.rest
