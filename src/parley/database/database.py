"""A database of an application: threads that read, and a thread that writes groups of jobs.

Jobs submitted within one iteration of the event loop are passed to the writer together, and it
takes all jobs that have gathered while it wrote the previous group. A group is one transaction,
made durable once. There is no timer: under load groups grow, and without load each job is a group.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from parley.database.errors import StoreError, StoreUnavailable
from parley.observe import metrics

logger = logging.getLogger(__name__)

GROUP_JOBS = 1024
GROUP_BYTES = 4 << 20

LONGEST_PAUSE = 0.05
"""The longest time between two checks of an idle loop, in seconds."""

PAUSE = 50e-6
"""The time in seconds that a busy loop sleeps."""

BUSY_SHARE = 0.1
"""The least share of its time that a busy loop computes."""

LATE = 0.002
"""The most that a timer of an idle loop is late on an idle machine, in seconds."""

_IS_NEEDED = getattr(sys, "_is_gil_enabled", lambda: True)()
_HAS_THREAD_TIME = sys.platform != "win32"  # its resolution there is 15 ms

C = TypeVar("C")
R = TypeVar("R")
T = TypeVar("T")

_Work = tuple[Callable[[Any], Any], asyncio.Future[Any], float]


class Job(msgspec.Struct, eq=False):
    """A change to write.

    ``future`` gets the result of ``operation`` once it is durable. The engine's writer chooses the
    argument of operations; they return their result, and records to publish once it is durable. An
    operation raises ``StoreError`` to reject the job. ``size`` is the approximate number of bytes
    that it writes. ``submitted_at`` is by ``time.monotonic``.
    """

    future: asyncio.Future[Any]
    operation: Callable[[Any], tuple[Any, Sequence[Any]]]
    size: int = 0
    submitted_at: float = msgspec.field(default_factory=time.monotonic)


J = TypeVar("J", bound=Job)

JobResult: TypeAlias = tuple[J, Any, Sequence[Any], BaseException | None]
"""A job, its result, the records to publish, and its error."""


class BatchWriter(ABC, Generic[J]):
    """An engine's writer, used by one thread only. Its methods raise nothing.

    ``system`` is the name of its database system in metrics.
    """

    system = "sqlite"

    @abstractmethod
    def write(self, group: Sequence[J]) -> list[JobResult[J]]:
        """Do jobs; the jobs that succeeded are durable."""

    def maintain(self) -> float | None:
        """Do housekeeping between groups.

        Return the seconds until it is due again if no group comes earlier; ``None`` for never.
        """
        return None

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the database."""


class ReadConnection(ABC, Generic[C]):
    """The connection of a reader thread."""

    name: str

    @abstractmethod
    def read(self, function: Callable[[C], T], asked_at: float) -> T:
        """Call ``function`` with the connection; return its result.

        ``asked_at`` is when the caller began to wait (``time.monotonic``). Raises ``StoreError``.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""


Opened = tuple[BatchWriter[Job], Sequence[ReadConnection[C]]]
"""The writer and the readers of a database that was opened."""


class Database(ABC, Generic[C]):
    """Reads on threads, and writes on one thread: simultaneous writes are one transaction.

    ``name`` is its location for people. Functions are called with a connection, on a thread. They
    raise ``StoreError`` to reject the request; the caller gets the error.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.migrated: Sequence[str] = ()
        """The migrations that ``open`` ran."""
        self._writing: GroupWriter[Job] | None = None
        self._reading: ReaderPool[C] | None = None

    @abstractmethod
    def _open(self) -> Opened[C]:
        """Open the database, its schema up to date. It may block. Raises ``StoreUnavailable``."""

    def _release(self) -> None:
        """Release resources other than the connections, after these are closed."""
        return

    @property
    def unavailable_reason(self) -> str:
        """The reason why nothing can be written now, if known; empty while writing is possible."""
        return ""

    async def open(self) -> None:
        """Open the database, its schema up to date. Raises ``StoreUnavailable``."""
        if self._writing is not None:
            raise RuntimeError("the database is open already")
        writer, readers = await asyncio.to_thread(self._open)
        yielder = GilYielder(asyncio.get_running_loop())
        self._writing = GroupWriter(writer, yielder=yielder)
        self._reading = ReaderPool(readers, yielder=yielder)

    async def close(self) -> None:
        """Finish the submitted work, and close the database. Idempotent."""
        writing, reading, self._writing, self._reading = self._writing, self._reading, None, None
        if writing is not None and reading is not None:
            await reading.close()
            await writing.close()
            self._release()

    async def read(self, function: Callable[[C], T]) -> T:
        """Call a function that reads; return its result. Raises ``StoreError``."""
        if self._reading is None:
            raise self._closed()
        return await self._reading.run(function)

    async def write(self, function: Callable[[C], T], *, size: int = 0) -> T:
        """Call a function that writes; return its result once it is durable. Raises ``StoreError``.

        When it raises, nothing is written. It may be called more than once. ``size`` is the
        approximate number of bytes that it writes, since groups are bounded.
        """
        if self._writing is None:
            raise self._closed()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._writing.submit(Job(future, lambda connection: (function(connection), ()), size))
        return await future

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.name}: the database is closed")


class GroupWriter(Generic[J]):
    """Executes jobs in the order of their submission, and publishes their results on the loop.

    ``committed`` is called with the records that each job publishes, before its future has the
    result. ``failed`` is called with the failed jobs of a group, once their futures have their
    errors.

    The thread is a daemon: a program that did not close the store can end, and loses no
    acknowledged write.
    """

    def __init__(
        self,
        batch_writer: BatchWriter[J],
        *,
        yielder: GilYielder,
        committed: Callable[[Sequence[Any]], object] | None = None,
        failed: Callable[[GroupWriter[J], Sequence[J]], object] | None = None,
    ) -> None:
        self.batch_writer = batch_writer
        self._committed = committed
        self._failed = failed
        self._yielder = yielder
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # the context of ``open``: readers start tasks in it
        self._is_closing = False
        self._pending: list[J] = []
        self._queue: queue.SimpleQueue[list[J] | None] = queue.SimpleQueue()
        self._ended = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="parley-writer", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """True while jobs are pending."""
        return bool(self._pending) or self._yielder.is_active

    def submit(self, job: J) -> None:
        """Submit a job."""
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(job)

    async def close(self) -> None:
        """Finish the submitted jobs, then end the thread and the connection."""
        self._flush()
        self._is_closing = True
        self._queue.put(None)
        self._yielder.begin()
        try:
            await asyncio.shield(self._ended)
        finally:
            self._yielder.end()

    def _flush(self) -> None:
        if self._pending:
            self._yielder.begin()
            self._queue.put(self._pending)
            self._pending = []

    def _run(self) -> None:
        while not self._write_group():
            pass
        self.batch_writer.close()
        self._call_on_loop(partial(self._ended.set_result, None))

    def _write_group(self) -> bool:
        """Write the next group, and return whether it is the last. No reference to it is kept."""
        group, submissions, is_last = self._next_group(self.batch_writer.maintain())
        if not group:
            return is_last
        results = self.batch_writer.write(group)
        if metrics.current is not None:
            self._count(metrics.current, results)
        publish = partial(self._publish, results, submissions)
        return not self._call_on_loop(publish, context=self._context) or is_last

    def _count(self, counts: metrics.Metrics, results: Sequence[JobResult[J]]) -> None:
        system = self.batch_writer.system
        for _, _, _, error in results:
            name = "" if error is None else type(error).__name__
            counts.of("records", system, name).inc()
        waited = time.monotonic() - min(job.submitted_at for job, *_ in results)
        counts.of("commits", system).observe(waited)

    def _next_group(self, timeout: float | None) -> tuple[list[J], int, bool]:
        """Wait for jobs. Return a group, its number of submissions, and whether it is the last."""
        group: list[J] = []
        submissions = size = 0
        try:
            jobs = self._queue.get(timeout=timeout)
        except queue.Empty:
            return group, submissions, False
        while jobs is not None:
            group += jobs
            submissions += 1
            size += sum([job.size for job in jobs])
            if len(group) >= GROUP_JOBS or size >= GROUP_BYTES:
                return group, submissions, False
            try:
                jobs = self._queue.get_nowait()
            except queue.Empty:
                return group, submissions, False
        return group, submissions, True

    def _call_on_loop(self, function: Callable[[], object], context: Context | None = None) -> bool:
        """Call a function on the loop. Return ``False`` when the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(function, context=context)
        except RuntimeError:
            return False
        return True

    def _publish(self, results: Sequence[JobResult[J]], submissions: int) -> None:
        """Publish a group: its records to readers first, then its results to writers."""
        failed: list[J] = []
        for job, result, records, error in results:
            if error is not None:
                failed.append(job)
                if not job.future.done():
                    job.future.set_exception(error)
                continue
            if records and self._committed is not None:
                publish(records, self._committed)
            if not job.future.done():
                job.future.set_result(result)
        for _ in range(submissions):
            self._yielder.end()
        if failed and self._failed is not None and not self._is_closing:
            self._failed(self, failed)


def publish(records: R, committed: Callable[[R], object]) -> None:
    """Notify of a commit, which remains valid even if a subscriber fails."""
    try:
        committed(records)
    except Exception:
        logger.exception("publishing a commit failed; readers will find it later")


class ReaderPool(Generic[C]):
    """Reads on daemon threads, one for each connection."""

    def __init__(self, connections: Sequence[ReadConnection[C]], *, yielder: GilYielder) -> None:
        self._yielder = yielder
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._ended = [self._loop.create_future() for _ in connections]
        for connection, ended in zip(connections, self._ended, strict=True):
            threading.Thread(
                target=self._run, args=(connection, ended), name="parley-reader", daemon=True
            ).start()

    async def run(self, function: Callable[[C], T]) -> T:
        """Call ``function`` on a thread; return its result."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put((function, future, time.monotonic()))
        self._yielder.begin()
        try:
            return await future
        finally:
            self._yielder.end()

    async def close(self) -> None:
        """Finish the submitted reads, then end the threads and the connections."""
        for _ in self._ended:
            self._queue.put(None)
        await asyncio.gather(*self._ended)

    def _run(self, connection: ReadConnection[C], ended: asyncio.Future[None]) -> None:
        try:
            while (work := self._queue.get()) is not None:
                function, future, asked_at = work
                if future.cancelled():
                    continue  # the caller is gone
                result: Any = None
                error: Exception | None = None
                try:
                    result = connection.read(function, asked_at)
                except StoreError as failure:
                    error = failure.with_traceback(None)
                except Exception:
                    logger.exception("%s: a read failed", connection.name)
                    error = StoreUnavailable(f"{connection.name}: the store failed; see its log")
                self._loop.call_soon_threadsafe(_resolve, future, result, error)
                del work, function, future, result, error
            connection.close()
            self._loop.call_soon_threadsafe(_resolve, ended, None, None)
        except RuntimeError:
            connection.close()  # the loop is closed


def _resolve(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class GilYielder:
    """Yields the interpreter lock (GIL) to threads that work for a busy event loop.

    It yields while there is a ``begin`` without its ``end``. It is used on the loop only.

    A thread that returns from a system call waits for the lock. A busy loop releases it at every
    poll and takes it back within microseconds, before the thread wakes up; and each release
    restarts the 5 ms after which the thread would get the lock by force. So a thread can wait for
    seconds: measured on two cores under a saturated loop, reading a row took 1,000 ms (7 a second),
    and a group commit 95 to 15,000 ms. A loop that sleeps for 50 microseconds every millisecond,
    while threads work for it, brings the read to 1.3 ms and the commit to 5 ms, for an eighth of
    its time.

    A loop that is often idle releases the lock anyway, and need not yield. It is checked less and
    less often then: an idle loop with a working thread wakes up 20 times a second, which costs a
    tenth of a check every millisecond (0.4 % of a core against 4.5 %, on a busy machine).
    """

    __slots__ = ("_active", "_cpu", "_interval", "_loop", "_since", "_timer", "_wait")

    def __init__(self, loop: asyncio.AbstractEventLoop, *, interval: float = 0.001) -> None:
        self._loop = loop
        self._interval = interval
        self._active = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait = interval
        self._since = self._cpu = 0.0

    @property
    def is_active(self) -> bool:
        """True if the loop waits for a thread's work."""
        return self._active > 0

    def begin(self) -> None:
        """Record that a thread got work for which the loop waits."""
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
            time.sleep(PAUSE)
            self._arm(self._interval)

    def _was_idle(self) -> bool:
        """Return whether the loop was mostly idle since the last check.

        A loop that computes little may have been starved by other processes: then its timers are
        late.
        """
        passed = time.perf_counter() - self._since
        computed = time.thread_time() - self._cpu
        return _HAS_THREAD_TIME and computed < BUSY_SHARE * passed and passed < self._wait + LATE
