"""Deadlines: the maximum age of a turn or a task, in every state."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from parley import Agent, Execution, Message, Task, TaskState, Turn
from parley.model.errors import InternalError
from parley.store.events import now_ms
from parley.store.memory import MemoryTaskStore
from tests.engine.fleet import Fleet, get, until_state
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

SOON = timedelta(milliseconds=60)
LATER = timedelta(hours=1)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check suspended tasks without delay."""
    monkeypatch.setattr("parley.engine.maintenance.SWEEP_SECONDS", 0.02)


def said(task: Task) -> str:
    assert task.status.message is not None
    return task.status.message.text


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_turn_that_takes_too_long_fails_its_task(talk: Any, stubborn: bool) -> None:
    agent = Agent("Slow", execution=Execution(turn_timeout=SOON, cancel_grace=0.02))
    finish = asyncio.Event()

    @agent.skill(replies="task")
    async def slow(turn: Turn) -> str:
        while not finish.is_set():
            try:
                await finish.wait()
            except asyncio.CancelledError:
                if not stubborn:
                    raise
        return "too late"

    async with talk(agent) as caller:
        task = await asyncio.wait_for(caller.task("go"), 20)
        assert task.state is TaskState.FAILED
        assert (
            said(task) == "The turn was not finished in the time that it may take (0:00:00.060000)."
        )
        finish.set()
        await until(lambda: not caller.executor.running)
        assert await get(caller, task.id) == task


async def test_a_direct_reply_that_takes_too_long_is_an_error(talk: Any) -> None:
    agent = Agent("Slow", execution=Execution(turn_timeout=SOON))

    @agent.skill(replies="message")
    async def slow(turn: Turn) -> None:
        await asyncio.Event().wait()

    @agent.skill
    async def quick(turn: Turn) -> str:
        return "hi"

    async with talk(agent) as caller:
        with pytest.raises(InternalError, match="not finished in the time"):
            await asyncio.wait_for(caller.send("go"), 20)
        reply = await caller.send("go", metadata={"skill": "quick"})
        assert isinstance(reply, Message)


async def test_a_task_at_rest_has_its_time_by_the_clock_of_the_store(talk: Any) -> None:
    agent = Agent("Asker", execution=Execution(task_timeout=SOON))

    @agent.skill(replies="task")
    async def ask(turn: Turn) -> str:
        return (await turn.ask("?")).text

    # The machine's clock is an hour ahead of the database's clock.
    store = MemoryTaskStore(clock=lambda: now_ms() - 3_600_000)
    async with talk(agent, store) as caller:
        task = await caller.task("go")
        if task.state is not TaskState.FAILED:
            await until_state(caller, task.id, TaskState.FAILED)


async def test_a_task_in_time_is_left_alone(talk: Any) -> None:
    agent = Agent("Asker", execution=Execution(turn_timeout=LATER, task_timeout=LATER))

    @agent.skill(replies="task")
    async def ask(turn: Turn) -> str:
        return (await turn.ask("?")).text

    async with talk(agent) as caller:
        task = await caller.task("go")
        for _ in range(5):
            await caller.executor.expire_overdue()
        task = await caller.task("answer", task_id=task.id)
        assert (task.state, task.text) == (TaskState.COMPLETED, "answer")


async def test_the_time_of_a_turn_goes_on_when_another_replica_takes_it_up(fleet: Fleet) -> None:
    agent = Agent("Slow", execution=Execution(turn_timeout=LATER))
    attempts: list[int] = []

    @agent.skill(replies="task")
    async def slow(turn: Turn) -> None:
        attempts.append(turn.attempt)
        await asyncio.Event().wait()

    one = await fleet.add(agent)
    task = await one.task("go", return_immediately=True)
    await until(lambda: bool(attempts))
    created = (await one.store.events(task.id, 0, 1))[0].at
    two = await fleet.add(agent)
    await fleet.stop(one)
    await until(lambda: len(attempts) == 2)
    deadline = two.executor._runners[task.id].deadline
    assert deadline is not None
    assert deadline.at == created + 3_600_000
    assert attempts == [1, 2]
