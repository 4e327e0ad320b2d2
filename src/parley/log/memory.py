"""A store for tests and throw-away servers: everything is gone with the process."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from heapq import nlargest

import msgspec

from parley.log.events import Kind, LoggedEvent, logged, now_ms
from parley.log.fold import IllegalEvent, fold
from parley.log.head import Head, advance, claimed, payloads_of, unknown
from parley.log.pushes import placed
from parley.log.snapshot import Snapshot
from parley.log.store import (
    HISTORY_KEPT,
    PAGE_BYTES,
    Append,
    Committed,
    DuplicateReceipt,
    Memory,
    PushRecord,
    PushState,
    Receipt,
    Scope,
    StoreError,
    StoreUnavailable,
    TaskPage,
    TaskQuery,
    TaskRecord,
    memory_of,
)
from parley.model.encoding import decode, encode
from parley.model.parts import Message
from parley.model.tasks import Task, TaskState

logger = logging.getLogger(__name__)

_Row = tuple[int, int, int, Kind, int, bytes]  # seq, sub, turn, kind, at, payload


class _Log(msgspec.Struct):
    """One task: its head, its rows, and its snapshot with the place up to which that goes."""

    head: Head
    public: list[_Row] = msgspec.field(default_factory=list)
    private: list[_Row] = msgspec.field(default_factory=list)
    snapshot: Snapshot | None = None
    place: tuple[int, int] = (0, 0)
    pushes: dict[str, PushRecord] = msgspec.field(default_factory=dict)

    def tail(self, artifacts: bool) -> list[LoggedEvent]:
        """Return what the fold needs after the snapshot."""
        seq, _ = self.place
        rows = [row for row in self.public[seq:] if artifacts or row[3] is not Kind.ARTIFACT]
        for row in reversed(self.private):
            if row[:2] <= self.place:
                break
            if row[3] is Kind.TURN:
                rows.append(row)
        return [self.read(row) for row in sorted(rows)]

    def task(self, artifacts: bool = True) -> Task:
        """Return the task as it stands."""
        start = None
        if self.snapshot is not None:
            start = (self.snapshot if artifacts else self.snapshot._replace(artifacts=b"")).read()
        return fold([record.event for record in self.tail(artifacts)], start)

    def read(self, row: _Row) -> LoggedEvent:
        """Return a row as the record that it holds."""
        seq, sub, turn, kind, at, payload = row
        return logged(self.head.task_id, seq, sub, turn, kind, at, payload)


class _Context(msgspec.Struct):
    """What agents keep for a context."""

    touched_at: int
    history: deque[bytes] = msgspec.field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    values: dict[str, bytes] = msgspec.field(default_factory=dict)


class MemoryTaskStore:
    """Keeps task logs in this process's memory, as bytes. ``clock`` returns milliseconds.

    An append is done when the call returns; its readers are told at the same moment.
    """

    def __init__(self, *, clock: Callable[[], int] = now_ms) -> None:
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._committed: Committed | None = None
        self._telling = False
        self._untold: deque[Sequence[LoggedEvent]] = deque()
        self._logs: dict[str, _Log] = {}
        self._receipts: dict[tuple[Scope, str], tuple[Receipt, int]] = {}
        self._contexts: dict[tuple[Scope, str], _Context] = {}

    async def open(self, committed: Committed) -> None:
        """Make the store ready."""
        self._loop = asyncio.get_running_loop()
        self._committed = committed

    async def close(self) -> None:
        """Refuse further use. Idempotent. What is kept is there again when it is opened again."""
        self._loop = None
        self._committed = None

    def append(self, append: Append) -> asyncio.Future[int]:
        """Add records. See ``TaskStore``."""
        payloads = payloads_of(append)
        snapshot = None if append.task is None else Snapshot.of(append.task)
        exchange = [encode(message) for message in append.exchange]
        future: asyncio.Future[int] = self._opened().create_future()
        try:
            records = self._append(append, payloads, snapshot, exchange)
        except (StoreError, IllegalEvent) as error:
            future.set_exception(error)
        else:
            future.set_result(self._logs[append.task_id].head.seq)
            self._tell(records)
        return future

    def _append(
        self,
        append: Append,
        payloads: Sequence[bytes],
        snapshot: Snapshot | None,
        exchange: Sequence[bytes],
    ) -> list[LoggedEvent]:
        log = self._logs.get(append.task_id)
        at = self._clock()
        head, records = advance(log.head if log else None, append, payloads, at)
        pushes = log.pushes if log else {}
        if append.pushes:
            pushes = placed(append.pushes, pushes, head, after=head.seq if log else 0)
        self._keep(head.scope, head.context_id, append.receipts, exchange, at)
        if log is None:
            log = self._logs[append.task_id] = _Log(head)
        log.head, log.pushes = head, pushes
        for record in records:
            row = (record.seq, record.sub, record.turn, record.kind, record.at, record.payload)
            (log.private if record.sub else log.public).append(row)
        if snapshot is not None:
            log.snapshot, log.place = snapshot, (head.seq, head.sub)
        return records

    def _tell(self, records: Sequence[LoggedEvent]) -> None:
        """Tell of a commit; one that is made while others are told comes after them."""
        self._untold.append(records)
        if self._telling or self._committed is None:
            return
        self._telling = True
        try:
            while self._untold:
                self._committed(self._untold.popleft())
        except Exception:
            logger.exception("telling of a commit failed; its readers will find it in the store")
        finally:
            self._telling = False

    async def load(self, task_id: str) -> TaskRecord | None:
        """Return the task, at no more cost than its size."""
        self._opened()
        log = self._logs.get(task_id)
        if log is None:
            return None
        head = log.head
        return TaskRecord(
            scope=head.scope,
            task=log.task(),
            seq=head.seq,
            turn=head.turn,
            turn_open=head.turn_open,
            waiting=head.waiting,
            epoch=head.epoch,
            cancel_requested=head.cancel_requested,
        )

    async def memory(self, task_id: str) -> Memory:
        """Return the private records of the task that a turn needs."""
        self._opened()
        log = self._logs.get(task_id)
        return memory_of([log.read(row) for row in log.private] if log else ())

    async def events(self, task_id: str, after: int, limit: int) -> Sequence[LoggedEvent]:
        """Return up to ``limit`` public events with a number above ``after``, in order."""
        self._opened()
        log = self._logs.get(task_id)
        page: list[LoggedEvent] = []
        size = 0
        for row in log.public[after : after + limit] if log else ():
            if size >= PAGE_BYTES:
                break
            size += len(row[-1])
            assert log is not None
            page.append(log.read(row))
        return page

    async def list(self, query: TaskQuery) -> TaskPage:
        """Return one page of tasks."""
        self._opened()
        found = [log for log in self._logs.values() if _matches(log.head, query)]
        before = query.before
        rest = [log for log in found if before is None or _order(log) < before]
        page = nlargest(query.limit, rest, key=_order)
        tasks = tuple([log.task(query.artifacts) for log in page])
        return TaskPage(tasks, total=len(found), more=len(rest) > len(page))

    async def claim(self, task_id: str) -> int:
        """Take the task for a new executor and return the new epoch; earlier ones are fenced."""
        self._opened()
        log = self._logs.get(task_id)
        head = claimed(log.head if log else None, task_id)
        self._logs[task_id].head = head
        return head.epoch

    async def unfinished(self, agent: str) -> Sequence[str]:
        """Return the ids of the agent's tasks that an executor has to see to, the oldest first."""
        self._opened()
        heads = [log.head for log in self._logs.values()]
        return [head.task_id for head in heads if head.scope.agent == agent and head.is_unfinished]

    async def parked(self, agent: str, since: int, limit: int) -> Sequence[str]:
        """Return tasks that wait for their callers since before a moment, the longest first."""
        self._opened()
        waiting = [
            log.head
            for log in self._logs.values()
            if log.head.scope.agent == agent
            and log.head.ended_at is None
            and not log.head.is_unfinished
            and log.head.status_at < since
        ]
        waiting.sort(key=lambda head: head.status_at)
        return [head.task_id for head in waiting[:limit]]

    async def receipt(self, scope: Scope, message_id: str) -> Receipt | None:
        """Return what was kept for a message."""
        self._opened()
        kept = self._receipts.get((scope, message_id))
        return kept[0] if kept else None

    async def keep(
        self,
        scope: Scope,
        context_id: str,
        *,
        receipt: Receipt | None = None,
        exchange: Sequence[Message] = (),
    ) -> None:
        """Keep what a direct reply leaves behind: a receipt, an exchange, or both, or none."""
        self._opened()
        said = [encode(message) for message in exchange]
        self._keep(scope, context_id, (receipt,) if receipt else (), said, self._clock())

    def _keep(
        self,
        scope: Scope,
        context_id: str,
        receipts: Sequence[Receipt],
        exchange: Sequence[bytes],
        at: int,
    ) -> None:
        names = [receipt.message_id for receipt in receipts]
        for i, name in enumerate(names):
            if (scope, name) in self._receipts or name in names[:i]:
                raise DuplicateReceipt(name)
        for receipt in receipts:
            self._receipts[scope, receipt.message_id] = (receipt, at)
        if exchange:
            self._context(scope, context_id, at).history.extend(exchange)

    def _context(self, scope: Scope, context_id: str, at: int) -> _Context:
        context = self._contexts.setdefault((scope, context_id), _Context(at))
        context.touched_at = at
        return context

    async def history(self, scope: Scope, context_id: str, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages of a context, the oldest first."""
        self._opened()
        context = self._contexts.get((scope, context_id))
        kept = tuple(context.history) if context else ()
        return [decode(message, Message) for message in kept[max(0, len(kept) - limit) :]]

    async def get_value(self, scope: Scope, context_id: str, key: str) -> bytes | None:
        """Return a value that an agent keeps for a context."""
        self._opened()
        context = self._contexts.get((scope, context_id))
        return context.values.get(key) if context else None

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Keep a value for a context; ``None`` removes it."""
        self._opened()
        context = self._context(scope, context_id, self._clock())
        if value is None:
            context.values.pop(key, None)
        else:
            context.values[key] = value

    async def put_push(self, task_id: str, push: PushRecord) -> PushRecord:
        """Keep a push notification configuration of a task; return it as it is kept."""
        self._opened()
        log = self._logs.get(task_id)
        if log is None:
            raise unknown(task_id)
        log.pushes = placed((push,), log.pushes, log.head, after=log.head.seq)
        return next(reversed(log.pushes.values()))

    async def pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations, by id."""
        self._opened()
        log = self._logs.get(task_id)
        return sorted(log.pushes.values(), key=lambda push: push.id) if log else ()

    async def move_push(self, task_id: str, push: PushRecord) -> None:
        """Note how far a webhook was told, and its state."""
        self._opened()
        log = self._logs.get(task_id)
        kept = log.pushes.get(push.id) if log else None
        if log is not None and kept is not None and kept.revision == push.revision:
            log.pushes[push.id] = push

    async def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it is there."""
        self._opened()
        log = self._logs.get(task_id)
        if log is not None:
            log.pushes.pop(push_id, None)

    async def pushing(self, agent: str) -> Sequence[tuple[str, bool]]:
        """Return the ids of the agent's tasks with active configurations, the oldest first."""
        self._opened()
        found = []
        for task_id, log in self._logs.items():
            active = [push for push in log.pushes.values() if push.state is PushState.ACTIVE]
            if active and log.head.scope.agent == agent:
                found.append((task_id, any([push.cursor < log.head.seq for push in active])))
        return found

    async def prune(self, agent: str, ended_before: int, limit: int) -> int:
        """Remove up to ``limit`` tasks that ended before a moment (ms), with all that is theirs."""
        self._opened()
        heads = [log.head for log in self._logs.values() if log.head.scope.agent == agent]
        gone = [h for h in heads if h.ended_at is not None and h.ended_at < ended_before][:limit]
        for head in gone:
            del self._logs[head.task_id]
        for name, (_, at) in list(self._receipts.items()):
            if name[0].agent == agent and at < ended_before:
                del self._receipts[name]
        used = {(log.head.scope, log.head.context_id) for log in self._logs.values()}
        for place, context in list(self._contexts.items()):
            if place[0].agent == agent and context.touched_at < ended_before and place not in used:
                del self._contexts[place]
        return len(gone)

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise StoreUnavailable("the store is closed")
        return self._loop


def _order(log: _Log) -> tuple[int, str]:
    return log.head.status_at, log.head.task_id


def _matches(head: Head, query: TaskQuery) -> bool:
    return (
        head.scope == query.scope
        and query.context_id in ("", head.context_id)
        and query.state in (TaskState.UNSPECIFIED, head.state)
        and (query.status_after is None or head.status_at >= query.status_after)
        and (query.not_after is None or head.status_at <= query.not_after)
    )
