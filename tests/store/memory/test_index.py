"""The index of a memory store: results, costs, and cached tasks."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tracemalloc
from collections.abc import Coroutine, Sequence
from types import FrameType
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from msgspec.structs import replace

from parley.model.operations import TaskPushNotificationConfig
from parley.model.tasks import TaskState
from parley.store.events import CancelRequested, Scope
from parley.store.memory import MemoryLogs, MemoryTaskStore, index
from parley.store.protocols.errors import StoreError
from parley.store.protocols.tables import NEVER, Receipt
from parley.store.protocols.task_log import Append, TaskQuery
from parley.store.protocols.webhooks import PushRecord, PushState
from tests.kit.records import AT, SCOPE, addition, chunk, creation, message, received, status
from tests.kit.waiting import Clock
from tests.store.memory.scan import Scan

pytestmark = pytest.mark.anyio


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
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("a memory store does not wait")


def hook(n: int, state: PushState = PushState.ACTIVE) -> PushRecord:
    config = TaskPushNotificationConfig(id=f"p{n}", url="https://example.com")
    return PushRecord(config=config, version="1.0", revision=f"r{n}", state=state)


class IndexMachine(RuleBasedStateMachine):
    """Uses two replicas of a store, and now and then runs all queries."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock(1_000_000)
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
        """Alternate between the replicas."""
        self.stores.append(self.stores.pop(0))
        return self.stores[0]

    def append(self, append: Append) -> None:
        self.store.append(append).exception()  # an error is a result too

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


@pytest.mark.slow
def test_the_index_answers_as_a_scan_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FEW", 3)  # so that all ways are covered, in few steps
    monkeypatch.setattr(index, "BLOCK", 4)
    monkeypatch.setattr(index, "MAX_MOVED", 6)
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        IndexMachine, settings=settings(max_examples=60, stateful_step_count=40)
    )


# -- the cost of a query grows with its result, not with the store ---------------------------------
# Costs are counted in interpreter steps, so that a read of a head counts in any function.


FEW, MANY = 200, 10_000


def steps(work: Coroutine[Any, Any, Any]) -> int:
    """Count the interpreter's instructions for a coroutine that never waits."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work.send(None)
    except StopIteration:
        return count
    finally:
        sys.settrace(before)
    raise AssertionError("a memory store does not wait")


async def filled(tasks: int) -> tuple[MemoryTaskStore, Clock]:
    """A store with tasks of all kinds in one scope, half of them in one context."""
    clock = Clock(1_000_000)
    store = MemoryTaskStore(clock=clock)
    await store.open(lambda records: None)
    for n in range(tasks):
        name, kind = f"t{n:05}", n % 5
        context_id = f"c{n}" if n % 2 else "c"
        release, receipts = kind == 3, (Receipt(name, b""),)
        options = {"context_id": context_id, "receipts": receipts, "release": release}
        said = (message("hello"),)
        store.append(creation(name, at=AT + n, queue_key=n + 1, exchange=said, **options))
        if kind == 0:
            store.append(addition(name, 1, status(name, TaskState.COMPLETED, at=AT + n)))
        elif kind == 1:
            waits = status(name, TaskState.INPUT_REQUIRED, at=AT + n)
            store.append(addition(name, 1, waits, turn_open=False))
        elif kind == 2:
            keys = (f"e{n}",)
            store.append(addition(name, 1, release=True, wakes_at=NEVER - n, waits_for=keys))
    clock.now += 1000
    return store, clock


async def costs(tasks: int) -> dict[str, int]:
    store, clock = await filled(tasks)
    assert len(store._index._moved) <= index.MAX_MOVED, "little is left to be indexed"
    await store.unclaimed()
    middle, state = (AT + tasks // 2, "t"), TaskState.COMPLETED
    pages = {
        "first page": TaskQuery(scope=SCOPE, limit=10),
        "page in the middle": TaskQuery(scope=SCOPE, limit=10, before=middle),
        "page of a state": TaskQuery(scope=SCOPE, limit=10, state=state, before=middle),
        "page of a context": TaskQuery(scope=SCOPE, limit=10, context_id="c", before=middle),
        "page of a span": TaskQuery(
            scope=SCOPE, limit=10, status_after=AT + 5, not_after=AT + tasks - 5
        ),
    }
    found = {name: steps(store.list(query)) for name, query in pages.items()}
    for query in pages.values():
        page = await store.list(query)
        assert (len(page.tasks), page.more) == (10, True)
    assert (await store.list(pages["page of a span"])).total == tasks - 9
    found |= {
        "unclaimed": steps(store.unclaimed()),
        "first_queued": steps(store.first_queued("agent")),
        "next_wake": steps(store.next_wake(["agent"])),
        "due_tasks": steps(store.due_tasks("agent", NEVER, 10)),
        "awaiting_input": steps(store.awaiting_input("agent", clock.now, 10)),
        "active_pushes": steps(store.active_pushes(["agent"], 0, 10)),
        "claim_pushes": steps(store.claim_pushes("agent", 10)),
        "replicas": steps(store.replicas()),
        "complete_event": steps(store.complete_event("agent", "e2", b"1")),
        "prune nothing": steps(store.prune("agent", AT - 1, 10)),
        "claim_batch": steps(store.claim_batch("agent", 10)),
    }
    assert len(await store.held_tasks()) == tasks // 5 + 10
    steps(store.prune("agent", clock.now, 10))  # the receipts and contexts, which go at once
    found["prune"] = steps(store.prune("agent", clock.now, 10))
    await store.close()
    return found


@pytest.mark.slow
async def test_no_query_looks_at_more_tasks_because_there_are_more() -> None:
    few, many = await costs(FEW), await costs(MANY)
    for name, count in many.items():
        assert count <= few[name] * 1.1 + 50, (name, few[name], count)


async def test_what_a_task_costs_in_orders_is_small() -> None:
    """Bytes for each task in addition to its log: two positions, and its own context."""
    store = MemoryTaskStore()
    await store.open(lambda records: None)
    for n in range(1000):
        store.append(creation(f"t{n}", at=AT + n))
    store._index, kept = index.TaskIndex(store._logs), list(store._logs.values())
    tracemalloc.start()
    try:
        for log in kept:
            log.number = 0
            store._index.moved(log)
        await store.unclaimed()
        assert tracemalloc.get_traced_memory()[0] / len(kept) < 600
    finally:
        tracemalloc.stop()
    await store.close()


# -- cached tasks equal the tasks from the log, and stay within the cache's limit ------------------


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["status", "chunk", "claim", "read", "end"])),
    max_size=30,
)


@pytest.mark.slow
@given(STEPS)
def test_whatever_happened_in_between_a_task_is_read_as_it_is(steps: list[tuple[int, str]]) -> None:
    asyncio.run(_read_after_each(steps))


async def _read_after_each(steps: list[tuple[int, str]]) -> None:
    store = MemoryTaskStore()
    await store.open(lambda _: None)
    ended = set()
    for number, step in [*((n, "begin") for n in range(3)), *steps]:
        task_id = f"t{number}"
        log = store._logs.get(task_id)
        if log is None:
            await store.append(creation(task_id))
        elif task_id in ended:
            pass
        elif step == "claim":
            await store.claim(task_id)
        elif step != "read":
            event = {
                "status": status(task_id, TaskState.WORKING, "on it"),
                "chunk": chunk(task_id, "more"),
                "end": status(task_id, TaskState.COMPLETED, "done"),
            }[step]
            if step == "end":
                ended.add(task_id)
            await store.append(addition(task_id, log.head.seq, event, epoch=log.head.epoch))
        for each in store._logs.values():
            record = await store.load(each.head.task_id)
            again = await store.load(each.head.task_id, scope=SCOPE)
            assert record is not None
            assert again is not None
            assert record.stored == each.stored(None, artifacts=True)
            assert again.stored is record.stored
            assert record.stored.json() == each.stored(None, artifacts=True).json()
            assert (record.seq, record.epoch) == (each.head.seq, each.head.epoch)
    await store.close()


@pytest.mark.anyio
async def test_few_and_small_tasks_are_kept() -> None:
    store = MemoryTaskStore()
    await store.open(lambda _: None)
    for n in range(200):
        await store.append(creation(f"t{n}"))
        assert await store.load(f"t{n}") is not None
    assert len(store._shared.whole) == 64
    large = status("t199", TaskState.WORKING, "x" * 40_000)
    await store.append(addition("t199", store._logs["t199"].head.seq, large))
    one, other = [await store.load("t199") for _ in range(2)]
    assert one is not None
    assert other is not None
    assert one.stored == other.stored
    assert one.stored is not other.stored
    assert len(store._shared.whole) == 63
    await store.close()


def test_a_value_that_is_missing_cannot_be_removed() -> None:
    blocks = index.SortedBlocks()
    for n in (1, 3):
        blocks.add((n,))
    with pytest.raises(KeyError):
        blocks.remove((2,))
    assert [*blocks.rising()] == [(1,), (3,)]


@pytest.mark.anyio
async def test_a_task_that_is_pruned_is_kept_no_longer() -> None:
    store = MemoryTaskStore()
    await store.open(lambda _: None)
    await store.append(creation("t"))
    seq = store._logs["t"].head.seq
    await store.append(addition("t", seq, status("t", TaskState.COMPLETED, "done")))
    assert await store.load("t") is not None
    assert len(store._shared.whole) == 1
    assert await store.prune(SCOPE.agent, store.now() + 1000, 10) == 1
    assert await store.load("t") is None
    assert len(store._shared.whole) == 0
    await store.close()
