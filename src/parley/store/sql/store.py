"""The part of a task store that is the same on every SQL database."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec.structs import asdict

from parley.database.database import GroupWriter, ReaderPool
from parley.model.parts import Message
from parley.model.struct import decode, encode
from parley.model.tasks import TaskState
from parley.store.audit.trail import LAST, PAGE, AuditEntry, AuditFilter, AuditLine, AuditPrune
from parley.store.events import LoggedEvent, RecordKind, Scope, payloads_in, records_in
from parley.store.head import payload_of
from parley.store.protocols.claims import MAX_COUNTED
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import DueTask, Receipt, TimersChanged
from parley.store.protocols.task_log import PAGE_BYTES, Append, LogPosition, TaskQuery, TaskRecord
from parley.store.protocols.webhooks import ActivePushes, DeliveryAttempt, PushRecord
from parley.store.snapshot import StoredTask, artifact_rows
from parley.store.sql.batch import (
    Operation,
    StoreJob,
    WholeTask,
    WriterId,
    owner_in,
    pushes_from_rows,
    scope_columns,
)
from parley.store.sql.rows import SqlRows, append_audit, prune_audit, read_audit
from parley.store.task_store import TaskStore
from parley.store.webhooks import active_of, last_attempts

UNLIMITED = 2**62
"""A limit that nothing reaches."""

STATES = [state.value for state in TaskState if state is not TaskState.UNSPECIFIED]

C = TypeVar("C")
T = TypeVar("T")


class SqlTaskStore(TaskStore, Generic[C]):
    """A task store over jobs for a writer and named queries for readers.

    ``name`` is its location for people. The store is open while there is a ``_loop``.
    """

    reads_at_once = False

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._replica = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writing: GroupWriter[StoreJob] | None = None
        self._reading: ReaderPool[C] | None = None
        self._timers_changed: TimersChanged = lambda _: None
        self._migrated: Sequence[str] = ()

    @abstractmethod
    async def _rows(
        self, name: str, values: Sequence[Any] | Mapping[str, Any]
    ) -> Sequence[Sequence[Any]]:
        """Return the rows of a named query."""

    @abstractmethod
    def _texts(self, texts: Sequence[str]) -> Any:
        """Return texts as one parameter of a query."""

    @property
    def replica(self) -> str:
        """The id of this user of the store; another at each ``open``."""
        return self._replica

    @property
    def is_busy(self) -> bool:
        """True while reads or writes are in progress."""
        return self._writing is not None and self._writing.is_busy

    def append(self, append: Append) -> asyncio.Future[int]:
        """Add records. See ``TaskStore``."""
        payload = payload_of(append)
        creates = append.expected_seq == 0
        future = self._submit(
            lambda batch: batch.append(append, payload),
            task_id=append.task_id,
            creates=creates,
            writer=None if append.expected_seq is None else (append.task_id, append.epoch),
            size=payload.size,
            is_locked=bool(append.waits_for) or (bool(append.pushes) and not creates),
        )
        if append.wakes_at is not None:
            future.add_done_callback(partial(self._asleep, append))
        return future

    def adopt(self, task: WholeTask) -> asyncio.Future[int]:
        """Add a task of another store, with its whole log; the result is the log's head.

        Raises ``Conflict`` when it exists. It has no lease owner.
        """
        return self._submit(
            lambda batch: batch.adopt(task),
            task_id=task.head.task_id,
            creates=True,
            size=sum([len(record.payload) for record in task.records]),
            is_locked=True,  # keeps the order of the tasks of one group
        )

    def _asleep(self, append: Append, done: asyncio.Future[int]) -> None:
        if append.wakes_at is not None and not done.cancelled() and done.exception() is None:
            # An event may be complete.
            self._timers_changed(0 if append.waits_for else append.wakes_at)

    def listen_timers(self, changed: TimersChanged) -> None:
        """Call ``changed`` whenever this process makes a task sleep, or completes an event."""
        self._timers_changed = changed

    async def next_wake(self, agents: Sequence[str]) -> int | None:
        """Return the earliest time (ms) at which a task of these agents is due."""
        at: int | None = (await self._rows("next_wake", (self._texts(agents),)))[0][0]
        return at

    async def due_tasks(self, agent: str, now: int, limit: int) -> Sequence[DueTask]:
        """Return sleeping tasks that are due, the earliest first."""
        rows = await self._rows("due_tasks", (agent, now, limit))
        return [DueTask(task_id, Scope(*scope)) for task_id, *scope in rows]

    async def event(self, agent: str, key: str) -> bytes | None:
        """Return the value of an event, ``None`` until it is complete."""
        rows = await self._rows("event", (agent, key))
        return bytes(rows[0][0]) if rows else None

    @property
    def migrated(self) -> Sequence[str]:
        """The migrations that ``open`` ran."""
        return self._migrated

    @abstractmethod
    async def change_rows(self, work: Callable[[SqlRows], T]) -> T:
        """Call ``work`` in a transaction, and return its result once that is durable."""

    @abstractmethod
    async def read_rows(self, work: Callable[[SqlRows], T]) -> T:
        """Call ``work``, which only reads, and return its result."""

    async def append_audit(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append entries to the audit."""
        return await self.change_rows(lambda table: append_audit(table, entries))

    async def prune_audit(self, prune: AuditPrune) -> int:
        """Remove old lines of the audit, and append a checkpoint."""
        return await self.change_rows(lambda table: prune_audit(table, prune))

    async def read_audit(
        self, which: AuditFilter, *, after: int = 0, limit: int = PAGE, newest: bool = False
    ) -> Sequence[AuditLine]:
        """Return lines of the audit after one, in order."""
        return await self.read_rows(lambda table: read_audit(table, which, after, limit, newest))

    async def load(
        self,
        task_id: str,
        *,
        scope: Scope | None = None,
        history: int | None = None,
        artifacts: bool = True,
    ) -> TaskRecord | None:
        """Return the task, at the cost of the requested parts."""
        values = {
            "task_id": task_id,
            **asdict(scope or Scope("")),
            "any_scope": scope is None,
            "history": UNLIMITED if history is None else history,
            "artifacts": artifacts,
        }
        rows = await self._rows("load", values)
        if not rows:
            return None
        agent, tenant, owner, seq, turn, turn_open, waiting, epoch, *rest = rows[0]
        canceling, lease_owner, wakes_at, base_url, *form = rest
        return TaskRecord(
            scope=Scope(agent, tenant, owner),
            stored=stored_task_from_row(task_id, form),
            seq=seq,
            turn=turn,
            turn_open=bool(turn_open),
            waiting=waiting,
            epoch=epoch,
            cancel_requested=bool(canceling),
            lease_owner=owner_in(lease_owner),
            wakes_at=wakes_at,
            base_url=base_url,
        )

    async def scope_of(self, task_id: str) -> Scope | None:
        """Return the scope of a task, at the cost of a look-up."""
        rows = await self._rows("scope_of", (task_id,))
        return Scope(*rows[0]) if rows else None

    async def private_records(
        self,
        task_id: str,
        kinds: Sequence[RecordKind],
        *,
        after: tuple[int, int] = (0, 0),
        limit: int | None = None,
    ) -> Sequence[LoggedEvent]:
        """Return the task's private records of some kinds after a position."""
        values = {
            "task_id": task_id,
            "kinds": self._texts([kind.value for kind in kinds]),
            "seq": after[0],
            "sub": after[1],
            "limit": UNLIMITED if limit is None else limit,
        }
        rows = await self._rows("private_records", values)
        return records_in(task_id, rows[0][0])

    async def waiting_messages(
        self, task_id: str, *, skip: int = 0, limit: int = 1
    ) -> Sequence[LoggedEvent]:
        """Return the ``Received`` records that no turn has received, the oldest first."""
        values = {"task_id": task_id, "skip": skip, "limit": limit}
        rows = await self._rows("waiting_messages", values)
        return records_in(task_id, rows[0][0])

    async def events(self, task_id: str, after: int, limit: int) -> Sequence[LoggedEvent]:
        """Return up to ``limit`` public events with a number above ``after``, in order."""
        values = {"task_id": task_id, "after": after, "limit": limit, "bytes": PAGE_BYTES}
        rows = await self._rows("events", values)
        return records_in(task_id, rows[0][0])

    async def claim(self, task_id: str) -> int:
        """Claim the task for a new executor; return the new epoch, which fences earlier ones."""
        epoch: int = await self._submit(lambda batch: batch.claim(task_id), task_id=task_id)
        return epoch

    async def unclaimed(self) -> Mapping[str, int]:
        """Return the number of unclaimed tasks by agent."""
        return {agent: count for agent, count in await self._rows("unclaimed", (MAX_COUNTED,))}

    async def first_queued(self, agent: str) -> int:
        """Return the lowest ``place`` above 0 of the agent's unclaimed tasks, 0 without any."""
        rows = await self._rows("first_queued", (agent,))
        return rows[0][0] if rows else 0

    async def queued_since(self, agent: str) -> int:
        """Return the time of the last record of the agent's next unclaimed task, 0 without any."""
        rows = await self._rows("queued_since", (agent,))
        return rows[0][0] if rows else 0

    async def held_tasks(self) -> Sequence[str]:
        """Return the ids of the tasks with work left that this replica holds."""
        return [task_id for (task_id,) in await self._rows("held_tasks", (self._replica,))]

    async def awaiting_input(self, agent: str, since: int, limit: int) -> Sequence[str]:
        """Return tasks that have waited for their callers since before a time, the longest
        first."""
        return [task_id for (task_id,) in await self._rows("awaiting_input", (agent, since, limit))]

    async def receipt(self, scope: Scope, message_id: str) -> Receipt | None:
        """Return the receipt of a message."""
        rows = await self._rows("receipt", (*scope_columns(scope), message_id))
        return Receipt(*rows[0]) if rows else None

    async def keep(
        self,
        scope: Scope,
        context_id: str,
        *,
        receipt: Receipt | None = None,
        exchange: Sequence[Message] = (),
    ) -> None:
        """Store the receipt and the exchange of a direct reply; either may be missing."""
        receipts = (receipt,) if receipt else ()
        messages = [encode(message) for message in exchange]
        await self._submit(lambda batch: batch.keep(scope, context_id, receipts, messages))

    async def history(self, scope: Scope, context_id: str, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages of a context, the oldest first."""
        rows = await self._rows("history", (*scope_columns(scope), context_id, limit))
        lines: bytes | None = rows[0][0]
        return [decode(line, Message) for line in lines.split(b"\n")] if lines else []

    async def get_value(self, scope: Scope, context_id: str, key: str) -> bytes | None:
        """Return a value that an agent stored for a context."""
        rows = await self._rows("value", (*scope_columns(scope), context_id, key))
        value: bytes | None = rows[0][0] if rows else None
        return value

    async def pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations, by id."""
        return pushes_from_rows(await self._rows("pushes", (task_id,)))

    async def push_attempts(self, task_id: str, push_id: str) -> Sequence[DeliveryAttempt]:
        """Return the last attempts of a webhook, the newest first."""
        rows = await self._rows("push_attempts", (task_id, push_id))
        return last_attempts([bytes(body) for (body,) in rows])

    async def active_pushes(self, agents: Sequence[str], after: int, limit: int) -> ActivePushes:
        """Return whether a webhook is unclaimed, and a page of this replica's."""
        values = {"agents": self._texts(agents), "replica": self._replica}
        rows = await self._rows("active_pushes", values | {"after": after, "limit": limit})
        held = [(task, task_id, revision) for _, task, task_id, revision in rows[1:]]
        return active_of(bool(rows[0][0]), held, limit)

    async def save_delivery(
        self, task_id: str, push: PushRecord, attempt: DeliveryAttempt | None = None
    ) -> bool:
        """Store a webhook's delivery state and an attempt, if this replica still holds it."""
        is_saved: bool = await self._submit(
            lambda batch: (batch.save_delivery(task_id, push, attempt), ())
        )
        return is_saved

    async def put_push(self, task_id: str, push: PushRecord) -> PushRecord:
        """Store a push notification configuration of a task; return the stored one."""
        stored: PushRecord = await self._submit(
            lambda batch: batch.add_push(task_id, push), task_id=task_id, is_locked=True
        )
        return stored

    def _submit(
        self,
        operation: Operation,
        *,
        task_id: str = "",
        creates: bool = False,
        writer: WriterId | None = None,
        size: int = 0,
        is_locked: bool = False,
    ) -> asyncio.Future[Any]:
        if self._loop is None or self._writing is None:
            raise self._closed()
        future: asyncio.Future[Any] = self._loop.create_future()
        now = time.monotonic()
        job = StoreJob(future, operation, size, now, task_id, creates, writer, is_locked)
        self._writing.submit(job)
        return future

    async def _read(self, function: Callable[[C], T]) -> T:
        """Call a function with a reader's connection; return its result."""
        if self._loop is None or self._reading is None:
            raise self._closed()
        return await self._reading.run(function)

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._name}: the store is closed")


def list_values(query: TaskQuery) -> dict[str, Any]:
    """Return the values of the queries that list tasks; an empty ``state`` stands for all."""
    before_at, before_id = query.before or (LAST, "")
    return {
        **asdict(query.scope),
        "context_id": query.context_id,
        "state": "" if query.state is TaskState.UNSPECIFIED else query.state.value,
        "first": -LAST if query.status_after is None else query.status_after,
        "last": LAST if query.not_after is None else query.not_after,
        "before_at": before_at,
        "before_id": before_id,
        "history": UNLIMITED if query.history is None else query.history,
        "artifacts": query.artifacts,
        "limit": query.limit,
        "max_bytes": query.max_bytes,
    }


def positions_from_rows(rows: Sequence[Sequence[Any]]) -> list[LogPosition]:
    """Return the positions in rows of the query ``positions``."""
    return [
        LogPosition(
            task_id=task_id,
            seq=seq,
            sub=sub,
            epoch=epoch,
            lease_owner=owner_in(lease_owner),
            waiting=waiting,
            cancel_requested=bool(canceling),
            ended=bool(has_ended),
        )
        for task_id, seq, sub, epoch, lease_owner, waiting, canceling, has_ended in rows
    ]


def stored_task_from_row(task_id: str, row: Sequence[Any]) -> StoredTask:
    """Return the task in the last columns of a row of ``load`` or ``list``."""
    context_id, state, status_at, status_message, metadata, history, artifacts, tail = row
    return StoredTask(
        task_id=task_id,
        context_id=context_id,
        state=TaskState(state),
        status_at=status_at,
        status_message=status_message or b"",
        metadata=metadata or b"",
        history=history or b"",
        artifacts=artifact_rows(artifacts),
        tail=payloads_in(tail),
    )
