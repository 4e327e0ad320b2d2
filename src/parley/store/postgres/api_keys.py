"""API keys in PostgreSQL: statements on one connection, of the writer or of an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from parley.security.api_keys import ApiKeyRecord
from parley.store.api_keys import check_same, record_of, row_of
from parley.store.postgres.writer import PostgresBatchWriter
from parley.store.protocols.api_keys import ENDED_KEPT, MAX_API_KEYS, TooManyApiKeys

Execute = Callable[[str, Any], psycopg.Cursor[tuple[Any, ...]]]
"""Executes a statement."""


def add(
    execute: Execute, sql: Mapping[str, str], record: ApiKeyRecord, now: int
) -> ApiKeyRecord | None:
    """Add a key within a transaction; return what the store has under its id then.

    ``None`` if no more fit.
    """
    execute(sql["lock_api_keys"], None)
    execute(sql["remove_ended_api_keys"], {"before": now - ENDED_KEPT})
    execute(sql["add_api_key"], row_of(record) | {"limit": MAX_API_KEYS})
    rows = execute(sql["api_key"], (record.id,)).fetchall()
    return record_of(rows[0]) if rows else None


def check_added(found: ApiKeyRecord | None, record: ApiKeyRecord) -> None:
    """Raise ``TooManyApiKeys`` or ``DuplicateApiKey`` if ``add`` did not add a key."""
    if found is None:
        raise TooManyApiKeys
    check_same(found, record)


def end(
    execute: Execute,
    sql: Mapping[str, str],
    id: str,
    expires_at: int | None,
    revoked_at: int | None,
) -> ApiKeyRecord | None:
    """Have a key end earlier, and return it."""
    values = {"id": id, "expires_at": expires_at, "revoked_at": revoked_at}
    rows = execute(sql["end_api_key"], values).fetchall()
    return record_of(rows[0]) if rows else None


def add_by(writer: PostgresBatchWriter, record: ApiKeyRecord, now: int) -> ApiKeyRecord | None:
    """Add a key, in a transaction of the writer's."""
    connection = writer.connection
    connection.execute("BEGIN")
    try:
        connection.execute(writer.sql["limit_locks"], ("5s",))
        found = add(connection.execute, writer.sql, record, now)
        connection.execute("COMMIT")
    except BaseException:
        connection.roll_back()
        raise
    return found


def end_by(
    writer: PostgresBatchWriter, id: str, expires_at: int | None, revoked_at: int | None
) -> ApiKeyRecord | None:
    """Have a key end earlier, by the writer."""
    return end(writer.connection.execute, writer.sql, id, expires_at, revoked_at)
