"""Turns that sleep on one replica, and wake up on any replica."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley import Agent, Execution, Task, TaskState, Turn
from parley.model.operations import CancelTaskRequest
from tests.engine.fleet import Fleet, Replica, events_of, states, until_state, where
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for due tasks often, and write even short sleeps to the store."""
    monkeypatch.setattr("parley.engine.maintenance.POLL_SECONDS", 0.1)
    monkeypatch.setattr("parley.engine.maintenance.LONGEST_WAIT", 0.2)
    monkeypatch.setattr("parley.engine.turn.waits.SHORT_MS", 0)


class Runs:
    """An agent that sleeps, waits for an event, and records its replicas."""

    def __init__(self, seconds: float = 0.3, **options: Any) -> None:
        self.agent = Agent("Sleepy", execution=Execution(cancel_grace=0.1), **options)
        self.seen: list[tuple[str, str, int]] = []

        @self.agent.skill(replies="task")
        async def nap(turn: Turn) -> str:
            self.seen.append((turn.task_id, where(turn), turn.attempt))
            await turn.sleep(seconds)
            if turn.text == "event":
                return str(await turn.wait_event(f"k:{turn.task_id}"))
            return "awake"


async def begin(replica: Replica, said: str = "go") -> Task:
    return await replica.task(said, return_immediately=True)


async def asleep(replica: Replica, task: Task) -> None:
    async def sleeps() -> bool:
        record = await replica.store.load(task.id)
        return record is not None and record.wakes_at is not None

    await until(sleeps, 20)


@pytest.mark.slow
async def test_a_replica_that_is_killed_leaves_what_sleeps_to_the_others(
    mortal_fleet: Fleet,
) -> None:
    runs = Runs(0.5)
    one, two = await mortal_fleet.add(runs.agent), await mortal_fleet.add(runs.agent)
    task = await begin(one, "event")
    await asleep(one, task)
    await mortal_fleet.kill(one)
    await until(lambda: len(runs.seen) == 2, 20)
    assert await two.store.complete_event(two.executor.agent, f"k:{task.id}", b'"paid"')
    done = await until_state(two, task.id, TaskState.COMPLETED)
    assert [part.text for a in done.artifacts for part in a.parts] == ["paid"]
    assert [attempt for _, _, attempt in runs.seen] == [1, 1, 1]


async def test_each_task_is_woken_once_by_many_replicas(fleet: Fleet) -> None:
    runs = Runs(0.3)
    replicas = [await fleet.add(runs.agent) for _ in range(3)]
    tasks = [await begin(replicas[n % 3]) for n in range(30)]
    for task in tasks:
        await until_state(replicas[0], task.id, TaskState.COMPLETED)
        log = await events_of(replicas[1], task.id)
        assert states(log) == [TaskState.WORKING, TaskState.COMPLETED]
    assert len(runs.seen) == 60


async def test_any_replica_cancels_a_sleeping_task_at_once(fleet: Fleet) -> None:
    runs = Runs(3600)
    one, two = await fleet.add(runs.agent), await fleet.add(runs.agent)
    for replica in (one, two):
        task = await begin(one)
        await asleep(one, task)
        request = CancelTaskRequest(id=task.id)
        canceled = await asyncio.wait_for(replica.service.cancel_task(request, replica.context), 10)
        assert canceled.state is TaskState.CANCELED
