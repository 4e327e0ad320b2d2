"""The life of a server: start once, drain, stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

_log = logging.getLogger("parley.server")

Hook = Callable[[], Awaitable[None]]


class Lifecycle:
    """Starts what is served, once, and stops it.

    ``start`` may be called by any number of requests at once: all of them wait for the same start,
    and one that is cancelled does not take the start with it. A start that failed is tried again
    by the next call. ``drain`` tells those who registered with ``on_drain`` that the end is near.
    A server that was stopped can be started again, on another event loop too.
    ``unavailable_reason`` says why
    what is served can do nothing just now, and nothing while it can.
    """

    def __init__(
        self,
        startup: Hook | None,
        shutdown: Hook | None,
        unavailable_reason: Callable[[], str] | None = None,
    ) -> None:
        self._startup = startup
        self._shutdown = shutdown
        self._trouble = unavailable_reason
        self._starting: asyncio.Task[None] | None = None
        self._to_drain: list[Callable[[], None]] = []
        self.started = False
        self.draining = False

    @property
    def unavailable_reason(self) -> str:
        """Why what has started can do nothing just now, in words for everybody; mostly empty."""
        return self._trouble() if self.started and self._trouble is not None else ""

    def on_drain(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have ``callback`` called when the server begins to drain. Returns what undoes that."""
        self._to_drain.append(callback)
        return lambda: self._to_drain.remove(callback)

    async def start(self) -> None:
        """Start what is served. Raises what the startup raises."""
        if not self.started:
            await asyncio.shield(self._start())

    async def start_late(self) -> None:
        """Start, because a request came and nobody had.

        Raises what the startup raises, which is in the log too.
        """
        await asyncio.shield(self._start(late=True))

    def start_soon(self) -> None:
        """Begin to start late; the start goes on by itself, and a failure is in the log."""
        self._start(late=True)

    def _start(self, *, late: bool = False) -> asyncio.Task[None]:
        if self._starting is None:
            self._starting = asyncio.create_task(self._run_startup())
            self._starting.add_done_callback(self._start_ended)
            if late:
                _log.warning(
                    "the agents were not started before their first request, and nothing will "
                    "stop them: give lifespan=app.lifespan to the app that they are mounted in"
                )
                self._starting.add_done_callback(_log_failure)
        return self._starting

    async def _run_startup(self) -> None:
        if self._startup is not None:
            await self._startup()
        self.started = True

    def _start_ended(self, task: asyncio.Task[None]) -> None:
        self._starting = None

    def drain(self) -> None:
        """Begin the end: no new streams or messages, and those under way come to a close."""
        if not self.draining:
            self.draining = True
            for callback in list(self._to_drain):
                try:
                    callback()
                except Exception:
                    _log.exception("beginning the end failed; the end goes on")

    async def stop(self) -> None:
        """Drain, and stop what has started. Raises what the shutdown raises.

        A start that is under way is cancelled, and undoes what it did.
        """
        self.drain()
        try:
            if self._starting is not None:
                self._starting.cancel()
                await asyncio.wait({self._starting})
        finally:
            started, self.started = self.started, False
            try:
                if started and self._shutdown is not None:
                    await self._shutdown()
            finally:
                self.draining = False


def _log_failure(start: asyncio.Task[None]) -> None:
    if not start.cancelled() and (error := start.exception()) is not None:
        _log.error("the agents cannot start", exc_info=error)
