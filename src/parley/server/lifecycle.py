"""The life of a server: start once, drain, stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from parley.model.errors import A2AError, OverloadedError, shutting_down
from parley.server.log import failure_of
from parley.server.observed import is_observed, refused

_log = logging.getLogger("parley.server")

Hook = Callable[[], Awaitable[None]]


class Lifecycle:
    """Starts the agents once, drains and stops them.

    Any number of requests may call ``start`` concurrently: all wait for the same start, and a
    cancelled request does not cancel it. The next call retries a failed start. ``drain`` calls the
    functions given to ``on_drain``. A stopped server can be started again, also on another event
    loop. ``unavailable_reason`` returns the reason why the agents cannot work now, empty while they
    can.
    """

    def __init__(
        self,
        startup: Hook | None,
        shutdown: Hook | None,
        unavailable_reason: Callable[[], str] | None = None,
    ) -> None:
        self._startup = startup
        self._shutdown = shutdown
        self._unavailable_reason = unavailable_reason
        self._starting: asyncio.Task[None] | None = None
        self._drain_callbacks: list[Callable[[], None]] = []
        self._reload_callbacks: list[Callable[[], Awaitable[str]]] = []
        self.started = False
        self.draining = False

    @property
    def unavailable_reason(self) -> str:
        """The reason why the started agents cannot work now, fit for callers; mostly empty."""
        if not self.started or self._unavailable_reason is None:
            return ""
        return self._unavailable_reason()

    def on_drain(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` when the server begins to drain. Return a function that undoes this."""
        self._drain_callbacks.append(callback)
        return lambda: self._drain_callbacks.remove(callback)

    def on_reload(self, callback: Callable[[], Awaitable[str]]) -> None:
        """Call ``callback`` when the server reads its files again. It returns what has changed."""
        self._reload_callbacks.append(callback)

    async def reload(self) -> None:
        """Read files and settings again, and log what has changed."""
        changes = []
        for callback in self._reload_callbacks:
            try:
                changes.append(await callback())
            except Exception:
                _log.exception("a part of the server cannot be reloaded")
        changed = "; ".join(filter(None, changes)) or "nothing has changed"
        level = max(logging.INFO, _log.getEffectiveLevel())  # an operator waits for the line
        _log.log(level, "reloaded: %s", changed)

    async def start(self) -> None:
        """Start the agents. Raises the errors of the startup."""
        if not self.started:
            await asyncio.shield(self._start())

    async def start_late(self) -> None:
        """Start on the first request, when the outer app did not.

        Raises the errors of the startup, and logs them.
        """
        await asyncio.shield(self._start(late=True))

    def start_soon(self) -> None:
        """Begin ``start_late`` without waiting for it."""
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

    def failure(self, error: BaseException, doing: str) -> A2AError:
        """Return the caller's error for an exception of its request, which is being handled.

        The requests of every binding end here; ``doing`` names the request (``failure_of``). The
        cancellation of the request itself is raised again, unless the server cancels it because it
        shuts down.
        """
        if isinstance(error, asyncio.CancelledError):
            if self.draining:  # the grace period is over
                return OverloadedError("the server shut down before there was an answer")
            if is_cancellation(error):
                raise error
        if is_observed():
            refused(error, doing)
        return failure_of(error, doing)

    def check_takes_work(self) -> None:
        """Reject new work while the server drains. Raises ``OverloadedError``."""
        if self.draining:
            raise shutting_down()

    def drain(self) -> None:
        """Reject new streams and messages, and let current ones end."""
        if not self.draining:
            self.draining = True
            for callback in list(self._drain_callbacks):
                try:
                    callback()
                except Exception:
                    _log.exception("a drain callback failed; draining continues")

    async def stop(self) -> None:
        """Drain, and stop the agents if they were started. Raises the errors of the shutdown.

        A running start is cancelled and undone.
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


def is_cancellation(error: BaseException) -> bool:
    """Return whether an exception cancels the current task itself, not only work within it."""
    task = asyncio.current_task()
    is_cancelled = task is not None and bool(task.cancelling())
    return is_cancelled and isinstance(error, asyncio.CancelledError)


def _log_failure(start: asyncio.Task[None]) -> None:
    if not start.cancelled() and (error := start.exception()) is not None:
        _log.error("the agents cannot start", exc_info=error)
