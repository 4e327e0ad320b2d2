"""Starts and stops an ASGI app in this process, once for all who use it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import Context
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from parley.client.errors import ClientError
from parley.model.concurrency import end
from parley.server.app import App

log = logging.getLogger("parley.host")


class AppNotStarted(ClientError):
    """The app could not be started, or did not stop as it should. The message is the app's own."""


class AppLifespan:
    """The life of an app on one event loop: it runs until the last of its users has left."""

    def __init__(self, app: ASGIApp, context: Callable[[], Context], key: tuple[int, int]) -> None:
        self.state: dict[str, Any] = {}
        self.users = 0
        self._app = app
        self._key = key
        self._context = context
        loop = asyncio.get_running_loop()
        self._loop = loop  # kept, so that its id is of no other loop
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._started = loop.create_future()
        self._stopped = loop.create_future()
        self._starting: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the app, once. Raises ``AppNotStarted``, to every caller."""
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
        await asyncio.wait({self._running, self._started}, return_when=asyncio.FIRST_COMPLETED)
        if self._started.done():
            self._started.result()
        # Else it raised: an app without a lifespan may, by the protocol.

    async def _live(self) -> None:
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": self.state}
        try:
            await self._app(scope, self._events.get, self._send)
        except Exception as error:
            if self._started.done():
                log.error("the app failed while it ran", exc_info=error)
            else:
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
    """Return the life of an app on this loop, with one more user.

    ``None`` for an app of agents that runs already. Of another kind of app that cannot be seen.
    """
    key = (id(asyncio.get_running_loop()), id(app))
    lifespan = _running.get(key)
    if lifespan is None:
        if isinstance(app, App) and app.lifecycle.started:
            return None
        lifespan = _running[key] = AppLifespan(app, context, key)
    lifespan.users += 1
    return lifespan
