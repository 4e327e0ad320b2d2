"""Writes groups of jobs to PostgreSQL, each group in one transaction.

When the connection is lost while a group commits, the server is asked what became of the
transaction: a group is neither lost nor written twice. After a fail-over to a server that lacks the
last transactions, its answer is about what it has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec
import psycopg

from parley.database.errors import StoreError, StoreUnavailable
from parley.database.group_commit import Job, JobResult
from parley.database.postgres.connection import (
    INDEXED,
    Address,
    BoundedConnection,
    explain,
    is_transient,
)
from parley.database.sql import SqlFiles
from parley.model.backoff import Backoff

logger = logging.getLogger(__name__)

BACKOFF = Backoff(0.05, 0.5, jitter=(0.5, 1.0))

_SQL = SqlFiles("parley.database").queries("postgres", "transactions.sql")


class _Committing(msgspec.Struct, frozen=True):
    """A transaction that was told to commit, and the results of its jobs if it did."""

    id: str
    results: list[JobResult[Job]]


class PostgresGroupWriter:
    """A ``BatchWriter`` whose operations are called with the connection, inside the transaction.

    An operation lets the errors of the connection through, and may be called again after one. A job
    waits ``timeout`` seconds for a database that is away.
    """

    def __init__(self, address: Address, *, timeout: float, session: str = INDEXED) -> None:
        self.connection = BoundedConnection(address, timeout=timeout, session=session)
        self._address = address
        self._timeout = timeout
        self._in_doubt: _Committing | None = None

    def close(self) -> None:
        """Disconnect."""
        self.connection.disconnect()

    def maintain(self) -> float | None:
        """Do nothing."""
        return None

    def write(self, group: Sequence[Job]) -> list[JobResult[Job]]:
        """Do jobs together, or one by one when that fails, so that only a faulty one fails."""
        results: list[JobResult[Job]] = []
        self._write_retrying(list(group), results)
        return results

    def _write_retrying(self, jobs: list[Job], results: list[JobResult[Job]]) -> None:
        """Write jobs in one transaction, until it succeeds or they time out."""
        failures = 0
        while jobs:
            oldest = min([job.submitted_at for job in jobs])
            self.connection.timeout = max(2.0, oldest + self._timeout - time.monotonic())
            try:
                done = self._settled() or self._write(jobs)
            except psycopg.Error as error:
                if not is_transient(error):
                    return self._part(jobs, explain(error, self._address), results)
                jobs = self._fail_timed_out(jobs, results, error)
                if jobs:
                    failures += 1
                    time.sleep(BACKOFF.delay(failures))
            except StoreError as error:
                return self._part(jobs, error, results)
            except Exception:
                logger.exception("%s: a group of %d failed", self._address.name, len(jobs))
                text = f"{self._address.name}: the store failed; its log says how"
                return self._part(jobs, StoreUnavailable(text), results)
            else:
                left = {id(job) for job in jobs}
                results += [each for each in done if id(each[0]) in left]
                return None
        self._in_doubt = None
        return None

    def _part(self, jobs: list[Job], error: StoreError, results: list[JobResult[Job]]) -> None:
        """Fail one job; write each of several in a transaction of its own."""
        if len(jobs) == 1:
            results.append((jobs[0], None, (), error.with_traceback(None)))
            return
        logger.info("%s: a group of %d failed (%s)", self._address.name, len(jobs), error)
        for job in jobs:
            self._write_retrying([job], results)

    def _fail_timed_out(
        self, jobs: list[Job], results: list[JobResult[Job]], error: psycopg.Error
    ) -> list[Job]:
        """Fail the jobs that timed out; return the others."""
        until = time.monotonic() - self._timeout
        for job in jobs:
            if job.submitted_at <= until:
                failure = explain(error, self._address)
                if self._in_doubt is not None:
                    failure = StoreUnavailable(f"{failure}; it is not known whether it was written")
                results.append((job, None, (), failure))
        return [job for job in jobs if job.submitted_at > until]

    def _write(self, jobs: Sequence[Job]) -> list[JobResult[Job]]:
        connection = self.connection
        results: list[JobResult[Job]] = []
        connection.execute("BEGIN")
        try:
            for job in jobs:
                result, records = job.operation(connection)
                results.append((job, result, records, None))
            [(id,)] = connection.rows(_SQL["own_transaction"])
            if not connection.in_transaction:
                raise RuntimeError("an operation ended the transaction, or hid that it was lost")
        except BaseException:
            connection.roll_back()
            raise
        if id is not None:
            self._in_doubt = _Committing(id, results)
        try:
            connection.execute("COMMIT")
        except psycopg.Error:
            if connection.is_connected:
                self._in_doubt = None  # the server answered: it did not commit
                connection.roll_back()
            raise
        self._in_doubt = None
        return results

    def _settled(self) -> list[JobResult[Job]] | None:
        """Return the results of the transaction in doubt, if it was committed.

        Raises ``psycopg.Error`` while that is not known.
        """
        if (committing := self._in_doubt) is None:
            return None
        try:
            [(outcome,)] = self.connection.rows(_SQL["outcome"], (committing.id,))
        except psycopg.errors.InvalidParameterValue:
            outcome = "aborted"  # the server that took the place of the other never had it
        if outcome not in ("committed", "aborted"):
            raise psycopg.OperationalError("a transaction is neither committed nor aborted")
        self._in_doubt = None
        return committing.results if outcome == "committed" else None
