"""Replicas that share a store: leases, claims, and processes that are killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from parley.model.operations import TaskPushNotificationConfig
from parley.model.tasks import TaskState
from parley.store.events import CancelRequested, LoggedEvent, RecordKind
from parley.store.fold import fold
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.claims import Lease, Replica
from parley.store.protocols.errors import Fenced, TaskEnded
from parley.store.protocols.task_log import TaskQuery
from parley.store.protocols.webhooks import PushRecord, PushState
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import (
    SCOPE,
    addition,
    all_events,
    chunk,
    creation,
    numbers,
    received,
    status,
    turn_started,
)
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio


AGENT = SCOPE.agent
Start = Callable[[], Awaitable[TaskStore]]


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.service)])
async def start(request: pytest.FixtureRequest) -> AsyncIterator[Start]:
    """Start a further replica of one store, with a short lease."""
    logs = MemoryLogs()
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    opened: list[TaskStore] = []

    async def start() -> TaskStore:
        lease = Lease(0.5)
        store: TaskStore
        if url:
            store = PostgresTaskStore(url, lease=lease)
        else:
            store = MemoryTaskStore(logs=logs, lease=lease)
        await store.open(lambda records: None)
        opened.append(store)
        return store

    yield start
    for store in opened:
        await store.close()


@pytest.fixture
async def one(start: Start) -> TaskStore:
    return await start()


@pytest.fixture
async def two(one: TaskStore, start: Start) -> TaskStore:
    return await start()


async def silence(store: TaskStore) -> None:
    """Stop a replica's heartbeats, as in a hanging process."""
    if isinstance(store, MemoryTaskStore):
        assert store._heartbeat is not None
        store._heartbeat.cancel()
    else:
        assert isinstance(store, PostgresTaskStore)
        assert store._heartbeat is not None
        await asyncio.to_thread(store._heartbeat.stop)


async def lease_owner(store: TaskStore, task_id: str) -> str:
    [position] = await store.positions([task_id])
    return position.lease_owner


def push(push_id: str = "p") -> PushRecord:
    config = TaskPushNotificationConfig(id=push_id, url=f"https://example.com/{push_id}")
    return PushRecord(config=config, version="1.0", revision=f"revision of {push_id}")


@pytest.mark.L3
async def test_a_rejected_append_leaves_no_replica_with_a_head_of_before(
    one: TaskStore, two: TaskStore
) -> None:
    await one.append(creation("t"))
    await two.append(addition("t", 1, status("t", TaskState.FAILED), turn_open=False))
    asleep = addition("t", 1, turn_started(1), release=True, wakes_at=9, waits_for=("k",))
    for append in (asleep, addition("t", None, received("more")), addition("t", 1)):
        with pytest.raises(TaskEnded):
            await one.append(append)
    record = await two.load("t")
    assert record is not None
    assert (record.seq, record.task.status.state) == (2, TaskState.FAILED)


async def test_replicas_that_append_to_one_task_at_once_lose_nothing(
    one: TaskStore, two: TaskStore
) -> None:
    """One streams, the other adds messages and requests the end."""
    await one.append(creation("t"))

    async def stream() -> None:
        appends = [one.append(addition("t", n, chunk("t", str(n)))) for n in range(1, 101)]
        assert await asyncio.gather(*appends) == list(range(2, 102))

    async def bring() -> None:
        for n in range(30):
            await two.append(addition("t", None, received(str(n))))
        await two.append(addition("t", None, CancelRequested()))

    await asyncio.gather(stream(), bring())
    for store in (one, two):
        record = await store.load("t")
        assert record is not None
        assert (record.seq, record.waiting, record.cancel_requested) == (101, 30, True)
        assert numbers(await all_events(store, "t")) == list(range(1, 102))
        found = await store.private_records("t", [RecordKind.RECEIVED])
        assert len({r.event for r in found}) == 30  # type: ignore[attr-defined]
        assert await store.waiting_messages("t", limit=99) == found


async def test_of_two_that_continue_at_once_one_does(one: TaskStore, two: TaskStore) -> None:
    names = [f"t{n}" for n in range(20)]
    await asyncio.gather(*[one.append(creation(name, turn_open=False)) for name in names])
    for name in names:
        results = await asyncio.gather(
            *[
                store.append(addition(name, 1, turn_started(2, "a"), chunk(name, "x"), turn=2))
                for store in (one, two)
            ],
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["Conflict", "int"]


@pytest.mark.E1
async def test_no_two_replicas_adopt_the_same_task(one: TaskStore, start: Start) -> None:
    names = {f"t{n:03}" for n in range(200)}
    await asyncio.gather(*[one.append(creation(name, release=True)) for name in names])
    stores = [one, *[await start() for _ in range(3)]]
    found: list[str] = []

    async def claim_batch(store: TaskStore) -> None:
        while await store.unclaimed():
            found.extend(task.task_id for task in await store.claim_batch(AGENT, 7))

    await asyncio.gather(*[claim_batch(store) for store in stores])
    assert len(found) == 200
    assert set(found) == names


@pytest.mark.slow
@pytest.mark.E1
@pytest.mark.E3
async def test_what_the_dead_held_is_adopted_and_its_late_writes_are_refused(
    one: TaskStore, two: TaskStore
) -> None:
    await one.append(creation("t", queue_key=5))
    await one.append(addition("t", 1, chunk("t", "x")))
    await one.append(creation("at rest", turn_open=False))
    await one.put_push("t", push())
    [before] = await two.pushes("t")
    assert before.lease_owner == one.replica
    await silence(one)
    await until(two.unclaimed)
    [claimed] = await two.claim_batch(AGENT, 10)
    assert (claimed.task_id, claimed.epoch, claimed.queue_key) == ("t", 3, 0)
    with pytest.raises(Fenced):
        await one.append(addition("t", 2, chunk("t", "late")))
    assert await two.append(addition("t", 2, chunk("t", "y"), epoch=3)) == 3
    assert await two.claim_pushes(AGENT, 10) == [("t", True)]
    assert not await one.save_delivery("t", replace(before, cursor=2))
    assert await two.save_delivery("t", replace(before, cursor=2))
    [after] = await two.pushes("t")
    assert (after.cursor, after.lease_owner) == (2, two.replica)


@pytest.mark.slow
async def test_one_that_was_silent_is_a_replica_again_when_it_writes(
    one: TaskStore, two: TaskStore
) -> None:
    await one.append(creation("t"))
    await silence(one)
    await until(two.unclaimed)
    assert [replica.id for replica in await two.replicas() if replica.alive] == [two.replica]
    await one.append(creation("u", turn_open=False))
    assert await two.append(addition("u", 1, chunk("u", "x"))) == 2


@pytest.mark.slow
async def test_one_that_closes_lets_go_at_once(one: TaskStore, two: TaskStore) -> None:
    await one.append(creation("t"))
    await one.put_push("t", push())
    await one.close()
    await until(two.unclaimed)
    assert [task.task_id for task in await two.claim_batch(AGENT, 10)] == ["t"]
    assert await two.claim_pushes(AGENT, 10) == [("t", False)]
    assert [replica.id for replica in await two.replicas()] == [two.replica]


async def test_the_replicas_are_known(one: TaskStore, two: TaskStore) -> None:
    await one.append(creation("t"))
    found = {replica.id: replica for replica in await two.replicas()}
    assert set(found) == {one.replica, two.replica}
    assert [found[store.replica].holds for store in (one, two)] == [1, 0]
    assert all(isinstance(r, Replica) and r.alive for r in found.values())
    assert all(abs(r.seen_at - two.now()) < 60_000 for r in found.values())


@pytest.mark.slow
async def test_a_replica_that_is_alive_keeps_what_it_holds(one: TaskStore, two: TaskStore) -> None:
    """The test waits longer than a lease, and all replicas send heartbeats."""
    await one.append(creation("t"))
    seen = {replica.id: replica.seen_at for replica in await two.replicas()}

    async def has_beaten() -> bool:
        now = {replica.id: replica.seen_at for replica in await two.replicas()}
        return all(now[id] - at > 1000 for id, at in seen.items())

    await until(has_beaten)
    assert await lease_owner(two, "t") == one.replica
    assert await one.append(addition("t", 1, chunk("t", "x"))) == 2


@pytest.mark.slow
async def test_a_replica_learns_which_webhooks_it_tells_and_whether_any_are_left(
    one: TaskStore, two: TaskStore
) -> None:
    await one.append(creation("t"))
    made = [await one.put_push("t", push(f"push-{n}")) for n in range(2)]
    theirs = await two.put_push("t", push("theirs"))
    done = await one.put_push("t", push("done"))
    assert await one.save_delivery("t", replace(done, state=PushState.DONE))
    found = await one.active_pushes([AGENT], 0, 100)
    assert (found.has_unclaimed, found.next) == (False, 0)
    assert set(found.claimed) == {("t", each.revision) for each in made}
    assert (await two.active_pushes([AGENT], 0, 100)).claimed == (("t", theirs.revision),)
    await silence(one)
    async with asyncio.timeout(20):
        while not (await two.active_pushes([AGENT], 0, 100)).has_unclaimed:
            await let_time_pass(0.01)
    assert not (await two.active_pushes(["another agent"], 0, 100)).has_unclaimed
    assert not (await one.active_pushes([AGENT], 0, 100)).claimed
    await two.claim_pushes(AGENT, 10)
    found = await two.active_pushes([AGENT], 0, 100)
    assert (found.has_unclaimed, len(found.claimed)) == (False, 3)


async def test_webhooks_that_a_replica_tells_come_page_by_page(one: TaskStore) -> None:
    made = set()
    for n in range(30):
        await one.append(creation(f"t{n}"))
        for m in range(3):
            made.add((f"t{n}", (await one.put_push(f"t{n}", push(f"push-{m}"))).revision))
    found, after = set(), 0
    for _ in range(5):
        page = await one.active_pushes([AGENT], after, 25)
        assert len(page.claimed) <= 25
        found |= set(page.claimed)
        after = page.next
        if not after:
            break
    assert after == 0
    assert found == made


async def test_a_webhook_has_one_teller(one: TaskStore, two: TaskStore) -> None:
    await one.append(creation("t"))
    mine = await one.put_push("t", push("a"))
    assert not await two.save_delivery("t", replace(mine, cursor=1))
    assert await one.save_delivery("t", replace(mine, cursor=1))
    assert list(await two.claim_pushes(AGENT, 10)) == []
    again = replace(push("a"), config=replace(mine.config, token="another"))
    theirs = await two.put_push("t", again)
    assert theirs.lease_owner == two.replica
    assert not await one.save_delivery("t", replace(theirs, state=PushState.SUSPENDED))


async def test_configurations_that_two_make_at_once_are_all_kept(
    one: TaskStore, two: TaskStore
) -> None:
    await one.append(creation("t"))
    await asyncio.gather(
        *[store.put_push("t", push(f"{n}")) for n, store in enumerate([one, two] * 5)]
    )
    assert len(await one.pushes("t")) == 10


async def test_every_replica_tells_of_what_it_committed_and_of_no_more(start: Start) -> None:
    one, two = await start(), await start()
    committed: dict[str, list[LoggedEvent]] = {"one": [], "two": []}
    for name, store in (("one", one), ("two", two)):
        await store.close()
        await store.open(committed[name].extend)
    await one.append(creation("t", turn_open=False))
    await two.append(addition("t", 1, chunk("t", "x")))
    assert [[r.seq for r in committed[name]] for name in ("one", "two")] == [[1], [2]]


# -- a process killed while it writes: acknowledged data is durable, and nothing is partial --------


KILLS = int(os.environ.get("PARLEY_KILLS", "8"))
TASKS = 6

WRITE = """
import asyncio, os, sys
from parley.store.fold import Fold
from parley.store.sqlite.store import SqliteTaskStore
from parley.model.tasks import TaskState
from tests.kit.records import addition, chunk, creation, received, status, turn_started

async def write(store, name):
    record = await store.load(name)
    if record is None:
        folding = Fold()
        first = creation(name, received("a"))
        for event in first.events:
            folding.apply(event)
        seq, epoch = await store.append(first), 1
    else:
        folding, seq = Fold(record.task, unsaved=record.unsaved), record.seq
        epoch = await store.claim(name)
    tell(name, seq)
    window = []
    while True:
        events = [chunk(name, f"{seq} ")]
        if seq % 5 == 0:
            events += [received("b"), status(name, TaskState.WORKING, f"at {seq}")]
        if seq % 11 == 0:
            events.insert(0, turn_started(seq, f"more at {seq}"))
        for event in events:
            folding.apply(event)
        kept = folding.take_unsaved() if seq % 13 == 0 else None
        window.append(store.append(addition(name, seq, *events, artifacts=kept, epoch=epoch)))
        seq += 2 if len(events) > 2 or seq % 5 == 0 else 1
        if len(window) == 8:
            tell(name, await window.pop(0))

def tell(name, seq):
    os.write(1, f"{name} {seq}\\n".encode())

async def main():
    store = SqliteTaskStore(sys.argv[1])
    await store.open(lambda records: None)
    await asyncio.gather(*[write(store, f"t{n}") for n in range(int(sys.argv[2]))])

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.L2
async def test_what_was_acknowledged_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    chance = random.Random(os.urandom(8))
    acknowledged = dict.fromkeys([f"t{n}" for n in range(TASKS)], 0)
    for _ in range(KILLS):
        await _write_and_kill(path, chance.randint(0, 300), chance.uniform(0, 0.01), acknowledged)
        store = SqliteTaskStore(path)
        await store.open(lambda records: None)
        await _check(store, acknowledged)
        await store.close()
    assert min(acknowledged.values()) > 1


async def _write_and_kill(
    path: Path, lines: int, pause: float, acknowledged: dict[str, int]
) -> None:
    """Run a process that writes until it has printed a number of lines; kill it a moment later."""
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITE, path, str(TASKS), stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    said = [await asyncio.wait_for(writer.stdout.readline(), 20) for _ in range(lines + 1)]
    await let_time_pass(pause)
    writer.send_signal(signal.SIGKILL)
    said += (await writer.stdout.read()).splitlines(keepends=True)
    await writer.wait()
    for line in said:
        if line.endswith(b"\n"):
            name, seq = line.split()
            acknowledged[name.decode()] = int(seq)


async def _check(store: SqliteTaskStore, acknowledged: dict[str, int]) -> None:
    for name, seq in acknowledged.items():
        record = await store.load(name)
        assert record is not None or seq == 0
        if record is None:
            continue
        events = await all_events(store, name)
        assert numbers(events) == list(range(1, record.seq + 1))
        assert record.seq >= seq
        turns = await store.private_records(name, [RecordKind.TURN])
        log = sorted([*events, *turns], key=lambda r: (r.seq, r.sub))
        assert fold([r.event for r in log]) == record.task
        # An append is atomic: the status of every fifth comes with its chunk.
        assert record.task.status.message is None or record.task.artifacts[0].parts
        received = await store.private_records(name, [RecordKind.RECEIVED])
        assert len(received) == record.waiting
        assert await store.waiting_messages(name, limit=len(received)) == received
    page = await store.list(TaskQuery(scope=SCOPE, artifacts=True))
    for task in page.tasks:
        record = await store.load(task.id)
        assert record is not None
        assert record.task == task
