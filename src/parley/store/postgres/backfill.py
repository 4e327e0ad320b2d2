"""What migrations of the PostgreSQL store do besides their SQL."""

from __future__ import annotations

from collections.abc import Mapping

from parley.database.postgres.connection import BoundedConnection, blobs, flags, ints
from parley.store.application_owners import APPLICATIONS_AT_ONCE, is_of_application
from parley.store.snapshot import task_of_before
from parley.store.sql import queries

STORED_TASKS = 2
"""The version of the schema that introduced the stored form of tasks."""

APPLICATION_OWNERS = 8
"""The version of the schema that tells applications from users with the same ids."""

TASKS_AT_ONCE, BYTES_AT_ONCE = 500, 8 << 20

FILL = queries("postgres", "backfill.sql")


def store_tasks(connection: BoundedConnection, sql: Mapping[str, str]) -> None:
    """Put every task into the stored form, from its snapshot and its log.

    It is part of a transaction. Memory is bounded by the largest tasks. Raises ``psycopg.Error``.
    """
    values = {"key": -(2**63), "limit": TASKS_AT_ONCE, "bytes": BYTES_AT_ONCE}
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


def own_applications(connection: BoundedConnection, sql: Mapping[str, str]) -> None:
    """Give what applications made owners of their own, within a transaction.

    Raises ``psycopg.Error``.
    """
    values = {"key": -(2**63), "limit": APPLICATIONS_AT_ONCE}
    while rows := connection.rows(sql["owned_tasks"], values):
        found = [key for key, owner, turn in rows if is_of_application(owner, turn)]
        if found:
            connection.execute(sql["own_task"], (ints(found),))
        values["key"] = rows[-1][0]
    for name in ("own_receipts", "own_contexts", "forget_counts", "count_again"):
        connection.execute(sql[name])
