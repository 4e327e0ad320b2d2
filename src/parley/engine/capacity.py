"""The capacity of one process: queued tasks in a fair order, claims, and threads (E6).

The tasks themselves are in the store; a ``FairQueue`` is one process's view of the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import Any

from parley.database.database import GilYielder
from parley.model.concurrency import end
from parley.store.protocols.claims import Claimed
from parley.store.protocols.errors import StoreError

log = logging.getLogger("parley.engine")

CLAIM_BATCH = 100
"""The largest number of tasks in one claim."""


class Claimer:
    """Claims tasks in batches while there are any and the executor has capacity.

    ``capacity`` returns the number of further turns that may run; ``claim`` claims up to that many
    tasks in the store, ``start`` runs them, ``exhausted`` is called when the store has no more,
    ``failed`` when the store failed. ``is_wanted``: there may be unclaimed tasks. ``reserved`` is
    the capacity that a running claim may use.
    """

    def __init__(
        self,
        *,
        capacity: Callable[[], int],
        claim: Callable[[int], Awaitable[Sequence[Claimed]]],
        start: Callable[[Sequence[Claimed]], None],
        exhausted: Callable[[], None],
        failed: Callable[[StoreError], object],
    ) -> None:
        self.is_wanted = False
        self.reserved = 0
        self._capacity = capacity
        self._claim = claim
        self._start = start
        self._exhausted = exhausted
        self._failed = failed
        self._running: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """True while a claim is running: the store may hold tasks for this replica without a
        runner."""
        return self._running is not None

    def wake(self) -> None:
        """Start claiming. Call it when there are unclaimed tasks."""
        self.is_wanted = True
        if self._running is None and self._capacity() > 0:
            self._running = asyncio.create_task(self._run())

    async def wait(self, timeout: float) -> None:
        """Wait until the running claim is done, for at most ``timeout`` seconds."""
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=timeout)

    async def stop(self) -> None:
        """Cancel the running claim. The store releases its tasks when it is closed."""
        if self._running is not None:
            await end([self._running])

    async def _run(self) -> None:
        try:
            while self.is_wanted and (capacity := self._capacity()) > 0:
                self.is_wanted = False  # until the next wake-up
                self.reserved = wanted = min(capacity, CLAIM_BATCH)
                tasks = await self._claim(wanted)
                self.reserved = 0
                self._start(tasks)
                if len(tasks) == wanted:
                    self.is_wanted = True
                elif not self.is_wanted:
                    self._exhausted()
        except StoreError as error:
            self.is_wanted = True
            self._failed(error)
            log.error("claiming tasks failed: %s", error)
        finally:
            self.reserved = 0
            self._running = None


_MAX_IDLE_KEYS = 1024
"""The number of kept keys above which keys of callers without queued tasks are dropped."""


class FairQueue:
    """Assigns queue keys by start-time fair queueing, so that a busy caller does not starve others.

    A key is a virtual start time: a caller's first task starts at the queue's current virtual time,
    each further task after the caller's previous one. A caller with a thousand queued tasks delays
    another caller by a single task. Callers are distinguished by tenant and ``Caller.owner``, also
    if groups of callers own the tasks: a busy member of a group delays the other members by one
    task too. Tasks that wake up count for their owner, because the store does not know their
    callers.

    ``backlog`` is the number of queued tasks, as far as known; ``enqueuing`` counts tasks whose
    append is in progress.
    """

    def __init__(self) -> None:
        self.backlog = 0
        self.enqueuing = 0
        self._now = 0
        self._last: dict[tuple[str, str], int] = {}

    @property
    def length(self) -> int:
        """The number of tasks that are queued or being queued."""
        return self.backlog + self.enqueuing

    def next_key(self, tenant: str, owner: str) -> int:
        """Return the key of a caller's next task, 1 or more."""
        caller = (tenant, owner)
        key = self._last[caller] = max(self._last.get(caller, 0), self._now) + 1
        if len(self._last) > _MAX_IDLE_KEYS + 2 * self.length:
            self._last = {who: last for who, last in self._last.items() if last > self._now}
        return key

    def advance(self, key: int) -> None:
        """Advance the virtual time after the task with ``key`` was claimed; 0 for an unqueued
        task."""
        self._now = max(self._now, key)

    def restart_at(self, key: int) -> None:
        """Set the virtual time to the first key in the store; 0 if the store has none."""
        if key:
            self._now = key - 1

    def clear(self) -> None:
        """Reset the backlog and the virtual time, since no task is queued."""
        self.backlog = 0
        if not self.enqueuing:
            self._now = 0
            self._last.clear()


YIELD_SECONDS = 0.005
"""The interval at which a busy event loop yields the GIL to threads; see ``GilYielder``."""

Job = tuple[asyncio.AbstractEventLoop, GilYielder, "asyncio.Future[Any]", Callable[[], Any]] | None


class ThreadPool:
    """Runs plain functions, at most ``limit`` at the same time; further calls wait in a queue.

    Unlike the standard library's pool, its threads are daemons: a function that does not return
    cannot be stopped, and must not keep a server from ending. The next process runs its turn again.
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
        """True if a function is running or waits for a thread."""
        return self._yielder is not None and self._yielder.is_active

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in a thread, in a copy of the caller's context, and return its result.

        A cancelled call stops waiting; a function that has started continues to its end.
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
            del job, future, call, result, error  # an idle thread must not keep values alive
            idle.release()


def _settle(
    yielder: GilYielder, future: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    yielder.end()
    if future.done():
        return
    if isinstance(error, StopIteration):
        # A future rejects StopIteration: in a coroutine it would look like a return.
        error = RuntimeError("the function raised StopIteration")
    if error is None:
        future.set_result(result)
    elif isinstance(error, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(error)
