"""The schema of an application in PostgreSQL: its version, and its migrations.

Each migration runs in a transaction, under a lock that one process at a time holds, while processes
of the version before go on: it adds, and removes only what no running code uses. Each says by
``-- oldest: n`` which version of the schema code must know at least to work with its result; older
code refuses to start.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import psycopg

from parley.database.errors import StoreUnavailable
from parley.database.postgres.advisory_locks import advisory_lock_key
from parley.database.postgres.connection import OLDEST, Address, BoundedConnection, explain
from parley.database.sql import Migration, SqlFiles, filled

logger = logging.getLogger(__name__)

FOLDER = "postgres"
"""The folder of an application's SQL files that are for PostgreSQL."""

_SQL = SqlFiles("parley.database").queries("postgres", "schema.sql")

Step = Callable[[BoundedConnection, Address], object]
"""What a migration does besides its SQL, in the same transaction."""

TIMEOUT_SECONDS = 600.0
"""The time limit of a migration."""


class Versions(NamedTuple):
    """The version found (0: none), the last one that this code knows, and the migrations to run."""

    found: int
    known: int
    missing: Sequence[Migration]


class PostgresSchema:
    """What an application keeps in a schema of PostgreSQL.

    Its migrations are those of ``files``, in which ``{schema}`` is the schema of the address.
    ``steps`` are what versions do besides their SQL.
    """

    def __init__(self, files: SqlFiles, steps: Mapping[int, Step] | None = None) -> None:
        self._files = files
        self._steps = steps or {}

    def inspect(self, address: Address) -> Versions:
        """Return the versions of the schema. Raises ``StoreUnavailable``."""
        connection = BoundedConnection(address, timeout=15.0)
        try:
            return self._inspect(connection, address)
        except psycopg.Error as error:
            raise explain(error, address) from None
        finally:
            connection.disconnect()

    def migrate(self, address: Address) -> list[Migration]:
        """Bring the schema up to date; return the migrations that ran.

        Raises ``StoreUnavailable``.
        """
        connection = BoundedConnection(address, timeout=TIMEOUT_SECONDS)
        try:
            versions = self._inspect(connection, address)
            if versions.found and not versions.missing:
                return []
            return self._migrate(connection, address)
        except psycopg.Error as error:
            raise explain(error, address) from None
        finally:
            connection.disconnect()

    def _inspect(self, connection: BoundedConnection, address: Address) -> Versions:
        sql = filled(_SQL, {"schema": address.schema})
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
        sql = filled(_SQL, {"schema": address.schema})
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


def _oldest(sql: str) -> int:
    found = re.match(r"-- oldest: (\d+)\n", sql)
    assert found is not None, "a migration says which version of the schema code must know"
    return int(found[1])
