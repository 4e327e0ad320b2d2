"""The arithmetic of windows: how much of an amount is free in any span of a length.

Time is cut into slots. What is taken counts until all of its slot is older than the span, so no
span of that length ever has more than the amount, and what is taken comes back up to one slot
late. A day of a budget is one slot that nothing before it counts in.
"""

from __future__ import annotations

from collections import deque

import msgspec

LOCAL_SLOTS = 60
"""How many slots a span has that one process counts."""

SHARED_SLOTS = 10
"""How many a span has that replicas count together: what one leased it spends within a slot."""


class Grid(msgspec.Struct, frozen=True):
    """Slots of ``slot_ms``, of which the current one and ``before`` others make up a window."""

    slot_ms: int
    before: int

    @classmethod
    def of(cls, period_ms: int, *, is_daily: bool = False, slots: int = LOCAL_SLOTS) -> Grid:
        """Return the grid of a span; that of a day has one slot."""
        if is_daily:
            return cls(period_ms, 0)
        slots = min(slots, max(1, period_ms // 10))
        return cls(-(-period_ms // slots), slots)

    def slot(self, now: int) -> int:
        """Return the slot of a time (ms)."""
        return now // self.slot_ms

    def free_at(self, slot: int) -> int:
        """Return when (ms) what was taken in a slot no longer counts."""
        return (slot + self.before + 1) * self.slot_ms


class Window:
    """What was taken, by slot. Memory is bounded by the number of slots."""

    __slots__ = ("_slots", "total")

    def __init__(self) -> None:
        self._slots: deque[list[int]] = deque()  # slot, taken; the oldest first
        self.total = 0

    def take(self, grid: Grid, now: int, amount: int, wanted: int = 1) -> int:
        """Take up to ``wanted`` of what is free, and return how much that is."""
        slot = self._advance(grid, now)
        given = max(0, min(wanted, amount - self.total))
        if given:
            if self._slots and self._slots[-1][0] >= slot:  # a clock may go back
                self._slots[-1][1] += given
            else:
                self._slots.append([slot, given])
            self.total += given
        return given

    def give_back(self, count: int = 1) -> None:
        """Undo what was taken last."""
        while count and self._slots:
            last = self._slots[-1]
            undone = min(count, last[1])
            last[1] -= undone
            self.total -= undone
            count -= undone
            if not last[1]:
                self._slots.pop()

    def wait(self, grid: Grid, now: int) -> int:
        """Return how many ms pass until some of what was taken is free again; 0 for nothing."""
        self._advance(grid, now)
        return max(0, grid.free_at(self._slots[0][0]) - now) if self._slots else 0

    def is_empty(self, grid: Grid, now: int) -> bool:
        """Return whether nothing counts any more."""
        self._advance(grid, now)
        return not self._slots

    def _advance(self, grid: Grid, now: int) -> int:
        slot = grid.slot(now)
        oldest = slot - grid.before
        while self._slots and self._slots[0][0] < oldest:
            self.total -= self._slots.popleft()[1]
        return slot
