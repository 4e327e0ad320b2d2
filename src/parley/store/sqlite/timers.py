"""Operations on timers, events and secrets of a SQLite store: each adds a change to a batch."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from parley.store.head import with_event, with_wake
from parley.store.protocols.timers import EventCompleted
from parley.store.sqlite.batch import SqliteBatch, read_heads
from parley.store.sqlite.file import SQL


def wake(batch: SqliteBatch, tasks: Mapping[str, int], now: int) -> tuple[int, Sequence[Any]]:
    """Wake sleeping tasks that are due, each with its queue key. The result is how many."""
    count = 0
    [(found,)] = batch.read("heads", (msgspec.json.encode(list(tasks)).decode(),))
    for found_head in read_heads(found):
        head = batch.current_head(found_head)
        if head.wakes_at is not None and head.wakes_at <= now:
            batch.put_head(with_wake(head, tasks[head.task_id]))
            count += 1
    return count, ()


def complete_event(
    batch: SqliteBatch, agent: str, key: str, value: bytes
) -> tuple[bool, Sequence[Any]]:
    """Complete an event, and make the tasks that wait for it due. The result is whether it was
    not complete before.
    """
    known = batch.event(agent, key)
    if known is not None:
        if known != value:
            raise EventCompleted(agent, key)
        return False, ()
    batch.complete_event(agent, key, value)
    for head in batch.waiting_for(agent, key):
        if head.wakes_at is not None:
            batch.put_head(with_event(head))
    return True, ()


def secret(batch: SqliteBatch, name: str, fresh: bytes) -> tuple[bytes, Sequence[Any]]:
    """Return the secret of a name; ``fresh`` if there is none."""
    return batch.secret(name, fresh), ()


def complete_in(
    connection: sqlite3.Connection, agent: str, key: str, value: bytes, now: int
) -> bool:
    """Complete an event in a file that no other process has open.

    Raises ``EventCompleted``, ``sqlite3.Error``.
    """
    found = connection.execute(SQL["event"], (agent, key)).fetchone()
    if found is not None:
        if bytes(found[0]) != value:
            raise EventCompleted(agent, key)
        return False
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(SQL["complete_event"], (agent, key, now, value))
    connection.execute(SQL["wake_for_event"], (agent, key))
    connection.execute("COMMIT")
    return True
