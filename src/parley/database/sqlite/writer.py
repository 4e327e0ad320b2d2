"""Writes groups of jobs to a SQLite file, each group in one transaction.

The file is checked before and after each group, and its write-ahead log is kept short in between.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Generic, Protocol

from parley.database.errors import StoreError, StoreUnavailable
from parley.database.group_commit import J, Job, JobResult
from parley.database.sqlite.file import CONNECTION_SQL, WAL_BYTES, SqliteFile, code_of, explain
from parley.model.backoff import Backoff

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""The time between two checks of the files while no group is written."""

FRESH_SECONDS = 0.05
"""How long the check after a group serves as the check before the next."""

BACKOFF = Backoff(0.02, 1.0)
"""How many seconds pass between tries to begin the write-ahead log anew."""


class SqliteJobs(Protocol[J]):
    """What an application's jobs do to its file, on the writer's thread."""

    def write(self, jobs: Sequence[J], *, pessimistic: bool) -> list[JobResult[J]]:
        """Write what may be written of jobs in one transaction.

        When it raises, nothing was written, and each job is tried by itself, ``pessimistic``.
        """
        ...

    def failed(self, job: J) -> None:
        """Note that a job failed, and not by a result of ``write``."""
        ...

    def needs_no_file(self, job: J) -> bool:
        """Do a job that writes nothing, as a file is missing; return whether it is one."""
        ...


class SqliteGroupWriter(Generic[J]):
    """A ``BatchWriter`` of a file, used by one thread."""

    def __init__(self, file: SqliteFile, jobs: SqliteJobs[J]) -> None:
        self.connection = file.writer
        self._jobs = jobs
        self._file = file
        self._path = file.path
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
            (timeout,) = self.connection.execute(CONNECTION_SQL["busy_timeout"]).fetchone()
            self._set_busy_timeout(0)
            try:
                is_busy = bool(
                    self.connection.execute(CONNECTION_SQL["truncate_wal"]).fetchone()[0]
                )
            finally:
                self._set_busy_timeout(timeout)
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

    def _set_busy_timeout(self, ms: int) -> None:
        self.connection.execute(CONNECTION_SQL["set_busy_timeout"].replace("{ms}", str(ms)))

    def write(self, group: Sequence[J]) -> list[JobResult[J]]:
        """Do jobs together, or one by one when that fails, so that only a faulty one fails.

        All fail when the check before or after the group finds the file unavailable.
        """
        watch = self._file.watch
        results: list[JobResult[J]] = [(job, None, (), None) for job in group]
        age = time.monotonic() - self._checked_at
        is_fresh = not watch.unavailable_reason and age < FRESH_SECONDS
        if is_fresh or not watch.check_data():
            results = self._write_group(group)
            watch.check_data()
        if (error := self._file.unavailable()) is not None:
            return [self._refuse(job, error) for job, *_ in results]
        self._checked_at = time.monotonic()
        return results

    def _write_group(self, group: Sequence[J]) -> list[JobResult[J]]:
        try:
            return self._jobs.write(group, pessimistic=False)
        except sqlite3.Error as error:
            if code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                # No job is at fault, and each further try would wait as long.
                return [self._failed(job, error) for job in group]
            logger.info("%s: a group of %d failed (%s)", self._path, len(group), error)
        except StoreError:
            pass  # a job is rejected: the others go on without it
        except Exception:
            logger.exception("%s: a group of %d failed", self._path, len(group))
        results: list[JobResult[J]] = []
        for job in group:
            try:
                results += self._jobs.write([job], pessimistic=True)
            except Exception as error:
                results.append(self._failed(job, error))
        return results

    def _refuse(self, job: J, error: StoreUnavailable) -> JobResult[J]:
        if self._jobs.needs_no_file(job):
            return job, None, (), None
        return self._failed(job, error)

    def _failed(self, job: J, error: Exception) -> JobResult[J]:
        self._jobs.failed(job)
        if isinstance(error, StoreError):
            return job, None, (), error
        if isinstance(error, sqlite3.Error):
            return job, None, (), explain(error, self._path)
        logger.error("%s: a job failed", self._path, exc_info=error)
        return job, None, (), StoreUnavailable(f"{self._path}: the store failed; its log says how")


class SqliteOperations:
    """``SqliteJobs`` whose operations are called with the connection, inside the transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def write(self, jobs: Sequence[Job], *, pessimistic: bool) -> list[JobResult[Job]]:
        """Run the jobs, and commit: all of them, or none."""
        connection = self._connection
        results: list[JobResult[Job]] = []
        connection.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                result, records = job.operation(connection)
                results.append((job, result, records, None))
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
                connection.execute("ROLLBACK")
            raise
        return results

    def failed(self, job: Job) -> None:
        """Do nothing: no job builds on another."""

    def needs_no_file(self, job: Job) -> bool:
        """Return ``False``: every job writes."""
        return False
