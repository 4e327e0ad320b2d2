"""A turn that sleeps in one branch and calls another agent in the other."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

import parley
from parley import Agent, TaskState, Turn
from parley.server.run import serving

pytestmark = pytest.mark.anyio


async def test_what_the_agent_asks_does_not_wait_until_the_sleep_is_over() -> None:
    peer, planner = Agent("Peer"), Agent("Planner")

    @peer.skill(replies="task")
    async def work(turn: Turn) -> str:
        await asyncio.sleep(0.3)
        return (await turn.ask("Which day?")).text

    async with serving(parley.asgi(peer)) as there:

        @planner.skill(replies="task")
        async def plan(turn: Turn) -> str:
            _, answer = await asyncio.gather(
                turn.sleep(timedelta(hours=1)), turn.delegate(there, "go")
            )
            return answer.text

        async with serving(parley.asgi(planner)) as url, parley.connect(url) as remote:
            task = await asyncio.wait_for(remote.send("go"), 30)
            assert task.state is TaskState.INPUT_REQUIRED
            assert task.status.message.text == "Which day?"
            assert (await remote.cancel(task.id)).state is TaskState.CANCELED
