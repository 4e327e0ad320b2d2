"""Timers, events and secrets in PostgreSQL: operations of the writer, outside of its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parley.database.postgres.connection import ints, texts
from parley.store.postgres.writer import PostgresBatchWriter

Completed = tuple[bool, bytes | None]
"""Whether a call completed an event, and the value that it had before."""


def wake(writer: PostgresBatchWriter, tasks: Mapping[str, int], now: int) -> int:
    """Wake sleeping tasks that are due, each with its queue key; return how many."""
    values = {"task_ids": texts(list(tasks)), "places": ints(list(tasks.values())), "now": now}
    [(count,)] = writer.connection.rows(writer.sql["wake"], values)
    woken: int = count
    return woken


def complete_event(writer: PostgresBatchWriter, values: Mapping[str, Any]) -> Completed:
    """Complete an event, and make the tasks that wait for it due.

    It is a transaction: what locks the event comes before what looks for the tasks.
    """
    connection = writer.connection
    connection.execute("BEGIN")
    try:
        connection.execute(writer.sql["limit_locks"], ("5s",))
        connection.execute(writer.sql["lock_events"], (values["agent"], texts([values["name"]])))
        [(found,)] = writer.fenced_rows("complete_event", values)
        connection.execute("COMMIT")
    except BaseException:
        connection.roll_back()
        raise
    return found is None, found


def recover_completion(
    writer: PostgresBatchWriter, noted: Sequence[int], values: Mapping[str, Any]
) -> Completed:
    """Return the result of ``complete_event``, when its answer was lost."""
    if noted:
        return True, None
    rows = writer.connection.rows(writer.sql["event"], (values["agent"], values["name"]))
    return False, rows[0][0] if rows else None


def secret(writer: PostgresBatchWriter, name: str, fresh: bytes) -> bytes:
    """Return the secret of a name; make it of ``fresh`` if there is none."""
    writer.connection.execute(writer.sql["add_secret"], (name, fresh))
    [(value,)] = writer.connection.rows(writer.sql["secret"], (name,))
    return bytes(value)
