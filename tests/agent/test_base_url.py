"""A turn knows its agent's public address in every attempt and on every replica."""

from __future__ import annotations

from typing import Any

import pytest

from parley import Agent, BlockingTurn, CallContext, TaskState, Turn
from tests.engine.fleet import Fleet, until_state
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

SEEN = CallContext(base_url="https://agents.example/telling")


def telling(**options: Any) -> Agent:
    agent = Agent("Telling", **options)

    @agent.skill
    async def tell(turn: Turn) -> str:
        if "ask" in turn.text:
            await turn.ask("Go on?")
        return turn.base_url or "unknown"

    @agent.skill
    def tell_from_thread(turn: BlockingTurn) -> str:
        return turn.base_url or "unknown"

    return agent


@pytest.mark.slow
async def test_a_turn_that_a_killed_replica_began_still_has_it(mortal_fleet: Fleet) -> None:
    agent = Agent("Killed")

    @agent.skill(replies="task")
    async def tell(turn: Turn) -> str:
        while turn.attempt == 1:
            await turn.working("the first attempt, which never ends")
            await let_time_pass(0.01)
        return turn.base_url

    first = await mortal_fleet.add(agent)
    begun = await first.task("Hi", context=SEEN, return_immediately=True)
    second = await mortal_fleet.add(agent)
    await mortal_fleet.kill(first)
    ended = await until_state(second, begun.id, TaskState.COMPLETED)
    assert ended.artifacts[0].parts[0].text == SEEN.base_url
