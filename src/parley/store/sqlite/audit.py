"""The audit of a SQLite store: operations that add to a batch, and those on a file of our own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from parley.store.audit.chain import checkpoint, line_of, lines_after, prune_values, row_of
from parley.store.protocols.audit import AuditEntry, AuditLine, AuditPrune
from parley.store.sqlite.batch import SqliteBatch
from parley.store.sqlite.file import SQL

Head = tuple[int, str] | None


def append(
    batch: SqliteBatch, entries: Sequence[AuditEntry]
) -> tuple[list[AuditLine], Sequence[Any]]:
    """Append entries to the audit. The result is their lines."""
    known = {id for (id,) in batch.read("audit_ids", (_ids(entries),))}
    new = [entry for entry in entries if entry.id not in known]
    return batch.add_audit(new), ()


def prune(batch: SqliteBatch, prune: AuditPrune) -> tuple[int, Sequence[Any]]:
    """Remove old lines. The result is how many."""
    found = batch.read("audit_prunable", prune_values(prune))
    if not found or batch.has_audit_prune:
        return 0, ()
    *row, count = found[0]
    last = line_of(row)
    batch.has_audit_prune = True
    batch.add_audit([checkpoint(prune, last, count)])
    batch.add("allow_audit_prune", (last.seq + 1,))
    batch.add("prune_audit", (last.seq + 1,))
    return count, ()


def claim_cursor(
    batch: SqliteBatch, destination: str, holder: str, until: int
) -> tuple[int | None, Sequence[Any]]:
    """Claim the cursor of a destination. The result is where it stands."""
    rows = batch.read("audit_cursor", (destination,))
    seq, held_by, held_until = rows[0] if rows else (0, "", 0)
    if held_by != holder and held_until > batch.at:
        return None, ()
    batch.add("put_audit_cursor", (destination, seq, holder, until))
    return seq, ()


def save_cursor(
    batch: SqliteBatch, destination: str, holder: str, seq: int, until: int
) -> tuple[bool, Sequence[Any]]:
    """Move a cursor that is still claimed. The result is whether it was."""
    rows = batch.read("audit_cursor", (destination,))
    if not rows or rows[0][1] != holder:
        return False, ()
    batch.add("put_audit_cursor", (destination, seq, holder, until))
    return True, ()


def append_in(
    connection: sqlite3.Connection, entries: Sequence[AuditEntry], now: int
) -> list[AuditLine]:
    """Append entries to a file that no other process has open. Raises ``sqlite3.Error``."""
    connection.execute("BEGIN IMMEDIATE")
    known = {id for (id,) in connection.execute(SQL["audit_ids"], (_ids(entries),))}
    lines = lines_after(head_in(connection), [e for e in entries if e.id not in known], now)
    connection.executemany(SQL["add_audit"], [row_of(line) for line in lines])
    connection.execute("COMMIT")
    return lines


def prune_in(connection: sqlite3.Connection, prune: AuditPrune, now: int) -> int:
    """Remove old lines from such a file; return how many. Raises ``sqlite3.Error``."""
    connection.execute("BEGIN IMMEDIATE")
    found = connection.execute(SQL["audit_prunable"], prune_values(prune)).fetchone()
    count = 0
    if found is not None:
        *row, count = found
        last = line_of(row)
        [line] = lines_after(head_in(connection), [checkpoint(prune, last, count)], now)
        connection.execute(SQL["add_audit"], row_of(line))
        connection.execute(SQL["allow_audit_prune"], (last.seq + 1,))
        connection.execute(SQL["prune_audit"], (last.seq + 1,))
    connection.execute("COMMIT")
    return count


def head_in(connection: sqlite3.Connection) -> Head:
    """Return the number and the hash of the last line."""
    found: Head = connection.execute(SQL["audit_head"]).fetchone()
    return found


def _ids(entries: Sequence[AuditEntry]) -> str:
    return msgspec.json.encode([entry.id for entry in entries]).decode()
