"""New identifiers."""

from __future__ import annotations

import os
import threading
import time

JUMP = 60_000
"""By how many ms a clock must have been set back for ids not to wait until it is there again."""


class _Series:
    """Ids by one clock, each of which sorts after those before it."""

    def __init__(self) -> None:
        self.milliseconds = 0
        self.moment = ""
        self.counter = 0

    def begin(self, milliseconds: int) -> None:
        """Go on with another moment."""
        self.milliseconds = milliseconds
        self.moment = f"{milliseconds:012x}7"
        self.counter = 0


_lock = threading.Lock()
_pool = ""
_drawn = 0
_here, _at_store = _Series(), _Series()


def new_id(at: int | None = None) -> str:
    """Return a fresh UUID of version 7, in 32 hexadecimal digits.

    It cannot be guessed (60 of its bits are random), and those that the process makes later sort
    after it, also within a millisecond, unless the clock is set back by far: stores like it, and
    lists that show tasks of the same moment do too. ``at`` is the moment by the store's clock, for
    those out of which others read it: the clocks of replicas differ.
    """
    global _drawn, _pool
    milliseconds = time.time_ns() // 1_000_000 if at is None else at
    series = _here if at is None else _at_store
    with _lock:
        if _drawn == len(_pool):
            _pool, _drawn = os.urandom(1500).hex(), 0
        random = _pool[_drawn : _drawn + 15]
        _drawn += 15
        series.counter += 1
        last = series.milliseconds
        if milliseconds > last or milliseconds < last - JUMP:
            series.begin(milliseconds)
        elif series.counter > 0xFFF:
            series.begin(last + 1)
        return f"{series.moment}{series.counter:03x}8{random}"


def moment_of(id: str) -> int:
    """Return the moment in an id of ours, in ms since 1970; a task's is by the store's clock."""
    return int(id[:12], 16)


def _forget_pool() -> None:
    """Draw fresh randomness: a forked process must not repeat its parent's ids."""
    global _drawn, _pool
    _pool, _drawn = "", 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
