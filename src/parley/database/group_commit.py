"""A thread that writes to a database, a group of jobs at a time.

Jobs submitted within one round of the event loop go to the thread together, and the thread takes
all that has gathered while it wrote the group before. A group is one transaction, made durable
once. There is no timer: under load groups grow, and without load a job is a group.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from parley.database.gil_yield import GilYielder

logger = logging.getLogger(__name__)

GROUP_JOBS = 1024
GROUP_BYTES = 4 << 20


class Job(msgspec.Struct, eq=False):
    """A change to write.

    ``future`` gets the result of ``operation`` once it is durable. What an operation is called with
    is up to the engine's writer; it returns its result, and what to publish once it is durable. It
    raises ``StoreError`` to reject the job. ``size`` is about how many bytes it writes.
    ``submitted_at`` is by ``time.monotonic``.
    """

    future: asyncio.Future[Any]
    operation: Callable[[Any], tuple[Any, Sequence[Any]]]
    size: int = 0
    submitted_at: float = msgspec.field(default_factory=time.monotonic)


J = TypeVar("J", bound=Job)

JobResult: TypeAlias = tuple[J, Any, Sequence[Any], BaseException | None]
"""A job, its result, what to publish, and its error."""


class BatchWriter(Protocol[J]):
    """An engine's writer, used by one thread only. Its methods raise nothing."""

    def write(self, group: Sequence[J]) -> list[JobResult[J]]:
        """Do jobs; those that succeeded are durable."""
        ...

    def maintain(self) -> float | None:
        """Do housekeeping between groups.

        Return the seconds until it is due again if no group comes before; ``None`` for never.
        """
        ...

    def close(self) -> None:
        """Disconnect from the database."""
        ...


class GroupWriter(Generic[J]):
    """Does jobs in the order of their submission, and publishes their results on the loop.

    ``committed`` is given what each job has to publish, before its future has the result.
    ``failed`` is given the failed jobs of a group, once their futures have their errors.

    The thread is a daemon: a program that did not close the store can end, and loses nothing that
    was acknowledged.
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
        self._context = copy_context()  # that of ``open``: readers begin tasks in it
        self._is_closing = False
        self._pending: list[J] = []
        self._queue: queue.SimpleQueue[list[J] | None] = queue.SimpleQueue()
        self._ended = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="parley-writer", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether jobs are under way."""
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
        """Write the next group, and return whether it is the last. Nothing of it is kept."""
        group, submissions, is_last = self._next_group(self.batch_writer.maintain())
        if not group:
            return is_last
        results = self.batch_writer.write(group)
        publish = partial(self._publish, results, submissions)
        return not self._call_on_loop(publish, context=self._context) or is_last

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
                try:
                    self._committed(records)
                except Exception:
                    logger.exception("publishing a commit failed; readers will find it later")
            if not job.future.done():
                job.future.set_result(result)
        for _ in range(submissions):
            self._yielder.end()
        if failed and self._failed is not None and not self._is_closing:
            self._failed(self, failed)
