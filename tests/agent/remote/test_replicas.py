"""Calls whose task goes on at another replica."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley import Agent, CallContext, Execution, Task, TaskState, Turn
from parley.extensions import CallChain, Chain
from parley.model.extensions import CALL_CHAIN
from parley.model.struct import Timestamp
from tests.agent.remote.test_cancel import state_of
from tests.engine.fleet import Fleet, until_state, where
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


class Slow:
    """An agent that answers when it is let go, and counts its runs and the chains it got."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.chains: list[Any] = []
        self.go = asyncio.Event()
        self.agent = Agent("Slow", execution=Execution(cancel_grace=0.2))

        @self.agent.skill
        async def work(turn: Turn) -> str:
            """Waits."""
            self.runs.append(turn.text)
            self.chains.append(turn.metadata[CALL_CHAIN])
            await turn.working("at it")
            await self.go.wait()
            return f"did {turn.text}"


def planner(url: str) -> Agent:
    agent = Agent("Planner", execution=Execution(cancel_grace=0.2))

    @agent.skill(replies="task")
    async def plan(turn: Turn) -> str:
        """Calls two at once."""
        await turn.working(where(turn))
        answers = await asyncio.gather(turn.delegate(url, "one"), turn.delegate(url, "two"))
        return "; ".join(answer.text for answer in answers)

    return agent


async def test_another_replica_asks_for_the_answers_of_a_dead_one(serve: Any, fleet: Fleet) -> None:
    slow = Slow()
    agent = planner(await serve(slow.agent))
    first = await fleet.add(agent)
    task = await first.send("go", return_immediately=True)
    assert isinstance(task, Task)
    await until(lambda: len(slow.runs) == 2)
    await fleet.stop(first)
    second = await fleet.add(agent)
    slow.go.set()
    done = await until_state(second, task.id, TaskState.COMPLETED)
    assert done.text == "did one; did two"
    assert sorted(slow.runs) == ["one", "two"]


async def test_another_replica_cancels_what_a_dead_one_began(
    serve: Any, mortal_fleet: Fleet
) -> None:
    slow = Slow()
    url = await serve(slow.agent)
    agent = planner(url)
    first = await mortal_fleet.add(agent)
    task = await first.send("go", return_immediately=True)
    assert isinstance(task, Task)
    await until(lambda: len(slow.runs) == 2)
    await mortal_fleet.kill(first)
    mortal_fleet.replicas.remove(first)
    second = await mortal_fleet.add(agent, role="both")
    await second.executor.cancel(task.id)
    await until_state(second, task.id, TaskState.CANCELED)
    assert [await state_of(url, text) for text in ("one", "two")] == [TaskState.CANCELED] * 2
    assert sorted(slow.runs) == ["one", "two"]
    await first.host._disconnect()  # a process that is killed leaves that to the system


async def test_all_replicas_have_one_id_in_chains(serve: Any, fleet: Fleet) -> None:
    slow = Slow()
    slow.go.set()
    agent = planner(await serve(slow.agent))
    for replica in (await fleet.add(agent), await fleet.add(agent)):
        assert isinstance(await replica.send("go"), Task)
    assert len({tuple(chain["path"]) for chain in slow.chains}) == 1


async def test_the_deadline_of_a_caller_holds_at_another_replica_too(fleet: Fleet) -> None:
    agent = Agent("Waits", execution=Execution(cancel_grace=0.1))
    began: list[str] = []

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        """Waits for ever."""
        began.append(where(turn))
        await asyncio.Event().wait()
        return "never"

    first = await fleet.add(agent)
    deadline = Timestamp.from_milliseconds(first.store.now() + 1500)
    task = await first.send(
        "go",
        return_immediately=True,
        request_metadata=CallChain.says(Chain(deadline=deadline)),
        context=CallContext(extensions=frozenset({CALL_CHAIN})),
    )
    assert isinstance(task, Task)
    await until(lambda: began)
    await fleet.stop(first)
    second = await fleet.add(agent)
    failed = await until_state(second, task.id, TaskState.FAILED)
    assert "deadline of its caller" in failed.text
