"""The group of jobs that one statement writes to PostgreSQL (see batch.sql).

A head moves only from the version that the writer knows. Rows of a task whose head did not move are
not written, and the statement returns the task's key (``missed``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from parley.database.postgres.connection import BoundedConnection, blobs, flags, ints, texts
from parley.database.sql import filled
from parley.model.struct import encode
from parley.store.events import Scope
from parley.store.head import Head
from parley.store.protocols.tables import HISTORY_KEPT, Receipt
from parley.store.protocols.webhooks import ATTEMPTS_KEPT, DeliveryAttempt, PushRecord
from parley.store.sql import pieces, queries
from parley.store.sql.batch import (
    Batch,
    StoreJob,
    head_from_row,
    options_column,
    owner_column,
    pushes_from_rows,
    scope_columns,
)

Columns = dict[str, Callable[[Any], bytes]]
"""Columns of rows, each with the function that makes an array of it."""

_FILES = ("pieces.sql", "batch.sql")
_WRITE = queries("postgres", *_FILES)["write"]
_PIECES = pieces("postgres", *_FILES)


_SCOPE: Columns = {"agent": texts, "tenant": texts, "owner": texts}
_HEAD: Columns = {
    **{"key": ints, "seq": ints, "sub": ints, "turn": ints, "epoch": ints, "turn_open": flags},
    **{"waiting": ints, "cancel_requested": flags, "holder": texts, "place": ints, "state": texts},
    **{"status_at": ints, "ended_at": ints, "messages": ints, "folded": ints},
    **{"has_status_message": flags, "wakes_at": ints},
}
_NEW: Columns = {"task_id": texts, "context_id": texts, "base_url": texts}
_PUSH: Columns = {"id": texts, "revision": texts, "cursor": ints, "state": texts, "note": texts}
_RECORD: Columns = {"turn": ints, "kind": texts, "at": ints, "payload": blobs}
_RECEIPT: Columns = {
    "message_id": texts,
    "digest": blobs,
    "task_id": texts,
    "turn": ints,
    "reply": blobs,
}
_COLUMNS: dict[str, tuple[str, Columns]] = {
    "moved": ("m", {"version": ints, **_HEAD}),
    "created": ("c", {**_NEW, **_SCOPE, **_HEAD}),
    "counts": ("n", {"task": ints, **_SCOPE, "state": texts, "more": ints}),
    "records": ("r", {"task": ints, "seq": ints, "sub": ints, **_RECORD}),
    "messages": ("s", {"task": ints, "n": ints, "body": blobs}),
    "replaced": ("o", {"task": ints, "n": ints, "seq": ints}),
    "artifacts": ("a", {"task": ints, "n": ints, "seq": ints, "head": blobs, "parts": blobs}),
    "receipts": ("k", {"task": ints, **_SCOPE, **_RECEIPT}),
    "exchange": ("e", {"task": ints, **_SCOPE, "context_id": texts, "message": blobs}),
    "pushes": (
        "p",
        {
            **{"task": ints, "agent": texts, "config": blobs, "version": texts, "holder": texts},
            **{"options": texts, "confirmed": flags, **_PUSH},
        },
    ),
    "waits": ("v", {"task": ints, "agent": texts, "name": texts}),
    "cursors": (
        "w",
        {
            **{"n": ints, "task_id": texts, "attempts": ints, "confirmed": flags},
            **{"slot": ints, "body": blobs, **_PUSH},
        },
    ),
}
"""The prefix of the parameters of each piece, and the columns of its rows."""

_ARRAYS = {
    name: [(f"{prefix}_{column}", array) for column, array in columns.items()]
    for name, (prefix, columns) in _COLUMNS.items()
}


@cache
def _statement(schema: str, names: frozenset[str]) -> str:
    """Return the statement of these pieces."""
    heads = [name for name in ("moved", "created") if name in names]
    others = [name for name in _PIECES if name in names and name not in heads]
    steps = ", ".join([_PIECES[name] for name in (*heads, "_".join(["done", *heads]), *others)])
    missed = _PIECES["missed_keys" if heads else "nothing"]
    noted = _PIECES["moved_cursors" if "cursors" in names else "nothing"]
    words = {"steps": steps, "missed": missed, "noted": noted}
    return filled({"": _WRITE}, words | {"schema": schema, "kept": HISTORY_KEPT})[""]


class MovedPush(NamedTuple):
    """A push configuration whose delivery cursor moves."""

    task_id: str
    push_id: str
    revision: str


class PostgresBatch(Batch):
    """The rows that a group of jobs adds and changes.

    ``versions`` has the row versions of cached heads by task key, and receives the versions of
    loaded heads. A ``pessimistic`` batch locks the heads in its transaction.
    """

    def __init__(
        self,
        connection: BoundedConnection,
        sql: dict[str, str],
        versions: dict[int, int],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._connection = connection
        self._sql = sql
        self._versions = versions
        self._receipts: list[tuple[Any, ...]] = []
        self._exchanges: list[tuple[Any, ...]] = []
        self._put: dict[tuple[int, str, str], PushRecord] = {}
        self._cursors: dict[MovedPush, tuple[PushRecord, DeliveryAttempt | None]] = {}
        self._waits: list[tuple[int, str, str]] = []

    def load_heads(self, jobs: Sequence[StoreJob]) -> None:
        """Load the heads that ``jobs`` need, and lock them if the batch is pessimistic."""
        if names := self.heads_to_load(jobs):
            query = self._sql["lock_heads" if self.pessimistic else "heads"]
            for version, *row in self._connection.rows(query, (texts(names),)):
                head = head_from_row(row)
                self._versions[head.key] = version
                self._found[head.task_id] = head

    def has_receipt(self, scope: Scope, message_id: str) -> bool:
        """Return whether the database has a receipt for a message."""
        return bool(
            self._connection.rows(self._sql["receipt"], (*scope_columns(scope), message_id))
        )

    def add_receipts(self, scope: Scope, receipts: Sequence[Receipt], key: int = 0) -> None:
        """Add receipts, with the change of the task with this key, if any."""
        self._receipts += [
            (key, *scope_columns(scope), r.message_id, r.digest, r.task_id, r.turn, r.reply)
            for r in receipts
        ]

    def add_exchange(
        self, scope: Scope, context_id: str, messages: Sequence[bytes], key: int = 0
    ) -> None:
        """Add messages to a context's history, with the change of a task, if any."""
        self._exchanges += [
            (key, *scope_columns(scope), context_id, message) for message in messages
        ]

    def is_complete(self, agent: str, keys: Sequence[str]) -> bool:
        """Return whether any event is complete.

        No other writer completes an event before the batch, which is pessimistic, is written.
        """
        if not keys:
            return False
        assert self.pessimistic, "an append that waits for events is locked"
        names = texts(sorted(keys))
        self._connection.execute(self._sql["lock_events"], (agent, names))
        return bool(self._connection.rows(self._sql["complete_events"], (agent, names))[0][0])

    def set_waits(self, head: Head, keys: Sequence[str]) -> None:
        """Set the events that a task waits for."""
        self._waits += [(head.key, head.scope.agent, key) for key in keys or ("",)]

    def read_pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations from the database."""
        return pushes_from_rows(self._connection.rows(self._sql["pushes"], (task_id,)))

    def put_push(self, head: Head, push: PushRecord) -> None:
        """Store a push notification configuration, replacing one with the same id."""
        self._put[head.key, head.scope.agent, push.id] = push
        # The head is unchanged, but its version moves, so that others notice the change.
        self.heads.setdefault(head.task_id, head)

    def save_delivery(
        self, task_id: str, push: PushRecord, attempt: DeliveryAttempt | None = None
    ) -> MovedPush:
        """Save the delivery of a webhook and an attempt. Return its key in ``moved_pushes``."""
        name = MovedPush(task_id, push.id, push.revision)
        self._cursors[name] = (push, attempt)
        return name

    def values(self) -> tuple[str, dict[str, Any]] | None:
        """Return the names of the pieces to write, joined by commas, and their values."""
        moved, created, counts = self._split()
        rows: dict[str, Sequence[Sequence[Any]]] = {
            "moved": [(self._versions[h.key], *_head(h)) for h in moved],
            "created": [
                (h.task_id, h.context_id, h.base_url, *scope_columns(h.scope), *_head(h))
                for h in created
            ],
            "counts": counts,
            "records": self._records,
            "messages": self._messages,
            "replaced": [(*name, seq) for name, seq in self._replaced.items()],
            "artifacts": [row for piece in self._artifacts.values() for row in piece],
            "receipts": self._receipts,
            "exchange": self._exchanges,
            "pushes": [
                (
                    *(key, agent, encode(push.config), push.version, push.lease_owner),
                    *(options_column(push.options), push.confirmed, *_push(push)),
                )
                for (key, agent, _), push in self._put.items()
            ],
            "waits": self._waits,
            "cursors": [
                (
                    *(n, moved.task_id, push.attempts, push.confirmed),
                    *(*_attempt(attempt), *_push(push)),
                )
                for n, (moved, (push, attempt)) in enumerate(self._cursors.items())
            ],
        }
        names = [name for name, found in rows.items() if found]
        if not names:
            return None
        values = {"at": self.at, "keys": ints([h.key for h in (*moved, *created)])}
        for name in names:
            for (column, array), found in zip(
                _ARRAYS[name], zip(*rows[name], strict=True), strict=True
            ):
                values[column] = array(found)
        return ",".join(names), values

    def _split(self) -> tuple[list[Head], list[Head], list[tuple[Any, ...]]]:
        """Return the moved heads, the new ones, and the counts that change with them."""
        moved, created, counts = [], [], []
        for task_id, head in self.heads.items():
            before = self.head_before(task_id)
            if before is None:
                created.append(head)
            else:
                moved.append(head)
            if before is None or head.state is not before.state:
                counts.append((head.key, *scope_columns(head.scope), head.state.value, 1))
                if before is not None:
                    counts.append((head.key, *scope_columns(head.scope), before.state.value, -1))
        # In the order of keys, so that two replicas rarely wait for each other.
        moved.sort(key=lambda head: head.key)
        return moved, created, counts

    def moved_pushes(self, numbers: Sequence[int]) -> set[MovedPush]:
        """Return the webhooks whose cursors moved, by the numbers that the statement returned."""
        names = list(self._cursors)
        return {names[n] for n in numbers}


def statement(schema: str, names: str) -> str:
    """Return the statement that writes the result of ``values``."""
    return _statement(schema, frozenset(names.split(",")))


def _head(h: Head) -> tuple[Any, ...]:
    # fmt: off
    return (
        h.key, h.seq, h.sub, h.turn, h.epoch, h.turn_open, h.waiting, h.cancel_requested,
        owner_column(h), h.queue_key, h.state.value, h.status_at, h.ended_at, h.messages, h.folded,
        h.has_status_message, h.wakes_at,
    )
    # fmt: on


def _attempt(attempt: DeliveryAttempt | None) -> tuple[int, bytes]:
    """Return the slot and the stored form of an attempt; no slot without one."""
    if attempt is None:
        return -1, b""
    return attempt.number % ATTEMPTS_KEPT, msgspec.json.encode(attempt)


def _push(push: PushRecord) -> tuple[Any, ...]:
    return push.id, push.revision, push.cursor, push.state.value, push.note
