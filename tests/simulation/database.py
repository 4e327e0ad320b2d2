"""The replicas' shared store in a simulation: a separate server, behind a connection.

A replica's requests run in the database's process, so they also run while the replica is paused,
and after its death if they were already sent. The data is in a ``MemoryLogs``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from parley.model.parts import Message
from parley.store.audit.trail import AuditEntry, AuditFilter
from parley.store.events import LoggedEvent, Scope
from parley.store.head import payload_of
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.protocols.claims import Lease, LivenessGate
from parley.store.protocols.errors import Conflict, StoreError, StoreUnavailable
from parley.store.protocols.tables import Receipt, TimersChanged, event_value
from parley.store.protocols.task_log import Append, Committed, TaskQuery
from parley.store.protocols.webhooks import DeliveryAttempt, PushRecord
from tests.simulation.checks import EPOCH, LogChecker
from tests.simulation.loop import Process
from tests.simulation.world import World


class Database:
    """The data of all replicas, and the state of their connections."""

    def __init__(self, world: World, checker: LogChecker) -> None:
        self.world = world
        self.checker = checker
        self.process = Process(world.loop, "database")
        self.memory = MemoryLogs(self.clock)
        self.is_up = True
        self.slow = 1.0
        self.embedded: list[SimulatedStore] = []
        self._outside = _Session(logs=self.memory)
        self._outside._loop = world.loop
        checker.logs = self.memory.logs

    def clock(self) -> int:
        """Return the time in ms, which is the same for all replicas."""
        return EPOCH + int(self.world.loop.time() * 1000)

    def complete_later(self, agent: str, key: str, value: str, seconds: float) -> None:
        """Complete an event from outside the replicas, after about the given seconds."""
        self.process.after(self.world.delay(seconds + 0.001), self._complete, agent, key, value)

    def _complete(self, agent: str, key: str, value: str) -> None:
        if not self.is_up:
            self.process.after(0.5, self._complete, agent, key, value)
            return
        is_first = _result(self._outside.complete_event(agent, key, event_value(value)))
        self.world.trace("event", self.world.name("e", key), "is complete", is_first)
        for store in self.embedded:
            store.hear_of_timer(0)  # the process with the file does it for the other


class _Session(MemoryTaskStore):
    """The database's side of one replica; heartbeats also use the connection."""

    async def _send_heartbeats(self) -> None:
        pass

    def see(self) -> None:
        self._shared.heartbeats[self._replica] = self._clock()

    def bury(self) -> None:
        seen, now = self._shared.heartbeats, self._clock()
        for replica, at in list(seen.items()):
            if now - at > self._lease.time_to_live * 1000:
                del seen[replica]
        self._expire_leases()


class SimulatedStore:
    """A ``TaskStore`` behind a connection to the database.

    Each request has a delay in both directions. While the database is unreachable it fails, and
    also when the response is lost: the caller gets an error although the change was made. An
    embedded store has no connection that could lose a response; it fails without a change. Appends
    of a replica stay in order.
    """

    reads_at_once = False

    def __init__(self, database: Database, *, lease: Lease, is_shared: bool) -> None:
        self._database = database
        self._world = database.world
        self._random = database.world.random
        self._inner = _Session(logs=database.memory, lease=lease)
        self._inner._is_shared = is_shared
        self._lease = lease
        self._is_shared = is_shared
        self._process: Process | None = None
        self.committed: Committed | None = None
        self._records: list[Any] = []
        self._beating: asyncio.Task[None] | None = None
        self._last_there = self._last_back = 0.0
        self._broken: dict[tuple[str, int], int] = {}
        self._told: dict[tuple[str, int], int] = {}
        self._error = self._random.uniform(-0.05, 0.05) if is_shared else 0.0
        self.is_cut = False

        self._timers_changed: TimersChanged = lambda _: None
        if not is_shared:
            database.embedded.append(self)

    @property
    def replica(self) -> str:
        return self._inner.replica

    @property
    def is_shared(self) -> bool:
        return self._is_shared

    @property
    def has_operators(self) -> bool:
        return True

    @property
    def migrated(self) -> Sequence[str]:
        return ()

    def now(self) -> int:
        return self._database.clock() + int(self._error * 1000)

    async def open(self, committed: Committed) -> None:
        assert self._world.here is not None
        self._process = self._world.here
        self.committed = committed

        async def open_session() -> None:
            self._world.opening = str(self._process)
            await self._inner.open(self._records.append)
            if self._inner._heartbeat is not None:
                self._inner._heartbeat.cancel()
                self._inner._heartbeat = None

        await self._ask("open", open_session)
        if self._is_shared:
            self._beating = asyncio.get_running_loop().create_task(self._beat())

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
        if self.committed is not None:
            with contextlib.suppress(StoreUnavailable):
                await self._ask("close", self._inner.close)
            self.committed = None

    async def _beat(self) -> None:
        touch = LivenessGate(self._lease)
        while True:
            try:
                await self._ask("beat", self._see)
                if touch.felt(self._world.loop.time()):
                    await self._ask("bury", self._bury)
            except StoreUnavailable:
                touch.lost()
            await asyncio.sleep(self._lease.beat)

    async def _see(self) -> None:
        self._inner.see()

    async def _bury(self) -> None:
        self._inner.bury()

    # -- the connection --------------------------------------------------------------------------

    def _delay(self) -> float:
        return self._world.delay(self._world.plan.store_delay * self._database.slow)

    def _ask(
        self, what: str, work: Callable[..., Coroutine[Any, Any, Any]], *args: Any
    ) -> asyncio.Future[Any]:
        """Send a request to the database; it may overtake earlier ones."""
        world, database, process = self._world, self._database, self._process
        assert process is not None
        future = world.loop.create_future()

        def answer(result: Any, error: Exception | None) -> None:
            if future.done():
                return  # its caller disconnected
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        def arrive() -> None:
            back = self._delay()
            result, error = None, self._unreachable()
            forgets = error is None and world.forgets(f"{what} of {process}")
            if error is None and (self._is_shared or not forgets):
                try:
                    result = _result(work(*args))
                except (StoreError, ValueError) as raised:
                    error = raised
            if forgets:
                error = StoreUnavailable("the database did not answer")
            process.after(back, answer, result, error)

        if self.is_cut:
            process.after(self._delay(), answer, None, self._unreachable())
        else:
            database.process.after(self._delay(), arrive)
        return future

    def _unreachable(self) -> Exception | None:
        if not self._is_shared and self._process is not None and self._process.is_dead:
            return StoreUnavailable("an embedded store dies with its process")
        if self.is_cut or not self._database.is_up:
            return StoreUnavailable("the database cannot be reached")
        return None

    def append(self, append: Append) -> asyncio.Future[int]:
        world, process = self._world, self._process
        if self.committed is None or process is None:
            raise StoreUnavailable("the store is closed")
        key = (append.task_id, append.epoch)
        known, chained = self._told.get(key, 0), append.expected_seq is not None
        payload_of(append)
        world.mutation.sent(self, append)
        future: asyncio.Future[int] = world.loop.create_future()

        def answer(seq: int, records: Sequence[LoggedEvent], error: Exception | None) -> None:
            if error is not None:
                if chained:
                    self._told[key] = self._broken.get(key, 0)
                if not future.done():
                    future.set_exception(error)
                return
            if not future.done():
                future.set_result(seq)
            if append.wakes_at is not None:
                self._timers_changed(0 if append.waits_for else append.wakes_at)
            if self.committed is not None:
                self.committed(records)

        def arrive() -> None:
            seq, records = 0, ()
            error = self._unreachable()
            if chained and self._broken.get(key, 0) != known:
                error = Conflict(append.task_id, append.expected_seq or 0, None)
            elif error is None:
                try:
                    seq, records = self._commit(append)
                except (StoreError, ValueError) as raised:
                    error = raised
                if self._is_shared and world.forgets(f"append of {process}"):
                    error = StoreUnavailable("the database did not answer")
            if error is not None and chained and self._broken.get(key, 0) == known:
                self._broken[key] = known + 1
            self._last_back = max(self._last_back, world.loop.time() + self._delay()) + 1e-6
            process.after(self._last_back - world.loop.time(), answer, seq, records, error)

        there = world.loop.time() + self._delay()
        if world.random.random() < world.plan.late_append:
            there += world.random.uniform(0, 1.5 * self._lease.seconds)
        self._last_there = max(self._last_there, there) + 1e-6
        self._database.process.after(self._last_there - world.loop.time(), arrive)
        return future

    def _commit(self, append: Append) -> tuple[int, Sequence[LoggedEvent]]:
        database = self._database
        log = database.memory.logs.get(append.task_id)
        before = log.head if log else None
        self._records.clear()
        done = self._inner.append(self._world.mutation.append(append, before))
        seq = _result(done)
        records = [record for batch in self._records for record in batch]
        database.checker.committed(append, before, records, self.replica)
        return seq, records

    # -- reads -----------------------------------------------------------------------------------

    async def load(self, task_id: str, **wanted: Any) -> Any:
        return await self._ask("load", self._inner.load, task_id)

    async def private_records(self, task_id: str, kinds: Any, **wanted: Any) -> Any:
        read = partial(self._inner.private_records, **wanted)
        return await self._ask("private_records", read, task_id, kinds)

    async def waiting_messages(self, task_id: str, **wanted: Any) -> Any:
        read = partial(self._inner.waiting_messages, **wanted)
        return await self._ask("waiting_messages", read, task_id)

    async def events(self, task_id: str, after: int, limit: int) -> Any:
        # Small pages, so that readers need several.
        return await self._ask("events", self._inner.events, task_id, after, limit)

    async def list(self, query: TaskQuery) -> Any:
        return await self._ask("list", self._inner.list, query)

    async def unclaimed(self) -> Any:
        return await self._ask("unclaimed", self._inner.unclaimed)

    async def queued_since(self, agent: str) -> Any:
        return await self._ask("queued_since", self._inner.queued_since, agent)

    async def first_queued(self, agent: str) -> Any:
        return await self._ask("first_queued", self._inner.first_queued, agent)

    def listen_timers(self, changed: TimersChanged) -> None:
        self._timers_changed = changed

    def hear_of_timer(self, wakes_at: int) -> None:
        """Report in the store's process that the time to wake a task has changed."""
        if self._process is not None and self.committed is not None:
            self._process.after(self._delay(), lambda: self._timers_changed(wakes_at))

    async def next_wake(self, agents: Sequence[str]) -> Any:
        return await self._ask("next_wake", self._inner.next_wake, agents)

    async def due_tasks(self, agent: str, now: int, limit: int) -> Any:
        return await self._ask("due_tasks", self._inner.due_tasks, agent, now, limit)

    async def event(self, agent: str, key: str) -> Any:
        return await self._ask("event", self._inner.event, agent, key)

    async def secret(self, name: str) -> Any:
        return await self._ask("secret", self._inner.secret, name)

    async def held_tasks(self) -> Any:
        return await self._ask("held_tasks", self._inner.held_tasks)

    async def scope_of(self, task_id: str) -> Any:
        return await self._ask("scope_of", self._inner.scope_of, task_id)

    async def positions(self, task_ids: Sequence[str]) -> Any:
        return await self._ask("positions", self._inner.positions, task_ids)

    async def replicas(self) -> Any:
        return await self._ask("replicas", self._inner.replicas)

    async def awaiting_input(self, agent: str, since: int, limit: int) -> Any:
        return await self._ask("awaiting_input", self._inner.awaiting_input, agent, since, limit)

    async def receipt(self, scope: Scope, message_id: str) -> Any:
        return await self._ask("receipt", self._inner.receipt, scope, message_id)

    async def history(self, scope: Scope, context_id: str, limit: int) -> Any:
        return await self._ask("history", self._inner.history, scope, context_id, limit)

    async def get_value(self, scope: Scope, context_id: str, key: str) -> Any:
        return await self._ask("get_value", self._inner.get_value, scope, context_id, key)

    async def pushes(self, task_id: str) -> Any:
        return await self._ask("pushes", self._inner.pushes, task_id)

    async def active_pushes(self, agents: Sequence[str], after: int, limit: int) -> Any:
        return await self._ask("active_pushes", self._inner.active_pushes, agents, after, limit)

    async def read_audit(self, which: AuditFilter, **wanted: Any) -> Any:
        return await self._ask("read_audit", partial(self._inner.read_audit, which, **wanted))

    # -- changes ---------------------------------------------------------------------------------

    async def append_audit(self, entries: Sequence[AuditEntry]) -> Any:
        return await self._ask("append_audit", self._inner.append_audit, entries)

    async def claim(self, task_id: str) -> Any:
        async def claim() -> int:
            log = self._database.memory.logs.get(task_id)
            before = log.head if log else None
            epoch = await self._inner.claim(task_id)
            self._database.checker.claimed(task_id, before, self.replica)
            return epoch

        return await self._ask("claim", claim)

    async def claim_batch(self, agent: str, limit: int) -> Any:
        async def claim_batch() -> Sequence[Any]:
            logs = self._database.memory.logs
            before = {task_id: log.head for task_id, log in logs.items()}
            adopted = await self._inner.claim_batch(agent, limit)
            for one in adopted:
                self._database.checker.claimed(one.task_id, before[one.task_id], self.replica)
            return adopted

        return await self._ask("claim_batch", claim_batch)

    async def wake(self, tasks: Mapping[str, int], now: int) -> Any:
        async def wake() -> int:
            logs = self._database.memory.logs
            before = {task_id: logs[task_id].head for task_id in tasks if task_id in logs}
            count = await self._inner.wake(tasks, now)
            for task_id, head in before.items():
                if logs[task_id].head is not head:
                    self._database.checker.woken(task_id, head, self._database.clock())
            return count

        return await self._ask("wake", wake)

    async def complete_event(self, agent: str, key: str, value: bytes) -> Any:
        return await self._ask("complete_event", self._inner.complete_event, agent, key, value)

    async def keep(
        self,
        scope: Scope,
        context_id: str,
        *,
        receipt: Receipt | None = None,
        exchange: Sequence[Message] = (),
    ) -> None:
        async def keep() -> None:
            await self._inner.keep(scope, context_id, receipt=receipt, exchange=exchange)

        await self._ask("keep", keep)

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        await self._ask("set_value", self._inner.set_value, scope, context_id, key, value)

    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> Any:
        asked = (scope, context_id, key, expected, value)
        return await self._ask("compare_and_set", self._inner.compare_and_set, *asked)

    async def put_push(self, task_id: str, push: PushRecord) -> Any:
        return await self._ask("put_push", self._inner.put_push, task_id, push)

    async def save_delivery(
        self, task_id: str, push: PushRecord, attempt: DeliveryAttempt | None = None
    ) -> Any:
        return await self._ask("save_delivery", self._inner.save_delivery, task_id, push, attempt)

    async def push_attempts(self, task_id: str, push_id: str) -> Any:
        return await self._ask("push_attempts", self._inner.push_attempts, task_id, push_id)

    async def remove_push(self, task_id: str, push_id: str) -> None:
        await self._ask("remove_push", self._inner.remove_push, task_id, push_id)

    async def claim_pushes(self, agent: str, limit: int) -> Any:
        return await self._ask("claim_pushes", self._inner.claim_pushes, agent, limit)

    async def prune(self, agent: str, ended_before: int, limit: int) -> Any:
        return await self._ask("prune", self._inner.prune, agent, ended_before, limit)


def _result(work: Any) -> Any:
    """Return the result of a coroutine that never waits."""
    if isinstance(work, asyncio.Future):
        return work.result()
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the store in memory waits for something")
