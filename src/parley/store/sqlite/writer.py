"""Writes groups of jobs to SQLite, each in one transaction.

Measured with a saturated loop, events of 200 bytes, 64 and 512 records a group (two cores, SQLite
3.40, FULL): ``executemany`` takes a step for each row, and each step may lose the interpreter
(3,800 created tasks and 12,000 to 28,000 events a second); one JSON parameter and ``json_each`` in
one step 10,000 to 12,000 and 65,000, with a third more CPU; many rows of ``VALUES`` in a step 9,000
to 10,000 and 65,000. The last is in use. Without ``GilYielder`` all of them starve: 4 to 2,000
created tasks a second, by chance. On one core, or with an idle loop, it is 12,000 to 18,000 and
68,000 to 110,000 for each of them.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial

from parley.model.backoff import Backoff
from parley.store.head import Head
from parley.store.protocols.errors import StoreUnavailable
from parley.store.sql_engine.batch import Job, JobResult, WriterId
from parley.store.sql_engine.group_commit import HEADS_KEPT
from parley.store.sql_engine.jobs import clear_failures
from parley.store.sqlite.batch import SqliteBatch
from parley.store.sqlite.file import SQL, WAL_BYTES, SqliteFile, code_of, explain

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""The time between two checks of the files while no group is written."""

FRESH_SECONDS = 0.05
"""How long the check after a group serves as the check before the next."""

BACKOFF = Backoff(0.02, 1.0)
"""How many seconds pass between tries to begin the write-ahead log anew."""


class SqliteBatchWriter:
    """Writes groups, on one thread. ``clock`` returns milliseconds."""

    def __init__(self, file: SqliteFile, *, clock: Callable[[], int], replica: str) -> None:
        self.connection = file.writer
        self._file = file
        self._path = file.path
        self._clock = clock
        self._replica = replica
        self._heads: dict[str, Head] = {}
        self._failed_writers: set[WriterId] = set()
        self._last_key = file.last_key
        self._checked_at = self._check_at = self._truncate_at = 0.0
        self._failures = 0

    def close(self) -> None:
        """Close the connection."""
        try:
            self.connection.close()
        except sqlite3.Error:
            logger.exception("%s was not closed properly; nothing is lost by that", self._path)

    def maintain(self) -> float:
        """Check the files every second, and keep the write-ahead log short.

        Return the seconds until it is due again if no group comes before.
        """
        watch = self._file.watch
        now = time.monotonic()
        if now >= self._check_at:
            self._check_at = now + CHECK_SECONDS
            watch.check()
        if watch.size > WAL_BYTES and not watch.unavailable_reason:
            return min(CHECK_SECONDS, self._truncate_wal(now))
        self._failures = 0
        return CHECK_SECONDS

    def _truncate_wal(self, now: float) -> float:
        """Truncate the write-ahead log, after overlapping readers kept it from starting anew.

        A busy reader is not waited for: the next try follows with backoff. Return its delay.
        """
        if now < self._truncate_at:
            return self._truncate_at - now
        is_busy = True
        try:
            (timeout,) = self.connection.execute(SQL["busy_timeout"]).fetchone()
            self.connection.execute(SQL["set_busy_timeout"].replace("{ms}", "0"))
            try:
                is_busy = bool(self.connection.execute(SQL["truncate_wal"]).fetchone()[0])
            finally:
                self.connection.execute(SQL["set_busy_timeout"].replace("{ms}", str(timeout)))
        except sqlite3.Error:
            logger.warning("%s: the write-ahead log was not truncated", self._path, exc_info=True)
        if not is_busy:
            self._file.watch.size = 0
            self._failures = 0
            return CHECK_SECONDS
        self._failures += 1
        delay = BACKOFF.delay(self._failures)
        self._truncate_at = now + delay
        return delay

    def write(self, group: Sequence[Job]) -> list[JobResult]:
        """Do jobs together, or one by one when that fails, so that only a faulty one fails.

        All fail when the check before or after the group finds the file unavailable.
        """
        watch = self._file.watch
        results: list[JobResult] = [(job, None, (), None) for job in group]
        age = time.monotonic() - self._checked_at
        is_fresh = not watch.unavailable_reason and age < FRESH_SECONDS
        if is_fresh or not watch.check_data():
            results = self._write_group(group)
            watch.check_data()
        if (error := self._file.unavailable()) is not None:
            return [self._refuse(job, error) for job, *_ in results]
        self._checked_at = time.monotonic()
        return results

    def _write_group(self, group: Sequence[Job]) -> list[JobResult]:
        try:
            return self._write(group, pessimistic=False)
        except sqlite3.Error as error:
            if code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                # No job is at fault, and each further try would wait as long.
                return [self._failed(job, error) for job in group]
            logger.info("%s: a group of %d failed (%s)", self._path, len(group), error)
        except Exception:
            logger.exception("%s: a group of %d failed", self._path, len(group))
        results = []
        for job in group:
            try:
                results += self._write([job], pessimistic=True)
            except Exception as error:
                results.append(self._failed(job, error))
        return results

    def _write(self, jobs: Sequence[Job], *, pessimistic: bool) -> list[JobResult]:
        """Write what may be written of ``jobs`` in one transaction."""
        batch = SqliteBatch(
            self.connection,
            known=self._heads,
            failed_writers=self._failed_writers,
            new_key=self._new_key,
            at=self._clock(),
            replica=self._replica,
            pessimistic=pessimistic,
        )
        batch.load_heads(jobs)
        results = batch.stage(jobs)
        batch.write()
        self._failed_writers = batch.failed_writers
        for task_id, head in batch.heads.items():
            self._heads.pop(task_id, None)
            if head.ended_at is None:
                self._heads[task_id] = head
        while len(self._heads) > HEADS_KEPT:
            del self._heads[next(iter(self._heads))]
        return results

    def _refuse(self, job: Job, error: StoreUnavailable) -> JobResult:
        if isinstance(job.operation, partial) and job.operation.func is clear_failures:
            # It writes nothing: the writers may go on once the file is back.
            self._failed_writers.difference_update(job.operation.keywords["writers"])
            return job, 0, (), None
        return self._failed(job, error)

    def _failed(self, job: Job, error: Exception) -> JobResult:
        if job.writer is not None:
            self._failed_writers.add(job.writer)
        if isinstance(error, StoreUnavailable):
            return job, None, (), error
        if isinstance(error, sqlite3.Error):
            return job, None, (), explain(error, self._path)
        logger.error("%s: a job failed", self._path, exc_info=error)
        return job, None, (), StoreUnavailable(f"{self._path}: the store failed; its log says how")

    def _new_key(self) -> int:
        self._last_key += 1
        return self._last_key
