"""uvicorn's server on extended connections: what ``OwnServer`` is compared with.

``UvicornServer`` overrides internals of uvicorn, which pyproject.toml therefore pins;
``tests/server/http/test_uvicorn_internals.py`` names each of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from parley.server.http.connection import ConnectionLimits as ConnectionLimits
from parley.server.http.connection import protocol_with
from parley.server.tls.reloading import ReloadingTls

_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform == "win32":
    _SIGNALS.append(signal.SIGBREAK)


class UvicornServer(uvicorn.Server):
    """uvicorn's server, which drains the app before the grace period begins.

    uvicorn only waits for responses and then cancels them, which cuts streams off.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits,
        *,
        idle_timeout: int,
        grace: int,
        started: Callable[[], None],
        access_log: bool,
        signals: bool,
        tls: ReloadingTls | None,
        drain: Callable[[], None] | None,
        has_lifespan: bool,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_with(limits),
                lifespan="auto" if has_lifespan else "off",
                ws="none",
                # Otherwise uvicorn believes the proxy headers of any peer on this machine.
                proxy_headers=limits.keeps_address,
                log_config=None,
                log_level="warning",
                access_log=access_log,
                server_header=False,
                timeout_keep_alive=idle_timeout,
                timeout_graceful_shutdown=grace,
            )
        )
        self._drain = drain
        self._tls = tls
        self._handshake_timeout = limits.head_timeout
        self._started = started
        self._signals = signals
        self._over = asyncio.Event()
        self._interrupted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until ``end`` is called or a signal comes."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self.servers = []
        try:
            await super().serve(sockets)
        finally:
            # uvloop cannot be closed while a server listens.
            for server in self.servers:
                server.close()

    def end(self) -> None:
        """Drain the app, then let uvicorn wait for responses under way."""
        self.should_exit = True
        if self._drain is not None:
            self._drain()
        self._over.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal: the first drains, the second exits at once."""
        if self._loop is None:
            return
        if not self._interrupted:
            self._interrupted = True
            self._loop.call_soon_threadsafe(self.end)
        elif self._task is not None:
            self.force_exit = True
            self._loop.call_soon_threadsafe(self._task.cancel)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle termination signals while the server runs."""
        # Unlike uvicorn's, this does not raise the signals again at the end, which would kill the
        # process: the caller still has to clean up.
        if not self._signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept requests, and report it."""
        if self._tls is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            await self._listen_with_tls(self._tls, sockets or [])
        self._started()

    async def _listen_with_tls(self, tls: ReloadingTls, sockets: list[socket.socket]) -> None:
        """Accept HTTPS: uvicorn bounds no handshake."""

        def connection() -> asyncio.Protocol:
            made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return made

        loop = asyncio.get_running_loop()
        for sock in sockets:
            server = await loop.create_server(
                connection,
                sock=sock,
                ssl=tls.context,
                ssl_handshake_timeout=self._handshake_timeout,
                backlog=self.config.backlog,
            )
            self.servers.append(server)

    async def main_loop(self) -> None:
        """Wait for the end without polling ten times a second, as uvicorn does."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._over.wait()
