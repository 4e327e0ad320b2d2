"""New identifiers: UUIDs of version 7."""

from __future__ import annotations

import os
import threading
import time

MAX_CLOCK_STEP = 60_000
"""The backward step of a clock, in ms, after which ids follow the clock again."""


class _Series:
    """Monotonic ids by one clock."""

    def __init__(self) -> None:
        self.milliseconds = 0
        self.prefix = ""
        self.counter = 0

    def begin(self, milliseconds: int) -> None:
        """Continue at another millisecond."""
        self.milliseconds = milliseconds
        self.prefix = f"{milliseconds:012x}7"
        self.counter = 0


# The counter's digits with the version's after them, for most of the ids of a millisecond.
_COUNTERS = tuple([f"{counter:03x}8" for counter in range(256)])

_lock = threading.Lock()
_random: list[str] = []
_here, _at_store = _Series(), _Series()


def new_id(at: int | None = None) -> str:
    """Return a fresh UUID of version 7, in 32 hexadecimal digits.

    It cannot be guessed (60 of its bits are random). Later ids of the process sort after it, even
    within a millisecond, unless the clock is set back far. ``at`` is the time by the store's clock,
    for ids from which it is read: the clocks of replicas differ.
    """
    if at is None:
        milliseconds, series = time.time_ns() // 1_000_000, _here
    else:
        milliseconds, series = at, _at_store
    with _lock:
        if not _random:
            _draw()
        last = series.milliseconds
        counter = series.counter + 1
        if milliseconds > last or milliseconds < last - MAX_CLOCK_STEP:
            series.begin(milliseconds)
            counter = 0
        elif counter > 0xFFF:
            series.begin(last + 1)
            counter = 0
        series.counter = counter
        digits = _COUNTERS[counter] if counter < 256 else f"{counter:03x}8"
        return series.prefix + digits + _random.pop()


def _draw() -> None:
    """Draw the random digits of the next ids."""
    digits = os.urandom(1500).hex()
    _random.extend(digits[at : at + 15] for at in range(0, len(digits), 15))


def milliseconds_of(id: str) -> int:
    """Return the time in an id, in ms since 1970; in that of a task it is by the store's clock."""
    return int(id[:12], 16)


def _forget() -> None:
    """Discard the random digits: a forked process must not repeat its parent's ids."""
    _random.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
