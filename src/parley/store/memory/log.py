"""One task in memory: its head, its rows, and its stored form; and a cache of whole tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from parley.model.bounded import Bounded
from parley.store.events import LoggedEvent, RecordKind, logged
from parley.store.head import Head, Payload
from parley.store.protocols.webhooks import DeliveryAttempt, PushRecord
from parley.store.snapshot import StoredTask

NONE: Mapping[str, Any] = MappingProxyType({})
"""The webhooks of most tasks, and their attempts."""


_MAX_TASKS = 64
_MAX_SIZE = 32 * 1024


class Row(msgspec.Struct, frozen=True, gc=False):
    """A stored record, without its event, which is decoded from the payload."""

    seq: int
    sub: int
    turn: int
    kind: RecordKind
    at: int
    payload: bytes


class MemoryLog(msgspec.Struct, eq=False):
    """One task: its head, its rows, and its stored form (see ``snapshot``).

    The index finds the task by the head that was ``filed``, and its active webhooks by their
    ``push_owners``. It assigns a ``number`` to each task in the order of creation.
    """

    head: Head
    filed: Head
    number: int = 0
    public: list[Row] = msgspec.field(default_factory=list)
    private: list[Row] = msgspec.field(default_factory=list)
    messages: list[bytes] = msgspec.field(default_factory=list)
    metadata: bytes = b""
    artifacts: dict[int, list[tuple[bytes, bytes]]] = msgspec.field(default_factory=dict)
    pushes: Mapping[str, PushRecord] = NONE
    push_owners: frozenset[str] = frozenset()
    attempts: Mapping[str, deque[DeliveryAttempt]] = NONE
    waits_for: Sequence[str] = ()

    def stored(self, history: int | None, artifacts: bool) -> StoredTask:
        """Return the task with its last ``history`` messages, and with its artifacts or without."""
        head = self.head
        return StoredTask(
            task_id=head.task_id,
            context_id=head.context_id,
            state=head.state,
            status_at=head.status_at,
            status_message=self.messages[-1] if head.has_status_message else b"",
            metadata=self.metadata,
            history=b",".join(self._history(history)),
            artifacts=[
                (index, *piece)
                for index in sorted(self.artifacts)
                for piece in self.artifacts[index]
            ]
            if artifacts
            else (),
            tail=[row.payload for row in self._tail()] if artifacts else (),
        )

    def size(self, history: int | None, artifacts: bool) -> int:
        """Return the approximate size of that in bytes."""
        size = sum([len(message) for message in self._history(history)])
        if self.head.has_status_message:
            size += len(self.messages[-1])
        if artifacts:
            pieces = [piece for pieces in self.artifacts.values() for piece in pieces]
            size += sum([len(head) + len(parts) for head, parts in pieces])
            size += sum([len(row.payload) for row in self._tail()])
        return size

    def update(self, head: Head, payload: Payload) -> None:
        """Apply an append to the stored form."""
        self.head = head
        self.messages += payload.messages
        if payload.metadata:
            self.metadata = payload.metadata
        for piece in payload.artifacts:
            if piece.replaces:
                self.artifacts.pop(piece.position, None)
            self.artifacts.setdefault(piece.position, []).append((piece.head, piece.parts))

    def _history(self, length: int | None) -> list[bytes]:
        end = len(self.messages) - self.head.has_status_message
        return self.messages[0 if length is None else max(0, end - length) : end]

    def _tail(self) -> list[Row]:
        return [row for row in self.public[self.head.folded :] if row.kind is RecordKind.ARTIFACT]

    def read(self, row: Row) -> LoggedEvent:
        """Return the record in a row."""
        return logged(self.head.task_id, row.seq, row.sub, row.turn, row.kind, row.at, row.payload)


class WholeTasks:
    """A cache of tasks with all of their history and artifacts, for callers that poll.

    A task is read again once its head has changed: each append, claim and wake replaces it. So the
    cache is never stale. At most 64 tasks are cached, each of at most 32 KiB, plus its joined JSON
    (``StoredTask.json``).
    """

    def __init__(self) -> None:
        self._kept: Bounded[str, tuple[Head, StoredTask]] = Bounded(_MAX_TASKS)

    def __len__(self) -> int:
        """Return the number of cached tasks."""
        return len(self._kept)

    def read(self, log: MemoryLog) -> StoredTask:
        """Return a task, whole."""
        head = log.head
        kept = self._kept.get(head.task_id)
        if kept is not None and kept[0] is head:
            return kept[1]
        stored = log.stored(None, artifacts=True)
        if _size(stored) <= _MAX_SIZE:
            self._kept[head.task_id] = (head, stored)
        else:
            self.forget(head.task_id)
        return stored

    def forget(self, task_id: str) -> None:
        """Keep a task no longer."""
        self._kept.pop(task_id, None)


def _size(stored: StoredTask) -> int:
    """Return the approximate size of a task in bytes."""
    size = len(stored.history) + len(stored.status_message) + len(stored.metadata)
    for _, head, parts in stored.artifacts:
        size += len(head) + len(parts)
    for update in stored.tail:
        size += len(update)
    return size
