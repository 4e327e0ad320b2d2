"""Yields the interpreter lock (GIL) to threads that work for a busy event loop.

A thread that returns from a system call waits for the lock. A busy loop releases it at every poll
and takes it back within microseconds, before the thread wakes up; and each release restarts the
5 ms after which the thread would get the lock by force. So a thread can wait for seconds: measured
on two cores under a saturated loop, reading a row took 1,000 ms (7 a second), and a group commit 95
to 15,000 ms. A loop that sleeps for 50 microseconds every millisecond, while threads work for it,
brings the read to 1.3 ms and the commit to 5 ms, for an eighth of its time.

A loop that is often idle releases the lock by that, and need not yield. It is checked less and less
often then: an idle loop with a working thread wakes up 20 times a second, which takes a tenth of
checking it every millisecond (0.4 % of a core against 4.5 %, on a busy machine).
"""

from __future__ import annotations

import asyncio
import sys
import time

LONGEST_PAUSE = 0.05
"""The longest time between two checks of an idle loop, in seconds."""

BUSY_SHARE = 0.1
"""The least share of its time that a busy loop computes."""

LATE = 0.002
"""The most that a timer of an idle loop is late on an idle machine, in seconds."""

_IS_NEEDED = getattr(sys, "_is_gil_enabled", lambda: True)()
_HAS_THREAD_TIME = sys.platform != "win32"  # its resolution there is 15 ms


class GilYielder:
    """Yields while there is a ``begin`` without its ``end``. It is used on the loop only."""

    __slots__ = ("_active", "_cpu", "_interval", "_loop", "_pause", "_since", "_timer", "_wait")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, interval: float = 0.001, pause: float = 50e-6
    ) -> None:
        self._loop = loop
        self._interval = interval
        self._pause = pause
        self._active = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait = interval
        self._since = self._cpu = 0.0

    @property
    def is_active(self) -> bool:
        """Whether the loop awaits the end of a thread's work."""
        return self._active > 0

    def begin(self) -> None:
        """Note that a thread got work whose end the loop awaits."""
        self._active += 1
        if not _IS_NEEDED:
            return
        if self._timer is None:
            self._arm(self._interval)
        elif self._wait > self._interval:
            self._timer.cancel()
            self._arm(self._interval)

    def end(self) -> None:
        """Note that the work is done."""
        self._active -= 1

    def _arm(self, wait: float) -> None:
        self._wait = wait
        self._since, self._cpu = time.perf_counter(), time.thread_time()
        self._timer = self._loop.call_later(wait, self._yield_gil)

    def _yield_gil(self) -> None:
        if not self._active:
            self._timer = None
        elif self._was_idle():
            self._arm(min(2 * self._wait, max(LONGEST_PAUSE, self._interval)))
        else:
            time.sleep(self._pause)
            self._arm(self._interval)

    def _was_idle(self) -> bool:
        """Return whether the loop was mostly idle since the last check.

        A loop that computes little may have been starved by others: its timers are late then.
        """
        passed = time.perf_counter() - self._since
        computed = time.thread_time() - self._cpu
        return _HAS_THREAD_TIME and computed < BUSY_SHARE * passed and passed < self._wait + LATE
