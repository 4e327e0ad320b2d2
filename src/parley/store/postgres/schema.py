"""The schema of a task store in PostgreSQL.

The second migration is the exception to the rule that code of the version before still works
(decision 0004).
"""

from __future__ import annotations

from parley.database.postgres.connection import Address, BoundedConnection, blobs, flags, ints
from parley.database.postgres.database import PostgresSchema
from parley.database.sql import filled
from parley.store.protocols.tables import HISTORY_KEPT
from parley.store.sql import FILES, queries
from parley.store.sql.backfill import BACKFILLED_OWNERS, is_of_application, task_of_before

BACKFILLED_TASKS, BACKFILLED_BYTES = 500, 8 << 20
"""How much one statement puts into the stored form."""

_FILL = queries("postgres", "backfill.sql")


def sql_for(address: Address, sql: dict[str, str]) -> dict[str, str]:
    """Return statements for the schema of an address."""
    return filled(sql, {"schema": address.schema, "kept": HISTORY_KEPT})


def _store_tasks(connection: BoundedConnection, address: Address) -> None:
    """Put every task into the stored form, from its snapshot and its log.

    It is part of a transaction. Memory is bounded by the largest tasks. Raises ``psycopg.Error``.
    """
    sql = sql_for(address, _FILL)
    values = {"key": -(2**63), "limit": BACKFILLED_TASKS, "bytes": BACKFILLED_BYTES}
    while rows := connection.rows(sql["tasks_before"], values):
        forms = [(key, seq, task_of_before(task_id, *rest)) for key, task_id, seq, *rest in rows]
        messages = [row for key, _, form in forms for row in form.message_rows(key)]
        if messages:
            task, n, body = zip(*messages, strict=True)
            connection.execute(sql["add_messages"], (ints(task), ints(n), blobs(body)))
        artifacts = [row for key, seq, form in forms for row in form.artifact_rows(key, seq)]
        if artifacts:
            task, n, at, head, parts = zip(*artifacts, strict=True)
            pieces = (ints(task), ints(n), ints(at), blobs(head), blobs(parts))
            connection.execute(sql["add_artifacts"], pieces)
        connection.execute(
            sql["set_stored"],
            (
                ints([key for key, _, _ in forms]),
                ints([len(form.messages) for _, _, form in forms]),
                flags([form.has_status_message for _, _, form in forms]),
                ints([seq for _, seq, _ in forms]),
            ),
        )
        values["key"] = rows[-1][0]
    connection.execute(sql["drop_snapshots"])


def _own_applications(connection: BoundedConnection, address: Address) -> None:
    """Give what applications made owners of their own, within a transaction.

    Raises ``psycopg.Error``.
    """
    sql = sql_for(address, _FILL)
    values = {"key": -(2**63), "limit": BACKFILLED_OWNERS}
    while rows := connection.rows(sql["owned_tasks"], values):
        found = [key for key, owner, turn in rows if is_of_application(owner, turn)]
        if found:
            connection.execute(sql["own_task"], (ints(found),))
        values["key"] = rows[-1][0]
    for name in ("own_receipts", "own_contexts", "forget_counts", "count_again"):
        connection.execute(sql[name])


# Version 2 introduced the stored form of tasks; 8 told applications from users with the same ids.
SCHEMA = PostgresSchema(FILES, {2: _store_tasks, 8: _own_applications})
