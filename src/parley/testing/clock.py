"""The time of simulated processes: it flows as real time does, and tests can move it."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from datetime import UTC, datetime
from itertools import count
from typing import Any, Protocol

BACKGROUND = (
    "parley.engine.maintenance",
    "parley.engine.maintenance",
    "parley.engine.maintenance",
    "parley.host.",
    "parley.server.",
    "parley.store.",
)
"""The modules whose timers are polls: time that is moved does not stop at them."""

CLEAN_AFTER = 1000
"""How many cancelled timers a clock holds before it drops them."""


class Owner(Protocol):
    """The owner of timers: a process. Timers of a dead owner never fire."""

    is_dead: bool


class Timer:
    """A call at a time of the clock, unless it is cancelled. What an event loop calls a handle.

    ``span`` is how far ahead the time was when the timer was set, 0 for one of the background: a
    poll that comes again and again.
    """

    def __init__(
        self,
        when: float,
        span: float,
        call: tuple[Callable[..., object], tuple[Any, ...]],
        context: Context,
        owner: Owner,
    ) -> None:
        self.span = span
        self.call: tuple[Callable[..., object], tuple[Any, ...]] | None = call
        self.context = context
        self._when = when
        self._owner = owner

    def cancel(self) -> None:
        """Do not call."""
        self.call = None

    def cancelled(self) -> bool:
        """Whether the timer will not call, or has called."""
        return self.call is None or self._owner.is_dead

    def when(self) -> float:
        """Return the time of the call."""
        return self._when

    def fire(self) -> None:
        """Call now, unless cancelled."""
        call, self.call = self.call, None
        if call is not None and not self._owner.is_dead:
            function, args = call
            function(*args)


class Clock:
    """A clock that runs with the event loop's, and that ``move`` puts forward.

    Timers are called in the order of their times. ``real_time`` and ``call_at`` are the loop's own,
    ``call_soon`` is where calls that are due go.
    """

    def __init__(
        self,
        real_time: Callable[[], float],
        call_at: Callable[..., asyncio.TimerHandle],
        call_soon: Callable[..., object],
        *,
        start: datetime | None = None,
    ) -> None:
        self._real_time = real_time
        self._call_at = call_at
        self._call_soon = call_soon
        self._made_in = copy_context()
        self._ahead = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._armed: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._begun = real_time()
        epoch = time.time() if start is None else start.timestamp()
        self._epoch = int(epoch * 1000)

    def time(self) -> float:
        """Return the time as an event loop does, in seconds since some moment."""
        return self._real_time() + self._ahead

    def milliseconds(self) -> int:
        """Return the time in ms since 1970, as stores do."""
        return self._epoch + int((self.time() - self._begun) * 1000)

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.fromtimestamp(self.milliseconds() / 1000, UTC)

    def at(
        self,
        when: float,
        function: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        owner: Owner,
    ) -> Timer:
        """Return a timer that calls a function at a time of this clock."""
        made = copy_context() if context is None else context
        span = 0.0 if _is_background(function) else max(1e-6, when - self.time())
        timer = Timer(when, span, (function, args), made, owner)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        self._arm()
        return timer

    def move(self, seconds: float) -> None:
        """Put the clock forward, and call what is due."""
        self._ahead += max(0.0, seconds)
        self._fire()

    def upcoming(self, span: float, until: float) -> float | None:
        """Return the time of the first timer up to ``until`` that was set ``span`` ahead or more.

        ``None`` without one. Those of the background do not count.
        """
        whens = [t.when() for t in self._live() if t.span > span and t.when() <= until]
        return min(whens, default=None)

    def stop(self) -> None:
        """Call nothing more."""
        self._timers.clear()
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    def _live(self) -> Iterator[Timer]:
        return (timer for _, _, timer in self._timers if not timer.cancelled())

    def _arm(self) -> None:
        """Have the loop's own clock call when the first timer is due."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if len(self._timers) > CLEAN_AFTER:
            live = [entry for entry in self._timers if not entry[2].cancelled()]
            if len(live) < len(self._timers) / 2:
                self._timers = live
                heapq.heapify(live)
        if not self._timers:
            return
        when = self._timers[0][0] - self._ahead
        if self._armed is not None:
            if self._armed_for <= when:
                return  # too early at worst: then it is armed again
            self._armed.cancel()
        self._armed_for = when
        # Not in the process that sets the timer: its time is another than the loop's.
        self._armed = self._made_in.copy().run(self._call_at, when, self._fire)

    def _fire(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None
        now = self.time() + 1e-9
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled():
                self._call_soon(timer.fire, context=timer.context)
        self._arm()


def _is_background(function: Callable[..., object]) -> bool:
    """Return whether a call is of the background: by the task that sets the timer, if there is one.

    In a task it is asyncio that is called, as with ``asyncio.sleep``.
    """
    task = asyncio.current_task()
    if task is None:
        module = getattr(function, "__module__", None) or ""
    else:
        frame = getattr(task.get_coro(), "cr_frame", None)
        module = "" if frame is None else frame.f_globals.get("__name__", "")
    return module.startswith(BACKGROUND)
