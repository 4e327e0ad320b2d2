"""The file of a task store, and its SQL."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from parley.database.sql import filled
from parley.database.sqlite.file import SqliteFile, SqliteSchema, Synchronous
from parley.store.sql import FILES, queries
from parley.store.sqlite.backfill import (
    APPLICATION_OWNERS,
    STORED_TASKS,
    own_applications,
    store_tasks,
)

APPLICATION_ID = 0x5041524C  # "PARL": a file of Parley's
SCHEMA = SqliteSchema(
    APPLICATION_ID, FILES, {STORED_TASKS: store_tasks, APPLICATION_OWNERS: own_applications}
)

SQL = queries(
    "sqlite", "queries.sql", "prune.sql", "timers.sql", "api_keys.sql", "usage.sql", "audit.sql"
)
ADMIN_SQL = filled(
    queries("shared", "admin.sql"), {"schema": "", "waiting": "waiting", "c": "", "?": "?"}
)
"""Queries over a whole store, for its administration."""


class TaskFile(SqliteFile):
    """The file of a task store. When it is opened, nobody holds its tasks and webhooks.

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
