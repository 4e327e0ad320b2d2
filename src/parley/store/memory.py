"""A store in memory, for tests and throw-away servers: nothing survives the process.

Several of them on the same ``MemoryLogs`` are replicas that share a store, within one process.
"""

from __future__ import annotations

import asyncio
import logging
import os
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest, nsmallest
from itertools import islice
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from parley.model.encoding import decode, encode
from parley.model.parts import Message
from parley.model.tasks import TaskState
from parley.security.api_keys import ApiKeyRecord, checked
from parley.store.api_keys import ApiKeyListeners, check_same, ended
from parley.store.audit.memory import MemoryAudit, MemoryAuditTrail
from parley.store.events import LoggedEvent, RecordKind, logged, now_ms
from parley.store.fold import IllegalEvent
from parley.store.head import (
    Head,
    Payload,
    advance,
    payload_of,
    position_of,
    unknown,
    with_claim,
    with_event,
    with_lease_expired,
    with_wake,
)
from parley.store.lease import Lease, LivenessGate
from parley.store.memory_usage import MemoryCounts, MemoryUsage
from parley.store.protocols.api_keys import ENDED_KEPT, MAX_API_KEYS, ApiKeyChanged, TooManyApiKeys
from parley.store.protocols.claims import MAX_COUNTED, Claimed, Replica
from parley.store.protocols.contexts import HISTORY_KEPT, Receipt
from parley.store.protocols.errors import DuplicateReceipt, StoreError, StoreUnavailable
from parley.store.protocols.scope import Scope
from parley.store.protocols.secrets import SECRET_BYTES
from parley.store.protocols.task_lists import TaskPage, TaskQuery
from parley.store.protocols.task_log import PAGE_BYTES, Append, Committed, LogPosition, TaskRecord
from parley.store.protocols.timers import DueTask, EventCompleted, TimersChanged, checked_event
from parley.store.protocols.webhooks import (
    ATTEMPTS_KEPT,
    ActivePushes,
    DeliveryAttempt,
    PushRecord,
    PushState,
)
from parley.store.pushes import active_of, merge
from parley.store.snapshot import StoredTask

logger = logging.getLogger(__name__)

_Row = tuple[int, int, int, RecordKind, int, bytes]  # seq, sub, turn, kind, at, payload


class _Log(msgspec.Struct):
    """One task: its head, its rows, and its stored form (see ``snapshot``)."""

    head: Head
    public: list[_Row] = msgspec.field(default_factory=list)
    private: list[_Row] = msgspec.field(default_factory=list)
    messages: list[bytes] = msgspec.field(default_factory=list)
    metadata: bytes = b""
    artifacts: dict[int, list[tuple[bytes, bytes]]] = msgspec.field(default_factory=dict)
    pushes: dict[str, PushRecord] = msgspec.field(default_factory=dict)
    attempts: dict[str, deque[DeliveryAttempt]] = msgspec.field(default_factory=dict)
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
            tail=[row[-1] for row in self._tail()] if artifacts else (),
        )

    def size(self, history: int | None, artifacts: bool) -> int:
        """Return the approximate size of that in bytes."""
        size = sum([len(message) for message in self._history(history)])
        if self.head.has_status_message:
            size += len(self.messages[-1])
        if artifacts:
            pieces = [piece for pieces in self.artifacts.values() for piece in pieces]
            size += sum([len(head) + len(parts) for head, parts in pieces])
            size += sum([len(row[-1]) for row in self._tail()])
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

    def _tail(self) -> list[_Row]:
        return [row for row in self.public[self.head.folded :] if row[3] is RecordKind.ARTIFACT]

    def read(self, row: _Row) -> LoggedEvent:
        """Return the record that a row holds."""
        seq, sub, turn, kind, at, payload = row
        return logged(self.head.task_id, seq, sub, turn, kind, at, payload)


class _Context(msgspec.Struct):
    """The history and values of a context."""

    touched_at: int
    history: deque[bytes] = msgspec.field(default_factory=lambda: deque(maxlen=HISTORY_KEPT))
    values: dict[str, bytes] = msgspec.field(default_factory=dict)


class MemoryLogs:
    """The data of memory stores, and the time of each replica's last heartbeat. ``clock`` returns
    milliseconds.
    """

    def __init__(self, clock: Callable[[], int] = now_ms) -> None:
        self.clock = clock
        self.logs: dict[str, _Log] = {}
        self.receipts: dict[tuple[Scope, str], tuple[Receipt, int]] = {}
        self.contexts: dict[tuple[Scope, str], _Context] = {}
        self.events: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.secrets: dict[str, bytes] = {}
        self.api_keys: dict[str, ApiKeyRecord] = {}
        self.counts = MemoryCounts()
        self.audit = MemoryAudit(clock)
        self.heartbeats: dict[str, int] = {}


class MemoryTaskStore(MemoryUsage, MemoryAuditTrail):
    """Keeps task logs in this process's memory, as bytes. ``clock`` returns milliseconds.

    An append is done, and its readers are notified, when the call returns. With ``logs`` it is one
    of several replicas that share these, each alive for a ``lease`` after its last heartbeat.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int] = now_ms,
        logs: MemoryLogs | None = None,
        lease: Lease | None = None,
    ) -> None:
        self._shared = logs if logs is not None else MemoryLogs(clock)
        self._clock = self._shared.clock
        self._lease = lease or Lease()
        self._is_shared = logs is not None
        self._replica = ""
        self._heartbeat: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._committed: Committed | None = None
        self._is_notifying = False
        self._unpublished: deque[Sequence[LoggedEvent]] = deque()
        self._logs = self._shared.logs
        self._receipts = self._shared.receipts
        self._contexts = self._shared.contexts
        self._events = self._shared.events
        self._counts = self._shared.counts
        self._timers_changed: TimersChanged = lambda _: None
        self._api_key_listeners = ApiKeyListeners()

    @property
    def replica(self) -> str:
        """The id of this user of the store."""
        return self._replica

    @property
    def is_shared(self) -> bool:
        """Whether other replicas may use the store at the same time."""
        return self._is_shared

    @property
    def has_operators(self) -> bool:
        """Whether ``parley store`` can change the store while it is open: it cannot see it."""
        return False

    @property
    def unavailable_reason(self) -> str:
        """Why the store cannot be reached now: memory always can."""
        return ""

    def now(self) -> int:
        """Return the time by the store's clock, in ms."""
        return self._clock()

    async def open(self, committed: Committed) -> None:
        """Make the store ready."""
        self._loop = asyncio.get_running_loop()
        self._committed = committed
        self._replica = uuid4().hex
        if not self._is_shared:
            self._shared.heartbeats.clear()
            self._expire_leases()
        self._shared.heartbeats[self._replica] = self._clock()
        if self._is_shared:
            self._heartbeat = self._loop.create_task(self._send_heartbeats())

    async def close(self) -> None:
        """Refuse further use. Idempotent. The data is there again at the next ``open``."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.gather(self._heartbeat, return_exceptions=True)
            self._heartbeat = None
        self._shared.heartbeats.pop(self._replica, None)
        self._loop = None
        self._committed = None

    async def _send_heartbeats(self) -> None:
        """Record that this replica is alive, and expire the leases of dead ones."""
        assert self._loop is not None
        gate = LivenessGate(self._lease)
        seen = self._shared.heartbeats
        while True:
            now = seen[self._replica] = self._clock()
            if gate.felt(self._loop.time()):
                for replica, at in list(seen.items()):
                    if now - at > self._lease.time_to_live * 1000:
                        del seen[replica]
                self._expire_leases()
            await asyncio.sleep(self._lease.beat)

    def _expire_leases(self) -> None:
        """Expire the leases of replicas without a heartbeat."""
        for log in self._logs.values():
            if log.head.lease_owner and log.head.lease_owner not in self._shared.heartbeats:
                log.head = with_lease_expired(log.head)
            for push in log.pushes.values():
                if push.lease_owner not in self._shared.heartbeats:
                    log.pushes[push.id] = replace(push, lease_owner="")

    def append(self, append: Append) -> asyncio.Future[int]:
        """Add records. See ``TaskStore``."""
        payload = payload_of(append)
        future: asyncio.Future[int] = self._opened().create_future()
        try:
            records = self._append(append, payload)
        except (StoreError, IllegalEvent) as error:
            future.set_exception(error)
        else:
            future.set_result(self._logs[append.task_id].head.seq)
            self._publish(records)
            if append.wakes_at is not None:
                self._timers_changed(0 if append.waits_for else append.wakes_at)
        return future

    def _append(self, append: Append, payload: Payload) -> list[LoggedEvent]:
        log = self._logs.get(append.task_id)
        at = self._clock()
        head, records = advance(log.head if log else None, append, payload, at, self._replica)
        pushes = log.pushes if log else {}
        if append.pushes:
            after = head.seq if log else 0
            pushes = merge(append.pushes, pushes, head, after=after, replica=self._replica)
        self._keep(head.scope, head.context_id, append.receipts, payload.exchange, at)
        if append.waits_for and head.wakes_at is not None:
            agent = head.scope.agent
            if any([(agent, key) in self._events for key in append.waits_for]):
                head = with_event(head)
        if log is None:
            log = self._logs[append.task_id] = _Log(head)
        if append.wakes_at is not None:
            log.waits_for = append.waits_for
        log.update(head, payload)
        log.pushes = pushes
        for record in records:
            row = (record.seq, record.sub, record.turn, record.kind, record.at, record.payload)
            (log.private if record.sub else log.public).append(row)
        return records

    def _publish(self, records: Sequence[LoggedEvent]) -> None:
        """Pass on a commit, after the commits before it, though one of their readers made it."""
        self._unpublished.append(records)
        if self._is_notifying or self._committed is None:
            return
        self._is_notifying = True
        try:
            while self._unpublished:
                self._committed(self._unpublished.popleft())
        except Exception:
            logger.exception("a commit listener failed; readers will find the commit in the store")
        finally:
            self._is_notifying = False

    async def load(
        self,
        task_id: str,
        *,
        scope: Scope | None = None,
        history: int | None = None,
        artifacts: bool = True,
    ) -> TaskRecord | None:
        """Return the task, at no more cost than the size of what is asked for."""
        self._opened()
        log = self._logs.get(task_id)
        if log is None or scope not in (None, log.head.scope):
            return None
        head = log.head
        return TaskRecord(
            scope=head.scope,
            stored=log.stored(history, artifacts),
            seq=head.seq,
            turn=head.turn,
            turn_open=head.turn_open,
            waiting=head.waiting,
            epoch=head.epoch,
            cancel_requested=head.cancel_requested,
            lease_owner=head.lease_owner,
            wakes_at=head.wakes_at,
            base_url=head.base_url,
        )

    async def scope_of(self, task_id: str) -> Scope | None:
        """Return the task's scope, at the cost of a look-up."""
        self._opened()
        log = self._logs.get(task_id)
        return log.head.scope if log else None

    async def private_records(
        self,
        task_id: str,
        kinds: Sequence[RecordKind],
        *,
        after: tuple[int, int] = (0, 0),
        limit: int | None = None,
    ) -> Sequence[LoggedEvent]:
        """Return the task's private records of some kinds after a position."""
        self._opened()
        log = self._logs.get(task_id)
        if log is None:
            return ()
        first = bisect_right(log.private, after, key=lambda row: row[:2])
        rows = (row for row in islice(log.private, first, None) if row[3] in kinds)
        return [log.read(row) for row in islice(rows, limit)]

    async def waiting_messages(
        self, task_id: str, *, skip: int = 0, limit: int = 1
    ) -> Sequence[LoggedEvent]:
        """Return the ``MessageReceived`` records that no turn has taken, the oldest first."""
        self._opened()
        log = self._logs.get(task_id)
        if log is None or not log.head.waiting:
            return ()
        received = (row for row in reversed(log.private) if row[3] is RecordKind.RECEIVED)
        waiting = list(islice(received, log.head.waiting))[::-1]
        return [log.read(row) for row in waiting[skip : skip + limit]]

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
        tasks: list[StoredTask] = []
        size = 0
        for log in nlargest(query.limit, rest, key=_order):
            if size >= query.max_bytes:
                break
            size += log.size(query.history, query.artifacts)
            tasks.append(log.stored(query.history, query.artifacts))
        return TaskPage(tuple(tasks), total=len(found), more=len(rest) > len(tasks))

    async def claim(self, task_id: str) -> int:
        """Take the task's lease for a new executor; return the new epoch. Fences earlier ones."""
        self._opened()
        log = self._logs.get(task_id)
        head = with_claim(log.head if log else None, task_id, self._replica)
        self._logs[task_id].head = head
        return head.epoch

    async def claim_batch(self, agent: str, limit: int) -> Sequence[Claimed]:
        """Claim tasks that have work left and no lease owner, the lowest ``queue_key`` first."""
        self._opened()
        heads = [log.head for log in self._logs.values() if log.head.is_unclaimed]
        ours = [head for head in heads if head.scope.agent == agent]
        claimed = []
        for head in nsmallest(limit, ours, key=lambda head: head.queue_key):
            after = with_claim(head, head.task_id, self._replica)
            self._logs[head.task_id].head = after
            claimed.append(Claimed(head.task_id, after.epoch, head.queue_key))
        return claimed

    async def unclaimed(self) -> Mapping[str, int]:
        """Return how many tasks there are to claim, by agent."""
        self._opened()
        heads = [log.head for log in self._logs.values()]
        counts = Counter([head.scope.agent for head in heads if head.is_unclaimed])
        return {agent: min(count, MAX_COUNTED) for agent, count in counts.items()}

    async def first_queued(self, agent: str) -> int:
        """Return the lowest ``queue_key`` above 0 among the agent's tasks to claim, or 0."""
        self._opened()
        heads = [log.head for log in self._logs.values()]
        return min(
            [
                h.queue_key
                for h in heads
                if h.is_unclaimed and h.queue_key and h.scope.agent == agent
            ],
            default=0,
        )

    async def held_tasks(self) -> Sequence[str]:
        """Return the ids of the tasks with work left whose lease this replica holds."""
        self._opened()
        heads = [log.head for log in self._logs.values()]
        return [h.task_id for h in heads if h.lease_owner == self._replica and h.is_unfinished]

    def listen_timers(self, changed: TimersChanged) -> None:
        """Call ``changed`` whenever this process makes a task sleep, or completes an event."""
        self._timers_changed = changed

    async def next_wake(self, agents: Sequence[str]) -> int | None:
        """Return the earliest time (ms) at which a task of these agents is due."""
        self._opened()
        heads = [log.head for log in self._logs.values() if log.head.scope.agent in agents]
        return min([head.wakes_at for head in heads if head.wakes_at is not None], default=None)

    async def due_tasks(self, agent: str, now: int, limit: int) -> Sequence[DueTask]:
        """Return sleeping tasks that are due, the earliest first."""
        self._opened()
        heads = [log.head for log in self._logs.values() if log.head.scope.agent == agent]
        due = [(h.wakes_at, h) for h in heads if h.wakes_at is not None and h.wakes_at <= now]
        first = nsmallest(limit, due, key=lambda each: each[0])
        return [DueTask(head.task_id, head.scope) for _, head in first]

    async def wake(self, tasks: Mapping[str, int], now: int) -> int:
        """Make sleeping tasks that are due claimable, each with its queue key."""
        self._opened()
        count = 0
        for task_id, queue_key in tasks.items():
            log = self._logs.get(task_id)
            if log and log.head.wakes_at is not None and log.head.wakes_at <= now:
                log.head = with_wake(log.head, queue_key)
                count += 1
        return count

    async def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; the tasks that wait for it are due at once."""
        self._opened()
        value = checked_event(key, value)
        if (agent, key) in self._events:
            if self._events[agent, key][0] != value:
                raise EventCompleted(agent, key)
            return False
        self._events[agent, key] = (value, self._clock())
        for log in self._logs.values():
            head = log.head
            if head.scope.agent == agent and head.wakes_at is not None and key in log.waits_for:
                log.head = with_event(head)
        self._timers_changed(0)
        return True

    async def event(self, agent: str, key: str) -> bytes | None:
        """Return the value of an event, ``None`` until it is complete."""
        self._opened()
        found = self._events.get((agent, key))
        return found[0] if found else None

    async def secret(self, name: str) -> bytes:
        """Return the secret of a name; the first call makes it."""
        self._opened()
        return self._shared.secrets.setdefault(name, os.urandom(SECRET_BYTES))

    def listen_api_keys(self, changed: ApiKeyChanged) -> None:
        """Call ``changed`` whenever this store adds or ends an API key."""
        self._api_key_listeners.add(changed)

    async def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store an API key."""
        self._opened()
        checked(record)
        keys = self._shared.api_keys
        if record.id in keys:
            check_same(keys[record.id], record)
            return
        before = self._clock() - ENDED_KEPT
        for each in [*keys.values()]:
            if (ended_at := each.ended_at()) is not None and ended_at < before:
                del keys[each.id]
        if len(keys) >= MAX_API_KEYS:
            raise TooManyApiKeys
        keys[record.id] = record
        self._api_key_listeners.changed(record.id)

    async def api_key(self, id: str) -> ApiKeyRecord | None:
        """Return an API key, ended or not."""
        self._opened()
        return self._shared.api_keys.get(id)

    async def api_keys(self, owner: str = "") -> Sequence[ApiKeyRecord]:
        """Return all API keys, or those of an owner, the oldest first."""
        self._opened()
        found = [key for key in self._shared.api_keys.values() if owner in ("", key.owner)]
        return sorted(found, key=lambda key: (key.created_at, key.id))

    async def end_api_key(
        self, id: str, *, expires_at: int | None = None, revoked_at: int | None = None
    ) -> ApiKeyRecord | None:
        """Have an API key end earlier, and return it."""
        self._opened()
        found = self._shared.api_keys.get(id)
        if found is not None:
            found = self._shared.api_keys[id] = ended(found, expires_at, revoked_at)
            self._api_key_listeners.changed(id)
        return found

    def _audit(self) -> MemoryAudit:
        self._opened()
        return self._shared.audit

    async def positions(self, task_ids: Sequence[str]) -> Sequence[LogPosition]:
        """Return the ends of tasks' logs, without those that the store does not have."""
        self._opened()
        return [position_of(self._logs[id].head) for id in task_ids if id in self._logs]

    async def replicas(self) -> Sequence[Replica]:
        """Return the replicas that the store knows, this one among them."""
        self._opened()
        holds = Counter([log.head.lease_owner for log in self._logs.values()])
        now, alive = self._clock(), self._lease.time_to_live * 1000
        return [
            Replica(
                id=id, seen_at=at, alive=not self._is_shared or now - at <= alive, holds=holds[id]
            )
            for id, at in self._shared.heartbeats.items()
        ]

    async def awaiting_input(self, agent: str, since: int, limit: int) -> Sequence[str]:
        """Return tasks that have waited for their callers since before ``since``, in order."""
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
        """Return the receipt of a message."""
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
        """Store the receipt and the exchange of a direct reply, both or neither."""
        self._opened()
        messages = [encode(message) for message in exchange]
        self._keep(scope, context_id, (receipt,) if receipt else (), messages, self._clock())

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
        """Store a value for a context; ``None`` removes it."""
        self._opened()
        context = self._context(scope, context_id, self._clock())
        if value is None:
            context.values.pop(key, None)
        else:
            context.values[key] = value

    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Store a value for a context if the current one is ``expected``."""
        # Neither call yields to the event loop, so the two are atomic.
        if await self.get_value(scope, context_id, key) != expected:
            return False
        await self.set_value(scope, context_id, key, value)
        return True

    async def put_push(self, task_id: str, push: PushRecord) -> PushRecord:
        """Store a push notification configuration of a task; return it as stored."""
        self._opened()
        log = self._logs.get(task_id)
        if log is None:
            raise unknown(task_id)
        after = log.head.seq
        log.pushes = merge((push,), log.pushes, log.head, after=after, replica=self._replica)
        return next(reversed(log.pushes.values()))

    async def pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations, by id."""
        self._opened()
        log = self._logs.get(task_id)
        return sorted(log.pushes.values(), key=lambda push: push.id) if log else ()

    async def save_delivery(
        self, task_id: str, push: PushRecord, attempt: DeliveryAttempt | None = None
    ) -> bool:
        """Save a webhook's delivery state and an attempt, if this replica still has it claimed."""
        self._opened()
        log = self._logs.get(task_id)
        kept = log.pushes.get(push.id) if log else None
        if log is None or kept is None:
            return False
        if (kept.revision, kept.lease_owner) != (push.revision, self._replica):
            return False
        log.pushes[push.id] = replace(push, lease_owner=self._replica)
        if attempt is not None:
            kept_attempts = log.attempts.setdefault(push.id, deque(maxlen=ATTEMPTS_KEPT))
            kept_attempts.appendleft(attempt)
        return True

    async def push_attempts(self, task_id: str, push_id: str) -> Sequence[DeliveryAttempt]:
        """Return the last attempts of a webhook, the newest first."""
        self._opened()
        log = self._logs.get(task_id)
        return tuple(log.attempts.get(push_id, ())) if log else ()

    async def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it exists."""
        self._opened()
        log = self._logs.get(task_id)
        if log is not None:
            log.pushes.pop(push_id, None)
            log.attempts.pop(push_id, None)

    async def claim_pushes(self, agent: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Claim active webhooks without a lease owner."""
        self._opened()
        found: list[tuple[str, bool]] = []
        for task_id, log in self._logs.items():
            active = [
                push
                for push in log.pushes.values()
                if push.state is PushState.ACTIVE and not push.lease_owner
            ]
            if active and log.head.scope.agent == agent and len(found) < limit:
                log.pushes |= {push.id: replace(push, lease_owner=self._replica) for push in active}
                found.append((task_id, any([push.cursor < log.head.seq for push in active])))
        return found

    async def active_pushes(self, agents: Sequence[str], after: int, limit: int) -> ActivePushes:
        """Return whether some active webhook is unclaimed, and a page of this replica's."""
        self._opened()
        found: list[tuple[int, str, str]] = []
        has_unclaimed = False
        for key, (task_id, log) in enumerate(self._logs.items(), start=1):
            for push in log.pushes.values():
                if push.state is not PushState.ACTIVE:
                    continue
                has_unclaimed = has_unclaimed or (
                    not push.lease_owner and log.head.scope.agent in agents
                )
                if push.lease_owner == self._replica and key > after and len(found) < limit:
                    found.append((key, task_id, push.revision))
        return active_of(has_unclaimed, found, limit)

    async def prune(self, agent: str, ended_before: int, limit: int) -> int:
        """Remove up to ``limit`` tasks that ended before a time (ms), with all that is theirs."""
        self._opened()
        heads = [log.head for log in self._logs.values() if log.head.scope.agent == agent]
        gone = [h for h in heads if h.ended_at is not None and h.ended_at < ended_before][:limit]
        for head in gone:
            del self._logs[head.task_id]
        for receipt, (_, at) in list(self._receipts.items()):
            if receipt[0].agent == agent and at < ended_before:
                del self._receipts[receipt]
        used = {(log.head.scope, log.head.context_id) for log in self._logs.values()}
        waited = {(log.head.scope.agent, k) for log in self._logs.values() for k in log.waits_for}
        for event, (_, at) in list(self._events.items()):
            if event[0] == agent and at < ended_before and event not in waited:
                del self._events[event]
        for name, context in list(self._contexts.items()):
            if name[0].agent == agent and context.touched_at < ended_before and name not in used:
                del self._contexts[name]
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
