"""The ends of turns, and the reference of a failed task."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from parley import Agent, BlockingTurn, Execution, TaskState, Turn
from parley.agent.turn_facts import TurnFacts
from parley.llm import FunctionTool
from parley.model.tasks import Task

pytestmark = pytest.mark.anyio


FAILED, REJECTED, ASKED = TaskState.FAILED, TaskState.REJECTED, TaskState.INPUT_REQUIRED
STATES = {"fail": FAILED, "reject": REJECTED, "ask": ASKED}


def _said(task: Task) -> str:
    return task.status.message.text if task.status.message else ""


def _ends(turn: TurnFacts, end: str) -> Any:
    return getattr(turn, end)("as said")


def _swallowing(form: str, caught: type[BaseException], end: str) -> Agent:
    agent = Agent("Swallower")

    async def coroutine(turn: Turn) -> str:
        await turn.artifact("before")
        with contextlib.suppress(caught):
            await _ends(turn, end)
        with contextlib.suppress(RuntimeError):
            await turn.artifact("after")
        return "answer"

    async def generator(turn: Turn) -> AsyncIterator[str]:
        yield "before"
        with contextlib.suppress(caught):
            await _ends(turn, end)
        yield "after"

    def plain(turn: BlockingTurn) -> str:
        turn.artifact("before")
        with contextlib.suppress(caught):
            _ends(turn, end)
        return "answer"

    def plain_generator(turn: BlockingTurn) -> Iterator[str]:
        yield "before"
        with contextlib.suppress(caught):
            _ends(turn, end)
        yield "after"

    async def branch(turn: Turn) -> str:
        await turn.artifact("before")

        async def ending() -> None:
            await _ends(turn, end)

        await asyncio.gather(ending(), return_exceptions=True)
        return "answer"

    async def tool(turn: Turn) -> str:
        await turn.artifact("before")

        async def look_up() -> str:
            await _ends(turn, end)
            return "found"

        try:
            return (await FunctionTool(look_up).call({})).parts[0].text or ""
        except caught:
            return "answer"

    functions: dict[str, Callable[..., Any]] = {
        "coroutine": coroutine,
        "generator": generator,
        "plain": plain,
        "plain generator": plain_generator,
        "branch": branch,
        "tool": tool,
    }
    agent.skill(functions[form], replies="task")
    return agent


@pytest.mark.parametrize("end", STATES)
@pytest.mark.parametrize("caught", [Exception, BaseException])
@pytest.mark.parametrize(
    "form", ["coroutine", "generator", "plain", "plain generator", "branch", "tool"]
)
async def test_a_turn_ends_as_it_said_whatever_its_function_catches(
    talk: Any, form: str, caught: type[BaseException], end: str
) -> None:
    async with talk(_swallowing(form, caught, end)) as caller:
        task = await caller.task("go")
    assert (task.state, _said(task)) == (STATES[end], "as said")
    assert task.text.strip() == "before"


async def test_a_function_that_never_ends_after_its_end_is_stopped(talk: Any) -> None:
    agent = Agent("Tireless", execution=Execution(cancel_grace=0.05))

    @agent.skill
    async def work(turn: Turn) -> None:
        while True:
            try:
                turn.fail("as said")
            except BaseException:
                await asyncio.sleep(60)

    async with talk(agent) as caller:
        task = await caller.task("go")
    assert (task.state, _said(task)) == (FAILED, "as said")


# -- the reference of a failed task points to its entries in the log and the audit -----------------
