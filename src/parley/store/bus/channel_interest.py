"""Which tasks a replica subscribes to on a bus that has a channel a task: not the short ones.

Most tasks are over within a moment, and all that is committed to them is committed by the replica
that works on them: to subscribe to each would cost more than the task. So there is a moment's wait
first, and a longer one where the task is worked on. What is told meanwhile is lost as hints may be:
whoever subscribes has the store asked when it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parley.store.bus.subscriptions import LocalHints

SOON = 0.02
LATE = 0.25
"""How many seconds pass before a task is subscribed to that is followed, or worked on."""


class ChannelInterest:
    """The tasks that somebody cares about, of which the bus is not told yet.

    ``subscribe`` is called when it is to be, and when nobody cares any more about a task that was
    subscribed to.
    """

    def __init__(self, hints: LocalHints, subscribe: Callable[[str, bool], None]) -> None:
        self._hints = hints
        self._subscribe = subscribe
        self._loop = asyncio.get_running_loop()
        # Since when, the longest first.
        self._new: dict[str, float] = {}
        self._worked_on: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, task_id: str, cares: bool) -> None:
        """Note that somebody cares about a task, or that nobody does any longer."""
        if cares:
            self._new[task_id] = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(SOON, self._look)
        elif not self._forget(task_id):
            self._subscribe(task_id, False)

    def is_settled(self, task_id: str) -> bool:
        """Whether a task is subscribed to, if anybody cares."""
        return task_id not in self._new and task_id not in self._worked_on

    def close(self) -> None:
        """Subscribe to nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _forget(self, task_id: str) -> bool:
        new = self._new.pop(task_id, None)
        return new is not None or self._worked_on.pop(task_id, None) is not None

    def _look(self) -> None:
        now = self._loop.time()
        for task_id in _older(self._new, now - SOON):
            since = self._new.pop(task_id)
            if self._hints.is_worked_on(task_id):
                self._worked_on[task_id] = since
            else:
                self._subscribe(task_id, True)
        for task_id in _older(self._worked_on, now - LATE):
            del self._worked_on[task_id]
            self._subscribe(task_id, True)
        waits = self._new or self._worked_on
        self._timer = self._loop.call_later(SOON, self._look) if waits else None


def _older(tasks: dict[str, float], than: float) -> list[str]:
    """Return those that came before a moment, given that they are in the order of theirs."""
    found = []
    for task_id, since in tasks.items():
        if since > than:
            break
        found.append(task_id)
    return found
