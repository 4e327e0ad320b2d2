"""The audit in PostgreSQL: transactions of the writer, or of an operator, that append in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg

from parley.store.audit.chain import checkpoint, line_of, lines_after, prune_values, row_of
from parley.store.postgres.writer import PostgresBatchWriter
from parley.store.protocols.audit import AuditEntry, AuditLine, AuditPrune

T = TypeVar("T")

Execute = Callable[[str, Any], psycopg.Cursor[tuple[Any, ...]]]
"""Executes a statement."""


def append(
    execute: Execute, sql: Mapping[str, str], entries: Sequence[AuditEntry], now: int
) -> list[AuditLine]:
    """Append entries within a transaction; return their lines, of those appended before too."""
    execute(sql["lock_audit"], None)
    ids = [entry.id for entry in entries]
    known = {line.id for line in _lines(execute(sql["audit_lines_by_id"], (ids,)))}
    new = [entry for entry in entries if entry.id not in known]
    _add(execute, sql, new, now)
    return _lines(execute(sql["audit_lines_by_id"], (ids,)))


def prune(execute: Execute, sql: Mapping[str, str], prune: AuditPrune, now: int) -> int:
    """Remove old lines within a transaction; return how many."""
    execute(sql["lock_audit"], None)
    found = execute(sql["audit_prunable"], prune_values(prune)).fetchone()
    if found is None:
        return 0
    *row, count = found
    last = line_of(row)
    _add(execute, sql, [checkpoint(prune, last, count)], now)
    execute(sql["allow_audit_prune"], (last.seq + 1,))
    execute(sql["prune_audit"], (last.seq + 1,))
    removed: int = count
    return removed


def append_by(
    writer: PostgresBatchWriter, entries: Sequence[AuditEntry], now: int
) -> list[AuditLine]:
    """Append entries, in a transaction of the writer's."""
    return _in_transaction(writer, lambda execute: append(execute, writer.sql, entries, now))


def prune_by(writer: PostgresBatchWriter, given: AuditPrune, now: int) -> int:
    """Remove old lines, in a transaction of the writer's."""
    return _in_transaction(writer, lambda execute: prune(execute, writer.sql, given, now))


def cursor_by(writer: PostgresBatchWriter, name: str, values: Mapping[str, Any]) -> int | None:
    """Claim or move a cursor; return where it stands, ``None`` if another holder has it."""
    rows = writer.connection.execute(writer.sql[name], values).fetchall()
    return rows[0][0] if rows else None


def _add(execute: Execute, sql: Mapping[str, str], entries: Sequence[AuditEntry], now: int) -> None:
    head = execute(sql["audit_head"], None).fetchone()
    for line in lines_after(None if head is None else (head[0], head[1]), entries, now):
        execute(sql["add_audit"], row_of(line))


def _lines(cursor: psycopg.Cursor[tuple[Any, ...]]) -> list[AuditLine]:
    return [line_of(row) for row in cursor.fetchall()]


def _in_transaction(writer: PostgresBatchWriter, work: Callable[[Execute], T]) -> T:
    connection = writer.connection
    connection.execute("BEGIN")
    try:
        connection.execute(writer.sql["limit_locks"], ("5s",))
        result = work(connection.execute)
        connection.execute("COMMIT")
    except BaseException:
        connection.roll_back()
        raise
    return result
