"""The schema of a task store in PostgreSQL.

The second and the ninth migration are the exceptions to the rule that code of the version before
still works (decision 0004).
"""

from __future__ import annotations

from functools import partial
from itertools import chain, islice

from parley.database.postgres.connection import Address, BoundedConnection, blobs, flags, ints
from parley.database.postgres.database import PostgresSchema
from parley.database.sql import filled
from parley.store.audit.reading import DECISION, TOOL_CALL
from parley.store.protocols.tables import HISTORY_KEPT
from parley.store.sql import FILES, queries
from parley.store.sql.backfill import (
    BACKFILLED_OWNERS,
    SMALL_TABLES,
    is_of_application,
    small_rows,
    task_of_before,
)

BACKFILLED_TASKS, BACKFILLED_BYTES = 500, 8 << 20
"""The amount that one statement converts to the stored form."""

BACKFILLED_ROWS = 5000
"""The number of rows of a small table that are moved together."""

_FILL = queries("postgres", "backfill.sql")
_CURSOR = queries("postgres", "cursor.sql")


def sql_for(address: Address, sql: dict[str, str]) -> dict[str, str]:
    """Return statements for the schema of an address."""
    return filled(sql, {"schema": address.schema, "kept": HISTORY_KEPT})


def audit_sql(address: Address) -> dict[str, str]:
    """Return the statements of the audit for the schema of an address."""
    facts = " OR ".join(
        f"substring(l.payload from 1 for {len(each)}) = '{each}'::bytea"
        for each in (DECISION, TOOL_CALL)
    )
    ids = queries("postgres", "rows.sql")["listed"]
    words = {"schema": f"{address.schema}.", "?": "%s", "ids": ids, "facts": facts}
    return filled(queries("shared", "audit.sql", "import.sql"), words)


def _store_tasks(connection: BoundedConnection, address: Address) -> None:
    """Convert every task to the stored form, from its snapshot and its log.

    Part of a transaction. Memory is bounded by the largest tasks. Raises ``psycopg.Error``.
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
    """Assign the objects of applications to separate owners, within a transaction.

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


def _move_small_tables(connection: BoundedConnection, address: Address) -> None:
    """Move the small tables into rows, within a transaction. Raises ``psycopg.Error``."""
    fill = sql_for(address, _FILL)
    for table in SMALL_TABLES:
        words = {"name": table, "query": fill[f"small_{table}"], "count": BACKFILLED_ROWS}
        cursor = filled(_CURSOR, words)
        connection.execute(cursor["declare"])
        pages = iter(partial(connection.rows, cursor["fetch"]), [])
        rows = small_rows(table, chain.from_iterable(pages))
        while page := [*islice(rows, BACKFILLED_ROWS)]:
            connection.execute(fill["add_rows"], [[*column] for column in zip(*page, strict=True)])
        connection.execute(cursor["close"])
        connection.execute(fill[f"drop_{table}"])


# Version 2 introduced the stored form of tasks; 8 separated applications from users with the same
# ids; 9 moved small tables into rows.
SCHEMA = PostgresSchema(FILES, {2: _store_tasks, 8: _own_applications, 9: _move_small_tables})
