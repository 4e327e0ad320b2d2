"""Concurrency primitives: a periodic task, shared work, and locks by key."""

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
    """Calls ``step`` repeatedly, from ``start`` until ``stop``.

    ``seconds`` is the pause between two calls, or a function that returns it (for jitter). If a
    call returns ``True``, the next one follows without a pause. ``expected`` errors (such as an
    unavailable store) are logged as one warning until a call succeeds again; any other error is
    logged with its traceback. No error ends the calls.
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
        """True after ``start`` and before ``stop``."""
        return self._task is not None

    def start(self) -> None:
        """Begin. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"parley {self._name}")

    async def stop(self, seconds: float | None = None) -> None:
        """Cancel a running call, and wait for its end. Idempotent.

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
    """Runs ``do`` once for all callers that wait at the same time.

    ``do`` must not raise, and continues if its callers are cancelled. Each event loop has its own
    run.
    """

    def __init__(self, do: Callable[[], Awaitable[None]]) -> None:
        self._do = do
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    @property
    def is_under_way(self) -> bool:
        """True while ``do`` is running."""
        task = self._tasks.get(asyncio.get_running_loop())
        return task is not None and not task.done()

    def begin(self) -> asyncio.Task[None]:
        """Start ``do``, unless it is running."""
        loop = asyncio.get_running_loop()
        task = self._tasks.get(loop)
        if task is None or task.done():
            task = self._tasks[loop] = loop.create_task(self._run(loop))
        return task

    async def join(self) -> None:
        """Start or join ``do``, and return at its end, or when ``close`` cancels it."""
        task = self.begin()
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if not task.cancelled() or (own is not None and own.cancelling()):
                raise

    async def close(self) -> None:
        """Cancel the run on this event loop."""
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
    """Give tasks ``grace`` seconds to end, then cancel them repeatedly until they have ended.

    A single cancellation is not always enough: ``asyncio.wait_for``, which drivers use, drops a
    cancellation that arrives together with the result (Python before 3.12).
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
    """Run ``work`` to its end even if the caller is cancelled meanwhile, and return its result.

    For opening and closing resources: a half-opened resource could never be closed. The
    cancellation is raised after ``work`` has ended.
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
    """Raise ``CancelledError`` if this task was cancelled and a driver dropped the cancellation.

    Tasks of a task group call this, because the group cancels each task only once.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


Done = Callable[[Any], object]
"""Called once with the outcome of work: its result, its exception, or a coroutine for it."""


async def outcome_of(begin: Callable[[Done], object]) -> Any:
    """Start work and wait for its outcome. ``begin`` gets a ``Done``, to be called now or later.

    Raises the exception of the work.
    """
    answered = asyncio.get_running_loop().create_future()

    def done(outcome: Any) -> None:
        if answered.cancelled():
            _end_alone(outcome)
        else:
            answered.set_result(outcome)

    begin(done)
    del begin  # it may hold a large request, and the outcome may take hours
    try:
        outcome = await answered
    except asyncio.CancelledError:
        if not answered.cancelled():  # the outcome came in the same iteration of the loop
            _end_alone(answered.result())
        raise
    if type(outcome) is CoroutineType:
        return await outcome
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _end_alone(outcome: Any) -> None:
    """Run the coroutine of an outcome whose caller has left, so that it releases its resources."""
    if type(outcome) is CoroutineType:
        left = asyncio.gather(outcome, return_exceptions=True)
        _left.add(left)
        left.add_done_callback(_left.discard)


_left: set[asyncio.Future[Any]] = set()
