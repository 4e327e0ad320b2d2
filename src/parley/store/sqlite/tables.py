"""The small tables of a SQLite store, as part of a batch: each operation adds to it.

An operation sees the tables as they are after the operations before it in the batch.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import msgspec
from msgspec.structs import asdict

from parley.security.api_keys import ApiKeyRecord
from parley.security.limits.usage import QuotaAsk, QuotaGrant, UsageRow
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
from parley.store.events import Scope
from parley.store.head import Head, with_event, with_wake
from parley.store.protocols.tables import (
    ENDED_KEPT,
    HISTORY_KEPT,
    MAX_API_KEYS,
    EventCompleted,
    Receipt,
    TooManyApiKeys,
)
from parley.store.sql.batch import Batch, head_from_row, scope_columns
from parley.store.sqlite.file import SQL
from parley.store.tables import (
    api_key_columns,
    api_key_from_row,
    api_key_with_end,
    check_same_api_key,
    granted,
)

PRUNED_BYTES = 1_000_000
"""How many bytes one transaction removes, with 200 a row, while other writers wait. It removes one
record at least, one stored task, or one context.
"""

PRUNED_TASKS = 50
PRUNED_RECEIPTS = 500

_STEPS = (10, 100, 1000, PRUNED_BYTES // 200)
"""How many records of a log are sized at first, and then while there are more."""

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
        self._secrets: dict[str, bytes] = {}
        self._api_keys: dict[str, ApiKeyRecord] = {}
        self._api_key_count: int | None = None
        self._quota_slots: dict[str, dict[int, int]] = {}
        self._audit_head: tuple[int, str] | None = None
        self._audit_ids: set[str] = set()
        self._has_audit_prune = False
        self._has_prune = False

    def read(self, name: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query before the batch."""
        return self.connection.execute(SQL[name], values).fetchall()

    def add(self, name: str, values: Values) -> None:
        """Add a statement, to run after the bulk writes."""
        self._statements.append((SQL[name], values))

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
        """Set or remove a value of a context that still is as expected; return whether it is.

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
        """Wake sleeping tasks that are due, each with its queue key; return how many."""
        count = 0
        for found in read_heads(self.read("heads", (_json(list(tasks)),))):
            head = self.current_head(found)
            if head.wakes_at is not None and head.wakes_at <= now:
                self.put_head(with_wake(head, tasks[head.task_id]))
                count += 1
        return count

    def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event, and make the tasks that wait for it due.

        Returns whether the event was not complete before. Raises ``EventCompleted``.
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

    # -- secrets and API keys ------------------------------------------------------------------

    def secret(self, name: str, fresh: bytes) -> bytes:
        """Return the secret of a name; ``fresh`` if there is none."""
        if name not in self._secrets:
            rows = self.read("secret", (name,))
            self._secrets[name] = rows[0][0] if rows else fresh
            if not rows:
                self.add("add_secret", (name, fresh))
        return self._secrets[name]

    def add_api_key(self, record: ApiKeyRecord) -> None:
        """Add an API key, and remove the keys that ended long ago.

        Raises ``TooManyApiKeys``, ``DuplicateApiKey``.
        """
        found = self._api_key(record.id)
        if found is not None:
            check_same_api_key(found, record)
            return
        if self._api_key_count is None:
            before = {"before": self.at - ENDED_KEPT}
            [(count, old)] = self.read("count_api_keys", before)
            self._api_key_count = count - old
            if old:
                self.add("remove_ended_api_keys", before)
        if self._api_key_count >= MAX_API_KEYS:
            raise TooManyApiKeys
        self._api_key_count += 1
        self._api_keys[record.id] = record
        self.add("add_api_key", api_key_columns(record))

    def end_api_key(
        self, id: str, expires_at: int | None, revoked_at: int | None
    ) -> ApiKeyRecord | None:
        """Have an API key end earlier, and return it."""
        found = self._api_key(id)
        if found is not None:
            found = self._api_keys[id] = api_key_with_end(found, expires_at, revoked_at)
            self.add("end_api_key", api_key_columns(found))
        return found

    def _api_key(self, id: str) -> ApiKeyRecord | None:
        if id in self._api_keys:
            return self._api_keys[id]
        rows = self.read("api_key", (id,))
        return api_key_from_row(rows[0]) if rows else None

    # -- usage, and the amounts of limits --------------------------------------------------------

    def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        """Take from amounts; return the grants."""
        grants = []
        for ask in asks:
            if ask.key not in self._quota_slots:
                rows = self.read("quota_slots", (ask.key, ask.oldest))
                self._quota_slots[ask.key] = dict(rows)
            slots = self._quota_slots[ask.key]
            grant = granted(ask, slots)
            if grant.given:
                self.add("put_quota_slot", (ask.key, ask.slot, slots[ask.slot], ask.ends_at))
            grants.append(grant)
        return grants

    def add_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add to the usage."""
        for row in rows:
            self.add("add_usage", asdict(row))

    def prune_usage(self, before_day: int, now: int) -> None:
        """Remove old usage, and slots that no longer count."""
        self.add("prune_usage", {"before_day": before_day})
        self.add("prune_quota_slots", {"now": now})

    # -- the audit -----------------------------------------------------------------------------

    def append_audit(self, entries: Sequence[AuditEntry]) -> list[AuditLine]:
        """Append entries to the audit; return their lines."""
        ids = _json([entry.id for entry in entries])
        known = self._audit_ids | {id for (id,) in self.read("audit_ids", (ids,))}
        new = [entry for entry in entries if entry.id not in known]
        if self._audit_head is None:
            rows = self.read("audit_head")
            self._audit_head = (rows[0][0], rows[0][1]) if rows else None
        self._audit_ids.update([entry.id for entry in new])
        lines = lines_after(self._audit_head, new, self.at)
        for line in lines:
            self._audit_head = (line.seq, line.hash)
            self.add("add_audit", line_columns(line))
        return lines

    def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old lines of the audit; return how many."""
        found = self.read("audit_prunable", prune_values(prune))
        if not found or self._has_audit_prune:
            return 0
        *row, count = found[0]
        last = line_of(row)
        self._has_audit_prune = True
        self.append_audit([checkpoint(prune, last, count)])
        self.add("allow_audit_prune", (last.seq + 1,))
        self.add("prune_audit", (last.seq + 1,))
        removed: int = count
        return removed

    # -- pruning: a piece at a time, so that the writer does other jobs between two pieces -------

    def prune(self, agent: str, before: int, limit: int) -> tuple[int, bool]:
        """Remove up to ``limit`` ended tasks. Return how many, and whether to continue.

        A log that is too large for a piece is removed slice by slice, after its task. The file's
        ``user_version`` has the task's key, so that the next process continues.
        """
        if self._has_prune:  # the batch has a piece already, which is not written yet
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
        """Return the first rows of a query, up to ``PRUNED_BYTES``, one at least."""
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
        """Remove the first slice of a log, or all of it. Return whether something is left."""
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
