"""Lending the interpreter to threads that work for a busy event loop.

A thread that comes back from a system call waits for the interpreter lock. A busy loop gives the
lock up at every poll and takes it back within microseconds, sooner than a thread wakes up; and each
such moment starts the thread's 5 ms of patience anew, after which it would be given the lock by
force. So a thread can wait for seconds: measured on two cores under a saturated loop, a read of one
row took 1,000 ms (7 a second), and a group commit 95 to 15,000 ms. The loop that lets go of the
lock for 50 microseconds every millisecond, while threads work for it, brings the read to 1.3 ms and
the commit to 5 ms, for an eighth of its time. A loop that is not busy loses nothing by it.
"""

from __future__ import annotations

import asyncio
import sys
import time

_IS_NEEDED = getattr(sys, "_is_gil_enabled", lambda: True)()


class Lender:
    """Lends the interpreter while there is ``begin`` without ``end``. To be used on the loop."""

    __slots__ = ("_interval", "_is_armed", "_loop", "_out", "_pause")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, interval: float = 0.001, pause: float = 50e-6
    ) -> None:
        self._loop = loop
        self._interval = interval
        self._pause = pause
        self._out = 0
        self._is_armed = False

    def begin(self) -> None:
        """A thread was given work whose end the loop awaits."""
        self._out += 1
        if _IS_NEEDED and not self._is_armed:
            self._is_armed = True
            self._loop.call_later(self._interval, self._lend)

    def end(self) -> None:
        """The work is done."""
        self._out -= 1

    def _lend(self) -> None:
        if self._out:
            self._loop.call_later(self._interval, self._lend)
            time.sleep(self._pause)
        else:
            self._is_armed = False
