"""Operations on the API keys of a SQLite store: each adds a change to a batch."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from parley.security.api_keys import ApiKeyRecord
from parley.store.api_keys import check_same, ended, record_of, row_of
from parley.store.protocols.api_keys import ENDED_KEPT, MAX_API_KEYS, TooManyApiKeys
from parley.store.sqlite.batch import SqliteBatch
from parley.store.sqlite.file import SQL


def add(batch: SqliteBatch, record: ApiKeyRecord) -> tuple[None, Sequence[Any]]:
    """Add a key. Raises ``TooManyApiKeys``, ``DuplicateApiKey``."""
    found = batch.api_key(record.id)
    if found is not None:
        check_same(found, record)
    else:
        batch.add_api_key(record)
    return None, ()


def end(
    batch: SqliteBatch, id: str, expires_at: int | None, revoked_at: int | None
) -> tuple[ApiKeyRecord | None, Sequence[Any]]:
    """Have a key end earlier. The result is the key."""
    found = batch.api_key(id)
    if found is not None:
        found = ended(found, expires_at, revoked_at)
        batch.end_api_key(found)
    return found, ()


def add_in(connection: sqlite3.Connection, record: ApiKeyRecord, now: int) -> None:
    """Add a key to a file that no other process has open.

    Raises ``TooManyApiKeys``, ``DuplicateApiKey``, ``sqlite3.Error``.
    """
    connection.execute("BEGIN IMMEDIATE")
    found = connection.execute(SQL["api_key"], (record.id,)).fetchone()
    if found is not None:
        check_same(record_of(found), record)
    else:
        before = {"before": now - ENDED_KEPT}
        connection.execute(SQL["remove_ended_api_keys"], before)
        if connection.execute(SQL["count_api_keys"], before).fetchone()[0] >= MAX_API_KEYS:
            raise TooManyApiKeys
        connection.execute(SQL["add_api_key"], row_of(record))
    connection.execute("COMMIT")


def end_in(
    connection: sqlite3.Connection, id: str, expires_at: int | None, revoked_at: int | None
) -> ApiKeyRecord | None:
    """Have a key of such a file end earlier, and return it. Raises ``sqlite3.Error``."""
    connection.execute("BEGIN IMMEDIATE")
    row = connection.execute(SQL["api_key"], (id,)).fetchone()
    found = None
    if row is not None:
        found = ended(record_of(row), expires_at, revoked_at)
        connection.execute(SQL["end_api_key"], row_of(found))
    connection.execute("COMMIT")
    return found


def secret_in(connection: sqlite3.Connection, name: str, fresh: bytes) -> bytes:
    """Return the secret of a name in such a file; ``fresh`` if there is none."""
    connection.execute("BEGIN IMMEDIATE")
    row = connection.execute(SQL["secret"], (name,)).fetchone()
    if row is None:
        connection.execute(SQL["add_secret"], (name, fresh))
    connection.execute("COMMIT")
    return fresh if row is None else bytes(row[0])
