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
    """Return a fresh UUID of version 7: unguessable, and later ones sort after earlier ones.

    The order holds within the process, also within a millisecond; stores like it, and lists that
    show tasks of the same moment do too.
    """
    global _drawn, _last, _pool
    milliseconds = time.time_ns() // 1_000_000
    with _lock:
        if _drawn == len(_pool):
            _pool, _drawn = os.urandom(2560), 0
        random = int.from_bytes(_pool[_drawn : _drawn + 10], "big")
        _drawn += 10
        last, counter = _last
        if milliseconds > last:
            counter = random >> 69  # 11 random bits leave room to count up
        else:
            milliseconds, counter = last, counter + 1
            if counter > 0xFFF:
                milliseconds, counter = last + 1, 0
        _last = (milliseconds, counter)
    random = random & 0x3FFFFFFFFFFFFFFF | 0x8000000000000000
    digits = f"{milliseconds:012x}7{counter:03x}{random:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _forget_pool() -> None:
    """Draw fresh randomness: a forked process must not repeat its parent's ids."""
    global _drawn, _pool
    _pool, _drawn = b"", 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
