"""Values that a context stores for one task are deleted with the task, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from parley import Agent, Execution, TaskState, Turn
from parley.integrations.conversations import TaskValue
from parley.model.operations import CancelTaskRequest
from parley.store.events import RecordKind, Scope
from tests.engine.fleet import until_state
from tests.engine.talk import Talk

pytestmark = pytest.mark.anyio

NAME = "run"


def keeping() -> tuple[Agent, asyncio.Event]:
    """Return an agent that keeps a value, and then does what it is told; and what it waits for."""
    agent, go_on = (
        Agent("Keeps", execution=Execution(task_timeout=timedelta(hours=1))),
        asyncio.Event(),
    )

    @agent.skill(replies="task")
    async def run(turn: Turn) -> str:
        kept = TaskValue(turn, NAME)
        await kept.write(((await kept.read()) or 0) + 1)
        text = turn.message.text
        if text == "ask":
            await turn.ask("Go on?")
        if text == "wait":
            await go_on.wait()
        if text == "fail":
            turn.fail("It does not work.")
        if text == "reject":
            turn.reject("I do not want to.")
        if text == "break":
            raise ValueError("a mistake")
        return str(await kept.read())

    return agent, go_on


async def kept_for(caller: Talk, task: Any) -> bytes | None:
    """Return the value that the task's context stores for the task."""
    scope = Scope(agent=caller.service.agent.key)
    return await caller.store.get_value(scope, task.context_id, f"{NAME}:{task.id}")


async def test_values_that_a_value_lists_go_with_it(talk: Callable[..., Any]) -> None:
    agent = Agent("Lists")

    @agent.skill(replies="task")
    async def run(turn: Turn) -> None:
        listing = TaskValue(turn, NAME, lists=True)
        for each in ("one", "two", "three"):
            await turn.remember(each, 1)
            await listing.update(lambda now, key=each: {"keys": [*now["keys"], key]}, {"keys": []})
        await listing.update(lambda now: {"keys": now["keys"][:2]})
        await turn.ask("Go on?")

    async with talk(agent) as caller:
        task = await caller.task("go")
        await caller.service.cancel_task(CancelTaskRequest(id=task.id), caller.context)
        scope = Scope(agent=caller.service.agent.key)
        values = [
            await caller.store.get_value(scope, task.context_id, each)
            for each in ("one", "two", "three")
        ]
        assert values == [None, None, b"1"]
        assert await kept_for(caller, task) is None


async def test_no_branch_keeps_a_value_before_it_is_in_the_log(talk: Callable[..., Any]) -> None:
    agent, logged = Agent("Branches"), []

    @agent.skill(replies="task")
    async def run(turn: Turn) -> None:
        store = turn._attempt.runner.store

        async def branch() -> None:
            await turn._attempt.own_value(NAME)
            events = await store.private_records(turn.task_id, [RecordKind.REMEMBERED])
            logged.append(any(getattr(each.event, "key", "") == f"value:{NAME}" for each in events))

        await asyncio.gather(branch(), branch())

    async with talk(agent) as caller:
        assert (await caller.task("go")).state is TaskState.COMPLETED
    assert logged == [True, True]


@pytest.mark.parametrize("said", ["ask", "wait"])
async def test_a_value_goes_when_its_task_is_canceled(talk: Callable[..., Any], said) -> None:
    agent, _ = keeping()
    async with talk(agent) as caller:
        task = await caller.task(said, return_immediately=True)
        async with asyncio.timeout(20):
            while await kept_for(caller, task) is None:
                await asyncio.sleep(0)
        if said == "ask":
            await until_state(caller, task.id, TaskState.INPUT_REQUIRED)
        task = await caller.service.cancel_task(CancelTaskRequest(id=task.id), caller.context)
        assert task.state is TaskState.CANCELED
        assert await kept_for(caller, task) is None
