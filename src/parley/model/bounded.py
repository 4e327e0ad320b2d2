"""A map with room for a number of entries."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """A map of at most ``most`` entries: beyond that, the entry that was set longest ago goes.

    ``bounded[key] = value`` makes an entry the newest, and so does ``use(key)``: with it, the entry
    that was used longest ago goes. Entries enter by ``bounded[key] = value`` or ``setdefault``.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self.most:
            del self[next(iter(self))]

    def setdefault(self, key: K, default: V) -> V:
        """Return the value of a key; a missing one is set first."""
        if key not in self:
            self[key] = default
        return self[key]

    def use(self, key: K) -> V | None:
        """Return the value of a key, and make it the newest entry; None if it is missing."""
        value = self.get(key)
        if value is not None:
            self[key] = value
        return value
