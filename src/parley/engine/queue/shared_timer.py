"""One timer for all who have the same patience."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Deadline:
    """Something to be done after a while, unless it is called off before."""

    __slots__ = ("_action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self._action: Callable[[], None] | None = action

    def call_off(self) -> None:
        """Have it not done, and let go of what it holds."""
        self._action = None

    def come(self) -> None:
        """Do it."""
        if self._action is not None:
            self._action()


class SharedTimer:
    """Calls each of many actions ``seconds`` after it was given, with one timer in all.

    Nearly all are called off at once, as quick functions answer in time: a timer for each would
    cost more than some of them do.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadlines: deque[Deadline] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def after(self, action: Callable[[], None]) -> Deadline:
        """Have ``action`` called when the time is over."""
        loop = asyncio.get_running_loop()
        deadline = Deadline(loop.time() + self._seconds, action)
        self._deadlines.append(deadline)
        if self._timer is None:
            self._timer = loop.call_at(deadline.when, self._due)
        return deadline

    def close(self) -> None:
        """Call everything off."""
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._deadlines and self._deadlines[0].when <= now:
            self._deadlines.popleft().come()
        if self._deadlines and self._timer is None:
            self._timer = loop.call_at(self._deadlines[0].when, self._due)
