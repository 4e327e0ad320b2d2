"""The one thread that writes to a SQLite store, a group of jobs at a time.

What is submitted within one round of the event loop goes to the thread together, and the thread
takes all that has gathered while it wrote the group before. A group is one transaction, made
durable once. There is no timer: under load groups grow, and without load a job is a group.

Measured with a saturated loop, events of 200 bytes, 64 and 512 records a group (two cores, SQLite
3.40, FULL): rows given to ``executemany`` are a step each, and each step may lose the interpreter
(3,800 created tasks and 12,000 to 28,000 events a second); one JSON parameter and ``json_each`` in
one step 10,000 to 12,000 and 65,000, but a third more CPU; many rows of ``VALUES`` in a step
9,000 to 10,000 and 65,000. The last was taken. Without lending (see ``lend``) all of them
starve: 4 to 2,000 created tasks a second, as chance has it. On one core, or with an idle loop, it
is 12,000 to 18,000 and 68,000 to 110,000 whatever is done.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from parley.log import sqlite_jobs
from parley.log.events import LoggedEvent
from parley.log.fold import IllegalEvent
from parley.log.head import Head
from parley.log.lend import Lender
from parley.log.sqlite_batch import Batch, Job, WriterId
from parley.log.sqlite_file import WAL_BYTES, SqliteFile, code_of, explain
from parley.log.store import Committed, StoreError, StoreUnavailable

logger = logging.getLogger(__name__)

GROUP_JOBS = 1024
GROUP_BYTES = 4 << 20
HEADS_KEPT = 10_000

Outcome = tuple[Job, Any, Sequence[LoggedEvent], BaseException | None]


class SqliteWriter:
    """Does jobs in the order in which they were submitted, and tells of them on the loop."""

    def __init__(
        self,
        file: SqliteFile,
        *,
        committed: Committed,
        lender: Lender,
        clock: Callable[[], int],
    ) -> None:
        self._connection = file.writer
        self._path = file.path
        self._committed = committed
        self._lender = lender
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._is_closing = False
        self._gathered: list[Job] = []
        self._queue: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        # From here on: for the thread alone.
        self._heads: dict[str, Head] = {}
        self._broken: set[WriterId] = set()
        self._last_key = file.last_key
        self._ended = self._loop.create_future()
        # A daemon: a program that forgot to close the store can end, and loses nothing that it
        # was told is durable.
        self._thread = threading.Thread(target=self._run, name="parley-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Begin a job, after all that were submitted before."""
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(job)

    async def close(self) -> None:
        """Do what was submitted, then end the thread and the connection."""
        self._hand_over()
        self._is_closing = True
        self._queue.put(None)
        self._lender.begin()
        try:
            await asyncio.shield(self._ended)
        finally:
            self._lender.end()

    def _hand_over(self) -> None:
        if self._gathered:
            self._lender.begin()
            self._queue.put(self._gathered)
            self._gathered = []

    def _run(self) -> None:
        while True:
            group, hands, is_over = self._take()
            if group:
                outcomes = self._do(group)
                is_over = not self._call(self._deliver, outcomes, hands) or is_over
                self._shorten()
            if is_over:
                break
        try:
            self._connection.close()
        except sqlite3.Error:
            logger.exception("%s was not closed well; nothing is lost by that", self._path)
        self._call(self._ended.set_result, None)

    def _shorten(self) -> None:
        """Begin the write-ahead log anew when readers, one after another, kept it from that."""
        try:
            if os.path.getsize(f"{self._path}-wal") > WAL_BYTES:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (OSError, sqlite3.Error):
            logger.warning("%s: the write-ahead log was not shortened", self._path, exc_info=True)

    def _take(self) -> tuple[list[Job], int, bool]:
        """Wait for jobs. Return what there is, in how many hands, and whether it is the last."""
        group: list[Job] = []
        hands = size = 0
        jobs = self._queue.get()
        while jobs is not None:
            group += jobs
            hands += 1
            size += sum([job.size for job in jobs])
            if len(group) >= GROUP_JOBS or size >= GROUP_BYTES:
                return group, hands, False
            try:
                jobs = self._queue.get_nowait()
            except queue.Empty:
                return group, hands, False
        return group, hands, True

    def _do(self, group: Sequence[Job]) -> list[Outcome]:
        """Do jobs together, or one by one when that fails, so that only the guilty one fails."""
        try:
            return self._write(group, careful=False)
        except sqlite3.Error as error:
            if code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                # Nobody's fault, and each further try would wait as long.
                return [self._failed(job, error) for job in group]
            logger.info("%s: a group of %d failed (%s)", self._path, len(group), error)
        except Exception:
            logger.exception("%s: a group of %d failed", self._path, len(group))
        outcomes = []
        for job in group:
            try:
                outcomes += self._write([job], careful=True)
            except Exception as error:
                outcomes.append(self._failed(job, error))
        return outcomes

    def _write(self, jobs: Sequence[Job], *, careful: bool) -> list[Outcome]:
        """Write what may be written of ``jobs`` in one transaction."""
        batch = Batch(
            self._connection,
            known=self._heads,
            broken=self._broken,
            last_key=self._last_key,
            at=self._clock(),
            careful=careful,
        )
        batch.look_up(jobs)
        outcomes: list[Outcome] = []
        for job in jobs:
            try:
                result, records = job.stage(batch)
                outcomes.append((job, result, records, None))
            except (StoreError, IllegalEvent) as error:
                if job.writer is not None:
                    batch.broken.add(job.writer)
                outcomes.append((job, None, (), error.with_traceback(None)))
        batch.write()
        self._broken = batch.broken
        self._last_key = batch.last_key
        for task_id, head in batch.heads.items():
            self._heads.pop(task_id, None)
            if head.ended_at is None:
                self._heads[task_id] = head
        while len(self._heads) > HEADS_KEPT:
            del self._heads[next(iter(self._heads))]
        return outcomes

    def _failed(self, job: Job, error: Exception) -> Outcome:
        if job.writer is not None:
            self._broken.add(job.writer)
        if isinstance(error, sqlite3.Error):
            return job, None, (), explain(error, self._path)
        logger.error("%s: a job failed", self._path, exc_info=error)
        return job, None, (), StoreUnavailable(f"{self._path}: the store failed; its log says how")

    def _call(self, function: Callable[..., object], *args: object) -> bool:
        """Call a function on the loop. Return ``False`` when that is no more."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def _deliver(self, outcomes: Sequence[Outcome], hands: int) -> None:
        """Tell of a group: its readers first, then its writers."""
        told = set()
        for job, result, records, error in outcomes:
            if error is not None:
                if job.writer is not None:
                    told.add(job.writer)
                if not job.future.done():
                    job.future.set_exception(error)
                continue
            if records:
                try:
                    self._committed(records)
                except Exception:
                    logger.exception("telling of a commit failed; readers will find it later")
            if not job.future.done():
                job.future.set_result(result)
        for _ in range(hands):
            self._lender.end()
        if told and not self._is_closing:
            # What was submitted before now is ahead of this and fails; what comes after may pass.
            forgive = partial(sqlite_jobs.forgive, writers=told)
            self.submit(Job(self._loop.create_future(), forgive))
