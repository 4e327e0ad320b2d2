"""Listens for HTTP connections, and shuts down: drains the app, waits for answers, cancels the
rest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import FrameType
from typing import Any

from starlette.types import ASGIApp, Message

from parley.server.http1.connection import HttpConnection
from parley.server.http1.serving import HttpServing

_BACKLOG = 2048
_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform == "win32":
    _SIGNALS.append(signal.SIGBREAK)

_LAST_ROUNDS = 5
"""Rounds of the event loop in which a connection is accepted, begun, and read from."""

_LAST_REQUESTS = 0.25
"""The time, in seconds, in which an idle connection may send its last request."""

_CANCEL_SECONDS = 1.0
"""The time that requests cancelled at the end have to notify their callers."""

_log = logging.getLogger("parley.server")


class Http1Server:
    """Serves connections on given sockets until ``end`` is called or a signal arrives.

    At the end it accepts no connection, and each idle one may send a last request: a proxy that
    uses it again could not tell whether a request on a closed one was processed. Then ``drain`` is
    called, and current requests have ``grace`` seconds. ``lifespan`` surrounds all of it.
    ``started`` is called once connections are accepted. With ``signals`` the first one ends the
    server, and the second one cancels ``serve`` if it ``exits_at_once``; without them, no last
    request is waited for.
    """

    def __init__(
        self,
        serving: HttpServing,
        *,
        grace: float,
        started: Callable[[], None],
        drain: Callable[[], None] | None = None,
        lifespan: AbstractAsyncContextManager[None] | None = None,
        tls: ssl.SSLContext | None = None,
        signals: bool = True,
        exits_at_once: bool = True,
    ) -> None:
        self._serving = serving
        self._grace = grace
        self._started = started
        self._drain = drain
        self._lifespan = lifespan or contextlib.nullcontext()
        self._tls = tls
        self._signals = signals
        self._exits_at_once = exits_at_once
        self._over = asyncio.Event()
        self._interrupted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._listening: list[asyncio.Server] = []
        self.should_exit = False
        self.force_exit = False

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve until the end. Raises the errors of the lifespan."""
        loop = self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        with self._handling_signals():
            async with self._lifespan:
                try:
                    await self._listen(loop, sockets)
                    self._started()
                    await self._over.wait()
                    for _ in range(_LAST_ROUNDS):  # take what has arrived
                        await asyncio.sleep(0)
                finally:
                    # uvloop cannot be closed while a server listens.
                    for listening in self._listening:
                        listening.close()
                await self._finish()

    async def _listen(
        self, loop: asyncio.AbstractEventLoop, sockets: Sequence[socket.socket]
    ) -> None:
        serving, tls = self._serving, self._tls
        for sock in sockets:
            listening = await loop.create_server(
                lambda: HttpConnection(serving, loop),
                sock=sock,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else serving.head_timeout,
                backlog=_BACKLOG,
            )
            self._listening.append(listening)

    def end(self) -> None:
        """Take last requests, drain the app, and wait for the current answers."""
        self.should_exit = True
        self._over.set()

    async def _finish(self) -> None:
        """Wait until the current answers are sent; after the grace period, cancel them."""
        serving = self._serving
        await self._take_last_requests()
        if self._drain is not None:
            self._drain()
        for connection in list(serving.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                await serving.wait_ended()
        if serving.tasks:
            _log.warning("%d request(s) outlast the grace period", len(serving.tasks))
            for task in list(serving.tasks):
                task.cancel()
            await asyncio.wait(set(serving.tasks), timeout=_CANCEL_SECONDS)
        for connection in list(serving.connections):
            if isinstance(connection, HttpConnection):
                connection.give_up()
            connection.abort()

    async def _take_last_requests(self) -> None:
        """Close each connection after its next answer, and wait for a while for requests."""
        serving = self._serving
        serving.is_ending = True
        for connection in serving.connections:
            if isinstance(connection, HttpConnection):  # not a WebSocket
                connection.keeps_alive = False
        ends_at = asyncio.get_running_loop().time() + (_LAST_REQUESTS if self._signals else 0)
        while any(connection.is_idle for connection in serving.connections):
            if asyncio.get_running_loop().time() >= ends_at:
                break
            await asyncio.sleep(0.01)

    # -- signals ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _handling_signals(self) -> Iterator[None]:
        if not self._signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first drains, the second exits at once."""
        if self._loop is None:
            return
        if not self._interrupted:
            self._interrupted = True
            self._loop.call_soon_threadsafe(self.end)
        elif self._exits_at_once and self._task is not None:
            self.force_exit = True
            self._loop.call_soon_threadsafe(self._task.cancel)


# -- lifespan ---------------------------------------------------------------------------------


class StartupFailed(Exception):
    """The app reported that it cannot start; the message is the app's."""


@asynccontextmanager
async def lifespan_of(app: ASGIApp, state: dict[str, Any]) -> AsyncIterator[None]:
    """Start an app, and stop it at the end. An app without lifespan is served too.

    Raises ``StartupFailed``.
    """
    given: asyncio.Queue[Message] = asyncio.Queue()
    said: asyncio.Queue[Message | None] = asyncio.Queue()
    given.put_nowait({"type": "lifespan.startup"})
    is_started = False

    async def run() -> None:
        asgi = {"version": "3.0", "spec_version": "2.0"}
        try:
            await app({"type": "lifespan", "asgi": asgi, "state": state}, given.get, said.put)
        except Exception as error:
            if is_started:
                _log.exception("the lifespan of the app failed")
            else:
                _log.debug("the app has no lifespan: %s", error)
        finally:
            said.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        answer = await said.get()
        if answer is not None and answer["type"] == "lifespan.startup.failed":
            raise StartupFailed(answer.get("message") or "the app cannot start; its log says why")
        is_started = answer is not None
        yield
        if answer is not None and not task.done():
            given.put_nowait({"type": "lifespan.shutdown"})
            answer = await said.get()
            if answer is not None and answer["type"] == "lifespan.shutdown.failed":
                _log.error("the app failed to stop cleanly: %s", answer.get("message", ""))
    finally:
        task.cancel()
        await asyncio.wait({task})
