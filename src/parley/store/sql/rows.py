"""The rows of small tables on a SQL database, and the audit, by named statements."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import msgspec

from parley.store.audit.reading import AuditReading
from parley.store.audit.trail import (
    COLUMNS,
    AuditEntry,
    AuditFilter,
    AuditLine,
    AuditPrune,
    checkpoint,
    line_columns,
    line_of,
    lines_after,
    prune_values,
)
from parley.store.tables import PAGE, TableRows

ROWS_PER_STATEMENT = 256


class SqlRows(TableRows):
    """The rows of a database at a time (ms), by the statements ``sql``.

    A change is within the open transaction of the connection that ``run`` executes with.
    """

    def __init__(self, run: Callable[..., Any], sql: Mapping[str, str], now: int) -> None:
        self.now = now
        self._run = run
        self._sql = sql

    @abstractmethod
    def _texts(self, texts: Iterable[str]) -> Any:
        """Return texts as one parameter of a statement."""

    def execute(self, name: str, values: Any = ()) -> Any:
        """Execute a statement; return its rows."""
        return self._run(self._sql[name], values)

    def insert(self, name: str, rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Execute a single-row statement for many rows; return its result rows."""
        cursors = (self._run(*each) for each in statements_for(self._sql[name], rows))
        return [row for cursor in cursors if cursor.description for row in cursor]

    def get(self, table: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the existing rows."""
        return dict(self.execute("get_rows", (table, self._texts(keys), self.now)).fetchall())

    def scan(
        self, table: str, first: str = "", *, after: str = "", limit: int = PAGE
    ) -> Sequence[tuple[str, bytes]]:
        """Return rows from a key on, and after a key."""
        values = (table, first, after, self.now, limit)
        found: Sequence[tuple[str, bytes]] = self.execute("scan_rows", values).fetchall()
        return found


def append_audit(table: SqlRows, entries: Sequence[AuditEntry]) -> list[AuditLine]:
    """Append entries; return their lines, also of entries that were appended before."""
    table.lock("parley.audit", ("",))
    ids = msgspec.json.encode([entry.id for entry in entries]).decode()
    known = {row[1]: line_of(row) for row in table.execute("audit_lines_by_id", (ids,))}
    new = [entry for entry in entries if entry.id not in known]
    last = AuditReading(table.execute).last()
    lines = lines_after(None if last is None else (last.seq, last.hash), new, table.now)
    for line in lines:
        columns = line_columns(line)
        table.execute("add_audit", [columns[name] for name in COLUMNS])
    return sorted([*known.values(), *lines], key=lambda line: line.seq)


def prune_audit(table: SqlRows, prune: AuditPrune) -> int:
    """Remove old lines, and append a checkpoint; return the number of removed lines."""
    table.lock("parley.audit", ("",))
    found = [*table.execute("audit_prunable", prune_values(prune))]
    if not found:
        return 0
    *row, removed = found[0]
    last = line_of(row)
    append_audit(table, [checkpoint(prune, last, removed)])
    table.execute("allow_audit_prune", (last.seq + 1,))
    table.execute("prune_audit", (last.seq + 1,))
    return int(removed)


def read_audit(
    table: SqlRows, which: AuditFilter, after: int, limit: int, newest: bool
) -> list[AuditLine]:
    """Return lines after a number, in order."""
    kind, actor, agent, task = which.kind, which.actor, which.agent, which.task_id
    values = (after, *which.span, kind, kind, len(kind) + 1, f"{kind}.", actor, actor, agent, agent)
    name = "newest_audit_lines" if newest else "audit_lines"
    lines = [line_of(row) for row in table.execute(name, (*values, task, task, limit))]
    return lines[::-1] if newest else lines


def statements_for(sql: str, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield a single-row statement as few multi-row statements, each with its values."""
    done = 0
    while done < len(rows):
        count = min(ROWS_PER_STATEMENT, 1 << (len(rows) - done).bit_length() - 1)
        yield _for_rows(sql, count), list(chain.from_iterable(rows[done : done + count]))
        done += count


@cache
def _for_rows(sql: str, count: int) -> str:
    """Return a single-row statement as a statement for ``count`` rows, a power of two."""
    before, row, after = re.split(r"(?<=VALUES )(\([?%s, ]+\))", sql)
    return before + ", ".join([row] * count) + after
