"""An index that is filed late answers as a look at every task does, after any sequence of uses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from msgspec.structs import replace

from parley.model.operations import TaskPushNotificationConfig
from parley.model.tasks import TaskState
from parley.store.events import CancelRequested, Scope
from parley.store.memory import MemoryLogs, MemoryTaskStore, index
from parley.store.protocols.errors import StoreError
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import Append, TaskQuery
from parley.store.protocols.webhooks import PushRecord, PushState
from tests.kit.records import addition, creation, message, received, status
from tests.store.conftest import Clock
from tests.store.memory.scan import Scan

T = TypeVar("T")

SCOPES = [Scope("a"), Scope("a", "", "owner"), Scope("b")]
AGENTS = st.sampled_from(["a", "b"])
CONTEXTS = st.sampled_from(["c1", "c2"])
TIMES = st.integers(0, 8)
KEYS = st.lists(st.sampled_from(["k", "l"]), max_size=2)
STATES = st.sampled_from(
    [
        TaskState.WORKING,
        TaskState.INPUT_REQUIRED,
        TaskState.INPUT_REQUIRED,
        TaskState.COMPLETED,
        TaskState.FAILED,
    ]
)


def result(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("a memory store does not wait")


def hook(n: int, state: PushState = PushState.ACTIVE) -> PushRecord:
    config = TaskPushNotificationConfig(id=f"p{n}", url="https://example.com")
    return PushRecord(config=config, version="1.0", revision=f"r{n}", state=state)


class IndexMachine(RuleBasedStateMachine):
    """Uses two replicas of a store, and now and then asks all that can be asked."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.kept = MemoryLogs(self.clock)
        self.scan = Scan(self.kept)
        self.names = 0
        self.stores = [self.new_replica(), self.new_replica()]

    def new_replica(self) -> MemoryTaskStore:
        store = MemoryTaskStore(logs=self.kept)
        self.names += 1
        store._loop, store._replica = self.loop, f"replica-{self.names}"
        self.kept.heartbeats[store.replica] = 0
        return store

    def teardown(self) -> None:
        self.loop.close()

    @property
    def store(self) -> MemoryTaskStore:
        """One of the replicas, each in turn."""
        self.stores.append(self.stores.pop(0))
        return self.stores[0]

    def append(self, append: Append) -> None:
        self.store.append(append).exception()  # a refusal is an answer too

    def task(self, data: st.DataObject) -> str | None:
        ids = list(self.kept.logs)
        return data.draw(st.sampled_from(ids)) if ids else None

    @rule(
        scope=st.sampled_from(SCOPES),
        context_id=CONTEXTS,
        ats=st.lists(TIMES, min_size=1, max_size=5),
        options=st.fixed_dictionaries(
            {"turn_open": st.booleans(), "release": st.booleans(), "queue_key": st.integers(0, 2)}
        ),
        pushes=st.integers(0, 2),
    )
    def create(
        self, scope: Scope, context_id: str, ats: Sequence[int], options: Any, pushes: int
    ) -> None:
        for at in ats:
            self.names += 1
            hooks = tuple([hook(n) for n in range(pushes)])
            more = {"scope": scope, "context_id": context_id, "at": at, "pushes": hooks}
            said = (message("hello"),) if at % 2 else ()
            self.append(creation(f"t{self.names}", **more, **options, exchange=said))

    @rule(data=st.data(), state=STATES, at=TIMES, open_=st.none() | st.booleans(), key=TIMES)
    def move(
        self, data: st.DataObject, state: TaskState, at: int, open_: bool | None, key: int
    ) -> None:
        if task_id := self.task(data):
            head = self.kept.logs[task_id].head
            event = status(task_id, state, at=at)
            options = {"turn_open": open_, "queue_key": key, "release": at % 3 == 0}
            self.append(addition(task_id, head.seq, event, epoch=head.epoch, **options))

    @rule(data=st.data(), cancels=st.booleans(), key=st.integers(0, 2))
    def send(self, data: st.DataObject, cancels: bool, key: int) -> None:
        if task_id := self.task(data):
            event = CancelRequested() if cancels else received("more")
            self.append(addition(task_id, None, event, queue_key=key))

    @rule(data=st.data(), wakes_at=TIMES, keys=KEYS)
    def sleep(self, data: st.DataObject, wakes_at: int, keys: Sequence[str]) -> None:
        if task_id := self.task(data):
            head = self.kept.logs[task_id].head
            options = {"release": True, "wakes_at": wakes_at, "waits_for": keys, "turn_open": True}
            self.append(addition(task_id, head.seq, epoch=head.epoch, **options))

    @rule(agent=AGENTS, key=st.sampled_from(["k", "l"]))
    def complete_event(self, agent: str, key: str) -> None:
        result(self.store.complete_event(agent, key, b"1"))

    @rule(agent=AGENTS, limit=st.integers(1, 3))
    def claim_batch(self, agent: str, limit: int) -> None:
        line = self.scan.line(agent)
        claimed = result(self.store.claim_batch(agent, limit))
        assert [(each.task_id, each.queue_key) for each in claimed] == line[:limit]

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        if task_id := self.task(data):
            with contextlib.suppress(StoreError):
                result(self.store.claim(task_id))

    @rule(agent=AGENTS, now=TIMES, limit=st.integers(1, 3))
    def wake(self, agent: str, now: int, limit: int) -> None:
        due = [(id, at) for id, at in self.scan.asleep(agent) if at <= now]
        found = result(self.store.due_tasks(agent, now, limit))
        assert [each.task_id for each in found] == [id for id, _ in due[:limit]]
        assert all([each.scope == self.kept.logs[each.task_id].head.scope for each in found])
        count = result(self.store.wake({each.task_id: 1 for each in found}, now))
        assert count == len(found)

    @rule()
    def a_replica_dies(self) -> None:
        dead = self.store
        del self.kept.heartbeats[dead.replica]
        self.stores[1]._expire_leases()
        self.stores[0] = self.new_replica()
        assert all([log.head.lease_owner != dead.replica for log in self.kept.logs.values()])
        assert self.scan.held_pushes(dead.replica) == []

    @rule(data=st.data(), n=st.integers(0, 2), state=st.sampled_from(PushState), puts=st.booleans())
    def use_webhooks(self, data: st.DataObject, n: int, state: PushState, puts: bool) -> None:
        if task_id := self.task(data):
            if puts:
                result(self.store.put_push(task_id, hook(n)))
            elif state is PushState.DONE:
                result(self.store.remove_push(task_id, f"p{n}"))
            else:
                result(self.store.save_delivery(task_id, replace(hook(n, state), cursor=1)))

    @rule(agent=AGENTS, limit=st.integers(1, 3))
    def claim_pushes(self, agent: str, limit: int) -> None:
        free = self.scan.free_pushes(agent)
        assert list(result(self.store.claim_pushes(agent, limit))) == free[:limit]

    @rule(scope=st.sampled_from(SCOPES), context_id=CONTEXTS, passes=st.integers(0, 2))
    def keep(self, scope: Scope, context_id: str, passes: int) -> None:
        self.clock.now += passes
        self.names += 1
        receipt = Receipt(f"m{self.names}", b"")
        said = (message("hello"),)
        result(self.store.keep(scope, context_id, receipt=receipt, exchange=said))

    @rule(agent=AGENTS, back=st.integers(-1, 3), limit=st.integers(1, 3))
    def prune(self, agent: str, back: int, limit: int) -> None:
        before = self.clock.now - back
        gone, left = self.scan.pruned(agent, before, limit)
        tasks = set(self.kept.logs)
        assert result(self.store.prune(agent, before, limit)) == len(gone)
        assert set(self.kept.logs) == tasks - gone
        found = {("context", *name) for name in self.kept.contexts}
        assert found | {("event", *name) for name in self.kept.events} == left

    @rule(agent=AGENTS, since=TIMES)
    def ask_what_work_is_left(self, agent: str, since: int) -> None:
        store, scan = self.store, self.scan
        assert result(store.unclaimed()) == scan.unclaimed()
        assert result(store.first_queued(agent)) == scan.first_queued(agent)
        assert list(result(store.held_tasks())) == scan.held(store.replica)
        holds = {replica.id: replica.holds for replica in result(store.replicas())}
        assert holds == {replica: scan.holds(replica) for replica in self.kept.heartbeats}
        times = [at for _, at in scan.asleep(agent)]
        assert result(store.next_wake([agent, "none"])) == min(times, default=None)
        awaiting = scan.awaiting_input(agent, since)
        assert list(result(store.awaiting_input(agent, since, 3))) == awaiting[:3]

    @rule(agents=st.sampled_from([["a"], ["a", "b"], []]))
    def ask_for_webhooks(self, agents: Sequence[str]) -> None:
        store, after, claimed = self.store, 0, []
        while True:
            page = result(store.active_pushes(agents, after, 4))
            claimed += [each for each in page.claimed if each not in claimed]
            assert page.has_unclaimed == any([self.scan.free_pushes(agent) for agent in agents])
            after = page.next
            if not after:
                break
        assert claimed == self.scan.held_pushes(store.replica)

    @rule(
        scope=st.sampled_from(SCOPES),
        context_id=st.just("") | CONTEXTS,
        state=st.just(TaskState.UNSPECIFIED) | STATES,
        after=st.none() | TIMES,
        until=st.none() | TIMES,
        before=st.none() | st.tuples(TIMES, st.sampled_from(["", "t2", "t9", "u"])),
        limit=st.integers(1, 5),
    )
    def list(self, before: Any, after: Any, until: Any, **which: Any) -> None:
        query = TaskQuery(before=before, status_after=after, not_after=until, **which)
        page = result(self.store.list(query))
        found = [task.id for task in page.tasks], page.total, page.more
        assert found == self.scan.list(query)


def test_the_index_answers_as_a_scan_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FEW", 3)  # so that all ways are gone, in few steps
    monkeypatch.setattr(index, "BLOCK", 4)
    monkeypatch.setattr(index, "MAX_MOVED", 6)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        IndexMachine, settings=settings(max_examples=60, stateful_step_count=40)
    )
