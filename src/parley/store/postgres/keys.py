"""Keys of tasks in PostgreSQL: made by each writer by itself, in the order of age."""

from __future__ import annotations

from collections.abc import Callable

KEY_EPOCH = 1_735_689_600_000
"""The time from which keys count: 2025, in ms."""

WRITERS = 1 << 13
KEYS_A_MS = 1 << 10


class Keys:
    """Makes keys of the time, the writer's number, and a counter. ``now`` returns milliseconds."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.number = 0
        self._now = now
        self._last = (0, 0)

    def new(self) -> int:
        """Return an unused key, above all that this writer made before."""
        ms, n = self._last
        now = self._now() - KEY_EPOCH
        if now > ms:
            ms, n = now, 0
        elif n + 1 < KEYS_A_MS:
            n += 1
        else:
            ms, n = ms + 1, 0
        self._last = ms, n
        return (ms * WRITERS + self.number) * KEYS_A_MS + n
