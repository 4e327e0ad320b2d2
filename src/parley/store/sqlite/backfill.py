"""What migrations of the SQLite store do besides their SQL."""

from __future__ import annotations

import sqlite3

from parley.store.application_owners import APPLICATIONS_AT_ONCE, is_of_application
from parley.store.snapshot import task_of_before
from parley.store.sql import queries

STORED_TASKS = 4
"""The version of the schema that introduced the stored form of tasks."""

APPLICATION_OWNERS = 10
"""The version of the schema that tells applications from users with the same ids."""

TASKS_AT_ONCE = 100

_SQL = queries("sqlite", "backfill.sql")


def store_tasks(connection: sqlite3.Connection) -> None:
    """Put every task into the stored form, from its snapshot and its log.

    It is part of a transaction. Memory is bounded by the largest tasks. Raises ``sqlite3.Error``.
    """
    key = 0
    while rows := connection.execute(_SQL["tasks_before"], (key, TASKS_AT_ONCE)).fetchall():
        for key, task_id, seq in [row[:3] for row in rows]:
            snapshot = connection.execute(_SQL["task_before"], (key,)).fetchone()
            form = task_of_before(task_id, *snapshot)
            connection.executemany(_SQL["add_message"], form.message_rows(key))
            connection.executemany(_SQL["add_artifact"], form.artifact_rows(key, seq))
            connection.execute(
                _SQL["set_stored"], (len(form.messages), form.has_status_message, seq, key)
            )
    connection.execute(_SQL["drop_snapshots"])


def own_applications(connection: sqlite3.Connection) -> None:
    """Give what applications made owners of their own, within a transaction.

    Raises ``sqlite3.Error``.
    """
    key = 0
    while rows := connection.execute(_SQL["owned_tasks"], (key, APPLICATIONS_AT_ONCE)).fetchall():
        found = [(each[0],) for each in rows if is_of_application(*each[1:])]
        connection.executemany(_SQL["own_task"], found)
        key = rows[-1][0]
    for name in ("own_receipts", "own_contexts", "forget_counts", "count_again"):
        connection.execute(_SQL[name])
