"""The small tables of a PostgreSQL store: rows, timers, the audit.

A replica's writer changes them outside of its groups; operators change them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from parley.database.postgres.connection import texts
from parley.store.postgres.writer import PostgresBatchWriter
from parley.store.sql.rows import SqlRows
from parley.store.tables import EXPIRED_PER_PUT, Row

Completed = tuple[bool, bytes | None]
"""Whether a call completed an event, and the previous value of the event."""


class PostgresRows(SqlRows):
    """The rows of a PostgreSQL database."""

    def _texts(self, texts: Iterable[str]) -> list[str]:
        return [*texts]

    def lock(self, table: str, keys: Iterable[str]) -> None:
        """Keep others from locking these keys until the transaction ends."""
        self.execute("lock_rows", (table, [*keys]))

    def put(self, table: str, rows: Mapping[str, Row]) -> None:
        """Store rows, and remove as many expired ones."""
        keys, values, expiries = [*rows], [], []
        for value, expires_at in rows.values():
            values.append(value)
            expiries.append(expires_at)
        self.execute("put_rows", (table, keys, values, expiries))
        if any([each is not None for each in expiries]):
            self.execute("remove_expired_rows", (self.now, EXPIRED_PER_PUT + len(keys)))

    def remove(self, table: str, keys: Iterable[str]) -> None:
        """Remove rows, if they exist."""
        self.execute("remove_rows", (table, [*keys]))


def complete_event(writer: PostgresBatchWriter, values: Mapping[str, Any]) -> Completed:
    """Complete an event, and make the waiting tasks due.

    The statement that locks the event comes before the statement that finds the tasks.
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
