"""A reminder that sleeps, and comes after a restart."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from parley import Task, TaskState
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def test_it_reads_when_and_of_what(example) -> None:
    parse = example("reminder").parse
    assert parse("in 2 days: water the plants") == (timedelta(days=2), "water the plants")
    assert parse("In 1 MINUTE:tea\nand cake") == (timedelta(minutes=1), "tea\nand cake")
    assert parse("soon") is None


async def test_it_asks_and_reminds(example, serve) -> None:
    async with serve(example("reminder").agent) as agent:
        task = await agent.send("soon")
        assert task.state is TaskState.INPUT_REQUIRED
        task = await agent.send("in 0 seconds: tea", task_id=task.id)
        assert task.text == "It is time: tea"


async def test_it_comes_after_a_restart(example, serve, tmp_path: Path) -> None:
    now = [1_800_000_000_000]

    def store() -> SqliteTaskStore:
        return SqliteTaskStore(tmp_path / "t.db", clock=lambda: now[0])

    agent, kept = example("reminder").agent, store()
    async with serve(agent, kept) as remote:
        task = await remote.send("in 2 days: water the plants", return_immediately=True)
        assert isinstance(task, Task)
        await until(lambda: _is_asleep(kept, task.id), 20)
        said = (await remote.get(task.id)).status.message
        assert said is not None
        assert said.text == "I will remind you in 2 days, 0:00:00."
    now[0] += 2 * 86_400_000
    async with serve(agent, store()) as remote:
        done = await remote.wait(task.id, timeout=20)
        assert done.text == "It is time: water the plants"


async def _is_asleep(store: SqliteTaskStore, task_id: str) -> bool:
    record = await store.load(task_id)
    return record is not None and record.wakes_at is not None
