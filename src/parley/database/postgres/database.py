"""A database of an application in a schema of PostgreSQL, which replicas share."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import msgspec
import psycopg

from parley.database.database import BatchWriter, Database, Job, JobResult, Opened
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

T = TypeVar("T")

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

    Reads and writes wait ``timeout`` seconds for a database that is away. ``open`` brings the
    schema up to date if ``migrates``, else it rejects an older one.
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


class PostgresReadConnection:
    """Reads, and reads again when the connection was lost, for up to ``timeout`` seconds.

    The time counts from when a caller began to wait: callers whose time is over are refused without
    a further try, however many they are.
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
            except psycopg.Error as error:
                if not is_transient(error):
                    raise explain(error, self._address) from None
                failures += 1
                pause = READ_BACKOFF.delay(failures)
                if time.monotonic() + pause > deadline:
                    self._failure = explain(error, self._address)
                    raise self._failure from None
            else:
                self._failure = None
                return result
            time.sleep(pause)

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()


class _Committing(msgspec.Struct, frozen=True):
    """A transaction that was told to commit, and the results of its jobs if it did."""

    id: str
    results: list[JobResult[Job]]


class PostgresGroupWriter(BatchWriter[Job]):
    """A ``BatchWriter`` whose operations are called with the connection, inside the transaction.

    When the connection is lost while a group commits, the server is asked for the outcome of the
    transaction: a group is neither lost nor written twice. After a fail-over to a server that lacks
    the last transactions, its answer is about the transactions that it has.

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


class Versions(NamedTuple):
    """The version found (0: none), the last version of this code, and the migrations to run."""

    found: int
    known: int
    missing: Sequence[Migration]


class PostgresSchema:
    """The tables of an application in a schema of PostgreSQL: their version, and migrations.

    The migrations are in ``files``, in which ``{schema}`` is the schema of the address. ``steps``
    are the work of versions besides their SQL.

    Each migration runs in a transaction, under a lock that one process at a time holds, while
    processes of the version before still work: it adds, and removes only parts that no running code
    uses. Each says by ``-- oldest: n`` which version of the schema code must know at least to work
    with its result; older code refuses to start.
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
            connection.execute("BEGIN")
            try:
                connection.execute(
                    sql["lock_migrations"], (advisory_lock_key(address, "migrations"),)
                )
                [(exists,)] = connection.rows(sql["has_schema"])
                if not exists:
                    connection.execute(sql["create_schema"])
                connection.execute(sql["create_versions"])
                found, last, missing = self._inspect(connection, address)
                if missing:
                    version, name, script = missing[0]
                    if not found:
                        is_new = True
                        logger.info("%s: new, with schema version %d", address.name, last)
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
                    connection.execute(sql["add_version"], (version, name, _oldest(script)))
                connection.execute("COMMIT")
            except psycopg.errors.DeadlockDetected:
                connection.roll_back()  # with a replica of the version before
                continue
            except BaseException:
                connection.roll_back()
                raise
            if not missing:
                return done
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


def _oldest(sql: str) -> int:
    found = re.match(r"-- oldest: (\d+)\n", sql)
    assert found is not None, "a migration says which version of the schema code must know"
    return int(found[1])
