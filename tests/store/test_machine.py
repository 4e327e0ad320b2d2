"""Any sequence of store operations, compared with a simple model (L1, L3, L4, L6)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from parley.model.tasks import TaskState
from parley.store.events import (
    CancelRequested,
    LoggedEvent,
    MessageReceived,
    RecordKind,
    Scope,
    TurnStarted,
)
from parley.store.fold import Fold, IllegalEvent
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.errors import (
    Conflict,
    DuplicateReceipt,
    Fenced,
    LeaseHeld,
    StoreError,
    TaskEnded,
    UnknownTask,
)
from parley.store.protocols.tables import EventCompleted, Receipt
from parley.store.protocols.task_log import Append, LogPosition, TaskQuery
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import AT, addition, chunk, creation, received, status, turn_started
from tests.kit.services.postgres import PostgresServer

T = TypeVar("T")

SCOPES = [Scope("a"), Scope("a", "tenant"), Scope("b", "", "owner")]
PRIVATE = (MessageReceived, TurnStarted, CancelRequested)


class Known:
    """The model's data of one task."""

    def __init__(self, scope: Scope, context_id: str) -> None:
        self.scope = scope
        self.context_id = context_id
        self.fold = Fold()
        self.events: list[Any] = []
        self.private: list[Any] = []
        self.epoch = 1
        self.turn = 1
        self.turn_open = False
        self.waiting = 0
        self.cancel_requested = False
        self.lease_owner = ""
        self.queue_key = 0
        self.wakes_at: int | None = None
        self.waits_for: Sequence[str] = ()

    @property
    def seq(self) -> int:
        return len(self.events)

    @property
    def has_ended(self) -> bool:
        return self.fold.state is not None and self.fold.state.is_terminal

    @property
    def is_unclaimed(self) -> bool:
        is_left = self.turn_open or self.waiting > 0 or self.cancel_requested
        is_free = not self.lease_owner and self.wakes_at is None
        return is_left and is_free and not self.has_ended


states = st.sampled_from([state for state in TaskState if not state.is_terminal])
ends = st.sampled_from([state for state in TaskState if state.is_terminal])


def event_of(task_id: str) -> st.SearchStrategy[Any]:
    ids = st.sampled_from(["one", "two"])
    return st.one_of(
        st.builds(lambda i, a: chunk(task_id, "x", artifact_id=i, append=a), ids, st.booleans()),
        st.builds(lambda s, t: status(task_id, s, t), states, st.sampled_from(["", "a", "b"])),
        st.builds(lambda t: turn_started(2, *t), st.lists(st.sampled_from(["c", "d"]), max_size=2)),
        st.builds(received, st.just("e")),
        st.just(CancelRequested()),
    )


class StoreMachine(RuleBasedStateMachine):
    """Uses a store in any order."""

    tasks = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = TemporaryDirectory()
        self.known: dict[str, Known] = {}
        self.receipts: dict[tuple[Scope, str], Receipt] = {}
        self.committed: dict[str, list[LoggedEvent]] = {}
        self.completed: dict[tuple[str, str], bytes] = {}
        self.stores = self.new_stores()
        for store in self.stores:
            self.run(store.open(self.tell))
        self.moment = 0

    def new_stores(self) -> list[TaskStore]:
        """Replicas with shared data."""
        logs = MemoryLogs()
        return [MemoryTaskStore(logs=logs) for _ in range(2)]

    @property
    def store(self) -> TaskStore:
        """Return the next replica in turn."""
        self.stores.append(self.stores.pop(0))
        return self.stores[0]

    def teardown(self) -> None:
        for store in self.stores:
            self.run(store.close())
        self.runner.close()
        self.folder.cleanup()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def append(self, store: TaskStore, append: Append) -> int:
        async def wait() -> int:
            return await store.append(append)

        return self.run(wait())

    def tell(self, records: Sequence[LoggedEvent]) -> None:
        for record in records:
            self.committed.setdefault(record.task_id, []).append(record)

    def apply(self, append: Append, replica: str) -> type[Exception] | None:
        """Apply an append to the model; return the error expected from the store."""
        known = self.known.get(append.task_id)
        self.unclaimed_before = known is not None and known.is_unclaimed
        if known is None:
            if append.expected_seq != 0 or append.scope is None:
                return UnknownTask
            known = Known(append.scope, append.context_id)
        elif append.expected_seq == 0:
            return Conflict
        elif known.has_ended:
            return TaskEnded
        elif append.expected_seq is not None:
            if append.epoch != known.epoch:
                return Fenced
            if append.expected_seq != known.seq:
                return Conflict
        trial = Fold(known.fold.task if known.events else None)
        try:
            for event in append.events:
                trial.apply(event)
        except IllegalEvent:
            return IllegalEvent
        names = [(known.scope, receipt.message_id) for receipt in append.receipts]
        if any(name in self.receipts for name in names):
            return DuplicateReceipt
        self.receipts |= dict(zip(names, append.receipts, strict=True))
        known.fold = trial
        for event in append.events:
            (known.private if isinstance(event, PRIVATE) else known.events).append(event)
            known.waiting += isinstance(event, MessageReceived)
            known.cancel_requested |= isinstance(event, CancelRequested)
        if append.expected_seq is not None:
            known.turn = append.turn
        if append.turn_open is not None:
            known.turn_open = append.turn_open
        known.waiting = 0 if known.has_ended else max(0, known.waiting - append.taken)
        known.turn_open &= not known.has_ended
        was_unclaimed = append.task_id in self.known and self.unclaimed_before
        if known.has_ended or append.release:
            known.lease_owner = ""
        elif append.expected_seq is not None:
            if append.turn_open is False:
                known.lease_owner = ""
            elif known.turn_open:
                known.lease_owner = replica
        if known.has_ended or known.cancel_requested or not known.turn_open:
            known.wakes_at = None
        elif append.expected_seq is not None:
            known.wakes_at = append.wakes_at
        if append.wakes_at is not None:
            known.waits_for = append.waits_for
            if known.wakes_at is not None and any(
                (known.scope.agent, key) in self.completed for key in append.waits_for
            ):
                known.wakes_at = 0
        if known.is_unclaimed and not was_unclaimed:
            known.queue_key = append.queue_key
        self.known[append.task_id] = known
        return None

    def do(self, append: Append) -> bool:
        store = self.store
        refusal = self.apply(append, store.replica)
        if refusal is None:
            assert self.append(store, append) == self.known[append.task_id].seq
            return True
        with pytest.raises(refusal):
            self.append(store, append)
        return False

    @rule(target=tasks, data=st.data(), scope=st.sampled_from(SCOPES), open_=st.booleans())
    def create(self, data: st.DataObject, scope: Scope, open_: bool) -> Any:
        task_id = f"t{len(self.known)}"
        more = data.draw(st.lists(event_of(task_id), max_size=3))
        self.moment += data.draw(st.integers(0, 2))
        receipts = data.draw(st.sampled_from([(), (Receipt("m1", b""),), (Receipt("m2", b""),)]))
        append = creation(
            task_id,
            *more,
            scope=scope,
            context_id=data.draw(st.sampled_from(["c1", "c2"])),
            turn_open=open_,
            receipts=receipts,
            at=AT + self.moment,
        )
        return task_id if self.do(append) else multiple()

    @rule(task_id=tasks, data=st.data())
    def add(self, task_id: str, data: st.DataObject) -> None:
        known = self.known[task_id]
        events = data.draw(st.lists(event_of(task_id), max_size=4))
        append = addition(
            task_id,
            max(1, known.seq + data.draw(st.sampled_from([0, 0, 0, 0, 0, 1, -1]))),
            *events,
            turn=known.turn + data.draw(st.integers(0, 1)),
            epoch=known.epoch + data.draw(st.sampled_from([0, 0, 0, 0, -1, 1])),
            turn_open=data.draw(st.sampled_from([None, True, False])),
            release=data.draw(st.sampled_from([False, False, True])),
            queue_key=data.draw(st.integers(0, 3)),
            taken=data.draw(st.integers(0, 2)),
        )
        if data.draw(st.booleans()):
            record = self.run(self.store.load(task_id))
            assert record is not None
            trial = Fold(record.task, unsaved=record.unsaved)
            try:
                for event in events:
                    trial.apply(event)
            except IllegalEvent:
                pass
            else:
                append = msgspec.structs.replace(append, artifacts=trial.take_unsaved())
        self.do(append)

    @rule(task_id=tasks, data=st.data())
    def add_from_outside(self, task_id: str, data: st.DataObject) -> None:
        events = data.draw(st.lists(st.builds(received, st.just("f")), min_size=1, max_size=2))
        if data.draw(st.booleans()):
            events.append(CancelRequested())
        queue_key = data.draw(st.integers(0, 3))
        self.do(addition(task_id, None, *events, turn=99, epoch=99, queue_key=queue_key))

    @rule(
        task_id=tasks,
        wakes_at=st.integers(1, 5),
        keys=st.lists(st.sampled_from(["k", "l", "m"]), max_size=2, unique=True),
    )
    def sleep(self, task_id: str, wakes_at: int, keys: Sequence[str]) -> None:
        known = self.known[task_id]
        options = {"release": True, "wakes_at": wakes_at, "waits_for": tuple(keys)}
        begun = turn_started(known.turn)
        self.do(
            addition(
                task_id, max(1, known.seq), begun, epoch=known.epoch, turn=known.turn, **options
            )
        )

    @rule(
        agent=st.sampled_from(["a", "b"]),
        key=st.sampled_from(["k", "l", "m"]),
        value=st.sampled_from([b"1", b"2"]),
    )
    def complete_event(self, agent: str, key: str, value: bytes) -> None:
        before = self.completed.get((agent, key))
        if before not in (None, value):
            with pytest.raises(EventCompleted):
                self.run(self.store.complete_event(agent, key, value))
        else:
            is_first = self.run(self.store.complete_event(agent, key, value))
            assert is_first == (before is None)
        if before is None:
            self.completed[agent, key] = value
            for known in self.known.values():
                is_waiting = known.wakes_at is not None and key in known.waits_for
                if is_waiting and known.scope.agent == agent:
                    known.wakes_at = 0
        assert self.run(self.store.event(agent, key)) == self.completed[agent, key]

    @rule(agent=st.sampled_from(["a", "b"]), now=st.integers(0, 6), limit=st.integers(1, 3))
    def wake(self, agent: str, now: int, limit: int) -> None:
        asleep = {
            task_id: known.wakes_at
            for task_id, known in self.known.items()
            if known.wakes_at is not None and known.scope.agent == agent
        }
        assert self.run(self.store.next_wake([agent])) == min(asleep.values(), default=None)
        due = {task_id: at for task_id, at in asleep.items() if at <= now}
        found = self.run(self.store.due_tasks(agent, now, limit))
        times = [due[each.task_id] for each in found]
        assert times == sorted(due.values())[:limit]
        assert all(each.scope == self.known[each.task_id].scope for each in found)
        keys = {each.task_id: n for n, each in enumerate(found, 1)}
        assert self.run(self.store.wake({**keys, "nobody": 1}, now)) == len(found)
        for task_id, key in keys.items():
            self.known[task_id].wakes_at, self.known[task_id].queue_key = None, key

    @rule(task_id=tasks, state=ends, late=st.booleans())
    def end(self, task_id: str, state: TaskState, late: bool) -> None:
        known = self.known[task_id]
        events = [status(task_id, state, "bye"), *([chunk(task_id, "late")] if late else [])]
        self.do(addition(task_id, known.seq, *events, epoch=known.epoch, turn=known.turn))

    @rule(task_id=tasks)
    def create_again(self, task_id: str) -> None:
        self.do(creation(task_id))

    @rule(task_id=tasks)
    def claim(self, task_id: str) -> None:
        known = self.known[task_id]
        store = self.store
        if known.has_ended:
            with pytest.raises(TaskEnded):
                self.run(store.claim(task_id))
        elif known.lease_owner not in ("", store.replica) or known.wakes_at is not None:
            with pytest.raises(LeaseHeld):
                self.run(store.claim(task_id))
        else:
            known.epoch += 1
            known.lease_owner = store.replica
            assert self.run(store.claim(task_id)) == known.epoch

    @rule(agent=st.sampled_from(["a", "b"]), limit=st.integers(1, 3))
    def claim_batch(self, agent: str, limit: int) -> None:
        line = [
            task_id
            for task_id, known in self.known.items()
            if known.is_unclaimed and known.scope.agent == agent
        ]
        store = self.store
        assert self.run(store.unclaimed()).get(agent, 0) == len(line)
        keys = [self.known[task_id].queue_key for task_id in line]
        first = min([key for key in keys if key], default=0)
        assert self.run(store.first_queued(agent)) == first
        line.sort(key=lambda task_id: self.known[task_id].queue_key)
        claimed = self.run(store.claim_batch(agent, limit))
        assert [each.task_id for each in claimed] == line[:limit]
        for each in claimed:
            known = self.known[each.task_id]
            known.epoch += 1
            known.lease_owner = store.replica
            assert (each.epoch, each.queue_key) == (known.epoch, known.queue_key)

    @rule()
    def look_at_what_is_held(self) -> None:
        store = self.store
        held = {
            task_id
            for task_id, known in self.known.items()
            if known.lease_owner == store.replica
            and (known.turn_open or known.waiting or known.cancel_requested)
        }
        assert set(self.run(store.held_tasks())) == held

    @rule()
    def check_positions(self) -> None:
        expected = {
            task_id: LogPosition(
                task_id=task_id,
                seq=known.seq,
                sub=self.committed[task_id][-1].sub,
                epoch=known.epoch,
                lease_owner=known.lease_owner,
                waiting=known.waiting,
                cancel_requested=known.cancel_requested,
                ended=known.has_ended,
            )
            for task_id, known in self.known.items()
        }
        found = self.run(self.store.positions([*self.known, "nobody"]))
        assert {position.task_id: position for position in found} == expected

    @rule()
    def use_what_is_not_there(self) -> None:
        with pytest.raises(UnknownTask):
            self.run(self.store.claim("nobody"))
        self.do(addition("nobody", 1, chunk("nobody", "x")))
        assert self.run(self.store.load("nobody")) is None

    @rule(task_id=tasks, data=st.data())
    def read_from_anywhere(self, task_id: str, data: st.DataObject) -> None:
        known = self.known[task_id]
        after = data.draw(st.integers(0, known.seq))
        limit = data.draw(st.integers(1, 5))
        page = self.run(self.store.events(task_id, after, limit))
        assert [e.event for e in page] == known.events[after : after + limit]
        assert [e.seq for e in page] == list(range(after + 1, after + 1 + len(page)))

    @rule(task_id=tasks, data=st.data())
    def read_private_records(self, task_id: str, data: st.DataObject) -> None:
        known = self.known[task_id]
        committed = [record for record in self.committed[task_id] if record.sub]
        after = data.draw(st.sampled_from([(0, 0), *[(r.seq, r.sub) for r in committed]]))
        kinds = data.draw(
            st.sets(st.sampled_from([RecordKind.RECEIVED, RecordKind.TURN]), min_size=1)
        )
        limit = data.draw(st.none() | st.integers(1, 3))
        found = self.run(self.store.private_records(task_id, list(kinds), after=after, limit=limit))
        behind = [r for r in committed if r.kind in kinds and (r.seq, r.sub) > after]
        assert list(found) == behind[:limit]
        skip = data.draw(st.integers(0, 2))
        waiting = self.run(self.store.waiting_messages(task_id, skip=skip, limit=2))
        received = [r for r in committed if r.kind is RecordKind.RECEIVED]
        untaken = received[len(received) - known.waiting :]
        assert list(waiting) == untaken[skip : skip + 2]

    @rule(
        task_id=tasks,
        history=st.none() | st.integers(0, 3),
        artifacts=st.booleans(),
        scope=st.none() | st.sampled_from(SCOPES),
    )
    def load_some_of_it(
        self, task_id: str, history: int | None, artifacts: bool, scope: Scope | None
    ) -> None:
        known = self.known[task_id]
        record = self.run(
            self.store.load(task_id, scope=scope, history=history, artifacts=artifacts)
        )
        if scope not in (None, known.scope):
            assert record is None
            return
        whole = known.fold.task
        said = whole.history if history is None else whole.history[-history:] if history else ()
        assert record is not None
        assert record.task == msgspec.structs.replace(
            whole, history=said, artifacts=whole.artifacts if artifacts else ()
        )

    @rule(
        scope=st.sampled_from(SCOPES), state=states | ends, context_id=st.sampled_from(["", "c1"])
    )
    def list(self, scope: Scope, state: TaskState, context_id: str) -> None:
        query = TaskQuery(scope=scope, state=state, context_id=context_id, artifacts=True)
        page = self.run(self.store.list(query))
        expected = {
            task_id: known.fold.task
            for task_id, known in self.known.items()
            if known.scope == scope
            and context_id in ("", known.context_id)
            and state in (TaskState.UNSPECIFIED, known.fold.state)
        }
        assert {task.id: task for task in page.tasks} == expected
        assert (page.total, page.more) == (len(expected), False)

    @invariant()
    def every_task_is_the_fold_of_its_log(self) -> None:
        for task_id, known in self.known.items():
            record = self.run(self.store.load(task_id))
            assert record is not None
            assert record.task == known.fold.task
            assert (record.seq, record.scope) == (known.seq, known.scope)
            assert (record.wakes_at, record.lease_owner) == (known.wakes_at, known.lease_owner)
            assert (record.epoch, record.lease_owner) == (known.epoch, known.lease_owner)
            assert (record.turn, record.turn_open, record.waiting, record.cancel_requested) == (
                known.turn,
                known.turn_open,
                known.waiting,
                known.cancel_requested,
            )

    @invariant()
    def what_was_told_is_the_log_in_order(self) -> None:
        for task_id, known in self.known.items():
            committed = self.committed[task_id]
            assert [r.event for r in committed if r.sub == 0] == known.events
            assert [r.event for r in committed if r.sub] == known.private
            positions = [(r.seq, r.sub) for r in committed]
            assert positions == sorted(set(positions))

    @invariant()
    def receipts_are_those_of_what_was_done(self) -> None:
        for (scope, name), receipt in self.receipts.items():
            assert self.run(self.store.receipt(scope, name)) == receipt


class SqliteMachine(StoreMachine):
    """The same, with a file that is closed and opened now and then."""

    def new_stores(self) -> list[TaskStore]:
        path = Path(self.folder.name) / "tasks.db"
        return [SqliteTaskStore(path, synchronous="NORMAL")]

    @rule()
    def close_and_open(self) -> None:
        self.run(self.store.close())
        self.stores = self.new_stores()
        self.run(self.store.open(self.tell))
        for known in self.known.values():
            if known.lease_owner:
                known.lease_owner, known.queue_key = "", 0
                known.epoch += 1


class PostgresMachine(StoreMachine):
    """The same, with two replicas in their own schema; a replica is sometimes closed."""

    server: PostgresServer

    def new_stores(self) -> list[TaskStore]:
        self.url = self.server.new_url()
        return [PostgresTaskStore(self.url) for _ in range(2)]

    @rule()
    def leave_and_come(self) -> None:
        store = self.store
        replica = store.replica
        self.run(store.close())
        for known in self.known.values():
            if known.lease_owner == replica:
                known.lease_owner, known.queue_key = "", 0
                known.epoch += 1
        self.stores[0] = PostgresTaskStore(self.url)
        self.run(self.stores[0].open(self.tell))


@pytest.mark.slow
@pytest.mark.L1
@pytest.mark.L3
@pytest.mark.L4
@pytest.mark.L6
def test_the_memory_store_does_what_the_model_does() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        StoreMachine, settings=settings(max_examples=40, stateful_step_count=30)
    )


@pytest.mark.slow
@pytest.mark.L1
@pytest.mark.L3
@pytest.mark.L4
@pytest.mark.L6
def test_the_sqlite_store_does_what_the_model_does() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        SqliteMachine, settings=settings(max_examples=15, stateful_step_count=25)
    )


@pytest.mark.service
@pytest.mark.L1
@pytest.mark.L3
@pytest.mark.L4
@pytest.mark.L6
def test_the_postgres_store_does_what_the_model_does(postgres: PostgresServer) -> None:
    class Machine(PostgresMachine):
        server = postgres

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine, settings=settings(max_examples=20, stateful_step_count=25)
    )


def test_store_errors_are_one_family() -> None:
    for error in (Conflict, Fenced, TaskEnded, UnknownTask, DuplicateReceipt):
        assert issubclass(error, StoreError)
