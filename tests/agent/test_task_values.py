"""Values that a context stores for one task are deleted with the task, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from parley import Agent, TaskState, Turn
from parley.integrations.conversations import TaskValue
from parley.model.operations import CancelTaskRequest
from parley.store.events import RecordKind, Scope
from tests.engine.talk import Talk

pytestmark = pytest.mark.anyio

NAME = "run"


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
