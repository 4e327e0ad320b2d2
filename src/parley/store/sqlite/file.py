"""The file of a task store: its SQL, and the Python functions of its migrations."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from parley.database.sql import filled
from parley.database.sqlite.file import SqliteFile, SqliteSchema, Synchronous
from parley.store.audit.reading import DECISION, TOOL_CALL
from parley.store.sql import FILES, queries
from parley.store.sql.backfill import (
    BACKFILLED_OWNERS,
    SMALL_TABLES,
    is_of_application,
    small_rows,
    task_of_before,
)

APPLICATION_ID = 0x5041524C  # "PARL": a file of Parley's

AUDIT_SQL = filled(
    queries("shared", "audit.sql", "import.sql"),
    {
        "schema": "",
        "?": "?",
        "ids": queries("sqlite", "rows.sql")["listed"],
        "facts": " OR ".join(
            f"CAST(substr(l.payload, 1, {len(each)}) AS TEXT) = '{each}'"
            for each in (DECISION, TOOL_CALL)
        ),
    },
)
SQL = AUDIT_SQL | queries("sqlite", "queries.sql", "prune.sql", "timers.sql", "rows.sql")
ADMIN_SQL = filled(
    queries("shared", "admin.sql"), {"schema": "", "waiting": "waiting", "c": "", "?": "?"}
)
"""Queries over a whole store, for its administration."""

BACKFILLED_TASKS = 100
"""The number of tasks that one query finds for conversion to the stored form."""

_FILL = queries("sqlite", "backfill.sql")


def _store_tasks(connection: sqlite3.Connection) -> None:
    """Convert every task to the stored form, from its snapshot and its log.

    Part of a transaction. Memory is bounded by the largest tasks. Raises ``sqlite3.Error``.
    """
    key = 0
    while rows := connection.execute(_FILL["tasks_before"], (key, BACKFILLED_TASKS)).fetchall():
        for key, task_id, seq in [row[:3] for row in rows]:
            snapshot = connection.execute(_FILL["task_before"], (key,)).fetchone()
            form = task_of_before(task_id, *snapshot)
            connection.executemany(_FILL["add_message"], form.message_rows(key))
            connection.executemany(_FILL["add_artifact"], form.artifact_rows(key, seq))
            connection.execute(
                _FILL["set_stored"], (len(form.messages), form.has_status_message, seq, key)
            )
    connection.execute(_FILL["drop_snapshots"])


def _own_applications(connection: sqlite3.Connection) -> None:
    """Assign the objects of applications to separate owners, within a transaction.

    Raises ``sqlite3.Error``.
    """
    key = 0
    while rows := connection.execute(_FILL["owned_tasks"], (key, BACKFILLED_OWNERS)).fetchall():
        found = [(each[0],) for each in rows if is_of_application(*each[1:])]
        connection.executemany(_FILL["own_task"], found)
        key = rows[-1][0]
    for name in ("own_receipts", "own_contexts", "forget_counts", "count_again"):
        connection.execute(_FILL[name])


def _move_small_tables(connection: sqlite3.Connection) -> None:
    """Move the small tables into rows, within a transaction. Raises ``sqlite3.Error``."""
    for table in SMALL_TABLES:
        found = connection.execute(_FILL[f"small_{table}"])
        connection.executemany(_FILL["add_row"], small_rows(table, found))
        connection.execute(_FILL[f"drop_{table}"])


# Version 4 introduced the stored form of tasks; 10 separated applications from users with the same
# ids; 11 moved small tables into rows.
SCHEMA = SqliteSchema(
    APPLICATION_ID, FILES, {4: _store_tasks, 10: _own_applications, 11: _move_small_tables}
)


class TaskFile(SqliteFile):
    """The file of a task store. When it is opened, its tasks and webhooks have no lease owner.

    ``last_key`` is the highest key of a task. Raises ``StoreUnavailable``.
    """

    last_key: int

    def __init__(
        self, path: Path, synchronous: Synchronous, busy_timeout: float, readers: int
    ) -> None:
        super().__init__(
            path,
            SCHEMA,
            synchronous=synchronous,
            busy_timeout=busy_timeout,
            readers=readers,
            opened=self._release,
        )

    def _release(self, connection: sqlite3.Connection) -> None:
        connection.execute(SQL["release_tasks"])
        connection.execute(SQL["release_pushes"])
        (self.last_key,) = connection.execute(SQL["last_key"]).fetchone()
