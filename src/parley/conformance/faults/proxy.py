"""``FaultProxy``: a server behind a proxy that injects faults, request by request."""

from __future__ import annotations

import asyncio
import fnmatch
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from parley.conformance.faults.cards import CARD, operation_of, rewrite_card
from parley.conformance.faults.fault import Fault, FaultGate
from parley.security.outbound import guarded_session

# -- frames -----------------------------------------------------------------------------------


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
        """Return the bytes after the last complete frame."""
        return self._rest


def has_data(frame: bytes) -> bool:
    """Return whether a frame is an event, not a comment."""
    lines = frame.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return any(line.startswith(b"data") for line in lines)


# -- proxy ------------------------------------------------------------------------------------


START_SECONDS = 10.0
SMALL_BUFFER = 4096
MAX_HEAD = 64 * 1024
MAX_BODY = 64 * 1024 * 1024
_OWN_HEADERS = (
    "Connection",
    "Upgrade",
    "HTTP2-Settings",
    "Transfer-Encoding",
    "Expect",
    "Host",
    "Content-Length",
    "Accept-Encoding",
)
"""The hop-by-hop headers of a request, which the proxy does not forward."""


class ProxiedRequest(msgspec.Struct, kw_only=True):
    """A request to the proxy, and its outcome.

    ``operation`` has its name in 1.0, ``card`` for a card, or is empty. ``status`` is the status of
    the response, 0 if the client got none; ``sent`` counts the bytes of the body that the client
    got. For ``tcp://`` targets a request is a connection.
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
        """Return whether the rule applies to this request, and count the request."""
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

    ``target`` is the address of a server over HTTP/1.1. Its agent cards are rewritten to the
    proxy's address; other interfaces, such as gRPC, and signatures are removed from them.
    ``tcp://host:port`` is any server: then ``drop``, ``delay``, ``cut(after_bytes=...)`` and
    ``slow`` apply to connections.

    Without faults it forwards everything unchanged. It runs in its own thread, so both ``with`` and
    ``async with`` work. ``requests`` lists the received requests, in order.
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
        """Add a rule that injects faults; the first matching rule applies to a request.

        ``on`` is an operation (``"SendMessage"``, also for its forms in 0.3; ``"card"``), a pattern
        of paths (``"/rest/*"``), a function of the ``ProxiedRequest``, or ``None`` for all requests
        except cards. The rule skips the first ``after`` matching requests and applies to the next
        ``times``; ``None`` is no limit.
        """
        if not faults:
            raise ValueError("give a fault, as in proxy.fault(faults.drop())")
        if self._parts.scheme == "tcp":
            wrong = [each for each in faults if each.kind not in _OF_CONNECTIONS]
            if wrong:
                raise ValueError(f"{wrong[0]} needs HTTP, and the target is {self.target}")
        with self._lock:
            self._rules.append(_Rule(faults, on, times, after))

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._rules.clear()

    def of(self, operation: str) -> list[ProxiedRequest]:
        """Return the requests for an operation."""
        return [each for each in self.requests if each.operation == operation]

    # -- lifecycle --------------------------------------------------------------------------------

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
        application = web.Application(client_max_size=MAX_BODY)
        application.router.add_route("*", "/{any:.*}", self._exchange)
        application.on_response_prepare.append(_add_nothing)
        runner = web.AppRunner(
            application,
            handler_cancellation=True,
            access_log=None,
            max_line_size=MAX_HEAD,
            max_field_size=MAX_HEAD,
            shutdown_timeout=0.01,  # 0 would be for ever
        )
        await runner.setup()
        assert runner.server is not None
        if self._parts.scheme == "tcp":
            server = await asyncio.start_server(self._connection, sock=self._socket)
        else:
            server = await self._loop.create_server(runner.server, sock=self._socket)
        self._started.set()
        await self._stop.wait()
        # asyncio forgets what it accepts while its server closes.
        with suppress(NotImplementedError):  # on Windows
            self._loop.remove_reader(self._socket)
        for _ in range(_ACCEPT_PASSES):
            await asyncio.sleep(0)
        server.close()
        await runner.cleanup()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # one pass in which the transports close their sockets

    # -- one request ---------------------------------------------------------------------------

    def _faults_of(self, request: ProxiedRequest) -> dict[str, Fault]:
        with self._lock:
            self.requests.append(request)
            for rule in self._rules:
                if rule.takes(request):
                    request.faults = rule.faults
                    break
        return {fault.kind: fault for fault in request.faults}

    async def _exchange(self, asked: web.Request) -> web.StreamResponse:
        body = await asked.read()
        path = asked.raw_path
        request = ProxiedRequest(
            method=asked.method,
            path=path,
            headers={name.lower(): value for name, value in asked.headers.items()},
            body=body,
            operation=operation_of(asked.method, path, body),
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
            answer = await self._answer(request, asked, faults)
        except (aiohttp.ClientError, OSError):
            answer = None
        finally:
            for gate in overtaken:
                gate.open()
        if answer is None and asked.transport is not None:
            asked.transport.close()
        answer = answer or web.StreamResponse()
        answer.force_close()
        return answer

    async def _answer(
        self, request: ProxiedRequest, asked: web.Request, faults: dict[str, Fault]
    ) -> web.StreamResponse | None:
        """Return the response, ``None`` if the connection ends."""
        if "drop" in faults:
            return None
        if refused := faults.get("status"):
            await _hold(faults.get("delay"))
            request.status = refused.number
            again = {"Retry-After": refused.text} if refused.text else {}
            return web.Response(status=refused.number, reason="Refused", headers=again)
        headers = asked.headers.copy()
        for name in _OWN_HEADERS:
            headers.popall(name, None)
        headers["Accept-Encoding"] = "identity"
        if version := faults.get("wrong_version"):
            headers["A2A-Version"] = version.text
        async with guarded_session(
            None,
            options={
                "auto_decompress": False,
                "read_bufsize": SMALL_BUFFER if "slow" in faults else MAX_HEAD,
                "timeout": aiohttp.ClientTimeout(),
            },
            force_close=True,
            socket_factory=_slow_socket if "slow" in faults else None,
        ) as session:

            def send() -> Any:
                return session.request(
                    request.method,
                    URL(f"{self._parts.scheme}://{self._parts.netloc}{request.path}", encoded=True),
                    headers=headers,
                    data=request.body or None,
                    allow_redirects=False,
                    skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
                )

            if "duplicate" in faults:
                async with send() as first:
                    await _read(first)
            async with send() as answer:
                if "drop_answer" in faults:
                    await _read(answer)  # the server has finished the request
                    return None
                return await self._pass_back(request, asked, answer, faults)

    async def _pass_back(
        self,
        request: ProxiedRequest,
        asked: web.Request,
        answer: aiohttp.ClientResponse,
        faults: dict[str, Fault],
    ) -> web.StreamResponse | None:
        delay = faults.get("delay")
        if delay is not None and not delay.number:
            await _hold(delay)
        headers = answer.headers.copy()
        for name in ("Transfer-Encoding", "Keep-Alive", "Connection"):
            headers.popall(name, None)
        body: AsyncIterator[bytes] = answer.content.iter_any()
        if _is_stream(answer):
            body = _frames(body, faults)
        elif request.operation in (CARD, "GetExtendedAgentCard"):
            whole = rewrite_card(await answer.read(), self.target, self._origin)
            headers["Content-Length"] = str(len(whole))
            body = _of(whole)
        request.status = answer.status
        response = _ForwardedResponse(status=answer.status, reason=answer.reason, headers=headers)
        response.given = set(headers)
        response.force_close()
        await response.prepare(asked)
        is_cut = await _forward(body, request, faults, response.write)
        return None if is_cut or "cut_frames" in faults else response

    # -- one connection ------------------------------------------------------------------------

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the connection ends, which is what the client sees
        finally:
            self._tasks.discard(task)
            if self._stop is not None and self._stop.is_set():
                writer.transport.abort()  # does not wait for a reader
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = ProxiedRequest(method="tcp", path=self.target)
        faults = self._faults_of(request)
        if "drop" in faults:
            return
        parts = self._parts
        limit = SMALL_BUFFER if "slow" in faults else MAX_HEAD
        far_reader, far_writer = await asyncio.open_connection(
            parts.hostname, parts.port, limit=limit
        )
        if "slow" in faults:
            _slow_down(far_writer.get_extra_info("socket"))
        onward = asyncio.create_task(_copy(reader, far_writer))

        async def write(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            await _hold(faults.get("delay"))
            await _forward(_all_of(far_reader), request, faults, write)
        finally:
            far_writer.close()  # before the wait, which a proxy that ends may cancel
            onward.cancel()
            await asyncio.gather(onward, return_exceptions=True)


_OF_CONNECTIONS = ("drop", "delay", "cut_bytes", "slow")


async def _hold(delay: Fault | None) -> None:
    if delay is not None and delay.gate is not None:
        await delay.gate.wait()
    elif delay is not None:
        await asyncio.sleep(delay.seconds)


async def _of(whole: bytes) -> AsyncIterator[bytes]:
    yield whole


async def _all_of(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while data := await reader.read(MAX_HEAD):
        yield data


async def _read(answer: aiohttp.ClientResponse) -> None:
    """Read a response that no client gets; of a stream, its first part."""
    async for _ in answer.content.iter_any():
        if _is_stream(answer):
            break


def _is_stream(answer: aiohttp.ClientResponse) -> bool:
    return answer.headers.get("Content-Type", "").startswith("text/event-stream")


class _ForwardedResponse(web.StreamResponse):
    """A response of the server, with the headers in ``given``."""

    given: Collection[str] = ()


async def _add_nothing(asked: web.Request, response: web.StreamResponse) -> None:
    """Remove the headers that the library adds."""
    given = response.given if isinstance(response, _ForwardedResponse) else ()
    for name in ("Content-Type", "Date", "Server"):
        if name not in given:
            response.headers.popall(name, None)


def _slow_socket(address: Any) -> socket.socket:
    made = socket.socket(*address[:3])
    _slow_down(made)
    return made


def _slow_down(made: socket.socket) -> None:
    """Limit the receive buffer, so that the server notices the slow reader."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)


async def _forward(
    body: AsyncIterator[bytes],
    request: ProxiedRequest,
    faults: dict[str, Fault],
    write: Callable[[bytes], Awaitable[None]],
) -> bool:
    """Forward a body with the cuts and the speed of the faults, and return whether it was cut."""
    limit = faults["cut_bytes"].number if "cut_bytes" in faults else None
    pace = faults.get("slow")
    async for data in body:
        if limit is not None:
            data = data[: max(limit - request.sent, 0)]
        size = len(data) if pace is None else pace.other
        for at in range(0, len(data), size or 1):
            piece = data[at : at + size]
            await write(piece)
            request.sent += len(piece)
            if pace is not None:
                await asyncio.sleep(len(piece) / pace.number)
        if limit is not None and request.sent >= limit:
            return True
    return limit is not None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _frames(body: AsyncIterator[bytes], faults: dict[str, Fault]) -> AsyncIterator[bytes]:
    """Yield the frames of a stream after the faults are applied."""
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
