"""The small tables of a PostgreSQL store: timers, secrets, API keys, usage, the audit.

The writer of a replica changes them outside of its groups; operators change them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
from msgspec.structs import asdict

from parley.database.postgres.connection import texts
from parley.security.api_keys import ApiKeyRecord
from parley.security.limits.usage import QuotaAsk, QuotaGrant, UsageRow, usage_key
from parley.store.audit.trail import (
    AuditEntry,
    AuditLine,
    AuditPrune,
    checkpoint,
    line_columns,
    line_of,
    lines_after,
    prune_values,
)
from parley.store.postgres.writer import PostgresBatchWriter
from parley.store.protocols.tables import ENDED_KEPT, MAX_API_KEYS, TooManyApiKeys
from parley.store.tables import api_key_columns, api_key_from_row, check_same_api_key

Completed = tuple[bool, bytes | None]
"""Whether a call completed an event, and the value that it had before."""


class PostgresTables:
    """The small tables, by the statements ``sql``, within a transaction.

    ``run`` executes a statement.
    """

    def __init__(
        self, run: Callable[[str, Any], psycopg.Cursor[tuple[Any, ...]]], sql: Mapping[str, str]
    ) -> None:
        self._run = run
        self._sql = sql

    def secret(self, name: str, fresh: bytes) -> bytes:
        """Return the secret of a name; make it of ``fresh`` if there is none."""
        self._execute("add_secret", (name, fresh))
        [(value,)] = self._rows("secret", (name,))
        return bytes(value)

    def add_api_key(self, record: ApiKeyRecord, now: int) -> ApiKeyRecord | None:
        """Add a key; return the key that the store has under its id then (see ``check_added``).

        ``None`` if no more fit.
        """
        self._execute("lock_api_keys")
        self._execute("remove_ended_api_keys", {"before": now - ENDED_KEPT})
        self._execute("add_api_key", api_key_columns(record) | {"limit": MAX_API_KEYS})
        rows = self._rows("api_key", (record.id,))
        return api_key_from_row(rows[0]) if rows else None

    def end_api_key(
        self, id: str, expires_at: int | None, revoked_at: int | None
    ) -> ApiKeyRecord | None:
        """Have a key end earlier, and return it."""
        values = {"id": id, "expires_at": expires_at, "revoked_at": revoked_at}
        rows = self._rows("end_api_key", values)
        return api_key_from_row(rows[0]) if rows else None

    def append_audit(self, entries: Sequence[AuditEntry], now: int) -> list[AuditLine]:
        """Append entries; return their lines, also of entries that were appended before."""
        self._execute("lock_audit")
        ids = [entry.id for entry in entries]
        known = {line_of(row).id for row in self._rows("audit_lines_by_id", (ids,))}
        self._add_audit([entry for entry in entries if entry.id not in known], now)
        return [line_of(row) for row in self._rows("audit_lines_by_id", (ids,))]

    def prune_audit(self, prune: AuditPrune, now: int) -> int:
        """Remove old lines; return how many."""
        self._execute("lock_audit")
        found = self._rows("audit_prunable", prune_values(prune))
        if not found:
            return 0
        *row, count = found[0]
        last = line_of(row)
        self._add_audit([checkpoint(prune, last, count)], now)
        self._execute("allow_audit_prune", (last.seq + 1,))
        self._execute("prune_audit", (last.seq + 1,))
        removed: int = count
        return removed

    def _add_audit(self, entries: Sequence[AuditEntry], now: int) -> None:
        head = self._execute("audit_head").fetchone()
        for line in lines_after(None if head is None else (head[0], head[1]), entries, now):
            self._execute("add_audit", line_columns(line))

    def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        """Take from amounts, each under its lock; locks are taken in the order of the keys."""
        grants: dict[int, QuotaGrant] = {}
        for index, ask in sorted(enumerate(asks), key=lambda each: each[1].key):
            values = {**asdict(ask), "name": ask.key}
            del values["key"]
            self._execute("lock_quota", {"name": ask.key})
            [(given, before, first)] = self._rows("take_quota", values)
            grants[index] = QuotaGrant(given, before + given, first)
        return [grants[index] for index in range(len(asks))]

    def add_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add to the usage; rows are locked in the order of their keys."""
        for row in sorted(rows, key=usage_key):
            self._execute("add_usage", asdict(row))

    def _execute(self, name: str, values: Any = None) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._run(self._sql[name], values)

    def _rows(self, name: str, values: Any = None) -> list[tuple[Any, ...]]:
        return self._execute(name, values).fetchall()


def check_added(found: ApiKeyRecord | None, record: ApiKeyRecord) -> None:
    """Raise ``TooManyApiKeys`` or ``DuplicateApiKey`` if a key was not added."""
    if found is None:
        raise TooManyApiKeys
    check_same_api_key(found, record)


def complete_event(writer: PostgresBatchWriter, values: Mapping[str, Any]) -> Completed:
    """Complete an event, and make the tasks that wait for it due.

    The statement that locks the event comes before the statement that looks for the tasks.
    """
    with writer.transaction() as connection:
        connection.execute(writer.sql["lock_events"], (values["agent"], texts([values["name"]])))
        [(found,)] = writer.fenced_rows("complete_event", values)
    return found is None, found


def recover_completion(
    writer: PostgresBatchWriter, noted: Sequence[int], values: Mapping[str, Any]
) -> Completed:
    """Return the result of ``complete_event``, when its answer was lost."""
    if noted:
        return True, None
    rows = writer.connection.rows(writer.sql["event"], (values["agent"], values["name"]))
    return False, rows[0][0] if rows else None
