"""The schema of a task store in PostgreSQL.

The second migration is the exception to the rule that code of the version before goes on working
(decision 0004).
"""

from __future__ import annotations

from parley.database.postgres.connection import Address, BoundedConnection
from parley.database.postgres.migrations import PostgresSchema
from parley.database.sql import filled
from parley.store.postgres.backfill import (
    APPLICATION_OWNERS,
    FILL,
    STORED_TASKS,
    own_applications,
    store_tasks,
)
from parley.store.protocols.contexts import HISTORY_KEPT
from parley.store.sql import FILES


def sql_for(address: Address, sql: dict[str, str]) -> dict[str, str]:
    """Return statements for the schema of an address."""
    return filled(sql, {"schema": address.schema, "kept": HISTORY_KEPT})


def _store_tasks(connection: BoundedConnection, address: Address) -> None:
    store_tasks(connection, sql_for(address, FILL))


def _own_applications(connection: BoundedConnection, address: Address) -> None:
    own_applications(connection, sql_for(address, FILL))


SCHEMA = PostgresSchema(FILES, {STORED_TASKS: _store_tasks, APPLICATION_OWNERS: _own_applications})
