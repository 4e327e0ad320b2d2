"""Turns that sleep on one replica, and wake up on any."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley import Agent, CallContext, Execution, Task, TaskState, Turn
from parley.model.operations import CancelTaskRequest, SubscribeToTaskRequest
from tests.engine.fleet import Fleet, Replica, collect, events_of, get, states, until_state, where
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for due tasks often, and sleep in the store however short a sleep is."""
    monkeypatch.setattr("parley.engine.maintenance.POLL_SECONDS", 0.1)
    monkeypatch.setattr("parley.engine.maintenance.LONGEST_WAIT", 0.2)
    monkeypatch.setattr("parley.engine.turn.waits.SHORT_MS", 0)


class Runs:
    """An agent that sleeps, waits for an event, and says where it ran."""

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


async def test_another_replica_wakes_what_one_put_to_sleep_that_died(fleet: Fleet) -> None:
    runs = Runs(1.0)
    one = await fleet.add(runs.agent)
    two = await fleet.add(runs.agent)
    tasks = [await begin(one) for _ in range(5)]
    for task in tasks:
        await asleep(one, task)
    await fleet.stop(one)
    for task in tasks:
        done = await until_state(two, task.id, TaskState.COMPLETED)
        assert [part.text for a in done.artifacts for part in a.parts] == ["awake"]
    assert len(runs.seen) == 10, "each began once, and woke up once"
    assert {attempt for _, _, attempt in runs.seen} == {1}


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


async def test_a_stream_goes_on_on_another_replica_than_the_one_that_slept(fleet: Fleet) -> None:
    runs = Runs(0.5)
    one, two = await fleet.add(runs.agent), await fleet.add(runs.agent)
    task = await begin(one)
    await asleep(one, task)
    request = SubscribeToTaskRequest(id=task.id)
    stream = asyncio.create_task(
        collect(two.service.subscribe_to_task(request, CallContext(last_event_id="0")))
    )
    await fleet.stop(one)
    items = await asyncio.wait_for(stream, 20)
    assert states(items) == [TaskState.WORKING, TaskState.COMPLETED]


async def test_any_replica_cancels_a_sleeping_task_at_once(fleet: Fleet) -> None:
    runs = Runs(3600)
    one, two = await fleet.add(runs.agent), await fleet.add(runs.agent)
    for replica in (one, two):
        task = await begin(one)
        await asleep(one, task)
        request = CancelTaskRequest(id=task.id)
        canceled = await asyncio.wait_for(replica.service.cancel_task(request, replica.context), 10)
        assert canceled.state is TaskState.CANCELED


async def test_an_event_that_another_replica_completes_wakes_the_task(fleet: Fleet) -> None:
    runs = Runs(0.0)
    one, two = await fleet.add(runs.agent), await fleet.add(runs.agent)
    task = await begin(one, "event")
    await asleep(one, task)
    await two.store.complete_event(two.executor.agent, f"k:{task.id}", b"1")
    await until_state(one, task.id, TaskState.COMPLETED)


async def test_api_replicas_leave_what_is_due_to_workers(fleet: Fleet) -> None:
    runs = Runs(0.3)
    api = await fleet.add(runs.agent, role="api")
    worker = await fleet.add(runs.agent, role="worker")
    task = await begin(api)
    await until_state(api, task.id, TaskState.COMPLETED)
    assert {name for _, name, _ in runs.seen} == {worker.name}
    assert len(runs.seen) == 2


async def test_what_wakes_up_keeps_the_limit_of_running_turns(mortal_fleet: Fleet) -> None:
    most, running = [], []
    agent = Agent("Sleepy", execution=Execution(max_running=2, max_queued=1000))

    @agent.skill(replies="task")
    async def nap(turn: Turn) -> str:
        await turn.sleep(0.2)
        running.append(turn.task_id)
        most.append(len(running))
        await asyncio.sleep(0.005)
        running.remove(turn.task_id)
        return "awake"

    one = await mortal_fleet.add(agent)
    tasks = [await begin(one) for _ in range(40)]
    for task in tasks:
        await until_state(one, task.id, TaskState.COMPLETED)
    assert max(most) <= 2


async def test_the_alarm_goes_on_after_the_store_was_away(mortal_fleet: Fleet) -> None:
    runs = Runs(0.2)
    one = await mortal_fleet.add(runs.agent)
    task = await begin(one)
    await asleep(one, task)
    one.store.is_down = True  # type: ignore[attr-defined]
    await let_time_pass(0.5)
    one.store.is_down = False  # type: ignore[attr-defined]
    await until_state(one, task.id, TaskState.COMPLETED)
    assert (await get(one, task.id)).state is TaskState.COMPLETED
