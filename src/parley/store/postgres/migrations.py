"""The schema of a PostgreSQL store: its version, and its migrations.

Each migration runs in a transaction, under a lock that one process at a time holds, while replicas
of the version before go on: it adds, and removes only what no running code uses. The second is the
exception (decision 0004). Each says by ``-- oldest: n`` which version of the schema code must know
at least to work with its result; older code refuses to start.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import psycopg

from parley.store.postgres.backfill import FILL, STORED_TASKS, store_tasks
from parley.store.postgres.connection import OLDEST, Address, BoundedConnection, explain
from parley.store.protocols.contexts import HISTORY_KEPT
from parley.store.protocols.errors import StoreUnavailable
from parley.store.sql import Migration, filled, migrations, queries

logger = logging.getLogger(__name__)

_SQL = queries("postgres", "schema.sql")

TIMEOUT_SECONDS = 600.0
"""The time limit of a migration."""


class Versions(NamedTuple):
    """The version found (0: none), the last one that this code knows, and the migrations to run."""

    found: int
    known: int
    missing: Sequence[Migration]


def sql_for(address: Address, sql: dict[str, str]) -> dict[str, str]:
    """Return statements for the schema of an address."""
    return filled(sql, {"schema": address.schema, "kept": HISTORY_KEPT})


def advisory_lock_key(address: Address, purpose: str) -> int:
    """Return the key of an advisory lock that all users of the schema share."""
    name = f"parley {purpose} {address.schema}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big", signed=True)


def inspect(address: Address) -> Versions:
    """Return the versions of the schema. Raises ``StoreUnavailable``."""
    connection = BoundedConnection(address, timeout=15.0)
    try:
        return _inspect(connection, address)
    except psycopg.Error as error:
        raise explain(error, address) from None
    finally:
        connection.disconnect()


def migrate(address: Address) -> list[Migration]:
    """Bring the schema up to date; return the migrations that ran. Raises ``StoreUnavailable``."""
    connection = BoundedConnection(address, timeout=TIMEOUT_SECONDS)
    try:
        versions = _inspect(connection, address)
        if versions.found and not versions.missing:
            return []
        return _migrate(connection, address)
    except psycopg.Error as error:
        raise explain(error, address) from None
    finally:
        connection.disconnect()


def _inspect(connection: BoundedConnection, address: Address) -> Versions:
    sql = sql_for(address, _SQL)
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
    known = migrations("postgres")
    [(exists,)] = connection.rows(sql["has_versions"])
    if not exists:
        return Versions(0, known[-1].version, known)
    rows = connection.rows(sql["versions"])
    found = max([version for version, _ in rows], default=0)
    oldest = max([oldest for _, oldest in rows], default=0)
    if oldest > known[-1].version:
        raise StoreUnavailable(
            f"{address.name} has schema version {found}, written by a later version of Parley; "
            f"this one knows up to {known[-1].version}: upgrade it, or name another database"
        )
    applied = {version for version, _ in rows}
    missing = [migration for migration in known if migration.version not in applied]
    return Versions(found, known[-1].version, missing)


def _migrate(connection: BoundedConnection, address: Address) -> list[Migration]:
    sql = sql_for(address, _SQL)
    done: list[Migration] = []
    while True:
        connection.execute("BEGIN")
        try:
            connection.execute(sql["lock_migrations"], (advisory_lock_key(address, "migrations"),))
            [(exists,)] = connection.rows(sql["has_schema"])
            if not exists:
                connection.execute(sql["create_schema"])
            connection.execute(sql["create_versions"])
            missing = _inspect(connection, address).missing
            if missing:
                version, name, script = missing[0]
                logger.info(
                    "%s: bringing the schema to version %d (%s)", address.name, version, name
                )
                connection.execute_script(script.replace("{schema}", address.schema))
                if version == STORED_TASKS:
                    store_tasks(connection, sql_for(address, FILL))
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
