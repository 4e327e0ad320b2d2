"""What a migration of the PostgreSQL store does besides its SQL: put tasks into the stored form."""

from __future__ import annotations

from collections.abc import Mapping

from parley.store.postgres.connection import Link, blobs, flags, ints
from parley.store.snapshot import task_of_before
from parley.store.sql import queries

STORED_TASKS = 2
"""The version of the schema that brought the stored form of tasks."""

TASKS_AT_ONCE, BYTES_AT_ONCE = 500, 8 << 20

FILL = queries("postgres", "backfill.sql")


def store_tasks(link: Link, sql: Mapping[str, str]) -> None:
    """Put every task into the stored form, out of its snapshot and its log.

    Part of a transaction. Memory is bounded by the largest tasks. Raises ``psycopg.Error``.
    """
    values = {"key": -(2**63), "limit": TASKS_AT_ONCE, "bytes": BYTES_AT_ONCE}
    while rows := link.rows(sql["tasks_before"], values):
        forms = [(key, seq, task_of_before(task_id, *kept)) for key, task_id, seq, *kept in rows]
        messages = [row for key, _, form in forms for row in form.message_rows(key)]
        if messages:
            task, n, body = zip(*messages, strict=True)
            link.execute(sql["add_messages"], (ints(task), ints(n), blobs(body)))
        artifacts = [row for key, seq, form in forms for row in form.artifact_rows(key, seq)]
        if artifacts:
            task, n, at, head, parts = zip(*artifacts, strict=True)
            pieces = (ints(task), ints(n), ints(at), blobs(head), blobs(parts))
            link.execute(sql["add_artifacts"], pieces)
        link.execute(
            sql["set_stored"],
            (
                ints([key for key, _, _ in forms]),
                ints([len(form.messages) for _, _, form in forms]),
                flags([form.has_status_message for _, _, form in forms]),
                ints([seq for _, seq, _ in forms]),
            ),
        )
        values["key"] = rows[-1][0]
    link.execute(sql["drop_snapshots"])
