"""What grows old, so that what is old enough is found without looking at the rest."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K")


class Aging(Generic[K]):
    """Keys of each agent by a time in ms. A key is looked at once, when its time has come."""

    def __init__(self) -> None:
        self._keys: dict[str, list[tuple[int, int, K]]] = {}
        self._numbers = count()

    def add(self, agent: str, at: int, key: K) -> None:
        """Add a key, which must not be there already."""
        heappush(self._keys.setdefault(agent, []), (at, next(self._numbers), key))

    def take(self, agent: str, before: int) -> Iterator[K]:
        """Remove and yield the keys with a time before ``before``, the oldest first."""
        keys = self._keys.get(agent, [])
        while keys and keys[0][0] < before:
            yield heappop(keys)[2]
