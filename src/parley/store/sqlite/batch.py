"""The group of jobs that is written to SQLite: many rows a statement, all in one transaction."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache
from itertools import chain
from typing import Any

import msgspec

from parley.model.struct import encode
from parley.security.api_keys import ApiKeyRecord
from parley.store.api_keys import record_of, row_of
from parley.store.audit.chain import lines_after
from parley.store.audit.chain import row_of as audit_row_of
from parley.store.head import Head
from parley.store.protocols.api_keys import ENDED_KEPT, MAX_API_KEYS, TooManyApiKeys
from parley.store.protocols.audit import AuditEntry, AuditLine
from parley.store.protocols.contexts import HISTORY_KEPT, Receipt
from parley.store.protocols.scope import Scope
from parley.store.protocols.webhooks import ATTEMPTS_KEPT, DeliveryAttempt, PushRecord, PushState
from parley.store.sql_engine.batch import (
    Batch,
    StoreJob,
    head_from_row,
    options_column,
    owner_column,
    pushes_from_rows,
    scope_columns,
)
from parley.store.sqlite.file import SQL

ROWS_AT_ONCE = 256


class SqliteBatch(Batch):
    """The rows that a group of jobs adds and changes."""

    binary = bytearray  # ``sqlite3`` asks of bytes, each time, whether they adapt to something else

    def __init__(self, connection: sqlite3.Connection, **options: Any) -> None:
        super().__init__(**options)
        self._connection = connection
        self._receipts: list[tuple[Any, ...]] = []
        self._statements: list[tuple[str, Sequence[Any] | Mapping[str, Any]]] = []
        self._values: dict[tuple[str, ...], bytes | None] = {}
        self._events: dict[tuple[str, str], bytes | None] = {}
        self._waits: dict[tuple[str, str], list[str]] = {}
        self._secrets: dict[str, bytes] = {}
        self._api_keys: dict[str, ApiKeyRecord] = {}
        self._api_key_count: int | None = None
        self._quota_slots: dict[str, dict[int, int]] = {}
        self._audit_head: tuple[int, str] | None = None
        self._audit_ids: set[str] = set()
        self.has_audit_prune = False
        self.has_prune = False

    def load_heads(self, jobs: Sequence[StoreJob]) -> None:
        """Load the heads that ``jobs`` need, by one query."""
        if wanted := self.heads_to_load(jobs):
            names = msgspec.json.encode(wanted).decode()
            for head in read_heads(self._connection.execute(SQL["heads"], (names,)).fetchone()[0]):
                self._found[head.task_id] = head

    def read(self, name: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a query before the batch."""
        return self._connection.execute(SQL[name], values).fetchall()

    def first_rows(
        self, name: str, values: Mapping[str, Any], size: int, size_of: Callable[..., int]
    ) -> list[tuple[Any, ...]]:
        """Return the first rows of a query, up to a size, one at least."""
        first: list[tuple[Any, ...]] = []
        with closing(self._connection.execute(SQL[name], values)) as rows:
            for row in rows:
                size -= size_of(*row)
                if first and size < 0:
                    break
                first.append(row)
        return first

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

    def value_of(self, scope: Scope, context_id: str, key: str) -> bytes | None:
        """Return a value of a context after what is in the batch so far."""
        name = (*scope_columns(scope), context_id, key)
        if name not in self._values:
            rows = self.read("value", name)
            self._values[name] = rows[0][0] if rows else None
        return self._values[name]

    def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Set a value of a context, or remove it."""
        context = (*scope_columns(scope), context_id)
        self._values[*context, key] = value
        self.add("touch_context", (*context, 0, self.at))
        if value is None:
            self.add("remove_value", (*context, key))
        else:
            self.add("put_value", (*context, key, value))

    def event(self, agent: str, key: str) -> bytes | None:
        """Return the value of an event after what is in the batch so far."""
        if (agent, key) not in self._events:
            rows = self.read("event", (agent, key))
            self._events[agent, key] = rows[0][0] if rows else None
        return self._events[agent, key]

    def is_complete(self, agent: str, keys: Sequence[str]) -> bool:
        """Return whether one of some events is complete."""
        return any([self.event(agent, key) is not None for key in keys])

    def complete_event(self, agent: str, key: str, value: bytes) -> None:
        """Complete an event."""
        self._events[agent, key] = value
        self.add("complete_event", (agent, key, self.at, value))

    def set_waits(self, head: Head, keys: Sequence[str]) -> None:
        """Set the events that a task waits for."""
        self.add("remove_waits", (head.key,))
        for key in keys:
            self._waits.setdefault((head.scope.agent, key), []).append(head.task_id)
            self.add("add_wait", (head.scope.agent, key, head.key))

    def waiting_for(self, agent: str, key: str) -> list[Head]:
        """Return the heads of the tasks that wait for an event, after the batch so far."""
        found = read_heads(self.read("waiting_for_event", (agent, key))[0][0])
        heads = {head.task_id: self.current_head(head) for head in found}
        for task_id in self._waits.get((agent, key), ()):
            if (head := self.head(task_id)) is not None:
                heads[task_id] = head
        return list(heads.values())

    def secret(self, name: str, fresh: bytes) -> bytes:
        """Return the secret of a name; ``fresh`` if there is none."""
        if name not in self._secrets:
            rows = self.read("secret", (name,))
            self._secrets[name] = rows[0][0] if rows else fresh
            if not rows:
                self.add("add_secret", (name, fresh))
        return self._secrets[name]

    def api_key(self, id: str) -> ApiKeyRecord | None:
        """Return an API key after what is in the batch so far."""
        if id in self._api_keys:
            return self._api_keys[id]
        rows = self.read("api_key", (id,))
        return record_of(rows[0]) if rows else None

    def add_api_key(self, record: ApiKeyRecord) -> None:
        """Add an API key, and remove those that ended long ago. Raises ``TooManyApiKeys``."""
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
        self.add("add_api_key", row_of(record))

    def end_api_key(self, record: ApiKeyRecord) -> None:
        """Store when an API key ends."""
        self._api_keys[record.id] = record
        self.add("end_api_key", row_of(record))

    def quota_slots(self, name: str, oldest: int) -> dict[int, int]:
        """Return what was taken of an amount by slot, after what is in the batch so far."""
        if name not in self._quota_slots:
            self._quota_slots[name] = dict(self.read("quota_slots", (name, oldest)))
        return self._quota_slots[name]

    def add_audit(self, entries: Sequence[AuditEntry]) -> list[AuditLine]:
        """Append entries to the audit; return their lines."""
        if self._audit_head is None:
            rows = self.read("audit_head", ())
            self._audit_head = (rows[0][0], rows[0][1]) if rows else None
        new = [entry for entry in entries if entry.id not in self._audit_ids]
        self._audit_ids.update([entry.id for entry in new])
        lines = lines_after(self._audit_head, new, self.at)
        for line in lines:
            self._audit_head = (line.seq, line.hash)
            self.add("add_audit", audit_row_of(line))
        return lines

    def read_pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations from the database."""
        return pushes_from_rows(self.read("pushes", (task_id,)))

    def put_push(self, head: Head, push: PushRecord) -> None:
        """Store a push notification configuration, replacing the one of its id."""
        config = encode(push.config)
        state = (push.version, push.cursor, push.state.value, push.note, push.lease_owner)
        name = (head.key, push.id, head.scope.agent, push.revision)
        self.add("put_push", (*name, config, *state, options_column(push.options), push.confirmed))

    def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it is there."""
        self.current_pushes(task_id).pop(push_id, None)
        self.add("remove_push", (task_id, push_id))
        self.add("remove_attempts_of", (task_id, push_id))

    def save_delivery(
        self, task_id: str, push: PushRecord, attempt: DeliveryAttempt | None = None
    ) -> bool:
        """Save the delivery of a webhook and an attempt, if this replica still holds it."""
        pushes = self.current_pushes(task_id)
        stored = pushes.get(push.id)
        if stored is None or (stored.revision, stored.lease_owner) != (push.revision, self.replica):
            return False
        pushes[push.id] = msgspec.structs.replace(push, lease_owner=self.replica)
        values = (push.cursor, push.state.value, push.note, self.replica, push.attempts)
        self.add("save_delivery", (*values, push.confirmed, task_id, push.id, push.revision))
        if attempt is not None:
            slot = attempt.number % ATTEMPTS_KEPT
            self.add("add_attempt", (push.id, slot, msgspec.json.encode(attempt), task_id))
        return True

    def claim_pushes(self, key: int, task_id: str) -> None:
        """Claim the active push configurations of a task that are unclaimed."""
        for push in list(self.current_pushes(task_id).values()):
            if push.state is PushState.ACTIVE and not push.lease_owner:
                claimed = msgspec.structs.replace(push, lease_owner=self.replica)
                self._pushes[task_id][push.id] = claimed
        self.add("claim_pushes", (self.replica, key))

    def add(self, name: str, values: Sequence[Any] | Mapping[str, Any]) -> None:
        """Add a statement, to run after the bulk writes."""
        self._statements.append((SQL[name], values))

    def mark_partial_log(self, task: int) -> None:
        """Store the key of the removed task whose log is being removed slice by slice, or 0."""
        self._statements.append((SQL["mark_partial_log"].replace("{task}", str(task)), ()))

    def write(self) -> None:
        """Write all of it durably, or nothing. Raises ``sqlite3.Error``."""
        if not (self.heads or self._receipts or self._statements or self._counts):
            return
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            _write_rows(connection, "add_records", self._records)
            self._write_heads(connection)
            _write_rows(connection, "add_messages", self._messages)
            for name in self._replaced:
                connection.execute(SQL["replace_artifact"], name)
            pieces = [row for rows in self._artifacts.values() for row in rows]
            _write_rows(connection, "add_artifacts", pieces)
            _write_rows(connection, "add_receipts", self._receipts)
            for sql, values in self._statements:
                connection.execute(sql, values)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _write_heads(self, connection: sqlite3.Connection) -> None:
        added, moved, changed, turned, rewritten = [], [], [], [], []
        counts = self._counts
        for task_id, head in self.heads.items():
            before = self.head_before(task_id)
            state = head.state._value_
            position, work = _position_columns(head), _work_columns(head)
            if before is None:
                scope = scope_columns(head.scope)
                counts[*scope, state] += 1
                name = (task_id, *scope, head.context_id, head.base_url)
                added.append((*position, *work, state, head.status_at, head.ended_at, *name))
                continue
            has_new_state = head.state is not before.state
            if has_new_state:
                scope = scope_columns(head.scope)
                counts[*scope, state] += 1
                counts[*scope, before.state._value_] -= 1
            is_changed = has_new_state or head.status_at != before.status_at
            if head.ended_at is not None or (is_changed and work != _work_columns(before)):
                rewritten.append((*position, *work, state, head.status_at, head.ended_at))
            elif is_changed:
                changed.append((*position, state, head.status_at))
            elif work != _work_columns(before):
                turned.append((*position, *work))
            else:
                moved.append(position)
        _write_rows(connection, "add_heads", added)
        _write_rows(connection, "move_heads", moved)
        _write_rows(connection, "change_heads", changed)
        _write_rows(connection, "turn_heads", turned)
        _write_rows(connection, "rewrite_heads", rewritten)
        rows = [(*name, more) for name, more in counts.items() if more]
        _write_rows(connection, "count_tasks", rows)


def read_heads(array: str) -> list[Head]:
    """Return the heads in the JSON array that the query ``heads`` returns."""
    return [head_from_row(row) for row in msgspec.json.decode(array)]


def _position_columns(head: Head) -> tuple[Any, ...]:
    """Return the key, the end of the log and the extent of the task's stored form."""
    stored = (head.messages, int(head.has_status_message), head.folded)
    return head.key, head.seq, head.sub, head.turn, head.epoch, *stored


def _work_columns(head: Head) -> tuple[Any, ...]:
    """Return the work left and the lease, or when the task wakes up."""
    work = (int(head.turn_open), head.waiting, int(head.cancel_requested))
    return *work, owner_column(head), head.queue_key, head.wakes_at


def _write_rows(connection: sqlite3.Connection, name: str, rows: Sequence[Sequence[Any]]) -> None:
    """Write rows in as few statements as possible."""
    done = 0
    while done < len(rows):
        count = min(ROWS_AT_ONCE, 1 << (len(rows) - done).bit_length() - 1)
        values = list(chain.from_iterable(rows[done : done + count]))
        connection.execute(_for_rows(name, count), values)
        done += count


@cache
def _for_rows(name: str, count: int) -> str:
    """Return a statement for one row as one for ``count``, which is a power of two."""
    before, row, after = re.split(r"(?<=VALUES )(\([?, ]+\))", SQL[name])
    return before + ", ".join([row] * count) + after
