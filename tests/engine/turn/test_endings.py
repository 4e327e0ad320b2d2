"""The ends of turns, and the reference of a failed task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from parley import Agent, BlockingTurn, Execution, TaskState, Turn
from parley.agent.turn_facts import TurnFacts
from parley.llm import FunctionTool
from parley.model.ids import INCIDENT_KEY
from parley.model.tasks import Task
from parley.store.audit.reading import fact_of

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


async def test_a_reference_names_its_task_wherever_an_operator_looks(
    talk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("Crasher")

    @agent.skill(replies="task")
    async def crash(turn: Turn) -> None:
        turn.log.warning("at %d %%", 5, extra={"kept": True})
        raise ValueError("secret")

    async with talk(agent) as caller:
        task = await caller.task("go")
        events = await caller.store.events(task.id, 0, 100)
    assert task.state is TaskState.FAILED
    said = task.status.message
    assert said is not None
    reference = said.text.rpartition(" ")[2]
    assert said.metadata == {INCIDENT_KEY: {"reference": reference, "skill": "crash"}}
    (incident,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    line = incident.getMessage()
    for each in (reference, task.id, task.context_id, "'crash'"):
        assert each in line
    fact = fact_of(events[-1], "")
    assert fact is not None
    assert fact.details == {
        "turn": 1, "reference": reference, "skill": "crash", "context": task.context_id
    }  # fmt: skip
    (own,) = [each for each in caplog.records if each.name == "parley.agent"]
    assert own.getMessage() == f"task {task.id}: at 5 %"
    assert vars(own)["kept"] is True
    assert vars(own)["task_id"] == task.id
    assert vars(own)["skill"] == "crash"
