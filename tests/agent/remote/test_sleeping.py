"""A turn that sleeps in one branch and calls another agent in the other."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from parley import Agent, TaskState, Turn, testing

pytestmark = pytest.mark.anyio

PEER = "https://peer.example"


async def test_what_the_agent_asks_does_not_wait_until_the_sleep_is_over() -> None:
    peer, planner = Agent("Peer"), Agent("Planner")

    @peer.skill(replies="task")
    async def work(turn: Turn) -> str:
        await asyncio.sleep(60)
        return (await turn.ask("Which day?")).text

    @planner.skill(replies="task")
    async def plan(turn: Turn) -> str:
        _, answer = await asyncio.gather(turn.sleep(timedelta(hours=1)), turn.delegate(PEER, "go"))
        return answer.text

    async with testing.client(planner, remotes={PEER: peer}) as remote:
        task = await remote.send("go", return_immediately=True)
        await remote.advance(60)
        assert await remote.get(task.id) == testing.input_required("Which day?")
        assert (await remote.cancel(task.id)).state is TaskState.CANCELED
