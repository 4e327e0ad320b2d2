"""A deadline that is moved with every request, on a timer that is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class MovingDeadline:
    """Calls a function once a deadline has passed.

    The timer is set for the first deadline, and looks at the current one when it fires: to move it
    to a later time moves a number, and the event loop is not asked.
    """

    __slots__ = ("_at", "_expired", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Set the deadline, by the clock of the event loop."""
        self._at = at
        timer = self._timer
        if timer is None or timer.when() > at:
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(at, self._fire)

    def forget(self) -> None:
        """Have no deadline."""
        self._at = None

    def close(self) -> None:
        """Have no deadline, and no timer, for good."""
        self._at = None
        self._expired = _nothing  # else its owner would wait for the garbage collector
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        at = self._at
        if at is None:
            return
        if self._loop.time() < at:
            self._timer = self._loop.call_at(at, self._fire)
        else:
            self._at = None
            self._expired()


def _nothing() -> None:
    """Do nothing."""
