"""The small tables of a SQLite store, as part of a batch: each operation adds to it.

An operation sees the tables after the earlier operations in the batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import msgspec

from parley.store.events import Scope
from parley.store.head import Head, with_event, with_wake
from parley.store.protocols.tables import HISTORY_KEPT, EventCompleted, Receipt
from parley.store.sql.batch import Batch, head_from_row, scope_columns
from parley.store.sql.rows import SqlRows
from parley.store.sqlite.file import SQL
from parley.store.tables import EXPIRED_PER_PUT, Row

PRUNED_BYTES = 1_000_000
"""The number of bytes that one transaction removes, with 200 per row, while other writers wait. It
removes at least one record, one stored task, or one context.
"""

PRUNED_TASKS = 50
PRUNED_RECEIPTS = 500

_STEPS = (10, 100, 1000, PRUNED_BYTES // 200)
"""The numbers of records of a log that are measured first, and while there are more."""

_OF_TASKS = (
    "remove_tasks",
    "remove_messages",
    "remove_artifacts",
    "remove_pushes",
    "remove_attempts",
    "remove_waits_of",
)

_LAST_MARK = 2**31 - 1

Values = Sequence[Any] | Mapping[str, Any]


class SqliteRows(SqlRows):
    """The rows of a SQLite file."""

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        super().__init__(connection.execute, SQL, now)
        self._connection = connection

    def _texts(self, texts: Iterable[str]) -> str:
        return _json([*texts])

    def lock(self, table: str, keys: Iterable[str]) -> None:
        """Do nothing, since there is only one writer."""

    def put(self, table: str, rows: Mapping[str, Row]) -> None:
        """Store rows, and remove as many expired ones."""
        values = [(table, key, *row) for key, row in rows.items()]
        self._connection.executemany(SQL["put_row"], values)
        if any([expires_at is not None for *_, expires_at in values]):
            self.execute("remove_expired_rows", (self.now, EXPIRED_PER_PUT + len(values)))

    def remove(self, table: str, keys: Iterable[str]) -> None:
        """Remove rows, if they exist."""
        self._connection.executemany(SQL["remove_row"], [(table, key) for key in keys])


class SqliteTables(Batch):
    """The part of a batch that reads and changes the small tables."""

    def __init__(self, connection: sqlite3.Connection, **options: Any) -> None:
        super().__init__(**options)
        self.connection = connection
        self._receipts: list[tuple[Any, ...]] = []
        self._statements: list[tuple[str, Values]] = []
        self._values: dict[tuple[str, ...], bytes | None] = {}
        self._events: dict[tuple[str, str], bytes | None] = {}
        self._waits: dict[tuple[str, str], list[str]] = {}
        self._has_prune = False

    def read(self, name: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query before the batch."""
        return self.connection.execute(SQL[name], values).fetchall()

    def add(self, name: str, values: Values) -> None:
        """Add a statement, to run after the bulk writes."""
        self._statements.append((SQL[name], values))

    def rows(self) -> SqliteRows:
        """Return the rows of small tables; the batch is a transaction from now on."""
        if not self.connection.in_transaction:
            self.connection.execute("BEGIN IMMEDIATE")
        return SqliteRows(self.connection, self.at)

    # -- contexts ------------------------------------------------------------------------------

    def has_receipt(self, scope: Scope, message_id: str) -> bool:
        """Return whether the database has a receipt for a message."""
        return bool(self.read("receipt", (*scope_columns(scope), message_id)))

    def add_receipts(self, scope: Scope, receipts: Sequence[Receipt], key: int = 0) -> None:
        """Add receipts."""
        self._receipts += [
            (*scope_columns(scope), r.message_id, r.digest, r.task_id, r.turn, r.reply, self.at)
            for r in receipts
        ]

    def add_exchange(
        self, scope: Scope, context_id: str, messages: Sequence[bytes], key: int = 0
    ) -> None:
        """Add messages to a context's history."""
        if messages:
            context = (*scope_columns(scope), context_id)
            self.add("touch_context", (*context, len(messages), self.at))
            for i, message in enumerate(reversed(messages)):
                self.add("add_history", (*context, i, message))
            self.add("trim_history", (*context, HISTORY_KEPT))

    def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Set a value of a context, or remove it."""
        context = (*scope_columns(scope), context_id)
        self._values[*context, key] = value
        self.add("touch_context", (*context, 0, self.at))
        if value is None:
            self.add("remove_value", (*context, key))
        else:
            self.add("put_value", (*context, key, value))

    def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Set or remove a value of a context that has the expected value; return whether it had.

        No other writer changes the file between this check and the write.
        """
        name = (*scope_columns(scope), context_id, key)
        if name not in self._values:
            rows = self.read("value", name)
            self._values[name] = rows[0][0] if rows else None
        is_expected = self._values[name] == expected
        if is_expected:
            self.set_value(scope, context_id, key, value)
        return is_expected

    # -- timers and events ---------------------------------------------------------------------

    def wake(self, tasks: Mapping[str, int], now: int) -> int:
        """Wake due sleeping tasks, each with its queue key; return their number."""
        count = 0
        for found in read_heads(self.read("heads", (_json(list(tasks)),))):
            head = self.current_head(found)
            if head.wakes_at is not None and head.wakes_at <= now:
                self.put_head(with_wake(head, tasks[head.task_id]))
                count += 1
        return count

    def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event, and make the waiting tasks due.

        Returns ``False`` if it was complete before. Raises ``EventCompleted``.
        """
        known = self._event(agent, key)
        if known is not None:
            if known != value:
                raise EventCompleted(agent, key)
            return False
        self._events[agent, key] = value
        self.add("complete_event", (agent, key, self.at, value))
        found = read_heads(self.read("waiting_for_event", (agent, key)))
        heads = {head.task_id: self.current_head(head) for head in found}
        for task_id in self._waits.get((agent, key), ()):
            if (waiting := self.head(task_id)) is not None:
                heads[task_id] = waiting
        for head in heads.values():
            if head.wakes_at is not None:
                self.put_head(with_event(head))
        return True

    def is_complete(self, agent: str, keys: Sequence[str]) -> bool:
        """Return whether any event is complete."""
        return any([self._event(agent, key) is not None for key in keys])

    def set_waits(self, head: Head, keys: Sequence[str]) -> None:
        """Set the events that a task waits for."""
        self.add("remove_waits", (head.key,))
        for key in keys:
            self._waits.setdefault((head.scope.agent, key), []).append(head.task_id)
            self.add("add_wait", (head.scope.agent, key, head.key))

    def _event(self, agent: str, key: str) -> bytes | None:
        if (agent, key) not in self._events:
            rows = self.read("event", (agent, key))
            self._events[agent, key] = rows[0][0] if rows else None
        return self._events[agent, key]

    # -- pruning: in batches, so that the writer does other jobs in between ----------------------

    def prune(self, agent: str, before: int, limit: int) -> tuple[int, bool]:
        """Remove up to ``limit`` ended tasks. Return their number, and whether to continue.

        A log that is too large for a batch is removed slice by slice, after its task. The file's
        ``user_version`` has the task's key, so that the next process continues.
        """
        if self._has_prune:  # the batch already has a prune that is not written yet
            return 0, True
        self._has_prune = True
        [(partial,)] = self.read("partial_log")
        if partial:
            if not self._remove_slice(partial):
                self._mark_partial_log(0)
            return 0, True
        values = {"agent": agent, "before": before, "limit": min(limit, PRUNED_TASKS)}

        def size_of(key: int, *found: Any) -> int:
            form_size, log = found[-2:]
            count, size = msgspec.json.decode(log)
            for fewer, records in pairwise(_STEPS):
                if count < fewer or size > PRUNED_BYTES:
                    break
                [(count, size)] = self.read("log_size", {"task": key, "records": records})
            return int(form_size + size)

        removed = self._first_rows("ended", values | {"records": _STEPS[0]}, size_of)
        if not removed:
            return 0, False
        for _, *scope, state, _, _ in removed:
            self.count(Scope(*scope), state, -1)
        keys = _json([key for key, *_ in removed])
        for name in _OF_TASKS:
            self.add(name, (keys,))
        key = removed[0][0]
        if len(removed) > 1 or key > _LAST_MARK:
            self.add("remove_logs", (keys,))
        elif self._remove_slice(key):
            self._mark_partial_log(key)
        return len(removed), True

    def prune_more(self, agent: str, before: int, table: str) -> bool:
        """Remove old ``receipts``, or ``events`` that no task waits for.

        Returns whether there may be more.
        """
        [(exist,)] = self.read(f"old_{table}", (agent, before))
        if exist:
            values = {"agent": agent, "before": before}
            values |= {"records": PRUNED_RECEIPTS, "bytes": PRUNED_BYTES}
            self.add(f"remove_{table}", values)
        return bool(exist)

    def prune_contexts(self, agent: str, before: int) -> bool:
        """Remove idle contexts. Return whether there may be more."""
        values = {"agent": agent, "before": before, "limit": PRUNED_TASKS}
        removed = self._first_rows("idle_contexts", values, lambda _, size: int(size))
        if removed:
            keys = _json([key for key, _ in removed])
            self.add("remove_contexts", (keys, before))
            self.add("remove_histories", (keys,))
            self.add("remove_values_of", (keys,))
        return bool(removed)

    def _first_rows(
        self, name: str, values: Mapping[str, Any], size_of: Callable[..., int]
    ) -> list[tuple[Any, ...]]:
        """Return the first rows of a query, up to ``PRUNED_BYTES``, at least one."""
        first: list[tuple[Any, ...]] = []
        size = PRUNED_BYTES
        with closing(self.connection.execute(SQL[name], values)) as rows:
            for row in rows:
                size -= size_of(*row)
                if first and size < 0:
                    break
                first.append(row)
        return first

    def _remove_slice(self, task: int) -> bool:
        """Remove the first slice of a log, or all of it. Return whether something remains."""
        for records in _STEPS:
            values = {"task": task, "records": records, "bytes": PRUNED_BYTES}
            if found := self.read("log_slice", values):
                self.add("remove_slice", (task, *found[0]))
                return True
        self.add("remove_logs", (f"[{task}]",))
        return False

    def _mark_partial_log(self, task: int) -> None:
        """Store the key of the removed task whose log is being removed slice by slice, or 0."""
        self._statements.append((SQL["mark_partial_log"].replace("{task}", str(task)), ()))


def read_heads(rows: Sequence[Sequence[str]]) -> list[Head]:
    """Return the heads in the one row of the query ``heads``: a JSON array."""
    return [head_from_row(row) for row in msgspec.json.decode(rows[0][0])]


def _json(names: Sequence[Any]) -> str:
    return msgspec.json.encode(names).decode()
