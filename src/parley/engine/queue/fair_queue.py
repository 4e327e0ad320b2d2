"""The line of an agent's tasks that nobody works on yet: who stands where, and how many there are.

The tasks themselves are in the store; this is what one process knows of them.
"""

from __future__ import annotations

from parley.store.task_store import Scope

_FORGOTTEN = 1024
"""Callers are kept in mind up to so many before those are looked for whose line is over."""


class FairQueue:
    """Gives the places in line (start-time fair queueing).

    Places are turns in a round: a caller's first message stands where the line has got to, each
    further one a place behind the one before. So a caller who has a thousand in line keeps another
    waiting for one of them. Callers are told apart by tenant and owner.

    ``count`` is how many tasks are in line, as far as is known; those on their way into the store
    are in ``joining``.
    """

    def __init__(self) -> None:
        self.count = 0
        self.joining = 0
        self._now = 0
        self._last: dict[tuple[str, str], int] = {}

    @property
    def length(self) -> int:
        """How many tasks are in line, or about to be."""
        return self.count + self.joining

    def place_for(self, scope: Scope) -> int:
        """Return the place for a further message of a caller; it is 1 or more."""
        caller = (scope.tenant, scope.owner)
        place = self._last[caller] = max(self._last.get(caller, 0), self._now) + 1
        if len(self._last) > _FORGOTTEN + 2 * self.length:
            self._last = {who: at for who, at in self._last.items() if at > self._now}
        return place

    def served(self, place: int) -> None:
        """Note that the task at ``place`` was taken; 0 is for one that did not stand in line."""
        self._now = max(self._now, place)

    def begins_at(self, place: int) -> None:
        """Note where the first in line stands, as the store has it; 0 when it did not say."""
        if place:
            self._now = place - 1

    def is_empty(self) -> None:
        """Note that nobody is in line: places begin anew."""
        self.count = 0
        if not self.joining:
            self._now = 0
            self._last.clear()
