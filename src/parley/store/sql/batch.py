"""Jobs to write to a database, and the batch in which they are written together.

A job is checked before anything is written, against the heads after the jobs before it. A rejected
job raises, and leaves nothing in the batch.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from parley.database.database import GroupWriter, Job, JobResult
from parley.model.operations import PushOptions, TaskPushNotificationConfig
from parley.model.struct import decode
from parley.model.tasks import TaskState
from parley.store.events import LoggedEvent, Scope
from parley.store.fold import IllegalEvent
from parley.store.head import Head, Payload, advance, unknown, with_claim, with_event
from parley.store.protocols.errors import Conflict, DuplicateReceipt, StoreError
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import Append
from parley.store.protocols.webhooks import PushRecord, PushState
from parley.store.webhooks import merge_pushes

WriterId = tuple[str, int]
"""The writer of a log: the task's id, and the epoch of its executor."""

ASLEEP = "~"
"""The lease owner of a sleeping task as a column: not a replica, and not matched by a claim. It
sorts after the id of every replica.
"""

Applied = tuple[int, Sequence[LoggedEvent]]
"""The result of an operation, and the records to publish."""

Operation = Callable[[Any], tuple[Any, Sequence[LoggedEvent]]]
"""Adds a change to a batch; returns its result, and the records to publish."""


class StoreJob(Job, eq=False):
    """A change of a task store to write.

    ``task_id`` is the task whose head it needs or ``creates``; ``writer`` is set when the writer's
    next job may build on this one. With ``is_locked`` no other writer may change the task between
    check and write.
    """

    task_id: str = ""
    creates: bool = False
    writer: WriterId | None = None
    is_locked: bool = False


StoreJobResult = JobResult[StoreJob]
"""A job, its result, the records to publish, and its error."""

HEADS_KEPT = 10_000
"""The number of heads that a writer keeps in memory."""


class WholeTask(msgspec.Struct, frozen=True):
    """A task from another store: its head, all its records, and its stored form."""

    head: Head
    records: Sequence[LoggedEvent]
    payload: Payload
    pushes: Sequence[PushRecord]
    waits_for: Sequence[str]


class Batch(ABC):
    """The rows that a group of jobs adds and changes.

    A ``pessimistic`` batch looks up existing task ids and existing receipts, which an optimistic
    batch leaves to the constraints of the tables. When a constraint fails, the group is written
    again pessimistically, job by job, so that only the faulty job fails.

    ``binary`` converts bytes to the type that is cheapest for the driver.
    """

    binary: Callable[[bytes], Any] = bytes

    def __init__(
        self,
        *,
        known: Mapping[str, Head],
        failed_writers: set[WriterId],
        new_key: Callable[[], int],
        at: int,
        replica: str,
        pessimistic: bool,
    ) -> None:
        self.at = at
        self.replica = replica
        self.failed_writers = set(failed_writers)
        self.heads: dict[str, Head] = {}
        self.pessimistic = pessimistic
        self._new_key = new_key
        self._known = known
        self._found: dict[str, Head] = {}
        self._pushes: dict[str, dict[str, PushRecord]] = {}
        self._counts: defaultdict[tuple[str, str, str, str], int] = defaultdict(int)
        self._records: list[tuple[Any, ...]] = []
        self._messages: list[tuple[int, int, bytes]] = []
        self._artifacts: dict[tuple[int, int], list[tuple[int, int, int, bytes, bytes]]] = {}
        self._replaced: dict[tuple[int, int], int] = {}

    def heads_to_load(self, jobs: Sequence[StoreJob]) -> list[str]:
        """Return the tasks of ``jobs`` whose heads must be loaded from the database."""
        return list(
            {
                job.task_id: None
                for job in jobs
                if job.task_id
                and job.task_id not in self._known
                and (self.pessimistic or not job.creates)
            }
        )

    def stage(self, jobs: Sequence[StoreJob]) -> list[StoreJobResult]:
        """Add jobs to the batch. The error of a rejected job is in its result."""
        results: list[StoreJobResult] = []
        for job in jobs:
            try:
                result, records = job.operation(self)
                results.append((job, result, records, None))
            except (StoreError, IllegalEvent) as error:
                if job.writer is not None:
                    self.failed_writers.add(job.writer)
                results.append((job, None, (), error.with_traceback(None)))
        return results

    def append(self, append: Append, payload: Payload) -> Applied:
        """Append records. The result is the log's new head."""
        expected = append.expected_seq
        if expected is not None and (append.task_id, append.epoch) in self.failed_writers:
            raise Conflict(append.task_id, expected, None)
        before = self.head(append.task_id)
        head, records = advance(before, append, payload, self.at, self.replica)
        pushes = {}
        if append.pushes:
            pushes = self._pushes_with(head, append.pushes, after=head.seq if before else 0)
        if append.receipts:
            self._check_receipts(head.scope, append.receipts)
        # Other appends, such as a message, keep the events that the task waits for.
        falls_asleep = append.wakes_at is not None and head.wakes_at is not None
        head = self._put_log(head, records, payload, append.waits_for if falls_asleep else None)
        if append.receipts:
            self.add_receipts(head.scope, append.receipts, head.key)
        if pushes:
            self._put_pushes(head, pushes, len(append.pushes))
        if payload.exchange:
            self.add_exchange(head.scope, head.context_id, payload.exchange, head.key)
        return head.seq, records

    def adopt(self, task: WholeTask) -> Applied:
        """Add a new task with its whole log."""
        if (there := self.head(task.head.task_id)) is not None:
            raise Conflict(there.task_id, 0, there.seq)
        head = self._put_log(task.head, task.records, task.payload, task.waits_for or None)
        for push in task.pushes:
            self.put_push(head, push)
        return head.seq, ()

    def _put_log(
        self,
        head: Head,
        records: Sequence[LoggedEvent],
        payload: Payload,
        waits_for: Sequence[str] | None,
    ) -> Head:
        """Set a task's head, add the records that led to it, and return the resulting head.

        ``waits_for`` replaces the events that the task waits for; ``None`` keeps them.
        """
        if waits_for and self.is_complete(head.scope.agent, waits_for):
            head = with_event(head)
        head = self.put_head(head)
        if waits_for is not None:
            self.set_waits(head, waits_for)
        binary = self.binary
        self._records += [
            (head.key, r.seq, r.sub, r.turn, r.kind._value_, r.at, binary(r.payload))
            for r in records
        ]
        self._add_stored_form(head, payload)
        return head

    def claim(self, task_id: str) -> Applied:
        """Claim a task for this replica. The result is the new epoch."""
        return self.put_head(with_claim(self.head(task_id), task_id, self.replica)).epoch, ()

    def keep(
        self, scope: Scope, context_id: str, receipts: Sequence[Receipt], exchange: Sequence[bytes]
    ) -> Applied:
        """Store receipts and an exchange of messages that belong to no task."""
        self._check_receipts(scope, receipts)
        self.add_receipts(scope, receipts)
        self.add_exchange(scope, context_id, exchange)
        return 0, ()

    def add_push(self, task_id: str, push: PushRecord) -> tuple[PushRecord, Sequence[LoggedEvent]]:
        """Store a push notification configuration. The result is the stored one."""
        head = self.head(task_id)
        if head is None:
            raise unknown(task_id)
        pushes = self._pushes_with(head, (push,), after=head.seq)
        self._put_pushes(head, pushes, 1)
        return next(reversed(pushes.values())), ()

    def head_before(self, task_id: str) -> Head | None:
        """Return the head of a task before the batch."""
        return self._known.get(task_id) or self._found.get(task_id)

    def head(self, task_id: str) -> Head | None:
        """Return the head of a task after the batch so far."""
        return self.heads.get(task_id) or self._known.get(task_id) or self._found.get(task_id)

    def current_head(self, head: Head) -> Head:
        """Return the head of a task after the batch so far, given the ``head`` before it."""
        if head.task_id not in self._known:
            self._found.setdefault(head.task_id, head)
        return self.head(head.task_id) or head

    def put_head(self, head: Head) -> Head:
        """Set a task's head; a new task gets its key."""
        if not head.key:
            head = msgspec.structs.replace(head, key=self._new_key())
        self.heads[head.task_id] = head
        return head

    @abstractmethod
    def is_complete(self, agent: str, keys: Sequence[str]) -> bool:
        """Return whether any event is complete; none is completed before the write."""

    @abstractmethod
    def set_waits(self, head: Head, keys: Sequence[str]) -> None:
        """Set the events that a task waits for."""

    def _add_stored_form(self, head: Head, payload: Payload) -> None:
        """Add the payload of the append that led to ``head`` to the task's stored form."""
        if payload.messages:
            first = head.messages - len(payload.messages) + 1
            self._messages += [(head.key, n, m) for n, m in enumerate(payload.messages, first)]
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
        """Add to the number of a scope's tasks in a state."""
        self._counts[*scope_columns(scope), state] += more

    def _check_receipts(self, scope: Scope, receipts: Sequence[Receipt]) -> None:
        """Raise ``DuplicateReceipt`` if a message has a receipt already."""
        if self.pessimistic:
            for receipt in receipts:
                if self.has_receipt(scope, receipt.message_id):
                    raise DuplicateReceipt(receipt.message_id)

    @abstractmethod
    def has_receipt(self, scope: Scope, message_id: str) -> bool:
        """Return whether the database has a receipt for a message."""

    @abstractmethod
    def add_receipts(self, scope: Scope, receipts: Sequence[Receipt], key: int = 0) -> None:
        """Add receipts, with the change of the task with this key, if any."""

    @abstractmethod
    def add_exchange(
        self, scope: Scope, context_id: str, messages: Sequence[bytes], key: int = 0
    ) -> None:
        """Add messages to a context's history, with the change of a task, if any."""

    @abstractmethod
    def read_pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations from the database."""

    @abstractmethod
    def put_push(self, head: Head, push: PushRecord) -> None:
        """Store a push notification configuration, replacing one with the same id."""

    def current_pushes(self, task_id: str) -> dict[str, PushRecord]:
        """Return a task's push configurations after the batch so far."""
        if task_id not in self._pushes:
            if task_id in self.heads and self.head_before(task_id) is None:
                return {}  # the batch creates the task
            self._pushes[task_id] = {push.id: push for push in self.read_pushes(task_id)}
        return self._pushes[task_id]

    def _pushes_with(
        self, head: Head, pushes: Sequence[PushRecord], *, after: int
    ) -> dict[str, PushRecord]:
        """Return a task's push configurations with further ones. Raises ``TooManyPushes``."""
        is_new = self.head(head.task_id) is None
        current = {} if is_new else self.current_pushes(head.task_id)
        return merge_pushes(pushes, current, head, after=after, replica=self.replica)

    def _put_pushes(self, head: Head, pushes: dict[str, PushRecord], count: int) -> None:
        """Set a task's push configurations; the last ``count`` of them are new."""
        self._pushes[head.task_id] = pushes
        for push in list(pushes.values())[-count:]:
            self.put_push(head, push)


def clear_failures(batch: Batch, writers: Iterable[WriterId]) -> Applied:
    """Let writers that received their error write again."""
    batch.failed_writers.difference_update(writers)
    return 0, ()


class FailedWriters:
    """Lets writers that received their error write again.

    Jobs that were submitted before that still fail: each may build on the failed one.
    """

    def __init__(self) -> None:
        self._uncleared: set[WriterId] = set()

    def clear(self, writing: GroupWriter[StoreJob], failed: Sequence[StoreJob]) -> None:
        """Submit a job after which the writers of failed jobs may succeed."""
        writers = {job.writer for job in failed if job.writer is not None}
        if not writers:
            return
        writers |= self._uncleared
        self._uncleared = set()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(partial(self._cleared, writers))
        writing.submit(StoreJob(future, partial(clear_failures, writers=writers)))

    def _cleared(self, writers: set[WriterId], done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._uncleared |= writers  # with the next failure


def scope_columns(scope: Scope) -> tuple[str, str, str]:
    """Return a scope as columns."""
    return scope.agent, scope.tenant, scope.owner


def head_from_row(row: Sequence[Any]) -> Head:
    """Return the head in a row with the columns of the query ``heads``."""
    key, task_id, agent, tenant, owner, context_id, state, status_at, seq, sub, turn, *rest = row
    turn_open, waiting, cancel_requested, epoch, ended_at, lease_owner, queue_key, *stored = rest
    messages, has_status_message, folded, wakes_at, base_url = stored
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
        lease_owner=owner_in(lease_owner),
        queue_key=queue_key,
        messages=messages,
        has_status_message=bool(has_status_message),
        folded=folded,
        wakes_at=wakes_at,
        base_url=base_url,
    )


def owner_column(head: Head) -> str:
    """Return a head's lease owner as a column."""
    return head.lease_owner if head.wakes_at is None else ASLEEP


def owner_in(column: str) -> str:
    """Return the lease owner that a column has."""
    return "" if column == ASLEEP else column


def options_column(options: PushOptions) -> str:
    """Return the options of a webhook as a column, empty for the defaults."""
    return "" if options == PushOptions() else msgspec.json.encode(options).decode()


def options_in(column: str) -> PushOptions:
    """Return the options that a column has."""
    return msgspec.json.decode(column, type=PushOptions) if column else PushOptions()


def pushes_from_rows(rows: Sequence[Sequence[Any]]) -> list[PushRecord]:
    """Return the push configurations in rows of the query ``pushes``."""
    return [
        PushRecord(
            config=decode(config, TaskPushNotificationConfig),
            version=version,
            revision=revision,
            cursor=cursor,
            state=PushState(state),
            note=note,
            lease_owner=lease_owner,
            options=options_in(options),
            attempts=attempts,
            confirmed=bool(confirmed),
        )
        for (
            config,
            version,
            revision,
            cursor,
            state,
            note,
            lease_owner,
            options,
            attempts,
            confirmed,
        ) in rows
    ]
