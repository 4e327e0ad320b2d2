"""An HTTP transport of the client for apps in this process: real requests without a socket.

``connect`` makes one for an agent or an app; ``parley.testing`` makes one for a whole test.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from starlette.types import ASGIApp, Message, Scope

from parley.client.bindings.http import HttpTransport, OpenResponse, redacted
from parley.client.errors import ClientError, ConnectionClosed, Disconnected, Timeout, Unreachable
from parley.client.origin import PORTS
from parley.model.concurrency import end
from parley.model.distribution import VERSION
from parley.security.egress import Egress
from parley.server.app import App

if TYPE_CHECKING:
    from parley.host.in_process_sockets import InProcessSocket


class AppNotStarted(ClientError):
    """The app could not be started, or failed to stop. The message comes from the app."""


class AppLifespan:
    """The lifespan of an app on one event loop. The app runs until its last user leaves."""

    def __init__(self, app: ASGIApp, context: Callable[[], Context], key: tuple[int, int]) -> None:
        self.state: dict[str, Any] = {}
        self.users = 0
        self._app = app
        self._key = key
        self._context = context
        loop = asyncio.get_running_loop()
        self._loop = loop  # a reference, so that no later loop gets the same id
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._started = loop.create_future()
        self._stopped = loop.create_future()
        self._starting: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the app once. Every caller gets ``AppNotStarted`` if this fails."""
        if self._starting is None:
            self._starting = self._spawn(self._start())
        await asyncio.shield(self._starting)

    async def leave(self) -> None:
        """Stop the app if this was its last user. Raises ``AppNotStarted``."""
        self.users -= 1
        if self.users:
            return
        _running.pop(self._key, None)
        if self._starting is not None:
            await asyncio.wait({self._starting})
        if self._running is None:
            return
        self._events.put_nowait({"type": "lifespan.shutdown"})
        await asyncio.wait({self._running, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
        await end([self._running])
        if self._stopped.done():
            self._stopped.result()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, context=self._context())

    async def _start(self) -> None:
        self._events.put_nowait({"type": "lifespan.startup"})
        self._running = self._spawn(self._live())
        self._running.add_done_callback(self._ended)
        await asyncio.wait({self._running, self._started}, return_when=asyncio.FIRST_COMPLETED)
        if self._started.done():
            self._started.result()
        # Otherwise the app raised: the protocol allows this to an app without a lifespan.

    async def _live(self) -> None:
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self.state}
        await self._app(scope, self._events.get, self._send)

    def _ended(self, running: asyncio.Task[None]) -> None:
        error = None if running.cancelled() else running.exception()
        if error is not None and self._started.done():
            log.error("the app failed while it ran", exc_info=error)
        elif error is not None:
            log.debug("the app has no lifespan: %r", error)

    async def _send(self, message: Message) -> None:
        name = message["type"]
        if name == "lifespan.startup.complete":
            self._started.set_result(None)
        elif name == "lifespan.shutdown.complete":
            self._stopped.set_result(None)
        else:
            failed = AppNotStarted(message.get("message") or "the app failed without a reason")
            (self._stopped if self._started.done() else self._started).set_exception(failed)


_running: dict[tuple[int, int], AppLifespan] = {}


def join(app: ASGIApp, context: Callable[[], Context]) -> AppLifespan | None:
    """Return the lifespan of an app on this loop, with one more user.

    Returns ``None`` for an app of agents that is already running. Other apps do not show whether
    they run.
    """
    key = (id(asyncio.get_running_loop()), id(app))
    lifespan = _running.get(key)
    if lifespan is None:
        if isinstance(app, App) and app.lifecycle.started:
            return None
        lifespan = _running[key] = AppLifespan(app, context, key)
    lifespan.users += 1
    return lifespan


log = logging.getLogger("parley.host")

BUFFER_BYTES = 64 * 1024
"""The number of bytes that a response may be ahead of its reader before ``send`` waits."""

CLOSE_SECONDS = 5.0
"""The time in seconds that open requests get to end when the transport is closed."""


class Site:
    """An app that answers requests. It is started before the first one, unless it is running.

    ``context`` returns the context variables of the app's tasks, which do not inherit the
    variables of callers.
    """

    def __init__(
        self, app: ASGIApp, *, starts: bool = True, context: Callable[[], Context] | None = None
    ) -> None:
        self.app = app
        self.context = context or copy_context().copy
        self._starts = starts
        self._lifespan: AppLifespan | None = None

    @property
    def state(self) -> dict[str, Any]:
        """The state that the app's lifespan shares with its requests."""
        return {} if self._lifespan is None else dict(self._lifespan.state)

    async def start(self) -> None:
        """Start the app unless it runs. Raises ``AppNotStarted``, for later requests too."""
        if self._lifespan is None and self._starts:
            self._lifespan = join(self.app, self.context)
        if self._lifespan is not None:
            await self._lifespan.start()

    async def stop(self) -> None:
        """Stop the app if this object started it and it has no other user. Idempotent."""
        lifespan, self._lifespan = self._lifespan, None
        if lifespan is not None:
            await lifespan.leave()


class InProcessExchange:
    """One request and its response: the app writes, the reader reads."""

    def __init__(self, body: bytes | AsyncIterable[bytes] | None) -> None:
        self._body = body
        self._pieces: AsyncIterator[bytes] | None = None
        self._is_sent = False
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._read = asyncio.Event()
        self._gone = asyncio.Event()
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.is_complete = False
        self.failure: ClientError | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """True if the response is complete or its reader has left."""
        return self._gone.is_set()

    # -- the app's side ------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Return a chunk of the request, or ``http.disconnect`` if the reader has left."""
        if not self._is_sent and not self._gone.is_set():
            if self._body is None or isinstance(self._body, bytes):
                self._is_sent = True
                return {"type": "http.request", "body": self._body or b"", "more_body": False}
            if self._pieces is None:
                self._pieces = aiter(self._body)
            try:
                piece = await anext(self._pieces, None)
            except Exception as error:  # from the caller's body: the app sees a disconnected client
                failure = Disconnected("the body of the request could not be read to its end")
                failure.__cause__ = error
                self.fail(failure)
                return {"type": "http.disconnect"}
            self._is_sent = piece is None
            return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Accept a chunk of the response once there is room. ``OSError`` without a reader."""
        if self._gone.is_set():
            raise OSError("the client has closed the connection")
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in message.get("headers", ())
            ]
            self._changed.set()
            return
        if message["type"] != "http.response.body":
            return
        if piece := bytes(message.get("body", b"")):
            self._chunks.append(piece)
            self._size += len(piece)
        self.is_complete = not message.get("more_body", False)
        if self.is_complete:
            self._gone.set()  # the app is not asked for more
        self._changed.set()
        while self._size >= BUFFER_BYTES and not self._gone.is_set():
            self._read.clear()
            await self._read.wait()

    # -- the reader's side ---------------------------------------------------------------------

    async def head(self) -> None:
        """Wait until the response has begun. Raises the error that made it fail."""
        while not self.status:
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await self._changed.wait()

    async def next(self) -> bytes:
        """Return the bytes that have arrived, empty at the end. Raises the response's failure."""
        while not self._chunks:
            if self.is_complete:
                return b""
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await self._changed.wait()
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        self._read.set()
        return data

    def close(self) -> None:
        """Signal the app that the reader has left."""
        self._gone.set()
        self._read.set()

    def fail(self, failure: ClientError) -> None:
        """Break the connection. Bytes that have arrived can still be read."""
        if not self.is_complete and self.failure is None:
            self.failure = failure
        self.close()
        self._changed.set()


class InProcessResponse(OpenResponse):
    """The response of an app in this process."""

    def __init__(
        self,
        exchange: InProcessExchange,
        url: str,
        *,
        limit: int,
        deadline: float | None,
        idle: float | None,
    ) -> None:
        super().__init__(exchange.status, url, exchange.headers, limit=limit)
        self._exchange = exchange
        self._deadline = deadline
        self._idle = idle

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as the app sends it. An incomplete body raises ``Disconnected``."""
        while chunk := await _within(self._exchange.next(), self._deadline, self._idle, self.url):
            yield chunk


class InProcessTransport(HttpTransport):
    """Sends requests to the apps of ``sites``, which are found by address prefix.

    Requests and responses are real: an app gets the same scope and messages as from a server, in a
    task of its own, and its response can be read while it is written. An app that is more than 64
    KiB ahead of its reader waits. A reader that leaves disconnects the app, as on a socket; the
    app decides when its task ends. An address without a site is sent to ``other`` if there is one,
    and is unreachable otherwise.

    Closing the transport stops the sites that it started.
    """

    is_local = True

    def __init__(
        self,
        sites: Mapping[str, Site],
        *,
        other: Site | None = None,
        scope: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        if limit is not None:
            self.max_response = limit
        self._sites = {address.rstrip("/"): site for address, site in sites.items()}
        self._other = other
        self._scope = dict(scope or {})
        self._open: set[InProcessExchange | InProcessSocket] = set()
        self._closing: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End open requests with ``ConnectionClosed``, and stop the apps. Idempotent."""
        if self._closing is None:
            self.closed = True
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        tasks = [exchange.task for exchange in self._open if exchange.task is not None]
        for exchange in list(self._open):
            exchange.fail(ConnectionClosed("the connection was closed during the call"))
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
            await end(tasks)
        for site in {*self._sites.values(), *([self._other] if self._other else [])}:
            await site.stop()

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | AsyncIterable[bytes] | None,
        *,
        timeout: float | None = None,
        idle: float | None = None,
    ) -> AsyncIterator[OpenResponse]:
        """Send a request and yield the response as soon as its headers have arrived."""
        if self.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        parts, port = _parsed(url)
        site, root = self._find(url, parts, port)
        await _within(site.start(), deadline, None, url)
        exchange = InProcessExchange(body)
        scope = {**_scope(method, parts, port, headers, body), "root_path": root, **self._scope}
        scope["state"] = site.state
        exchange.task = loop.create_task(self._serve(site, scope, exchange), context=site.context())
        self._open.add(exchange)
        self.on_open(site, exchange)
        try:
            await _within(exchange.head(), deadline, idle, url)
            yield InProcessResponse(
                exchange, url, limit=self.max_response, deadline=deadline, idle=idle
            )
        finally:
            exchange.close()

    async def open_socket(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        handshake: float,
        subprotocol: str = "",
        max_message: int = sys.maxsize,
        **_: Any,
    ) -> InProcessSocket:
        """Open a WebSocket to the app at an address, as over a network. There are no pings."""
        if self.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        from parley.host.in_process_sockets import InProcessSocket

        loop = asyncio.get_running_loop()
        deadline = loop.time() + handshake
        parts, port = _parsed(url)
        site, root = self._find(url, parts, port)
        await _within(site.start(), deadline, None, url)
        socket = InProcessSocket(redacted(url), max_message=max_message)
        scope = {**_scope("GET", parts, port, headers, None), "root_path": root, **self._scope}
        del scope["method"]
        scope |= {"type": "websocket", "subprotocols": [subprotocol] if subprotocol else []}
        scope["scheme"] = "wss" if parts.scheme in ("https", "wss") else "ws"
        scope["extensions"] = {**scope["extensions"], "websocket.http.response": {}}
        scope["state"] = site.state
        serving = self._serve_socket(site, scope, socket)
        socket.task = loop.create_task(serving, context=site.context())
        self._open.add(socket)
        self.on_open(site, socket)
        try:
            await _within(socket.opened(subprotocol), deadline, None, url)
        except BaseException:
            socket.abort()
            raise
        return socket

    async def _serve_socket(self, site: Site, scope: Scope, socket: InProcessSocket) -> None:
        call = partial(site.app, scope, socket.app_receive, socket.app_send)
        try:
            await _run(call, f"the socket {scope['path']}", lambda: socket.close_code is not None)
        finally:
            self._open.discard(socket)
            socket.ended()

    def carries(self, url: str) -> bool:
        """Return whether an address belongs to a site; addresses of ``other`` do not count."""
        return any(url == address or url.startswith(f"{address}/") for address in self._sites)

    def guarded(self, egress: Egress) -> HttpTransport:
        """Return this transport: no request leaves the process."""
        return self

    def on_open(self, site: Site, exchange: InProcessExchange | InProcessSocket) -> None:
        """Register a request or a socket that begins."""

    def forget(self, exchange: InProcessExchange | InProcessSocket) -> None:
        """Remove a request or a socket whose app has died, so that closing does not wait for it."""
        self._open.discard(exchange)

    def _find(self, url: str, parts: SplitResult, port: int | None) -> tuple[Site, str]:
        """Return the site of an address, and the path that the site is mounted at."""
        default = PORTS.get(parts.scheme)
        host = (parts.hostname or "") + ("" if port in (None, default) else f":{port}")
        whole = f"{parts.scheme}://{host}{parts.path}"
        for address in sorted(self._sites, key=len, reverse=True):
            if whole == address or whole.startswith(f"{address}/"):
                return self._sites[address], unquote(urlsplit(address).path)
        if self._other is not None:
            return self._other, ""
        raise self.unknown(url)

    def unknown(self, url: str) -> ClientError:
        """Return the error for an address without an app."""
        known = ", ".join(sorted(self._sites)) or "no address"
        return Unreachable(
            f"no app of this process answers at {redacted(url)}; there are apps at {known}"
        )

    async def _serve(self, site: Site, scope: Scope, exchange: InProcessExchange) -> None:
        where = f"{scope['method']} {scope['path']}"
        call = partial(site.app, scope, exchange.receive, exchange.send)
        try:
            await _run(call, where, lambda: exchange.is_over)
        except asyncio.CancelledError:
            exchange.fail(Disconnected(f"the app dropped the request {where}"))
            raise
        finally:
            self._open.discard(exchange)
        if not exchange.status:
            await _send_failure(exchange)
        exchange.fail(Disconnected(f"the answer to {where} broke off"))


async def _send_failure(exchange: InProcessExchange) -> None:
    """Answer as servers do for an app that failed before its response began."""
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    with suppress(OSError):
        await exchange.send({"type": "http.response.start", "status": 500, "headers": headers})
        await exchange.send({"type": "http.response.body", "body": b"Internal Server Error"})


async def _run(call: Callable[[], Any], where: str, is_over: Callable[[], bool]) -> None:
    """Run the app for a request or a socket. Its errors are logged, unless its reader has left."""
    try:
        await call()
    except Exception as error:
        if not (isinstance(error, OSError) and is_over()):
            log.error("the app failed at %s", where, exc_info=error)


async def _within(work: Any, deadline: float | None, idle: float | None, url: str) -> Any:
    """Wait for ``work``. Raises ``Timeout`` at the deadline, ``Disconnected`` if idle too long."""
    now = asyncio.get_running_loop().time()
    idle_until = None if idle is None else now + idle
    until = min([each for each in (deadline, idle_until) if each is not None], default=None)
    try:
        async with asyncio.timeout_at(until):
            return await work
    except TimeoutError:
        if until == deadline:
            raise Timeout(f"{redacted(url)} did not answer in time") from None
        raise Disconnected(f"{redacted(url)} went silent in the middle of a call") from None


def _parsed(url: str) -> tuple[SplitResult, int | None]:
    """Return the parts of an address, and its port. Raises ``ClientError``."""
    try:
        parts = urlsplit(url)
        return parts, parts.port
    except ValueError as error:
        raise ClientError(
            f"{redacted(url)!r} is not an address of the form http://host/path"
        ) from error


def _scope(
    method: str,
    parts: SplitResult,
    port: int | None,
    headers: Mapping[str, str],
    body: bytes | AsyncIterable[bytes] | None,
) -> dict[str, Any]:
    """Return the ASGI scope of a request, as a server makes it."""
    names = {name.lower() for name in headers}
    sent = [
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
    ]
    host = parts.netloc.rpartition("@")[2]
    if "user-agent" not in names:
        sent.insert(0, (b"user-agent", f"parley/{VERSION}".encode()))
    if isinstance(body, bytes):
        sent.append((b"content-length", b"%d" % len(body)))
    elif body is not None:
        sent.append((b"transfer-encoding", b"chunked"))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": parts.scheme,
        "path": unquote(parts.path) or "/",
        "raw_path": parts.path.encode("ascii", "ignore") or b"/",
        "query_string": parts.query.encode("ascii", "ignore"),
        "headers": [(b"host", host.encode("latin-1")), *sent],
        "client": ("127.0.0.1", 50000),
        "server": (parts.hostname or "", port or PORTS.get(parts.scheme, 0)),
        "extensions": {"tls": {}} if parts.scheme == "https" else {},
    }
