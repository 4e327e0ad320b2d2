"""A server in its own thread: an ASGI app on a free port of this machine."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

START_SECONDS = 10.0
"""The number of seconds the server may take to start, and to stop."""


class ScriptServer(uvicorn.Server):
    """Serves an app without log output, and calls ``ready`` when it accepts requests."""

    def __init__(self, app: Any, ready: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level=100,
            access_log=False,
            timeout_graceful_shutdown=1,
            ws="none",
            lifespan="off",
            server_header=False,
        )
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call ``ready``."""
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the program keeps its own."""
        yield


class BackgroundServer:
    """Serves an app at ``http://127.0.0.1``, independently of the test's event loop."""

    def __init__(self, app: Any) -> None:
        self._started = threading.Event()
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._server = ScriptServer(app, self._started.set)
        self._thread = threading.Thread(target=self._serve, name="parley-issuer", daemon=True)

    @property
    def url(self) -> str:
        """The address of the app."""
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def start(self) -> None:
        """Start, and return when the server accepts requests."""
        self._thread.start()
        if not self._started.wait(START_SECONDS):
            raise TimeoutError(f"the server did not start within {START_SECONDS:g} seconds")

    def stop(self) -> None:
        """Stop, and wait for the end of the thread."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(START_SECONDS)
        self._socket.close()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))
