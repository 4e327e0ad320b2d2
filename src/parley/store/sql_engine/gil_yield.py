"""Lending the interpreter to threads that work for a busy event loop.

A thread that comes back from a system call waits for the interpreter lock. A busy loop gives the
lock up at every poll and takes it back within microseconds, sooner than a thread wakes up; and each
such moment starts the thread's 5 ms of patience anew, after which it would be given the lock by
force. So a thread can wait for seconds: measured on two cores under a saturated loop, a read of one
row took 1,000 ms (7 a second), and a group commit 95 to 15,000 ms. The loop that lets go of the
lock for 50 microseconds every millisecond, while threads work for it, brings the read to 1.3 ms and
the commit to 5 ms, for an eighth of its time.

A loop that has time to wait lets go of the lock by that, and need not lend. It is looked at more
and more rarely then: an idle loop with a thread under way wakes up 20 times a second, which takes a
tenth of what a look every millisecond does (0.4 % of a core against 4.5 %, on a busy machine).
"""

from __future__ import annotations

import asyncio
import sys
import time

LONGEST_PAUSE = 0.05
"""After how many seconds at the latest a loop that was idle is looked at again."""

BUSY_SHARE = 0.1
"""Which share of its time a loop computes at the least that is busy."""

LATE = 0.002
"""By how many seconds a timer of an idle loop is late at the most, unless the machine is busy."""

_IS_NEEDED = getattr(sys, "_is_gil_enabled", lambda: True)()
_CAN_TELL = sys.platform != "win32"  # there, a thread's time is counted by 15 ms


class GilYielder:
    """Lends the interpreter while there is ``begin`` without ``end``. To be used on the loop."""

    __slots__ = ("_computed", "_interval", "_lent_at", "_loop", "_out", "_pause", "_timer", "_wait")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, interval: float = 0.001, pause: float = 50e-6
    ) -> None:
        self._loop = loop
        self._interval = interval
        self._pause = pause
        self._out = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait = interval
        self._lent_at = self._computed = 0.0

    def begin(self) -> None:
        """A thread was given work whose end the loop awaits."""
        self._out += 1
        if not _IS_NEEDED:
            return
        if self._timer is None:
            self._arm(self._interval)
        elif self._wait > self._interval:
            self._timer.cancel()
            self._arm(self._interval)

    def end(self) -> None:
        """The work is done."""
        self._out -= 1

    def _arm(self, wait: float) -> None:
        self._wait = wait
        self._lent_at, self._computed = time.perf_counter(), time.thread_time()
        self._timer = self._loop.call_later(wait, self._lend)

    def _lend(self) -> None:
        if not self._out:
            self._timer = None
        elif self._was_idle():
            self._arm(min(2 * self._wait, max(LONGEST_PAUSE, self._interval)))
        else:
            time.sleep(self._pause)
            self._arm(self._interval)

    def _was_idle(self) -> bool:
        """Return whether the loop has waited for most of the time since it was last looked at.

        One that computes little may have been kept from it by others, as its timers then show.
        """
        passed = time.perf_counter() - self._lent_at
        computed = time.thread_time() - self._computed
        return _CAN_TELL and computed < BUSY_SHARE * passed and passed < self._wait + LATE
