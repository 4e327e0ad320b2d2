"""One event-loop timer for many objects that have the same timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedTimer(Generic[T]):
    """Calls ``fire`` with each of many objects ``seconds`` after it was added.

    Nearly all are discarded soon, as quick functions reply in time: an event-loop timer for each
    would cost more than some of these functions do. The objects stand in the order of their times,
    and nothing is kept of one that was discarded.
    """

    def __init__(self, seconds: float, fire: Callable[[T], None]) -> None:
        self._seconds = seconds
        self._fire = fire
        self._times: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, each: T, loop: asyncio.AbstractEventLoop) -> float:
        """Fire with an object after the timeout; ``loop`` is the running event loop.

        Return the time of that, by the clock of the loop.
        """
        when = self._times[each] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(when, self._on_time, loop)
        return when

    def discard(self, each: T) -> None:
        """Do not fire with an object. Idempotent."""
        self._times.pop(each, None)

    def close(self) -> None:
        """Discard everything."""
        self._times.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while (each := next(iter(self._times), None)) is not None and self._times[each] <= now:
            del self._times[each]
            self._fire(each)
        if each is not None and self._timer is None:
            self._timer = loop.call_at(self._times[each], self._on_time, loop)
