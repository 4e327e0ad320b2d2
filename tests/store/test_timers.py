"""Tasks that sleep until a time or an event, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from parley.model.tasks import TaskState
from parley.store.events import CancelRequested, Scope
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.claims import Lease
from parley.store.protocols.errors import Fenced, LeaseHeld
from parley.store.protocols.tables import MAX_WAITS, NEVER, SECRET_BYTES, DueTask, EventCompleted
from parley.store.sqlite.file import SQL
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import SCOPE, addition, creation, left, received, status, turn_started
from tests.kit.services.postgres import PostgresServer
from tests.kit.waiting import Clock, until
from tests.store.conftest import PostgresAtOurTime

pytestmark = pytest.mark.anyio

AGENT = SCOPE.agent


async def sleeps(
    store: TaskStore, task_id: str = "t", *, until_ms: int = NEVER, events: tuple[str, ...] = ()
) -> None:
    """Create a task, and make it sleep."""
    await store.append(creation(task_id))
    await store.append(
        addition(task_id, 1, turn_started(1), release=True, wakes_at=until_ms, waits_for=events)
    )


async def woken(store: TaskStore, now: int) -> list[str]:
    """Wake due tasks; return the tasks that can be claimed."""
    due = await store.due_tasks(AGENT, now, 100)
    await store.wake({each.task_id: n for n, each in enumerate(due, 1)}, now)
    return [claimed.task_id for claimed in await store.claim_batch(AGENT, 100)]


async def test_a_sleeping_task_has_an_open_turn_no_owner_and_is_not_claimed(
    store: TaskStore, clock: Clock
) -> None:
    await sleeps(store, until_ms=clock.now + 1000)
    record = await store.load("t")
    assert record is not None
    assert (record.turn_open, record.lease_owner) == (True, "")
    assert record.wakes_at == clock.now + 1000
    [position] = await store.positions(["t"])
    assert position.lease_owner == ""
    assert await left(store) == ([], 0)
    assert await store.first_queued(AGENT) == 0
    assert await store.claim_batch(AGENT, 10) == []
    with pytest.raises(LeaseHeld, match="sleeps"):
        await store.claim("t")
    assert await store.awaiting_input(AGENT, clock.now + 10_000, 10) == []


async def test_a_task_wakes_up_when_its_time_has_come_and_not_before(
    store: TaskStore, clock: Clock
) -> None:
    at = clock.now + 1000
    await sleeps(store, until_ms=at)
    assert await store.next_wake([AGENT]) == at
    assert await store.next_wake(["another"]) is None
    assert await store.due_tasks(AGENT, at - 1, 10) == []
    assert await store.wake({"t": 7}, at - 1) == 0
    assert await store.due_tasks(AGENT, at, 10) == [DueTask("t", SCOPE)]
    assert await store.wake({"t": 7, "unknown": 8}, at) == 1
    assert await store.wake({"t": 7}, at) == 0, "it is awake already"
    assert await store.next_wake([AGENT]) is None
    assert await left(store) == ([], 1)
    [claimed] = await store.claim_batch(AGENT, 10)
    assert (claimed.task_id, claimed.queue_key) == ("t", 7)
    record = await store.load("t")
    assert record is not None
    assert (record.wakes_at, record.lease_owner) == (None, store.replica)
    end = status("t", TaskState.COMPLETED)
    await store.append(addition("t", 1, end, epoch=claimed.epoch, turn_open=False))


async def test_who_put_a_task_to_sleep_can_write_to_it_no_more_once_it_is_claimed(
    store: TaskStore, clock: Clock
) -> None:
    await sleeps(store, until_ms=clock.now)
    assert await woken(store, clock.now) == ["t"]
    with pytest.raises(Fenced):
        await store.append(addition("t", 1, status("t", TaskState.WORKING), epoch=1))


async def test_messages_wait_while_a_task_sleeps(store: TaskStore, clock: Clock) -> None:
    await sleeps(store, until_ms=clock.now + 1000)
    await store.append(addition("t", None, received("more")))
    assert await left(store) == ([], 0)
    assert await store.claim_batch(AGENT, 10) == []
    record = await store.load("t")
    assert record is not None
    assert (record.waiting, record.wakes_at) == (1, clock.now + 1000)
    assert await woken(store, clock.now + 1000) == ["t"]


async def test_a_message_leaves_a_task_the_events_that_it_waits_for(
    store: TaskStore, clock: Clock
) -> None:
    await sleeps(store, events=("k",))
    await store.append(addition("t", None, received("more")))
    await store.complete_event(AGENT, "k", b"1")
    assert await woken(store, clock.now) == ["t"]


async def test_a_cancellation_wakes_a_task_at_once(store: TaskStore) -> None:
    await sleeps(store, events=("k",))
    await store.append(addition("t", None, CancelRequested()))
    assert await left(store) == ([], 1)
    assert await store.next_wake([AGENT]) is None
    assert await store.claim("t") == 2


async def test_a_task_that_is_being_cancelled_does_not_fall_asleep(store: TaskStore) -> None:
    await store.append(creation("t"))
    await store.append(addition("t", None, CancelRequested()))
    await store.append(addition("t", 1, turn_started(1), release=True, wakes_at=NEVER))
    assert await left(store) == ([], 1)


async def test_an_event_wakes_the_tasks_that_wait_for_it(store: TaskStore, clock: Clock) -> None:
    await sleeps(store, "one", events=("k", "other"))
    await sleeps(store, "two", events=("k",))
    await sleeps(store, "three", events=("other",))
    await sleeps(store, "four", until_ms=clock.now + 5)
    assert await store.event(AGENT, "k") is None
    assert await store.complete_event(AGENT, "k", b"1") is True
    assert await store.event(AGENT, "k") == b"1"
    assert await store.next_wake([AGENT]) == 0
    assert sorted(await woken(store, clock.now)) == ["one", "two"]
    assert await store.next_wake([AGENT]) == clock.now + 5


async def test_an_event_is_completed_once_and_the_first_value_counts(store: TaskStore) -> None:
    assert await store.complete_event(AGENT, "k", b"1") is True
    assert await store.complete_event(AGENT, "k", b" 1\n") is False
    with pytest.raises(EventCompleted, match=r"'k'.*another value"):
        await store.complete_event(AGENT, "k", b"2")
    assert await store.event(AGENT, "k") == b"1"
    assert await store.complete_event("another", "k", b"2") is True
    assert await store.event("another", "k") == b"2"


async def test_one_of_many_completions_at_once_is_the_first(store: TaskStore) -> None:
    await sleeps(store, events=("k",))
    done = await asyncio.gather(
        *[store.complete_event(AGENT, "k", b"%d" % n) for n in range(10)], return_exceptions=True
    )
    assert [each for each in done if not isinstance(each, EventCompleted)] == [True]


async def test_a_task_waits_only_for_the_events_of_its_last_sleep(
    store: TaskStore, clock: Clock
) -> None:
    await sleeps(store, until_ms=clock.now, events=("old",))
    assert await woken(store, clock.now) == ["t"]
    await store.append(
        addition("t", 1, turn_started(1), epoch=2, release=True, wakes_at=NEVER, waits_for=("new",))
    )
    await store.complete_event(AGENT, "old", b"1")
    assert await store.next_wake([AGENT]) == NEVER
    await store.complete_event(AGENT, "new", b"1")
    assert await woken(store, clock.now) == ["t"]
    await store.append(
        addition("t", 1, turn_started(1), epoch=3, release=True, wakes_at=clock.now + 9)
    )
    assert await store.next_wake([AGENT]) == clock.now + 9, "it waits for no event now"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"waits_for": ("k",), "release": True}, "when it wakes up"),
        ({"wakes_at": 1}, "releases"),
        ({"wakes_at": 1, "release": True, "turn_open": False}, "within a turn"),
        ({"wakes_at": 1, "release": True, "expected_seq": None}, "within a turn"),
        ({"wakes_at": 1, "release": True, "waits_for": ("",)}, "key of an event"),
        ({"wakes_at": 1, "release": True, "waits_for": ("k",) * (MAX_WAITS + 1)}, "100 events"),
    ],
)
async def test_a_sleep_that_makes_no_sense_is_refused(
    store: TaskStore, options: dict[str, Any], message: str
) -> None:
    await store.append(creation("t"))
    options = dict(options)
    expected = options.pop("expected_seq", 1)
    with pytest.raises(ValueError, match=message):
        await store.append(addition("t", expected, turn_started(1), **options))


async def test_who_listens_hears_of_sleeps_and_events_of_this_process(
    store: TaskStore, clock: Clock
) -> None:
    heard: list[int] = []
    store.listen_timers(heard.append)
    await sleeps(store, "t", until_ms=77)
    await until(lambda: heard == [77])
    await sleeps(store, "u", until_ms=88, events=("k",))
    await until(lambda: heard == [77, 0])
    await store.complete_event(AGENT, "k", b"1")
    await until(lambda: heard == [77, 0, 0])


async def test_events_go_with_the_tasks_that_waited_for_them(
    store: TaskStore, clock: Clock
) -> None:
    await sleeps(store, events=("waited",))
    await store.complete_event(AGENT, "waited", b"1")
    await store.complete_event(AGENT, "nobody", b"1")
    await store.complete_event("another", "k", b"1")
    clock.now += 1000
    await store.complete_event(AGENT, "new", b"1")
    await store.prune(AGENT, clock.now, 100)
    kept = [await store.event(AGENT, key) for key in ("waited", "nobody", "new")]
    assert kept == [b"1", None, b"1"]
    assert await store.event("another", "k") == b"1"
    assert await woken(store, clock.now) == ["t"]
    await store.append(addition("t", 1, status("t", TaskState.COMPLETED), epoch=2))
    clock.now += 1000
    assert await store.prune(AGENT, clock.now, 100) == 1
    await store.prune(AGENT, clock.now, 100)
    assert await store.event(AGENT, "waited") is None


async def test_a_secret_is_made_once(store: TaskStore) -> None:
    first = await store.secret("callbacks")
    assert len(first) == SECRET_BYTES
    assert await asyncio.gather(*[store.secret("callbacks") for _ in range(5)]) == [first] * 5
    several = await asyncio.gather(*[store.secret("files") for _ in range(5)])
    assert len(set(several)) == 1
    assert several[0] != first


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def reopened(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock
) -> Callable[[], TaskStore]:
    """Open a store of the same data each time."""
    if request.param == "memory":
        store = MemoryTaskStore(clock=clock)
        return lambda: store
    if request.param == "sqlite":
        return lambda: SqliteTaskStore(tmp_path / "tasks.db", clock=clock)
    url = request.getfixturevalue("postgres_url")
    return lambda: PostgresAtOurTime(url, clock=clock)


async def test_sleeping_tasks_sleep_on_when_the_store_is_opened_again(
    reopened: Callable[[], TaskStore], clock: Clock
) -> None:
    store = reopened()
    await store.open(lambda records: None)
    await sleeps(store, "t", until_ms=clock.now + 5)
    await sleeps(store, "u", events=("k",))
    await store.append(creation("held"))
    secret = await store.secret("s")
    await store.close()
    store = reopened()
    await store.open(lambda records: None)
    assert [each.task_id for each in await store.claim_batch(AGENT, 9)] == ["held"]
    assert await store.complete_event(AGENT, "k", b"1")
    assert sorted(await woken(store, clock.now + 5)) == ["t", "u"]
    assert await store.secret("s") == secret
    await store.close()


Start = Callable[[], Awaitable[TaskStore]]


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.service)])
async def start(request: pytest.FixtureRequest) -> AsyncIterator[Start]:
    """Start a further replica of one store, with a short lease."""
    logs = MemoryLogs()
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    opened: list[TaskStore] = []

    async def start() -> TaskStore:
        store: TaskStore
        if url:
            store = PostgresTaskStore(url, lease=Lease(0.5))
        else:
            store = MemoryTaskStore(logs=logs, lease=Lease(0.5))
        await store.open(lambda records: None)
        opened.append(store)
        return store

    yield start
    for store in opened:
        await store.close()


async def test_of_two_replicas_one_wakes_a_task(start: Start) -> None:
    one, two = await start(), await start()
    now = one.now()
    for n in range(20):
        await sleeps(one, f"t{n}", until_ms=now)
    tasks = {f"t{n}": n for n in range(20)}
    counts = await asyncio.gather(*[store.wake(tasks, now) for store in (one, two) * 3])
    assert await left(two) == ([], sum(counts))
    assert sum(counts) + await one.wake(tasks, now) == 20, "no task is woken twice"
    claimed = await asyncio.gather(one.claim_batch(AGENT, 20), two.claim_batch(AGENT, 20))
    ids = [each.task_id for batch in claimed for each in batch]
    assert sorted(ids) == sorted(tasks)


async def test_a_wait_and_its_event_do_not_miss_each_other(start: Start) -> None:
    """On two replicas at the same moment, many times."""
    one, two = await start(), await start()
    for n in range(60):
        await one.append(creation(f"t{n}"))
    for n in range(60):
        key = f"k{n}"
        wait = addition(
            f"t{n}", 1, turn_started(1), release=True, wakes_at=NEVER, waits_for=("a", key, "z")
        )
        await asyncio.gather(one.append(wait), two.complete_event(AGENT, key, b"1"))
    due = await two.due_tasks(AGENT, two.now(), 100)
    assert len(due) == 60
    assert await two.wake({each.task_id: 1 for each in due}, two.now()) == 60


async def test_replicas_have_the_same_secrets_and_events(start: Start) -> None:
    one, two = await start(), await start()
    assert len(set(await asyncio.gather(*[s.secret("new") for s in (one, two) * 4]))) == 1
    await sleeps(one, events=("k",))
    assert await two.complete_event(AGENT, "k", b"1") is True
    assert await one.complete_event(AGENT, "k", b"1") is False
    assert await one.event(AGENT, "k") == b"1"
    assert await one.next_wake([AGENT]) == 0


@pytest.mark.slow
async def test_a_task_sleeps_on_when_the_replica_that_put_it_to_sleep_dies(start: Start) -> None:
    one, two = await start(), await start()
    at = one.now() + 3_600_000
    await sleeps(one, "t", until_ms=at)
    await one.append(creation("held"))
    await one.close()
    await until(lambda: _claimable(two, 1))
    assert [each.task_id for each in await two.claim_batch(AGENT, 9)] == ["held"]
    assert await two.next_wake([AGENT]) == at


async def _claimable(store: TaskStore, count: int) -> bool:
    return (await store.unclaimed()).get(AGENT, 0) == count


async def test_tasks_of_other_scopes_wake_with_their_own_scope(
    store: TaskStore, clock: Clock
) -> None:
    for n, scope in enumerate((Scope(AGENT, "", "a"), Scope(AGENT, "t", "b"), Scope("other"))):
        await store.append(creation(f"t{n}", scope=scope))
        await store.append(
            addition(f"t{n}", 1, turn_started(1), release=True, wakes_at=clock.now + n)
        )
    due = await store.due_tasks(AGENT, clock.now + 9, 9)
    assert due == [DueTask("t0", Scope(AGENT, "", "a")), DueTask("t1", Scope(AGENT, "t", "b"))]


async def many_asleep(store: TaskStore, count: int, clock_now: int) -> None:
    """Sleeping tasks: half of them until a time, half of them until an event."""
    for first in range(0, count, 500):
        await asyncio.gather(
            *[
                store.append(
                    creation(
                        f"s{n:05}",
                        turn_started(1),
                        release=True,
                        wakes_at=NEVER if n % 2 else clock_now + 1_000_000 + n,
                    )
                )
                for n in range(first, min(first + 500, count))
            ]
        )


@pytest.mark.slow
async def test_sleeping_tasks_cost_others_nothing_in_sqlite(tmp_path: Path, clock: Clock) -> None:
    costs = []
    for count in (10, 10_000):
        path = tmp_path / f"{count}.db"
        store = SqliteTaskStore(path, synchronous="NORMAL", clock=clock)
        await store.open(lambda records: None)
        await many_asleep(store, count, clock.now)
        await sleeps(store, "due", until_ms=clock.now)
        await sleeps(store, "waits", events=("k",))
        await store.append(creation("queued", turn_started(1), release=True))
        steps = _steps_of(store)
        agents = '["agent","other"]'
        costs.append(
            {
                "claimable": steps("claimable", (AGENT, 100)),
                "unclaimed": steps("unclaimed", (1000,)),
                "first_queued": steps("first_queued", (AGENT,)),
                "release_tasks": steps("release_tasks", ()),
                "next_wake": steps("next_wake", (agents,)),
                "due_tasks": steps("due_tasks", (AGENT, clock.now, 100)),
                "waiting_for_event": steps("waiting_for_event", (AGENT, "k")),
            }
        )
        assert [each.task_id for each in await store.claim_batch(AGENT, 9)] == ["queued"]
        await store.close()
    for name, before in costs[0].items():
        assert costs[1][name] <= before + 20, (name, costs)


def _steps_of(store: SqliteTaskStore) -> Callable[[str, Any], int]:
    connection = store._writing.batch_writer.connection  # type: ignore[union-attr]

    def steps(name: str, values: Any) -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        connection.set_progress_handler(step, 1)
        try:
            connection.execute(SQL[name], values).fetchall()
        finally:
            connection.set_progress_handler(None, 0)
        return count

    return steps


@pytest.mark.service
async def test_sleeping_tasks_cost_others_nothing_in_postgres(
    postgres: PostgresServer, clock: Clock
) -> None:
    costs = []
    for count in (10, 10_000):
        url = postgres.new_url()
        store = PostgresAtOurTime(url, clock=clock)
        await store.open(lambda records: None)
        await many_asleep(store, count, clock.now)
        await sleeps(store, "due", until_ms=clock.now)
        await store.append(creation("queued", turn_started(1), release=True))
        asked = {
            "unclaimed": (1000,),
            "first_queued": (AGENT,),
            "next_wake": ([AGENT, "other"],),
            "due_tasks": (AGENT, clock.now, 100),
        }
        with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
            connection.execute(f"VACUUM ANALYZE {store._address.schema}.tasks")
            connection.execute("SET enable_seqscan = off")
            found = {}
            for name, values in asked.items():
                sql = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + store._sql[name]
                [(plan,)] = connection.execute(sql, values).fetchall()
                plan = plan[0]["Plan"]
                found[name] = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        costs.append(found)
        assert [each.task_id for each in await store.claim_batch(AGENT, 9)] == ["queued"]
        await store.close()
    for name, before in costs[0].items():
        assert costs[1][name] <= before + 12, (name, costs)
