"""Says so when a function blocks the event loop (E6)."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback

log = logging.getLogger("parley.agent")

BEAT_SECONDS = 0.25
PATIENCE_SECONDS = 1.0


class LoopWatchdog:
    """Watches the event loop from a thread, and logs where it is stuck.

    One warning a blockage, with the stack of the loop's thread.
    """

    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._beat = time.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread_id = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._stopped.clear()
        self._alive()
        self._thread = threading.Thread(target=self._watch, name="parley-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _alive(self) -> None:
        self._beat = time.monotonic()
        assert self._loop is not None
        self._timer = self._loop.call_later(BEAT_SECONDS, self._alive)

    def _watch(self) -> None:
        told = False
        now, used = time.monotonic(), time.process_time()
        while not self._stopped.wait(BEAT_SECONDS):
            before, used_before = now, used
            now, used = time.monotonic(), time.process_time()
            if now - before > self._patience and used - used_before < (now - before) / 2:
                continue  # it was the whole process that stood still, or the machine
            late = now - self._beat
            if late < self._patience:
                told = False
            elif not told:
                told = True
                self._tell(late)

    def _tell(self, late: float) -> None:
        assert self._loop is not None
        frame = sys._current_frames().get(self._thread_id)
        if frame is None or self._loop.is_closed():
            return
        log.warning(
            "the event loop has been blocked for %.1f s, and with it every task and stream; "
            "an `async def` must await what takes time, where a plain `def` runs in a thread; "
            "`send` and `ask` of an extension must return at once. It is stuck here:\n%s",
            late,
            "".join(traceback.format_stack(frame)[-8:]),
        )
