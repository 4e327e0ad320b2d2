"""What a receiver of notifications remembers, and a store of it in this process.

A notification has an id and a lane: its task. A lane is held by one replica at a time, so the
notifications of a task are handled in one place, in order. An id that was handled is remembered
until it expires: the same notification again is a duplicate, or a replay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from enum import Enum
from typing import Protocol

from parley.store.protocols.errors import StoreError


class InboxFailed(StoreError):
    """The inbox does not answer. The message holds no password."""


class InboxAnswer(Enum):
    """What an inbox says about a notification that arrived."""

    NEW = "new"
    """The lane is held by who asked, until its lease ends."""
    HANDLED = "handled"
    BUSY = "busy"
    """Another replica holds the lane."""


class Inbox(Protocol):
    """Remembers notifications. Every method raises ``InboxFailed`` when the store fails.

    Times are in seconds from now. What is held and remembered expires by itself.
    """

    async def open(self) -> None:
        """Connect, and create what is missing."""
        ...

    async def admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer:
        """Take the lane for ``lease`` seconds, unless the id was handled or another holds it.

        It is one atomic step. A notification without an id (``""``) is always new.
        """
        ...

    async def finish(self, id: str, lane: str, holder: str, *, keep: float, last: bool) -> None:
        """Remember an id as handled for ``keep`` seconds. With ``last``, release the lane."""
        ...

    async def release(self, lane: str, holder: str) -> None:
        """Release a lane; nothing happens if another holds it by now."""
        ...

    async def renew(self, lanes: Collection[str], holder: str, lease: float) -> None:
        """Hold lanes for ``lease`` seconds from now, unless another holds them by now."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


class MemoryInbox:
    """An inbox of one process, which forgets all when that ends.

    It remembers the last ``max_ids`` ids: the oldest are forgotten first.
    """

    def __init__(
        self, *, max_ids: int = 100_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if max_ids < 1:
            raise ValueError(f"max_ids is 1 or more, not {max_ids}")
        self._max_ids = max_ids
        self._clock = clock
        self._handled: dict[str, float] = {}  # in the order in which they were handled
        self._lanes: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._handled)

    async def open(self) -> None:
        """Do nothing: there is nothing to open."""

    async def admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer:
        """Take the lane, unless the id was handled or another holds it."""
        now = self._clock()
        if id and self._handled.get(id, now) > now:
            return InboxAnswer.HANDLED
        held_by, until = self._lanes.get(lane, (holder, 0.0))
        if held_by != holder and until > now:
            return InboxAnswer.BUSY
        self._lanes[lane] = (holder, now + lease)
        return InboxAnswer.NEW

    async def finish(self, id: str, lane: str, holder: str, *, keep: float, last: bool) -> None:
        """Remember an id as handled."""
        now = self._clock()
        if id:
            self._handled.pop(id, None)
            self._handled[id] = now + keep
        while self._handled:
            oldest = next(iter(self._handled))
            if len(self._handled) <= self._max_ids and self._handled[oldest] > now:
                break
            del self._handled[oldest]
        if last:
            await self.release(lane, holder)

    async def release(self, lane: str, holder: str) -> None:
        """Release a lane."""
        if self._lanes.get(lane, ("", 0.0))[0] == holder:
            del self._lanes[lane]

    async def renew(self, lanes: Collection[str], holder: str, lease: float) -> None:
        """Hold lanes for longer."""
        until = self._clock() + lease
        for lane in lanes:
            if self._lanes.get(lane, (holder, 0.0))[0] == holder:
                self._lanes[lane] = (holder, until)

    async def close(self) -> None:
        """Do nothing: leases end by themselves."""
