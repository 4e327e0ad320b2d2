"""A map with a maximum number of entries."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Bounded(dict[K, V]):
    """A map of at most ``most`` entries: a further entry replaces the one that was set longest ago.

    ``bounded[key] = value`` and ``use(key)`` make an entry the newest; with ``use`` the least
    recently used entry is replaced. Entries are added by ``bounded[key] = value`` or
    ``setdefault``.
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
        """Return the value of a key. A missing key gets the default first."""
        if key not in self:
            self[key] = default
        return self[key]

    def use(self, key: K) -> V | None:
        """Return the value of a key, and make it the newest entry; ``None`` if it is missing."""
        value = self.get(key)
        if value is not None:
            self[key] = value
        return value
