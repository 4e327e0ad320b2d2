"""The order of an agent's queued tasks, and their number.

The tasks themselves are in the store; this is what one process knows of the queue.
"""

from __future__ import annotations

_MAX_IDLE_KEYS = 1024
"""How many keys are kept before those of callers without queued tasks are dropped."""


class FairQueue:
    """Gives queue keys by start-time fair queueing, so a busy caller does not starve the others.

    A key is a virtual start time: a caller's first task starts at the queue's present virtual time,
    each further one after the one before. A caller with a thousand queued tasks delays another by
    one of them. Callers are told apart by tenant and ``Caller.owner``, also where tasks belong to
    groups of callers: a busy member delays the others of its group by one task, too. Only tasks
    that wake up count for the group that owns them, because the store does not know their callers.

    ``backlog`` is the number of queued tasks, as far as it is known; ``enqueuing`` counts those
    whose append is in flight.
    """

    def __init__(self) -> None:
        self.backlog = 0
        self.enqueuing = 0
        self._now = 0
        self._last: dict[tuple[str, str], int] = {}

    @property
    def length(self) -> int:
        """The number of tasks that are queued or about to be."""
        return self.backlog + self.enqueuing

    def next_key(self, tenant: str, owner: str) -> int:
        """Return the key of a further task of a caller; it is 1 or more."""
        caller = (tenant, owner)
        key = self._last[caller] = max(self._last.get(caller, 0), self._now) + 1
        if len(self._last) > _MAX_IDLE_KEYS + 2 * self.length:
            self._last = {who: last for who, last in self._last.items() if last > self._now}
        return key

    def advance(self, key: int) -> None:
        """Advance the virtual time: the task with ``key`` was claimed; 0 if it was not queued."""
        self._now = max(self._now, key)

    def restart_at(self, key: int) -> None:
        """Set the virtual time to the first key in the store; 0 if the store has none."""
        if key:
            self._now = key - 1

    def clear(self) -> None:
        """Reset the backlog and the virtual time: no task is queued."""
        self.backlog = 0
        if not self.enqueuing:
            self._now = 0
            self._last.clear()
