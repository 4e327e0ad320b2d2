"""Replicas that die, fall silent or lose the store, and what happens to their tasks."""

from __future__ import annotations

import asyncio

import pytest

from parley import Agent, Execution, TaskState, Turn
from parley.engine.turn.task_runner import ATTEMPT_KEY
from parley.model.errors import OverloadedError, UnsupportedOperationError
from parley.model.tasks import TaskStatusUpdateEvent
from tests.engine.fleet import Fleet, Gate, MortalStore, events_of, get, states, until_state, where
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_what_a_killed_replica_ran_is_run_again_by_another(mortal_fleet: Fleet) -> None:
    gate = Gate()
    one, two = await mortal_fleet.add(gate.agent), await mortal_fleet.add(gate.agent)
    task = await one.task("go", return_immediately=True)
    await until(lambda: bool(gate.runs))
    sender = asyncio.create_task(two.task("hello?", task_id=task.id))
    watcher = asyncio.create_task(events_of(two, task.id))
    await until(lambda: two.executor.remote_replies.waiting == 1)
    await mortal_fleet.kill(one)
    await until(lambda: len(gate.runs) == 2)
    assert gate.runs[1] == ("go", 2, two.name)
    gate.open.set()
    items = await asyncio.wait_for(watcher, 20)
    assert [item.seq for item in items] == list(range(1, len(items) + 1))
    assert states(items)[-1] is TaskState.COMPLETED
    with pytest.raises(UnsupportedOperationError):
        await sender
    again = [
        item.event.metadata
        for item in items
        if isinstance(item.event, TaskStatusUpdateEvent) and item.event.metadata
    ]
    assert again == [{ATTEMPT_KEY: 2}]


@pytest.mark.slow
async def test_a_function_that_ignores_that_its_task_is_anothers_is_left_behind(
    mortal_fleet: Fleet,
) -> None:
    agent = Agent("Stubborn", execution=Execution(cancel_grace=0.1))
    runs: list[Turn] = []
    finish = asyncio.Event()

    @agent.skill(replies="task")
    async def stubborn(turn: Turn) -> str:
        runs.append(turn)
        while turn.attempt == 1 and not finish.is_set():
            try:
                await finish.wait()
            except asyncio.CancelledError:
                continue
        return f"attempt {turn.attempt}"

    one = await mortal_fleet.add(agent)
    sender = asyncio.create_task(one.task("go"))
    await until(lambda: len(runs) == 1)
    two = await mortal_fleet.add(agent)
    one.fall_silent()
    task = await asyncio.wait_for(sender, 20)
    assert task.text == "attempt 2"
    assert where(runs[1]) == two.name
    finish.set()
    await until(lambda: not one.executor.running)
    assert (await get(two, task.id)).text == "attempt 2"


@pytest.mark.slow
async def test_a_task_that_kills_every_replica_fails_after_so_many(mortal_fleet: Fleet) -> None:
    agent = Agent("Poison", execution=Execution(max_attempts=3))
    runs: list[str] = []

    @agent.skill(replies="task")
    async def poison(turn: Turn) -> None:
        runs.append(where(turn))
        await asyncio.Event().wait()

    first = await mortal_fleet.add(agent)
    task = await first.task("go", return_immediately=True)
    for attempt in range(3):
        await until(lambda attempt=attempt: len(runs) == attempt + 1)  # type: ignore[misc]
        successor = await mortal_fleet.add(agent)
        victim = next(r for r in mortal_fleet.replicas if r.name == runs[-1])
        await mortal_fleet.kill(victim)
    final = await until_state(successor, task.id, TaskState.FAILED)
    assert final.status.message is not None
    assert "did not survive 3 attempts" in final.status.message.text
    assert len(set(runs)) == 3


@pytest.mark.slow
async def test_a_turn_that_may_not_begin_twice_fails_when_its_replica_dies(
    mortal_fleet: Fleet,
) -> None:
    gate = Gate(on_crash="fail", max_running=1)
    one = await mortal_fleet.add(gate.agent)
    task = await one.task("go", return_immediately=True)
    in_line = await one.task("next", return_immediately=True)
    await until(lambda: bool(gate.runs))
    two = await mortal_fleet.add(gate.agent, role="api")
    await mortal_fleet.kill(one)
    three = await mortal_fleet.add(gate.agent)
    gate.open.set()
    failed = await until_state(two, task.id, TaskState.FAILED)
    assert failed.status.message is not None
    assert "stopped while it was working" in failed.status.message.text
    # The queued task has not begun, so another replica runs it.
    assert (await until_state(three, in_line.id, TaskState.COMPLETED)).text == "next"


async def test_what_a_store_that_failed_interrupted_is_taken_up_when_it_works(
    mortal_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.engine.maintenance.SWEEP_SECONDS", 0.05)
    gate = Gate(max_attempts=4)
    one = await mortal_fleet.add(gate.agent)
    sender = asyncio.create_task(one.task("go"))
    store = one.store
    assert isinstance(store, MortalStore)
    for n in range(3):  # a failure of the store counts as an attempt too
        await until(lambda n=n: len(gate.runs) == n + 1)  # type: ignore[misc]
        store.is_down = True
        (runner,) = one.executor._runners.values()
        assert runner.attempt is not None
        runner.attempt.working().status(TaskState.WORKING)
        await until(lambda: not one.executor.running)
        store.is_down = False
    with pytest.raises(OverloadedError, match="does not work"):
        await asyncio.wait_for(sender, 20)
    await until(lambda: len(gate.runs) == 4)
    (task_id,) = await store.held_tasks()
    gate.open.set()
    final = await until_state(one, task_id, TaskState.COMPLETED)
    assert final.text == "go"
    assert [attempt for _, attempt, _ in gate.runs] == [1, 2, 3, 4]


async def test_a_function_that_could_not_ask_the_store_is_run_again(
    mortal_fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.engine.maintenance.SWEEP_SECONDS", 0.05)
    agent = Agent("Mindful", execution=Execution(max_attempts=4))
    met: list[str] = []

    @agent.skill(replies="task")
    async def mindful(turn: Turn) -> str:
        store.is_down = len(met) < 3
        try:
            async with asyncio.TaskGroup() as group:  # which wraps the store's error
                recalled = group.create_task(turn.recall("colour", "none"))
        finally:
            if store.is_down:
                met.append(where(turn))
        return str(recalled.result())

    one = await mortal_fleet.add(agent)
    store = one.store
    assert isinstance(store, MortalStore)
    task = await one.task("go", return_immediately=True)
    for n in range(3):
        await until(lambda n=n: len(met) == n + 1 and not one.executor.running)  # type: ignore[misc]
        store.is_down = False
    assert (await until_state(one, task.id, TaskState.COMPLETED)).text == "none"
