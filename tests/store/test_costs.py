"""The costs of reads and writes grow only with the requested data.

Costs are counted, not timed: bytes of query results, steps of SQLite's virtual machine, pages of
PostgreSQL, written bytes.
"""

from __future__ import annotations

import asyncio
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from parley.database.postgres.connection import texts
from parley.model.operations import TaskPushNotificationConfig
from parley.model.tasks import Task, TaskState
from parley.store.events import RecordKind, Scope
from parley.store.fold import CONTINUES, Fold
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.task_log import LIST_BYTES, TaskQuery
from parley.store.protocols.webhooks import PushRecord, PushState
from parley.store.sql import queries
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import (
    SCOPE,
    addition,
    chunk,
    creation,
    message,
    pieces,
    received,
    status,
    task,
    turn_started,
)
from tests.kit.services.postgres import PostgresServer
from tests.store.counting import CountingStore

pytestmark = pytest.mark.anyio

LARGE = 1_000_000


async def large_tasks(store: TaskStore, count: int, **scope: Any) -> list[str]:
    """Tasks with a large message, a large stored artifact, and a large artifact in the log."""
    names = [f"t{n:03}" for n in range(count)]
    for n, name in enumerate(names):
        first = task(name, at=n + 1)
        first = type(first)(
            id=name, context_id="c", status=first.status, history=(message("m" * LARGE),)
        )
        stored = chunk(name, "a" * LARGE, append=False, artifact_id="stored")
        late = chunk(name, "l" * LARGE, append=False, artifact_id="late")
        await store.append(
            creation(name, stored, first=first, artifacts=pieces(first, stored), context_id="c")
        )
        await store.append(addition(name, 2, late))
    return names


async def peak_of(work: Any) -> tuple[Any, int]:
    """Return an awaitable's result, and its peak memory."""
    tracemalloc.start()
    try:
        result = await work
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_a_page_of_large_tasks_has_no_more_than_its_bytes(store: TaskStore) -> None:
    names = await large_tasks(store, 12)
    everything = TaskQuery(scope=SCOPE, artifacts=True, limit=100)
    found: list[str] = []
    before = None
    while True:
        query = TaskQuery(scope=SCOPE, artifacts=True, limit=100, before=before)
        page, peak = await peak_of(store.list(query))
        assert len(page.tasks) == 1, "one task alone exceeds a page"
        assert page.total == len(names)
        assert peak < 15 * 3 * LARGE  # one task as rows, as JSON and as values; not twelve
        found += [task.id for task in page.tasks]
        last = page.tasks[-1]
        before = (last.status.timestamp.milliseconds, last.id)  # type: ignore[union-attr]
        if not page.more:
            break
    assert found == names[::-1]
    assert everything.max_bytes == LIST_BYTES


async def test_what_a_list_does_not_show_is_not_read(store: TaskStore) -> None:
    names = await large_tasks(store, 12)
    query = TaskQuery(scope=SCOPE, history=0, limit=100)
    page, peak = await peak_of(store.list(query))
    assert [task.id for task in page.tasks] == names[::-1]
    assert not any([task.history or task.artifacts for task in page.tasks])
    assert peak < LARGE  # of 36 times as much


async def test_a_task_is_loaded_without_what_is_not_asked_for(store: TaskStore) -> None:
    [name] = await large_tasks(store, 1)
    bare, peak = await peak_of(store.load(name, history=0, artifacts=False))
    assert bare is not None
    assert (bare.task.id, bare.seq) == (name, 3)
    assert peak < LARGE
    other, peak = await peak_of(store.load(name, scope=Scope("agent", "tenant", "other")))
    assert other is None, "of another owner, so nothing is read"
    assert peak < LARGE


async def test_pages_are_as_long_as_their_bytes_allow(store: TaskStore) -> None:
    for n in range(20):
        first = task(f"t{n:02}", at=n + 1)
        said = status(f"t{n:02}", TaskState.WORKING, "s" * 1000, at=n + 1)
        await store.append(creation(f"t{n:02}", said, first=first))
    sizes = []
    for room in (1, 3_000, 10_000, LIST_BYTES):
        page = await store.list(TaskQuery(scope=SCOPE, history=0, limit=15, max_bytes=room))
        sizes.append(len(page.tasks))
        assert page.more
        assert [task.id for task in page.tasks] == [f"t{19 - n:02}" for n in range(sizes[-1])]
        assert all([task.status.message for task in page.tasks])
    assert sizes[0] == 1
    assert sizes[1] == 2  # of 2,000 bytes each: the id of a message repeats its text here
    assert 5 <= sizes[2] <= 6
    assert sizes[3] == 15


async def test_what_a_turn_stores_does_not_grow_with_the_task(tmp_path: Path) -> None:
    """L7: a large artifact is stored once, however many turns follow."""
    store = SqliteTaskStore(tmp_path / "tasks.db", synchronous="NORMAL")
    await store.open(lambda records: None)
    folding = Fold()
    large = chunk("t", "x" * LARGE, append=False, artifact_id="large")
    first = [task("t"), large, status("t", TaskState.INPUT_REQUIRED, "which?")]
    for event in first:
        folding.apply(event)
    await store.append(creation("t", *first[1:], first=first[0], artifacts=folding.take_unsaved()))
    seq, costs = 3, []
    for turn in range(2, 102):
        events = [
            turn_started(turn, f"answer {turn}"),
            chunk("t", f"line {turn}\n", append=turn > 2, artifact_id="notes"),
            status("t", TaskState.INPUT_REQUIRED, f"question {turn}?"),
        ]
        for event in events:
            folding.apply(event)
        before = wal_frames(tmp_path)
        stored = folding.take_unsaved()
        seq = await store.append(addition("t", seq, *events, turn=turn, artifacts=stored))
        costs.append(wal_frames(tmp_path) - before)
    record = await store.load("t")
    assert record is not None
    assert record.task == folding.task
    await store.close()
    assert max(costs) < 20, "pages of 4 KiB a turn; the artifact alone has 250"
    assert sum(costs[50:]) <= sum(costs[:50]) * 1.5


async def test_a_text_of_many_pieces_is_stored_once_and_read_as_one_part() -> None:
    """L7: stored and read bytes grow with the text, not with the square of its pieces."""
    sizes = []
    for count in (1_000, 10_000):
        store = MemoryTaskStore()
        await store.open(lambda records: None)
        folding = Fold(strict=True)
        folding.apply(task("t"))
        seq = await store.append(creation("t", first=task("t")))
        stored = 0
        for begin in range(0, count, 200):
            events = [
                replace(
                    chunk("t", f"word {n} ", append=n > 0),
                    metadata={CONTINUES: True} if n else None,
                )
                for n in range(begin, begin + 200)
            ]
            for event in events:
                folding.apply(event)
            pieces = folding.take_unsaved()
            stored += sum(len(piece.head) + len(piece.parts) for piece in pieces)
            seq = await store.append(addition("t", seq, *events, artifacts=pieces))
        record = await store.load("t")
        assert record is not None
        assert record.task == folding.task
        (part,) = record.task.artifacts[0].parts
        assert part.text == "".join([f"word {n} " for n in range(count)])
        assert stored < 1.2 * len(record.stored.json()) + 1_000
        sizes.append(stored)
        await store.close()
    assert sizes[1] < 12 * sizes[0]


def wal_frames(folder: Path) -> int:
    """Return the number of pages in the write-ahead log."""
    return (folder / "tasks.db-wal").stat().st_size // 4096


@pytest.mark.slow
async def test_large_values_cost_their_neighbours_nothing(tmp_path: Path) -> None:
    """A row's lookup reads no neighbouring values: counted in the bytes that the process reads."""
    if not os.path.exists("/proc/self/io"):
        pytest.skip("this system does not count what a process reads")
    costs = []
    for size in (10, LARGE):
        store = SqliteTaskStore(tmp_path / f"{size}.db", synchronous="NORMAL")
        await store.open(lambda records: None)
        for n in range(40):  # more than the cache can hold
            first = Task(
                id=f"t{n}",
                context_id="c",
                status=status(f"t{n}", TaskState.SUBMITTED).status,
                history=(message("m" * size, f"m{n}"),),
            )
            large = chunk(f"t{n}", "a" * size, append=False)
            await store.append(
                creation(f"t{n}", large, first=first, artifacts=pieces(first, large))
            )
        before = read_by_us()
        await store.list(TaskQuery(scope=SCOPE, history=0, limit=100))
        for n in range(40):
            await store.load(f"t{n}", history=0, artifacts=False)
            await store.append(addition(f"t{n}", 2, status(f"t{n}", TaskState.WORKING)))
        costs.append(read_by_us() - before)
        await store.close()
    assert costs[1] < costs[0] + 5 * LARGE, "of 80 large values none is read"


def read_by_us() -> int:
    """Return the number of bytes that this process has read."""
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])


async def test_messages_that_wait_are_read_once_each(tmp_path: Path) -> None:
    read = {}
    for count in (20, 80):
        store = CountingStore(tmp_path / f"{count}.db", synchronous="NORMAL")
        await store.open(lambda records: None)
        waiting = [received("w" * 1000) for _ in range(count)]
        await store.append(creation("t", *waiting))
        seq, after = 1, (0, 0)
        store.read = 0
        for turn in range(2, count + 2):
            [first] = await store.waiting_messages("t")
            assert first.event == waiting[turn - 2]
            events = [turn_started(turn, "w" * 1000), status("t", TaskState.WORKING)]
            seq = await store.append(addition("t", seq, *events, turn=turn, taken=1))
            [started] = await store.private_records("t", [RecordKind.TURN], after=after)
            after = (started.seq, started.sub)
        assert await store.waiting_messages("t") == []
        read[count] = store.read
        await store.close()
    assert read[80] < 4.5 * read[20]


def steps_of(store: SqliteTaskStore) -> Callable[[str, Any], int]:
    connection = store._writing.batch_writer.connection  # type: ignore[union-attr]
    sql = queries("sqlite")

    def steps(name: str, values: Any) -> int:
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        connection.set_progress_handler(step, 1)
        try:
            connection.execute(sql[name], values).fetchall()
        finally:
            connection.set_progress_handler(None, 0)
        return count

    return steps


def webhook(n: int) -> PushRecord:
    config = TaskPushNotificationConfig(id=f"c{n}", url="https://example.com/hook")
    return PushRecord(config=config, version="1.0", revision=f"r{n}", state=PushState.ACTIVE)


async def retired(store: TaskStore, count: int) -> None:
    """Create ``count`` webhooks of an agent without a server."""
    for first in range(0, count, 500):
        await asyncio.gather(
            *[
                store.append(
                    creation(
                        f"old{n}", scope=Scope("retired"), pushes=(webhook(n),), turn_open=False
                    )
                )
                for n in range(first, min(first + 500, count))
            ]
        )


@pytest.mark.slow
async def test_webhooks_of_retired_agents_cost_others_nothing_in_sqlite(tmp_path: Path) -> None:
    costs = []
    for count in (0, 3000):
        path = tmp_path / f"{count}.db"
        store = SqliteTaskStore(path, synchronous="NORMAL")
        await store.open(lambda records: None)
        await retired(store, count)
        await store.close()  # so that they have no lease
        store = SqliteTaskStore(path, synchronous="NORMAL")
        await store.open(lambda records: None)
        await store.append(creation("new", pushes=(webhook(1),)))
        steps = steps_of(store)
        values = {"agents": '["agent"]', "replica": store.replica, "after": 0, "limit": 100}
        costs.append((steps("active_pushes", values), steps("claimable_pushes", ("agent", 100))))
        held = await store.active_pushes(["agent"], 0, 100)
        assert (held.has_unclaimed, held.claimed) == (False, (("new", "r1"),))
        assert await store.claim_pushes("agent", 100) == []
        await store.close()
    for before, after in zip(*costs, strict=True):
        assert after <= before + 20, costs


@pytest.mark.service
async def test_webhooks_of_retired_agents_cost_others_nothing_in_postgres(
    postgres: PostgresServer,
) -> None:
    from parley.store.postgres.store import PostgresTaskStore

    costs = []
    for count in (0, 3000):
        url = postgres.new_url()
        store = PostgresTaskStore(url)
        await store.open(lambda records: None)
        await retired(store, count)
        await store.close()
        store = PostgresTaskStore(url)
        await store.open(lambda records: None)
        await store.append(creation("new", pushes=(webhook(1),)))
        values = {"agents": texts(["agent"]), "replica": store.replica, "after": 0, "limit": 100}
        with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
            schema = store._address.schema
            connection.execute(f"VACUUM ANALYZE {schema}.pushes, {schema}.tasks")
            sql = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + store._sql["active_pushes"]
            values["agents"] = ["agent"]
            [(plan,)] = connection.execute(sql, values).fetchall()
        costs.append(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])
        await store.close()
    assert costs[1] <= costs[0] + 10, costs
