"""One event-loop timer for many actions that have the same timeout."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class SharedTimerHandle:
    """An action that a ``SharedTimer`` will call, unless it is cancelled before."""

    __slots__ = ("_action", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self._action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Drop the action."""
        self._action = None

    def fire(self) -> None:
        """Call the action, unless it was cancelled."""
        if self._action is not None:
            self._action()


class SharedTimer:
    """Calls each of many actions ``seconds`` after it was added.

    Nearly all are cancelled soon, as quick functions reply in time: an event-loop timer for each
    would cost more than some of these functions do.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._handles: deque[SharedTimerHandle] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def call_later(
        self, action: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> SharedTimerHandle:
        """Call ``action`` after the timeout; ``loop`` is the running event loop."""
        handle = SharedTimerHandle(loop.time() + self._seconds, action)
        self._handles.append(handle)
        if self._timer is None:
            self._timer = loop.call_at(handle.when, self._fire)
        return handle

    def close(self) -> None:
        """Cancel everything."""
        self._handles.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._handles and self._handles[0].when <= now:
            self._handles.popleft().fire()
        if self._handles and self._timer is None:
            self._timer = loop.call_at(self._handles[0].when, self._fire)
