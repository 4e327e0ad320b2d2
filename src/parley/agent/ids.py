"""New identifiers."""

from __future__ import annotations

import os
import threading
import time

_lock = threading.Lock()
_pool = b""
_drawn = 0
_last = (0, 0)


def new_id() -> str:
    """Return a fresh UUID of version 7, in 32 hexadecimal digits.

    It cannot be guessed, and those that the process makes later sort after it, also within a
    millisecond: stores like it, and lists that show tasks of the same moment do too.
    """
    global _drawn, _last, _pool
    milliseconds = time.time_ns() // 1_000_000
    with _lock:
        if _drawn == len(_pool):
            _pool, _drawn = os.urandom(2048), 0
        random = int.from_bytes(_pool[_drawn : _drawn + 8], "big")
        _drawn += 8
        last, counter = _last
        if milliseconds > last:
            counter = random >> 53  # 11 bits: room to count up
        else:
            milliseconds, counter = last, counter + 1
            if counter > 0xFFF:
                milliseconds, counter = last + 1, 0
        _last = (milliseconds, counter)
    low = (random & 0x3FFFFFFFFFFFFFFF) | 0x8000000000000000
    number = (milliseconds << 80) | ((0x7000 | counter) << 64) | low
    return number.to_bytes(16, "big").hex()


def _forget_pool() -> None:
    """Draw fresh randomness: a forked process must not repeat its parent's ids."""
    global _drawn, _pool
    _pool, _drawn = b"", 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
