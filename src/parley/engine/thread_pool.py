"""Runs an author's plain functions in threads (E6)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from parley.database.database import GilYielder

YIELD_SECONDS = 0.005
"""How often a busy event loop yields the GIL to threads; see ``GilYielder``."""

Job = tuple[asyncio.AbstractEventLoop, GilYielder, "asyncio.Future[Any]", Callable[[], Any]] | None


class ThreadPool:
    """Runs plain functions, at most ``limit`` at once; the others wait in a queue.

    The threads are daemons, unlike those of the standard library's pool: a function that does not
    return cannot be stopped, and must not keep a server from ending. The next process runs its turn
    again.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._yielder: GilYielder | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a function runs, or waits for a thread."""
        return self._yielder is not None and self._yielder.is_active

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in a thread, in a copy of the caller's context, and return its result.

        A cancelled call stops waiting; a function that has started runs to its end.
        """
        loop = asyncio.get_running_loop()
        if self._yielder is None:
            self._yielder = GilYielder(loop, interval=YIELD_SECONDS)
        future: asyncio.Future[Any] = loop.create_future()
        call = functools.partial(copy_context().run, function, *args, **kwargs)
        self._yielder.begin()
        self._jobs.put((loop, self._yielder, future, call))
        if not self._idle.acquire(blocking=False) and self._started < self._limit:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        return await future

    def close(self) -> None:
        """End idle threads now, and busy ones when their function returns."""
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0
        self._idle = threading.Semaphore(0)
        self._yielder = None

    def _work(self) -> None:
        idle = self._idle
        while (job := self._jobs.get()) is not None:
            loop, yielder, future, call = job
            result: Any = None
            error: BaseException | None = None
            if not future.cancelled():
                try:
                    result = call()
                except BaseException as raised:
                    error = raised
            with contextlib.suppress(RuntimeError):  # a closed loop: no call waits
                loop.call_soon_threadsafe(_settle, yielder, future, result, error)
            del job, future, call, result, error  # an idle thread keeps no values alive
            idle.release()


def _settle(
    yielder: GilYielder, future: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    yielder.end()
    if future.done():
        return
    if isinstance(error, StopIteration):
        # A future refuses StopIteration: in a coroutine it would look like a return.
        error = RuntimeError("the function raised StopIteration")
    if error is None:
        future.set_result(result)
    elif isinstance(error, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(error)
