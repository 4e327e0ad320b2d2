"""The schema of a PostgreSQL store: which version it has, and bringing it up to date.

Migrations run one a transaction, under a lock that one process at a time can have, while replicas
of the version before go on: a migration adds, and takes away only what no code uses that may still
run. The second is the exception (decision 0004). Each says by ``-- oldest: n`` which version of the
schema code must know at least to work with what it makes; older code refuses to start.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import psycopg

from parley.store.postgres.backfill import FILL, STORED_TASKS, store_tasks
from parley.store.postgres.connection import OLDEST, Address, Link, explain
from parley.store.sql import Migration, filled, migrations, queries
from parley.store.task_store import HISTORY_KEPT, StoreUnavailable

logger = logging.getLogger(__name__)

_SQL = queries("postgres", "schema.sql")

PATIENCE = 600.0
"""How many seconds a migration may take."""


class Versions(NamedTuple):
    """What schema there is (0: none), what this code knows, and what there is to do."""

    found: int
    known: int
    missing: Sequence[Migration]


def sql_for(address: Address, sql: dict[str, str]) -> dict[str, str]:
    """Return queries for the schema of an address."""
    return filled(sql, {"schema": address.schema, "kept": HISTORY_KEPT})


def lock_number(address: Address, what: str) -> int:
    """Return the number of a lock that users of this schema share."""
    name = f"parley {what} {address.schema}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big", signed=True)


def look(address: Address) -> Versions:
    """Return which schema there is. Raises ``StoreUnavailable``."""
    link = Link(address, patience=15.0)
    try:
        return _look(link, address)
    except psycopg.Error as error:
        raise explain(error, address) from None
    finally:
        link.drop()


def migrate(address: Address) -> list[Migration]:
    """Bring the schema up to date; return what was done. Raises ``StoreUnavailable``."""
    link = Link(address, patience=PATIENCE)
    try:
        versions = _look(link, address)
        if versions.found and not versions.missing:
            return []
        return _migrate(link, address)
    except psycopg.Error as error:
        raise explain(error, address) from None
    finally:
        link.drop()


def _look(link: Link, address: Address) -> Versions:
    sql = sql_for(address, _SQL)
    [(version, encoding)] = link.rows(sql["server"])
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
    [(is_there,)] = link.rows(sql["has_versions"])
    if not is_there:
        return Versions(0, known[-1].version, known)
    done = link.rows(sql["versions"])
    found = max([version for version, _ in done], default=0)
    oldest = max([oldest for _, oldest in done], default=0)
    if oldest > known[-1].version:
        raise StoreUnavailable(
            f"{address.name} has schema version {found}, written by a later version of Parley; "
            f"this one knows up to {known[-1].version}: upgrade it, or name another database"
        )
    have = {version for version, _ in done}
    missing = [migration for migration in known if migration.version not in have]
    return Versions(found, known[-1].version, missing)


def _migrate(link: Link, address: Address) -> list[Migration]:
    sql = sql_for(address, _SQL)
    done: list[Migration] = []
    while True:
        link.execute("BEGIN")
        try:
            link.execute(sql["lock_migrations"], (lock_number(address, "migrations"),))
            [(is_there,)] = link.rows(sql["has_schema"])
            if not is_there:
                link.execute(sql["create_schema"])
            link.execute(sql["create_versions"])
            missing = _look(link, address).missing
            if missing:
                version, name, script = missing[0]
                logger.info(
                    "%s: bringing the schema to version %d (%s)", address.name, version, name
                )
                link.execute_script(script.replace("{schema}", address.schema))
                if version == STORED_TASKS:
                    store_tasks(link, sql_for(address, FILL))
                link.execute(sql["add_version"], (version, name, _oldest(script)))
            link.execute("COMMIT")
        except psycopg.errors.DeadlockDetected:
            link.roll_back()  # a replica of the version before was quicker
            continue
        except BaseException:
            link.roll_back()
            raise
        if not missing:
            return done
        done.append(missing[0])


def _oldest(sql: str) -> int:
    found = re.match(r"-- oldest: (\d+)\n", sql)
    assert found is not None, "a migration says which version of the schema code must know"
    return int(found[1])
