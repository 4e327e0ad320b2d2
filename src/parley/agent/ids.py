"""New identifiers."""

from __future__ import annotations

import os
import threading
import time

_lock = threading.Lock()
_pool = ""
_drawn = 0
_milliseconds = 0
_moment = ""
_counter = 0


def new_id() -> str:
    """Return a fresh UUID of version 7, in 32 hexadecimal digits.

    It cannot be guessed (60 of its bits are random), and those that the process makes later sort
    after it, also within a millisecond: stores like it, and lists that show tasks of the same
    moment do too.
    """
    global _counter, _drawn, _milliseconds, _moment, _pool
    milliseconds = time.time_ns() // 1_000_000
    with _lock:
        if _drawn == len(_pool):
            _pool, _drawn = os.urandom(1500).hex(), 0
        random = _pool[_drawn : _drawn + 15]
        _drawn += 15
        _counter += 1
        if milliseconds > _milliseconds or _counter > 0xFFF:
            _milliseconds = max(milliseconds, _milliseconds + 1)
            _moment, _counter = f"{_milliseconds:012x}7", 0
        return f"{_moment}{_counter:03x}8{random}"


def moment_of(id: str) -> int:
    """Return when an id of ours was made, in ms since 1970 by the clock of its process."""
    return int(id[:12], 16)


def _forget_pool() -> None:
    """Draw fresh randomness: a forked process must not repeat its parent's ids."""
    global _drawn, _pool
    _pool, _drawn = "", 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
