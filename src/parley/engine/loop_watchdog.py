"""Warns when a function blocks the event loop (E6)."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
import traceback
from types import FrameType

log = logging.getLogger("parley.engine")

BEAT_SECONDS = 0.25
BLOCKED_SECONDS = 1.0

_looking = threading.Lock()


class LoopWatchdog:
    """Watches the event loop's heartbeat from a thread.

    Logs one warning for each time that the loop is blocked for ``threshold`` seconds, with the
    stack of the loop's thread.
    """

    def __init__(self, threshold: float = BLOCKED_SECONDS) -> None:
        self._threshold = threshold
        self._last_beat = time.monotonic()
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
        self._beat()
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

    def _beat(self) -> None:
        self._last_beat = time.monotonic()
        assert self._loop is not None
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _watch(self) -> None:
        warned = False
        now, used = time.monotonic(), time.process_time()
        while not self._stopped.wait(BEAT_SECONDS):
            before, used_before = now, used
            now, used = time.monotonic(), time.process_time()
            if now - before > self._threshold and used - used_before < (now - before) / 2:
                continue  # the whole process or machine was suspended, not the loop
            late = now - self._last_beat
            if late < self._threshold:
                warned = False
            elif not warned:
                warned = True
                self._warn(late)

    def _warn(self, late: float) -> None:
        assert self._loop is not None
        frame = frame_of(self._thread_id)
        if frame is None or self._loop.is_closed():
            return
        log.warning(
            "the event loop has been blocked for %.1f s, and with it every task and stream; "
            "an `async def` must await what takes time, where a plain `def` runs in a thread; "
            "`send` and `ask` of an extension must return at once. It is stuck here:\n%s",
            late,
            "".join(traceback.format_stack(frame)[-8:]),
        )


def frame_of(thread_id: int) -> FrameType | None:
    """Return what a thread is at, ``None`` if it has ended.

    CPython holds its lock on threads meanwhile. If garbage were collected there, a finalizer could
    pass the GIL to a thread that needs that lock, and the process would stand still for ever. So
    none is collected, and threads look one after another.
    """
    with _looking:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread_id)
        finally:
            if collects:
                gc.enable()
