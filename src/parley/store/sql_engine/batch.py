"""What is to be written to a database: jobs, and the batch in which they are written together.

A job is looked at before anything is written, on the heads as they will be after the jobs before
it; one that may not be done raises, and leaves nothing in the batch.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from parley.model.encoding import decode
from parley.model.push import TaskPushNotificationConfig
from parley.model.tasks import TaskState
from parley.store.events import LoggedEvent
from parley.store.head import Head, Payload
from parley.store.pushes import placed
from parley.store.task_store import DuplicateReceipt, PushRecord, PushState, Receipt, Scope

WriterId = tuple[str, int]
"""Who writes to a log: the task's id, and the epoch of its executor."""

Stage = Callable[[Any], tuple[Any, Sequence[LoggedEvent]]]
"""Puts a job into a batch; returns its result, and the records of which readers are told."""


class Job(msgspec.Struct, eq=False):
    """Something to be written.

    ``stage`` puts it into a batch. ``future`` gets its result when it is durable. ``task_id`` is
    the task whose head it needs, which it ``creates`` or not; ``writer`` is set when the writer's
    next job may build on this one. ``is_locked`` says that others must not change the task between
    the look at it and the write. ``begun`` is when it was submitted (``time.monotonic``).
    """

    future: asyncio.Future[Any]
    stage: Stage
    task_id: str = ""
    creates: bool = False
    writer: WriterId | None = None
    size: int = 0
    is_locked: bool = False
    begun: float = msgspec.field(default_factory=time.monotonic)


class Batch(ABC):
    """The rows that a group of jobs adds and changes.

    ``careful`` looks up what is otherwise left to the constraints of the tables: whether a new
    task's id or a receipt's message is there already. When a constraint fails, the group is done
    again, a job at a time and carefully, to find whose fault it was.
    """

    def __init__(
        self,
        *,
        known: Mapping[str, Head],
        broken: set[WriterId],
        new_key: Callable[[], int],
        at: int,
        replica: str,
        careful: bool,
    ) -> None:
        self.at = at
        self.replica = replica
        self.broken = set(broken)
        self.heads: dict[str, Head] = {}
        self.careful = careful
        self._new_key = new_key
        self._known = known
        self._found: dict[str, Head] = {}
        self._pushes: dict[str, dict[str, PushRecord]] = {}
        self._counts: Counter[tuple[str, str, str, str]] = Counter()
        self._records: list[tuple[Any, ...]] = []
        self._messages: list[tuple[int, int, bytes]] = []
        self._artifacts: dict[tuple[int, int], list[tuple[int, int, int, bytes, bytes]]] = {}
        self._replaced: dict[tuple[int, int], int] = {}

    def wanted(self, jobs: Sequence[Job]) -> list[str]:
        """Return the tasks of ``jobs`` whose heads have to be looked up."""
        return list(
            {
                job.task_id: None
                for job in jobs
                if job.task_id
                and job.task_id not in self._known
                and (self.careful or not job.creates)
            }
        )

    def before(self, task_id: str) -> Head | None:
        """Return the head of a task as it is before the batch."""
        return self._known.get(task_id) or self._found.get(task_id)

    def head(self, task_id: str) -> Head | None:
        """Return the head of a task as it is after what is in the batch so far."""
        return self.heads.get(task_id) or self.before(task_id)

    def find(self, head: Head) -> Head:
        """Return the head of a task as it is after the batch, which was ``head`` before it."""
        if head.task_id not in self._known:
            self._found.setdefault(head.task_id, head)
        return self.head(head.task_id) or head

    def put_head(self, head: Head) -> Head:
        """Let a task have a new head; a new task gets its key."""
        if not head.key:
            head = msgspec.structs.replace(head, key=self._new_key())
        self.heads[head.task_id] = head
        return head

    def add_records(self, key: int, records: Sequence[LoggedEvent]) -> None:
        """Add records to the log of the task with this key."""
        self._records += [
            (key, r.seq, r.sub, r.turn, r.kind.value, r.at, r.payload) for r in records
        ]

    def add_pieces(self, head: Head, payload: Payload) -> None:
        """Add to the stored form of a task what comes with the append that led to ``head``."""
        first = head.messages - len(payload.messages) + 1
        self._messages += [(head.key, n, text) for n, text in enumerate(payload.messages, first)]
        if payload.metadata:
            self._messages.append((head.key, 0, payload.metadata))
        for piece in payload.artifacts:
            name = (head.key, piece.position)
            if piece.replaces:
                self._artifacts.pop(name, None)
                self._replaced[name] = head.seq
            row = (head.key, piece.position, head.seq, piece.head, piece.parts)
            self._artifacts.setdefault(name, []).append(row)

    def count(self, scope: Scope, state: str, more: int) -> None:
        """Count so many more tasks of a scope in a state."""
        self._counts[*columns(scope), state] += more

    def check_receipts(self, scope: Scope, receipts: Sequence[Receipt]) -> None:
        """Raise ``DuplicateReceipt`` when there is a receipt for one of the messages."""
        if self.careful:
            for receipt in receipts:
                if self.has_receipt(scope, receipt.message_id):
                    raise DuplicateReceipt(receipt.message_id)

    @abstractmethod
    def has_receipt(self, scope: Scope, message_id: str) -> bool:
        """Return whether there is a receipt for a message, before the batch is written."""

    @abstractmethod
    def add_receipts(self, scope: Scope, receipts: Sequence[Receipt], key: int = 0) -> None:
        """Add receipts, which come with a change of the task with this key, if with any."""

    @abstractmethod
    def add_exchange(
        self, scope: Scope, context_id: str, messages: Sequence[bytes], key: int = 0
    ) -> None:
        """Add messages to the history of a context, with a change of a task, if with any."""

    @abstractmethod
    def read_pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations, before the batch is written."""

    @abstractmethod
    def put_push(self, head: Head, push: PushRecord) -> None:
        """Keep a push notification configuration, in place of that of its id."""

    def pushes_of(self, task_id: str) -> dict[str, PushRecord]:
        """Return a task's configurations as they are after what is in the batch so far."""
        if task_id not in self._pushes:
            if task_id in self.heads and self.before(task_id) is None:
                return {}  # the batch creates the task
            self._pushes[task_id] = {push.id: push for push in self.read_pushes(task_id)}
        return self._pushes[task_id]

    def pushes_with(
        self, head: Head, pushes: Sequence[PushRecord], *, after: int
    ) -> dict[str, PushRecord]:
        """Return a task's push notification configurations with further ones, the last of them
        last. Raises ``TooManyPushes``.
        """
        is_new = self.head(head.task_id) is None
        among = {} if is_new else self.pushes_of(head.task_id)
        return placed(pushes, among, head, after=after, replica=self.replica)

    def put_pushes(self, head: Head, pushes: dict[str, PushRecord], count: int) -> None:
        """Let a task have these push notification configurations, the last so many of them new."""
        self._pushes[head.task_id] = pushes
        for push in list(pushes.values())[-count:]:
            self.put_push(head, push)


def columns(scope: Scope) -> tuple[str, str, str]:
    """Return a scope as the tables hold it."""
    return scope.agent, scope.tenant, scope.owner


def head_of(row: Sequence[Any]) -> Head:
    """Return the head that a query found, whose columns are in the order of ``heads``."""
    key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, *rest = row
    turn_open, waiting, cancel_requested, epoch, ended_at, lease_owner, place, *stored = rest
    messages, has_status_message, folded = stored
    return Head(
        key=key,
        task_id=task_id,
        scope=Scope(agent, tenant, owner),
        context_id=context_id,
        state=TaskState(state),
        status_at=status_at,
        seq=seq,
        sub=sub,
        turn=turn,
        turn_open=bool(turn_open),
        waiting=waiting,
        cancel_requested=bool(cancel_requested),
        epoch=epoch,
        ended_at=ended_at,
        lease_owner=lease_owner,
        place=place,
        messages=messages,
        has_status_message=bool(has_status_message),
        folded=folded,
    )


def pushes_of(rows: Sequence[Sequence[Any]]) -> list[PushRecord]:
    """Return the configurations that the query ``pushes`` found."""
    return [
        PushRecord(
            config=decode(config, TaskPushNotificationConfig),
            version=version,
            revision=revision,
            cursor=cursor,
            state=PushState(state),
            note=note,
            lease_owner=lease_owner,
        )
        for config, version, revision, cursor, state, note, lease_owner in rows
    ]
