"""Removing what is old from a SQLite store: piece by piece, however large it is."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from parley.model.tasks import TaskState
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import TaskQuery
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.records import SCOPE, addition, chunk, creation, message, status
from tests.store.sqlite.test_store import opened

pytestmark = pytest.mark.anyio

MEGABYTE = "x" * 1_000_000


def statements(store: SqliteTaskStore) -> list[str]:
    """Note what is done to the database."""
    done: list[str] = []
    assert store._writing is not None
    store._writing.batch_writer.connection.set_trace_callback(done.append)  # type: ignore[attr-defined]
    return done


async def committed(done: list[str], times: int) -> None:
    async with asyncio.timeout(20):
        while done.count("COMMIT") < times:
            await asyncio.sleep(0)


def left_in(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    [(count,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    connection.close()
    return int(count)


async def large_task(store: SqliteTaskStore, name: str, records: int) -> None:
    await store.append(creation(name))
    for seq in range(1, records + 1):
        await store.append(addition(name, seq, chunk(name, MEGABYTE)))
    await store.append(addition(name, records + 1, status(name, TaskState.COMPLETED)))


async def test_one_large_log_is_removed_in_slices(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as store:
        await large_task(store, "large", 12)
        done = statements(store)
        assert await store.prune(SCOPE.agent, store.now() + 1000, 10) == 1
        assert done.count("COMMIT") >= 12
        assert await store.load("large") is None
        assert left_in(tmp_path / "tasks.db", "log") == 0


async def test_large_tasks_are_removed_one_by_one(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as store:
        for n in range(6):
            await large_task(store, f"t{n}", 1)
        for n in range(100):
            end = status(f"s{n}", TaskState.COMPLETED)
            await store.append(creation(f"s{n}", end))
        done = statements(store)
        assert await store.prune(SCOPE.agent, store.now() + 1000, 200) == 106
        assert 6 <= done.count("COMMIT") < 20
        assert (await store.list(TaskQuery(scope=SCOPE))).total == 0
        assert left_in(tmp_path / "tasks.db", "log") == 0


async def test_large_contexts_and_receipts_are_removed_a_few_at_a_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as store:
        for n in range(6):
            await store.set_value(SCOPE, f"context{n}", "key", MEGABYTE.encode())
            receipt = Receipt(f"m{n}", b"d", reply=MEGABYTE.encode())
            await store.keep(SCOPE, f"said{n}", receipt=receipt, exchange=[message(MEGABYTE)])
        done = statements(store)
        await store.prune(SCOPE.agent, store.now() + 1000, 10)
        assert done.count("COMMIT") >= 18
        tables = ("contexts", "context_values", "history", "receipts")
        assert [left_in(tmp_path / "tasks.db", table) for table in tables] == [0] * 4


async def test_interrupted_pruning_goes_on_when_the_store_is_open_again(tmp_path: Path) -> None:
    """The task is gone at once; its log is not forgotten, nor is its key given to another."""
    path = tmp_path / "tasks.db"
    async with opened(path) as store:
        await large_task(store, "large", 12)
        done = statements(store)
        pruning = asyncio.create_task(store.prune(SCOPE.agent, store.now() + 1000, 10))
        await committed(done, 3)
        assert await store.append(creation("meanwhile")) == 1
        pruning.cancel()
        await asyncio.gather(pruning, return_exceptions=True)
        assert await store.load("large") is None
    assert 1 < left_in(path, "log") < 13
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM tasks")  # so that nothing else keeps the key
    connection.commit()
    connection.close()
    async with opened(path) as store:
        assert await store.append(creation("new")) == 1
        for seq in range(1, 15):
            assert await store.append(addition("new", seq, chunk("new", "y"))) == seq + 1
        assert len(await store.events("new", 0, 100)) == 15
        assert await store.prune(SCOPE.agent, 0, 10) == 0
        assert left_in(path, "log") == 15 + 1  # and that of "meanwhile", which was cut off here
        record = await store.load("new")
        assert record is not None
        assert record.seq == 15


async def test_pruning_twice_at_once_counts_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as store:
        for n in range(20):
            await store.append(creation(f"t{n}", status(f"t{n}", TaskState.COMPLETED)))
        await store.append(creation("alive"))
        before = store.now() + 1000
        removed = await asyncio.gather(*[store.prune(SCOPE.agent, before, 100) for _ in range(3)])
        assert sum(removed) == 20
        assert (await store.list(TaskQuery(scope=SCOPE))).total == 1


async def test_a_store_that_is_closed_removes_nothing_more(tmp_path: Path) -> None:
    store = SqliteTaskStore(tmp_path / "tasks.db")
    await store.open(lambda records: None)
    await large_task(store, "large", 12)
    done = statements(store)
    pruning = asyncio.create_task(store.prune(SCOPE.agent, store.now() + 1000, 10))
    await committed(done, 2)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await pruning
    assert done.count("COMMIT") < 10
