"""Work of a process that repeats, that is shared, or that excludes other work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from contextlib import suppress
from types import CoroutineType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Periodic:
    """Calls ``step`` again and again, from ``start`` until ``stop``.

    ``seconds`` is the pause between two calls, or a function that returns it (for jitter). A call
    that returns True is followed by the next without a pause. What is ``expected`` to fail (a
    store that is away) is a warning in the log, one until a call works again; any other error is
    logged with its traceback. Neither ends the calls.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], Awaitable[object]],
        seconds: float | Callable[[], float],
        *,
        log: logging.Logger,
        expected: type[Exception] | tuple[type[Exception], ...] = (),
        waits_first: bool = False,
    ) -> None:
        self._name = name
        self._step = step
        self._seconds = seconds
        self._log = log
        self._expected = expected
        self._waits_first = waits_first
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._task is not None

    def start(self) -> None:
        """Begin. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"parley {self._name}")

    async def stop(self, seconds: float | None = None) -> None:
        """Cancel a call that runs, and wait for its end. Idempotent.

        Raises ``TimeoutError`` after ``seconds``.
        """
        task, self._task = self._task, None
        if task is not None:
            async with asyncio.timeout(seconds):
                await end([task])

    async def _run(self) -> None:
        if self._waits_first:
            await self._pause()
        fails = False
        while True:
            try:
                again = await self._step()
            except self._expected as error:
                if not fails:
                    self._log.warning("%s: %s", self._name, error)
                fails = True
            except Exception:
                self._log.exception("%s failed", self._name)
            else:
                fails = False
                if again is True:
                    continue
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._seconds() if callable(self._seconds) else self._seconds)


class KeyedLocks:
    """A lock for each key. A lock that is neither held nor awaited takes no memory."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: Hashable) -> asyncio.Lock:
        """Return the lock of a key."""
        return self._locks.setdefault(key, asyncio.Lock())


class SingleFlight:
    """Runs ``do`` once for all who ask meanwhile. ``do`` raises nothing, and outlives who asked.

    Each event loop has a run of its own.
    """

    def __init__(self, do: Callable[[], Awaitable[None]]) -> None:
        self._do = do
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    @property
    def is_under_way(self) -> bool:
        """Whether somebody waits already."""
        task = self._tasks.get(asyncio.get_running_loop())
        return task is not None and not task.done()

    def begin(self) -> asyncio.Task[None]:
        """Begin, unless it is under way."""
        loop = asyncio.get_running_loop()
        task = self._tasks.get(loop)
        if task is None or task.done():
            task = self._tasks[loop] = loop.create_task(self._run(loop))
        return task

    async def join(self) -> None:
        """Begin, or join the run under way, and return at its end, also if ``close`` cancels it."""
        task = self.begin()
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if not task.cancelled() or (own is not None and own.cancelling()):
                raise

    async def close(self) -> None:
        """Cancel the run under way in this event loop."""
        task = self._tasks.pop(asyncio.get_running_loop(), None)
        if task is not None and not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await self._do()
        finally:
            if self._tasks.get(loop) is asyncio.current_task():
                del self._tasks[loop]


async def end(tasks: Iterable[asyncio.Future[Any]], *, grace: float = 0.0) -> None:
    """Give tasks ``grace`` seconds to end, then cancel them until they have ended.

    One cancellation is not always enough: ``asyncio.wait_for``, which drivers use, drops one that
    arrives together with the result (Python before 3.12).
    """
    left = [task for task in tasks if not task.done()]
    if left and grace > 0:
        await asyncio.wait(left, timeout=grace)
        left = [task for task in left if not task.done()]
    while left:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)
        left = [task for task in left if not task.done()]


async def see_through(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end, even if the caller is cancelled meanwhile; return its result.

    Use it to open and close: nothing could close what is half open. Raises the cancellation after
    the work has ended.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None or task.cancelled() or task.exception() is not None:
        return task.result()
    raise cancelled


def check_cancelled() -> None:
    """Raise ``CancelledError`` if this task was canceled and a driver dropped it.

    The tasks of a group call this: the group cancels each once.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


Done = Callable[[Any], object]
"""Takes the outcome of work, once: its result, its exception, or the coroutine that returns it."""


async def outcome_of(begin: Callable[[Done], object]) -> Any:
    """Begin work, and return its result: ``begin`` gets the ``Done`` that it calls, now or later.

    Raises the exception of the work.
    """
    answered = asyncio.get_running_loop().create_future()

    def done(outcome: Any) -> None:
        if answered.cancelled():
            _end_alone(outcome)
        else:
            answered.set_result(outcome)

    begin(done)
    del begin  # it may hold a large request, and the outcome take hours
    try:
        outcome = await answered
    except asyncio.CancelledError:
        if not answered.cancelled():  # the outcome came in the same pass of the event loop
            _end_alone(answered.result())
        raise
    if type(outcome) is CoroutineType:
        return await outcome
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _end_alone(outcome: Any) -> None:
    """Run an outcome that is a coroutine to its end: its caller has gone, what it holds has not."""
    if type(outcome) is CoroutineType:
        left = asyncio.gather(outcome, return_exceptions=True)
        _left.add(left)
        left.add_done_callback(_left.discard)


_left: set[asyncio.Future[Any]] = set()
