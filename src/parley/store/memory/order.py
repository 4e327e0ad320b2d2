"""Values in order, of which adding, removing, finding and counting cost little however many."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

BLOCK = 1000
"""How many values a block has at most."""

_first = itemgetter(0)


class SortedBlocks:
    """A sorted collection of tuples, none of them twice, in blocks.

    A block is a sorted list, and blocks are in order too, so that no list is long. A *bound* is a
    tuple that may be shorter: ``(7,)`` is below ``(7, "a")``. Most values come near the end,
    because times grow; then adding one is an append to the last block.
    """

    __slots__ = ("_blocks", "_size")

    def __init__(self) -> None:
        self._blocks: list[list[Any]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, value: Any) -> None:
        """Add a value that is not there."""
        blocks = self._blocks
        self._size += 1
        if not blocks:
            blocks.append([value])
            return
        at = self._block_of(value)
        block = blocks[at]
        if block[-1] < value:
            block.append(value)
        else:
            insort(block, value)
        if len(block) > BLOCK:
            # A block that grows at its end stays full; one that grows inside is halved.
            keep = BLOCK if block[-1] is value else BLOCK // 2
            blocks.insert(at + 1, block[keep:])
            del block[keep:]

    def remove(self, value: Any) -> None:
        """Remove a value. Raises ``KeyError`` when it is not there."""
        at = self._block_of(value)
        block = self._blocks[at] if self._blocks else []
        n = bisect_left(block, value)
        if n == len(block) or block[n] != value:
            raise KeyError(value)
        del block[n]
        self._size -= 1
        if not block:
            del self._blocks[at]

    def below(self, bound: Any) -> int:
        """Return how many values are below a bound. Costs a step for each block below it."""
        at = bisect_left(self._blocks, bound, key=_first) - 1
        if at < 0:
            return 0
        return sum(map(len, self._blocks[:at])) + bisect_left(self._blocks[at], bound)

    def rising(self, bound: Any = ()) -> Iterator[Any]:
        """Yield the values from a bound on, the lowest first."""
        at = self._block_of(bound)
        for n in range(at, len(self._blocks)):
            block = self._blocks[n]
            for m in range(bisect_left(block, bound) if n == at else 0, len(block)):
                yield block[m]

    def falling(self, bound: Any | None = None) -> Iterator[Any]:
        """Yield the values below a bound, or all, the highest first."""
        at = len(self._blocks) - 1 if bound is None else self._block_of(bound)
        for n in range(min(at, len(self._blocks) - 1), -1, -1):
            block = self._blocks[n]
            end = len(block) if bound is None or n < at else bisect_left(block, bound)
            for m in range(end - 1, -1, -1):
                yield block[m]

    def _block_of(self, value: Any) -> int:
        """Return the number of the block in which a value is, or would be."""
        blocks = self._blocks
        if blocks and blocks[-1][0] <= value:
            return len(blocks) - 1
        return max(0, bisect_right(blocks, value, key=_first) - 1)
