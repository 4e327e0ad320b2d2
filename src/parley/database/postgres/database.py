"""A database of an application in a schema of PostgreSQL, which replicas share."""

from __future__ import annotations

import logging
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias, TypeVar

import psycopg

from parley.database.database import BatchWriter, Database, Job, JobResult, Opened, ReadConnection
from parley.database.errors import StoreError, StoreUnavailable
from parley.database.postgres.connection import (
    INDEXED,
    OLDEST,
    Address,
    BoundedConnection,
    advisory_lock_key,
    explain,
    is_transient,
)
from parley.database.sql import Migration, SqlFiles, filled
from parley.model.backoff import Backoff

logger = logging.getLogger(__name__)

READERS = 4
"""The number of reader threads, each with a connection: a read is mostly a round trip."""

BACKOFF = Backoff(0.05, 0.5, jitter=(0.5, 1.0))

_SQL = SqlFiles("parley.database").queries("postgres", "transactions.sql")

J = TypeVar("J", bound=Job)
T = TypeVar("T")

Written: TypeAlias = tuple[list[JobResult[J]], list[J]]
"""Results, and the jobs to repeat, because another replica had changed the same rows."""

READ_BACKOFF = Backoff(0.02, 0.5)
"""The delay before a read is tried again, in seconds."""

FOLDER = "postgres"
"""The folder of an application's SQL files that are for PostgreSQL."""

_VERSIONS_SQL = SqlFiles("parley.database").queries("postgres", "schema.sql")

Step = Callable[[BoundedConnection, Address], object]
"""The work of a migration besides its SQL, in the same transaction."""

MIGRATION_SECONDS = 600.0
"""The time limit of a migration."""


class PostgresDatabase(Database[BoundedConnection]):
    """A database of an application, in the schema of an address.

    Reads and writes wait ``timeout`` seconds for an unavailable database. ``open`` migrates the
    schema if ``migrates``, else it rejects an older one.
    """

    def __init__(
        self,
        address: Address,
        schema: PostgresSchema,
        *,
        timeout: float = 15.0,
        migrates: bool = True,
        session: str = INDEXED,
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
        super().__init__(address.name)
        self._address = address
        self._schema = schema
        self._timeout = timeout
        self._migrates = migrates
        self._session = session

    def _open(self) -> Opened[BoundedConnection]:
        if self._migrates:
            done = self._schema.migrate(self._address)
            self.migrated = [f"{step.version} {step.name}" for step in done]
        else:
            versions = self._schema.inspect(self._address)
            if versions.missing:
                raise StoreUnavailable(
                    f"{self.name} has schema version {versions.found}, and this version of Parley "
                    f"needs {versions.known}: bring it up to date"
                )
        address, timeout, session = self._address, self._timeout, self._session
        writer = PostgresGroupWriter(address, timeout=timeout, session=session)
        try:
            writer.connection.connect()
        except psycopg.Error as error:
            raise explain(error, address) from None
        return writer, [PostgresReadConnection(address, timeout, session) for _ in range(READERS)]


class PostgresReadConnection(ReadConnection[BoundedConnection]):
    """Reads, and repeats a read after a lost connection, for up to ``timeout`` seconds.

    The time counts from the start of a caller's wait: callers whose time is over are rejected
    without another attempt, however many there are.
    """

    def __init__(self, address: Address, timeout: float, session: str = INDEXED) -> None:
        self.name = address.name
        self._address = address
        self._timeout = timeout
        self._connection = BoundedConnection(address, timeout=timeout, session=session)
        self._failure: StoreUnavailable | None = None

    def read(self, function: Callable[[BoundedConnection], T], asked_at: float) -> T:
        """Call ``function`` with the connection; return its result. Raises ``StoreUnavailable``."""
        deadline = asked_at + self._timeout
        failures = 0
        if self._failure is not None and time.monotonic() > deadline:
            raise StoreUnavailable(*self._failure.args)
        while True:
            self._connection.timeout = max(1.0, deadline - time.monotonic())
            try:
                result = function(self._connection)
                self._failure = None
                return result
            except psycopg.Error as error:
                if not is_transient(error):
                    raise explain(error, self._address) from None
                failures += 1
                pause = READ_BACKOFF.delay(failures)
                if time.monotonic() + pause > deadline:
                    self._failure = explain(error, self._address)
                    raise self._failure from None
            time.sleep(pause)

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()


class RetryingWriter(BatchWriter[J]):
    """A ``BatchWriter`` that writes a group again until it succeeds or times out.

    A job waits ``timeout`` seconds for an unavailable database. When the connection is lost while a
    group commits, its outcome is determined first (``_settled``): a group is neither lost nor
    written twice. Until then it is ``_in_doubt``.
    """

    system = "postgresql"

    def __init__(self, address: Address, *, timeout: float, session: str = INDEXED) -> None:
        self.connection = BoundedConnection(address, timeout=timeout, session=session)
        self._address = address
        self._timeout = timeout
        self._in_doubt: Any = None

    def close(self) -> None:
        """Disconnect."""
        self.connection.disconnect()

    @abstractmethod
    def _settled(self) -> Written[J] | None:
        """Return the results of the group in doubt, if it was committed.

        Then it is no longer in doubt. Raises ``psycopg.Error`` while the outcome is unknown.
        """

    @abstractmethod
    def _execute(self, jobs: Sequence[J], *, pessimistic: bool) -> Written[J]:
        """Write jobs in one transaction.

        Raises ``StoreError`` and ``psycopg.Error``: then nothing was written, or ``_in_doubt`` has
        the group that may have been.
        """

    def _failed(self, job: J, error: StoreError) -> JobResult[J]:
        """Return the result of a job that failed."""
        return job, None, (), error.with_traceback(None)

    def _write_all(self, jobs: list[J], results: list[JobResult[J]]) -> None:
        """Write jobs pessimistically, until none must be repeated."""
        while jobs:
            jobs = self._write_retrying(jobs, results, pessimistic=True)

    def _write_retrying(
        self, jobs: list[J], results: list[JobResult[J]], *, pessimistic: bool
    ) -> list[J]:
        """Write jobs in one transaction, until it succeeds or they time out.

        Return the jobs to repeat pessimistically.
        """
        failures = 0
        while jobs:
            oldest = min([job.submitted_at for job in jobs])
            self.connection.timeout = max(2.0, oldest + self._timeout - time.monotonic())
            is_settled = False
            try:
                settled = self._settled()
                is_settled = True
                committed, missed = settled or self._execute(jobs, pessimistic=pessimistic)
                results += committed  # readers get the records of jobs that timed out too
                done = {id(job) for job, *_ in committed}
                return missed if settled is None else [j for j in jobs if id(j) not in done]
            except psycopg.Error as error:
                text = str(explain(error, self._address))
                if is_settled and self.connection.is_connected:
                    self._in_doubt = None  # the server answered that it did not commit
                if not is_transient(error):
                    return self._part(jobs, StoreUnavailable(text), results, pessimistic)
                if self._in_doubt is not None:
                    text += "; it is unknown whether it was written"
                until = time.monotonic() - self._timeout
                results += [
                    self._failed(job, StoreUnavailable(text))
                    for job in jobs
                    if job.submitted_at <= until
                ]
                jobs = [job for job in jobs if job.submitted_at > until]
                if jobs:
                    failures += 1
                    time.sleep(BACKOFF.delay(failures))
            except StoreError as error:
                return self._part(jobs, error, results, pessimistic)
            except Exception:
                logger.exception("%s: a group of %d failed", self._address.name, len(jobs))
                self.connection.disconnect()
                text = f"{self._address.name}: the store failed; see its log"
                return self._part(jobs, StoreUnavailable(text), results, pessimistic)
        return []

    def _part(
        self, jobs: list[J], error: StoreError, results: list[JobResult[J]], pessimistic: bool
    ) -> list[J]:
        """Fail a single job; write each of several in a separate transaction."""
        if pessimistic and len(jobs) == 1:
            results.append(self._failed(jobs[0], error))
            return []
        logger.info("%s: a group of %d failed (%s)", self._address.name, len(jobs), error)
        for job in jobs:
            self._write_all([job], results)
        return []


class PostgresGroupWriter(RetryingWriter[Job]):
    """A ``BatchWriter`` whose operations are called with the connection, inside the transaction.

    In doubt is a transaction whose commit was sent, with the results of its jobs: the server is
    asked for its outcome. After a fail-over to a server that lacks the last transactions, the
    answer is about the transactions that it has.

    An operation must not catch the errors of the connection, and may be called again after one.
    """

    def write(self, group: Sequence[Job]) -> list[JobResult[Job]]:
        """Execute jobs together, or one by one when that fails, so that only a faulty one fails."""
        results: list[JobResult[Job]] = []
        self._write_all(list(group), results)
        self._in_doubt = None
        return results

    def _execute(self, jobs: Sequence[Job], *, pessimistic: bool) -> Written[Job]:
        connection = self.connection
        results: list[JobResult[Job]] = []
        with connection.transaction():
            for job in jobs:
                result, records = job.operation(connection)
                results.append((job, result, records, None))
            [(id,)] = connection.rows(_SQL["own_transaction"])
            if not connection.in_transaction:
                raise RuntimeError("an operation ended the transaction, or hid that it was lost")
            self._in_doubt = (id, results) if id is not None else None
        self._in_doubt = None
        return results, []

    def _settled(self) -> Written[Job] | None:
        """Return the results of the transaction in doubt, if it was committed."""
        if self._in_doubt is None:
            return None
        id, results = self._in_doubt
        try:
            [(outcome,)] = self.connection.rows(_SQL["outcome"], (id,))
        except psycopg.errors.InvalidParameterValue:
            outcome = "aborted"  # the server that replaced the other never had it
        if outcome not in ("committed", "aborted"):
            raise psycopg.OperationalError("a transaction is neither committed nor aborted")
        self._in_doubt = None
        return (results, []) if outcome == "committed" else None


class Versions(NamedTuple):
    """The version found (0: none), the last version of this code, and the migrations to run."""

    found: int
    known: int
    missing: Sequence[Migration]


class PostgresSchema:
    """The tables of an application in a schema of PostgreSQL: their version, and migrations.

    The migrations are in ``files``, in which ``{schema}`` is the schema of the address. ``steps``
    are Python functions of migrations in addition to their SQL.

    Each migration runs in a transaction, under a lock that one process at a time holds, while
    processes of the previous version still work: it adds, and removes only parts that no running
    code uses. Each has a line ``-- oldest: n``, the minimum version of the schema that code must
    know to work with its result; older code does not start.
    """

    def __init__(self, files: SqlFiles, steps: Mapping[int, Step] | None = None) -> None:
        self._files = files
        self._steps = steps or {}

    def inspect(self, address: Address) -> Versions:
        """Return the versions of the schema. Raises ``StoreUnavailable``."""
        with _connected(address, 15.0) as connection:
            return self._inspect(connection, address)

    def migrate(self, address: Address) -> list[Migration]:
        """Bring the schema up to date; return the migrations that ran.

        Raises ``StoreUnavailable``.
        """
        with _connected(address, MIGRATION_SECONDS) as connection:
            versions = self._inspect(connection, address)
            if versions.found and not versions.missing:
                return []
            return self._migrate(connection, address)

    def _inspect(self, connection: BoundedConnection, address: Address) -> Versions:
        sql = filled(_VERSIONS_SQL, {"schema": address.schema})
        [(version, encoding)] = connection.rows(sql["server"])
        if version < OLDEST * 10_000:
            raise StoreUnavailable(
                f"{address.name}: PostgreSQL {version // 10_000} is too old; {OLDEST} or later is "
                "needed"
            )
        if encoding != "UTF8":
            raise StoreUnavailable(
                f"{address.name}: the database keeps texts as {encoding}; create one with ENCODING "
                "'UTF8'"
            )
        known = self._files.migrations(FOLDER)
        [(exists,)] = connection.rows(sql["has_versions"])
        if not exists:
            return Versions(0, known[-1].version, known)
        rows = connection.rows(sql["versions"])
        if rows and not {row[:2] for row in rows} & {(each.version, each.name) for each in known}:
            raise StoreUnavailable(
                f"{address.name}: the schema {address.schema} holds the tables of another program; "
                f"name another: ?schema=..."
            )
        found = max([version for version, _, _ in rows], default=0)
        oldest = max([oldest for _, _, oldest in rows], default=0)
        if oldest > known[-1].version:
            raise StoreUnavailable(
                f"{address.name} has schema version {found}, written by a later version of Parley; "
                f"this one knows up to {known[-1].version}: upgrade it, or name another database"
            )
        applied = {version for version, _, _ in rows}
        missing = [migration for migration in known if migration.version not in applied]
        return Versions(found, known[-1].version, missing)

    def _migrate(self, connection: BoundedConnection, address: Address) -> list[Migration]:
        sql = filled(_VERSIONS_SQL, {"schema": address.schema})
        done: list[Migration] = []
        is_new = False
        while True:
            try:
                with connection.transaction():
                    connection.execute(
                        sql["lock_migrations"], (advisory_lock_key(address, "migrations"),)
                    )
                    [(exists,)] = connection.rows(sql["has_schema"])
                    if not exists:
                        connection.execute(sql["create_schema"])
                    connection.execute(sql["create_versions"])
                    found, last, missing = self._inspect(connection, address)
                    if not missing:
                        return done
                    version, name, script = missing[0]
                    if not found:
                        is_new = True
                        logger.debug("%s: new, with schema version %d", address.name, last)
                    logger.log(
                        logging.DEBUG if is_new else logging.INFO,
                        "%s: bringing the schema to version %d (%s)",
                        address.name,
                        version,
                        name,
                    )
                    connection.execute_script(script.replace("{schema}", address.schema))
                    if (step := self._steps.get(version)) is not None:
                        step(connection, address)
                    oldest = re.match(r"-- oldest: (\d+)\n", script)
                    assert oldest, "a migration states the oldest compatible schema"
                    connection.execute(sql["add_version"], (version, name, int(oldest[1])))
            except psycopg.errors.DeadlockDetected:
                continue  # with a replica of the version before
            done.append(missing[0])


@contextmanager
def _connected(address: Address, timeout: float) -> Iterator[BoundedConnection]:
    connection = BoundedConnection(address, timeout=timeout)
    try:
        yield connection
    except psycopg.Error as error:
        raise explain(error, address) from None
    finally:
        connection.disconnect()
