"""Channel interest: which tasks a replica subscribes to on a bus with a channel a task.

Most tasks are over at once, and their replica commits all of it: to subscribe to each would cost
more than the task. So a task is subscribed to after a short delay, and after a longer one if this
replica works on it. Hints of the meantime are lost; the store is asked as soon as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parley.store.bus.subscriptions import LocalHints

FOLLOWED_DELAY = 0.02
WORKED_ON_DELAY = 0.25
"""How many seconds after the first interest a task is subscribed to."""


class ChannelInterest:
    """The watched tasks that the bus does not subscribe to yet.

    ``subscribe`` is called with ``True`` when a task is due, and with ``False`` when a task that
    was subscribed to is watched no longer.
    """

    def __init__(self, hints: LocalHints, subscribe: Callable[[str, bool], None]) -> None:
        self._hints = hints
        self._subscribe = subscribe
        self._loop = asyncio.get_running_loop()
        # Since when they are watched, the longest first.
        self._new: dict[str, float] = {}
        self._worked_on: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, task_id: str, is_watched: bool) -> None:
        """Note that a task is watched, or no longer is."""
        if is_watched:
            self._new[task_id] = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(FOLLOWED_DELAY, self._subscribe_due)
        elif not self._forget(task_id):
            self._subscribe(task_id, False)

    def is_subscribed(self, task_id: str) -> bool:
        """Return whether a watched task is subscribed to."""
        return task_id not in self._new and task_id not in self._worked_on

    def close(self) -> None:
        """Subscribe to nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _forget(self, task_id: str) -> bool:
        new = self._new.pop(task_id, None)
        return new is not None or self._worked_on.pop(task_id, None) is not None

    def _subscribe_due(self) -> None:
        now = self._loop.time()
        for task_id in _before(self._new, now - FOLLOWED_DELAY):
            since = self._new.pop(task_id)
            if self._hints.has_listener(task_id):
                self._worked_on[task_id] = since
            else:
                self._subscribe(task_id, True)
        for task_id in _before(self._worked_on, now - WORKED_ON_DELAY):
            del self._worked_on[task_id]
            self._subscribe(task_id, True)
        waits = self._new or self._worked_on
        later = self._loop.call_later
        self._timer = later(FOLLOWED_DELAY, self._subscribe_due) if waits else None


def _before(tasks: dict[str, float], until: float) -> list[str]:
    """Return the tasks with a time up to ``until``. The times must be ascending."""
    found = []
    for task_id, since in tasks.items():
        if since > until:
            break
        found.append(task_id)
    return found
