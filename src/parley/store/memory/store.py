"""A store in memory, for tests and throw-away servers: its data is lost with the process.

Several stores on the same ``MemoryLogs`` are replicas that share a store, within one process.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, takewhile
from uuid import uuid4

from parley.database.database import publish
from parley.store.events import LoggedEvent, RecordKind, Scope, now_ms
from parley.store.fold import IllegalEvent
from parley.store.head import (
    Head,
    Payload,
    advance,
    payload_of,
    position_of,
    with_claim,
    with_event,
    with_lease_expired,
    with_wake,
)
from parley.store.memory.index import TaskStanding
from parley.store.memory.log import NONE, MemoryLog, Row
from parley.store.memory.logs import MemoryLogs
from parley.store.memory.tables import MemoryTables
from parley.store.protocols.claims import MAX_COUNTED, Claimed, Lease, LivenessGate, Replica
from parley.store.protocols.errors import StoreError, StoreUnavailable
from parley.store.protocols.tables import DueTask, EventCompleted, TimersChanged, checked_event
from parley.store.protocols.task_log import (
    PAGE_BYTES,
    Append,
    Committed,
    LogPosition,
    TaskPage,
    TaskQuery,
    TaskRecord,
)
from parley.store.snapshot import StoredTask
from parley.store.webhooks import merge_pushes


class MemoryTaskStore(MemoryTables):
    """Keeps task logs in this process's memory, as bytes. ``clock`` returns milliseconds.

    An append is complete, and its readers are notified, when the call returns. With ``logs`` it is
    one of several replicas that share these, each alive for a ``lease`` after its last heartbeat.
    """

    reads_at_once = True

    def __init__(
        self,
        *,
        clock: Callable[[], int] = now_ms,
        logs: MemoryLogs | None = None,
        lease: Lease | None = None,
    ) -> None:
        super().__init__()
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
        self._index = self._shared.index
        self._timers_changed: TimersChanged = lambda _: None

    @property
    def replica(self) -> str:
        """The id of this user of the store."""
        return self._replica

    @property
    def is_shared(self) -> bool:
        """True if other replicas may use the store at the same time."""
        return self._is_shared

    @property
    def has_operators(self) -> bool:
        """False: ``parley store`` cannot access the store."""
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
        """Reject further use. Idempotent. The data is available again after the next ``open``."""
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
        for owner in self._index.lease_owners():
            if owner not in self._shared.heartbeats:
                for log in [*self._index.leased_by(owner)]:
                    self._move(log, with_lease_expired(log.head))
        for owner in self._index.push_owners():
            if owner not in self._shared.heartbeats:
                self._expire_pushes(owner)

    def _move(self, log: MemoryLog, head: Head) -> None:
        """Replace the head of a task."""
        log.head = head
        self._index.moved(log)

    def append(self, append: Append) -> asyncio.Future[int]:
        """Add records. See ``TaskStore``."""
        payload = payload_of(append)
        self._opened()
        assert self._loop is not None
        future: asyncio.Future[int] = self._loop.create_future()
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
        pushes = None
        if append.pushes:
            known, after = (log.pushes, head.seq) if log else (NONE, 0)
            pushes = merge_pushes(append.pushes, known, head, after=after, replica=self._replica)
        if append.receipts or payload.exchange:
            self._keep(head.scope, head.context_id, append.receipts, payload.exchange, at)
        if append.waits_for and head.wakes_at is not None:
            agent = head.scope.agent
            if any([(agent, key) in self._shared.events for key in append.waits_for]):
                head = with_event(head)
        if log is None:
            log = self._logs[append.task_id] = MemoryLog(head, head)
        log.update(head, payload)
        self._index.moved(log)
        if append.wakes_at is not None:
            self._shared.wait_for(log, append.waits_for)
        if pushes is not None:
            self._index.set_pushes(log, pushes)
        for record in records:
            row = Row(record.seq, record.sub, record.turn, record.kind, record.at, record.payload)
            (log.private if record.sub else log.public).append(row)
        return records

    def _publish(self, records: Sequence[LoggedEvent]) -> None:
        """Pass on a commit, after earlier commits, even if a reader of these made it."""
        self._unpublished.append(records)
        if self._is_notifying or self._committed is None:
            return
        self._is_notifying = True
        try:
            while self._unpublished:
                publish(self._unpublished.popleft(), self._committed)
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
        """Return the task, at the cost of the requested parts."""
        self._opened()
        log = self._logs.get(task_id)
        if log is None or scope not in (None, log.head.scope):
            return None
        head = log.head
        whole = history is None and artifacts
        return TaskRecord(
            scope=head.scope,
            stored=self._shared.whole.read(log) if whole else log.stored(history, artifacts),
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
        first = bisect_right(log.private, after, key=lambda row: (row.seq, row.sub))
        rows = (row for row in islice(log.private, first, None) if row.kind in kinds)
        return [log.read(row) for row in islice(rows, limit)]

    async def waiting_messages(
        self, task_id: str, *, skip: int = 0, limit: int = 1
    ) -> Sequence[LoggedEvent]:
        """Return the ``MessageReceived`` records that no turn has received, the oldest first."""
        self._opened()
        log = self._logs.get(task_id)
        if log is None or not log.head.waiting:
            return ()
        received = (row for row in reversed(log.private) if row.kind is RecordKind.RECEIVED)
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
            size += len(row.payload)
            assert log is not None
            page.append(log.read(row))
        return page

    async def list(self, query: TaskQuery) -> TaskPage:
        """Return one page of tasks."""
        self._opened()
        total, found = self._index.find(query)
        tasks: list[StoredTask] = []
        size = 0
        for log in found:
            if len(tasks) == query.limit or size >= query.max_bytes:
                return TaskPage(tuple(tasks), total=total, more=True)
            size += log.size(query.history, query.artifacts)
            tasks.append(log.stored(query.history, query.artifacts))
        return TaskPage(tuple(tasks), total=total, more=False)

    async def claim(self, task_id: str) -> int:
        """Acquire the task's lease for a new executor; return the new epoch. Fences earlier
        ones."""
        self._opened()
        log = self._logs.get(task_id)
        head = with_claim(log.head if log else None, task_id, self._replica)
        self._move(self._logs[task_id], head)
        return head.epoch

    async def claim_batch(self, agent: str, limit: int) -> Sequence[Claimed]:
        """Claim tasks that have work left and no lease owner, the lowest ``queue_key`` first."""
        self._opened()
        places = self._index.places_of(agent, TaskStanding.UNCLAIMED)
        claimed = []
        for queue_key, _, task_id in [*islice(places.rising(), limit)]:
            log = self._logs[task_id]
            self._move(log, with_claim(log.head, task_id, self._replica))
            claimed.append(Claimed(task_id, log.head.epoch, queue_key))
        return claimed

    async def unclaimed(self) -> Mapping[str, int]:
        """Return the number of claimable tasks, by agent."""
        self._opened()
        places = self._index.places(TaskStanding.UNCLAIMED)
        return {agent: min(len(order), MAX_COUNTED) for agent, order in places.items()}

    async def first_queued(self, agent: str) -> int:
        """Return the lowest ``queue_key`` above 0 among the agent's tasks to claim, or 0."""
        self._opened()
        places = self._index.places_of(agent, TaskStanding.UNCLAIMED)
        return next((queue_key for queue_key, _, _ in places.rising((1,))), 0)

    async def queued_since(self, agent: str) -> int:
        """Return the time of the last record of the agent's next task to claim, or 0."""
        self._opened()
        places = self._index.places_of(agent, TaskStanding.UNCLAIMED)
        task_id = next((task_id for _, _, task_id in places.rising((1,))), None)
        if task_id is None:
            return 0
        log = self._logs[task_id]
        return max(rows[-1].at for rows in (log.public, log.private) if rows)

    async def held_tasks(self) -> Sequence[str]:
        """Return the ids of the tasks with work left whose lease this replica holds."""
        self._opened()
        held = [log for log in self._index.leased_by(self._replica) if log.head.is_unfinished]
        return [log.head.task_id for log in sorted(held, key=lambda log: log.number)]

    def listen_timers(self, changed: TimersChanged) -> None:
        """Call ``changed`` whenever this process makes a task sleep, or completes an event."""
        self._timers_changed = changed

    async def next_wake(self, agents: Sequence[str]) -> int | None:
        """Return the earliest time (ms) at which a task of these agents is due."""
        self._opened()
        asleep = [self._index.places_of(agent, TaskStanding.ASLEEP) for agent in agents]
        return min([next(places.rising())[0] for places in asleep if places], default=None)

    async def due_tasks(self, agent: str, now: int, limit: int) -> Sequence[DueTask]:
        """Return sleeping tasks that are due, the earliest first."""
        self._opened()
        places = self._index.places_of(agent, TaskStanding.ASLEEP)
        due = takewhile(lambda place: place[0] <= now, places.rising())
        return [DueTask(id, self._logs[id].head.scope) for _, _, id in islice(due, limit)]

    async def wake(self, tasks: Mapping[str, int], now: int) -> int:
        """Make due sleeping tasks claimable, each with its queue key."""
        self._opened()
        count = 0
        for task_id, queue_key in tasks.items():
            log = self._logs.get(task_id)
            if log and log.head.wakes_at is not None and log.head.wakes_at <= now:
                self._move(log, with_wake(log.head, queue_key))
                count += 1
        return count

    async def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; the waiting tasks become due at once."""
        self._opened()
        value = checked_event(key, value)
        completed = self._shared.events.get((agent, key))
        if completed is not None:
            if completed.value != value:
                raise EventCompleted(agent, key)
            return False
        self._shared.complete_event(agent, key, value)
        for log in self._index.waiting_for(agent, key):
            if log.head.wakes_at is not None:
                self._move(log, with_event(log.head))
        self._timers_changed(0)
        return True

    async def event(self, agent: str, key: str) -> bytes | None:
        """Return the value of an event, ``None`` until it is complete."""
        self._opened()
        found = self._shared.events.get((agent, key))
        return found.value if found else None

    async def positions(self, task_ids: Sequence[str]) -> Sequence[LogPosition]:
        """Return the ends of tasks' logs, without tasks that the store lacks."""
        self._opened()
        return [position_of(self._logs[id].head) for id in task_ids if id in self._logs]

    async def replicas(self) -> Sequence[Replica]:
        """Return the known replicas, including this one."""
        self._opened()
        now, alive = self._clock(), self._lease.time_to_live * 1000
        return [
            Replica(
                id=id,
                seen_at=at,
                alive=not self._is_shared or now - at <= alive,
                holds=len(self._index.leased_by(id)),
            )
            for id, at in self._shared.heartbeats.items()
        ]

    async def awaiting_input(self, agent: str, since: int, limit: int) -> Sequence[str]:
        """Return tasks that have waited for their callers since before ``since``, in order."""
        self._opened()
        places = self._index.places_of(agent, TaskStanding.AWAITING_INPUT)
        waiting = takewhile(lambda place: place[0] < since, places.rising())
        return [task_id for _, _, task_id in islice(waiting, limit)]

    async def prune(self, agent: str, ended_before: int, limit: int) -> int:
        """Remove up to ``limit`` tasks that ended before a time (ms), with all their rows."""
        self._opened()
        return self._shared.prune(agent, ended_before, limit)

    def _opened(self) -> MemoryLogs:
        if self._loop is None:
            raise StoreUnavailable("the store is closed")
        return self._shared
