"""A database of an application in a SQLite file, which one process at a time can open."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from parley.database.database import (
    BatchWriter,
    Database,
    J,
    Job,
    JobResult,
    Opened,
    ReadConnection,
)
from parley.database.errors import StoreError, StoreUnavailable
from parley.database.sqlite.file import (
    CONNECTION_SQL,
    WAL_BYTES,
    SqliteFile,
    SqliteSchema,
    Synchronous,
    code_of,
    explain,
    undone_on_error,
)
from parley.model.backoff import Backoff

logger = logging.getLogger(__name__)

READERS = 2
"""The number of reader threads: two, so that a large read does not delay a small one."""

CHECK_SECONDS = 1.0
"""The time between two checks of the files while no group is written."""

FRESH_SECONDS = 0.05
"""The time for which the check after a group is valid as the check before the next."""

BACKOFF = Backoff(0.02, 1.0)
"""The delays in seconds between attempts to restart the write-ahead log."""

T = TypeVar("T")


class SqliteDatabase(Database[sqlite3.Connection]):
    """A database of an application, in the file at ``path``. See ``SqliteFile``."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: SqliteSchema,
        *,
        synchronous: Synchronous = "FULL",
    ) -> None:
        resolved = Path(path).resolve()
        super().__init__(str(resolved))
        self._open_file = partial(
            SqliteFile, resolved, schema, synchronous=synchronous, readers=READERS
        )
        self._file: SqliteFile | None = None

    @property
    def unavailable_reason(self) -> str:
        """The missing file at the last check, which is made every second."""
        return self._file.watch.unavailable_reason if self._file is not None else ""

    def _open(self) -> Opened[sqlite3.Connection]:
        file = self._open_file()
        self._file, self.migrated = file, file.migrated
        return SqliteOperations(file), [
            SqliteReadConnection(connection, file) for connection in file.readers
        ]

    def _release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class SqliteReadConnection(ReadConnection[sqlite3.Connection]):
    """Reads, unless ``FileWatch`` found the file to be unavailable.

    Readers never wait for the writer or for each other: each statement sees the database at the
    time when the statement began.
    """

    def __init__(self, connection: sqlite3.Connection, file: SqliteFile) -> None:
        self.name = str(file.path)
        self._connection = connection
        self._file = file

    def read(self, function: Callable[[sqlite3.Connection], T], asked_at: float) -> T:
        """Call ``function`` with the connection; return its result. Raises ``StoreUnavailable``."""
        if (unavailable := self._file.unavailable()) is not None:
            raise unavailable
        try:
            return function(self._connection)
        except sqlite3.Error as error:
            raise explain(error, self._file.path) from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class SqliteGroupWriter(BatchWriter[J]):
    """A ``BatchWriter`` of a file, used by one thread.

    The file is checked before and after each group, and its write-ahead log is kept short in
    between.
    """

    def __init__(self, file: SqliteFile) -> None:
        self.connection = file.writer
        self._file = file
        self._path = file.path
        self._checked_at = self._check_at = self._truncate_at = 0.0
        self._failures = 0

    def close(self) -> None:
        """Close the connection."""
        try:
            self.connection.close()
        except sqlite3.Error:
            logger.exception("%s was not closed properly; no data is lost", self._path)

    def maintain(self) -> float:
        """Check the files every second, and keep the write-ahead log short.

        Return the seconds until it is due again if no group comes earlier.
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
        """Truncate the write-ahead log, after overlapping readers kept it from restarting.

        It does not wait for busy readers: the next attempt follows with backoff. Return its delay.
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
        """Execute jobs together, or one by one when that fails, so that only a faulty one fails.

        All fail when the check before or after the group finds the file unavailable.
        """
        watch = self._file.watch
        results: list[JobResult[J]] = []
        age = time.monotonic() - self._checked_at
        is_fresh = not watch.unavailable_reason and age < FRESH_SECONDS
        if is_fresh or not watch.check(data_only=True):
            results = self._write_group(group)
            watch.check(data_only=True)
        if (error := self._file.unavailable()) is not None:
            return [self._refuse(job, error) for job in group]
        self._checked_at = time.monotonic()
        return results

    def _write_group(self, group: Sequence[J]) -> list[JobResult[J]]:
        done = self._attempt(group, pessimistic=False)
        if isinstance(done, list):
            return done
        if isinstance(done, sqlite3.Error):
            if code_of(done) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                # No job is at fault, and each further try would wait as long.
                return [self._failed(job, done) for job in group]
            logger.info("%s: a group of %d failed (%s)", self._path, len(group), done)
        elif not isinstance(done, StoreError):  # a StoreError rejects a job, but not the others
            logger.error("%s: a group of %d failed", self._path, len(group), exc_info=done)
        results: list[JobResult[J]] = []
        for job in group:
            done = self._attempt([job], pessimistic=True)
            results += done if isinstance(done, list) else [self._failed(job, done)]
        return results

    def _attempt(self, jobs: Sequence[J], *, pessimistic: bool) -> list[JobResult[J]] | Exception:
        """Write jobs in one transaction; return its error when nothing was written."""
        try:
            return self._execute(jobs, pessimistic=pessimistic)
        except Exception as error:
            return error

    @abstractmethod
    def _execute(self, jobs: Sequence[J], *, pessimistic: bool) -> list[JobResult[J]]:
        """Write the accepted jobs in one transaction.

        When it raises, nothing was written, and each job is tried separately, ``pessimistic``.
        """

    def _refuse(self, job: J, error: StoreUnavailable) -> JobResult[J]:
        """Return the result of a job while a file is missing."""
        return self._failed(job, error)

    def _failed(self, job: J, error: Exception) -> JobResult[J]:
        """Return the result of a job that failed outside of ``_execute``."""
        if isinstance(error, StoreError):
            return job, None, (), error
        if isinstance(error, sqlite3.Error):
            return job, None, (), explain(error, self._path)
        logger.error("%s: a job failed", self._path, exc_info=error)
        return job, None, (), StoreUnavailable(f"{self._path}: the store failed; see its log")


class SqliteOperations(SqliteGroupWriter[Job]):
    """A writer whose operations are called with the connection, inside the transaction."""

    def _execute(self, jobs: Sequence[Job], *, pessimistic: bool) -> list[JobResult[Job]]:
        results: list[JobResult[Job]] = []
        with undone_on_error(self.connection):
            self.connection.execute("BEGIN IMMEDIATE")
            for job in jobs:
                result, records = job.operation(self.connection)
                results.append((job, result, records, None))
            self.connection.execute("COMMIT")
        return results
