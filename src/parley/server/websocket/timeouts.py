"""One event-loop timer for what many sockets wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# The timer may be late by this part of the time: sockets that are due together share a call.
_LATE = 0.05
# Beyond so many at once, the event loop does something else in between.
_AT_ONCE = 200


class SharedTimeouts(Generic[T]):
    """Calls ``expired`` for each of many, ``seconds`` after it was set, unless it is cleared.

    Thousands of idle sockets wait for their next ping: a timer of the event loop for each would
    cost more memory, and more time, than the pings do.
    """

    __slots__ = ("_due", "_expired", "_seconds", "_timer")

    def __init__(self, seconds: float, expired: Callable[[T], None]) -> None:
        self._seconds = seconds
        self._expired = expired
        self._due: dict[T, float] = {}  # in the order of their times
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, waiting: T) -> bool:
        return waiting in self._due

    def set(self, waiting: T) -> None:
        """Begin to wait, or begin again."""
        loop = asyncio.get_running_loop()
        self._due.pop(waiting, None)
        due = self._due[waiting] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(due + self._seconds * _LATE, self._fire)

    def clear(self, waiting: T) -> None:
        """Wait no longer."""
        if self._due.pop(waiting, None) is not None and not self._due and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        due: list[T] = []
        for waiting, when in self._due.items():
            if when > now or len(due) == _AT_ONCE:
                break
            due.append(waiting)
        for waiting in due:
            if self._due.get(waiting, now + 1) <= now:  # one that expires may clear others
                del self._due[waiting]
                self._expired(waiting)
        if not self._due:
            return
        first = next(iter(self._due.values()))
        if first <= now:  # the others after what else the loop has to do
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(0, self._fire)
        elif self._timer is None:
            self._timer = loop.call_at(first + self._seconds * _LATE, self._fire)
