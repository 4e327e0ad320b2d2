"""``turn.trace`` is the trace of the turn's message, in every attempt and after every restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley import Agent, CallContext, Turn
from parley.model.service import TraceContext
from tests.engine.fleet import Fleet

pytestmark = pytest.mark.anyio

FIRST = TraceContext(
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", tracestate="a=1"
)
SECOND = TraceContext(traceparent="00-11111111111111111111111111111111-2222222222222222-00")


def within(trace: TraceContext) -> CallContext:
    """Return the context of a request in a trace."""
    return CallContext(trace=trace)


async def test_what_an_api_replica_takes_in_a_worker_runs_in_its_trace(fleet: Fleet) -> None:
    seen: list[TraceContext] = []
    agent = Agent("Noting")

    @agent.skill(replies="task")
    async def note(turn: Turn) -> str:
        seen.append(turn.trace)
        return (await turn.ask("One?")).text

    front = await fleet.add(agent, role="api")
    await fleet.add(agent, role="worker")
    task = await asyncio.wait_for(front.task("go", context=within(FIRST)), 20)
    await asyncio.wait_for(front.task("a", task_id=task.id, context=within(SECOND)), 20)
    assert seen == [FIRST, SECOND]


async def test_a_message_taken_in_passing_changes_no_trace(talk: Any) -> None:
    seen: list[TraceContext] = []
    agent = Agent("Live")

    @agent.skill(replies="task")
    async def listen(turn: Turn) -> str:
        await turn.working("listening")
        async for message in turn.messages():
            seen.append(turn.trace)
            return message.text
        return ""

    async with talk(agent) as caller:
        task = await caller.task("go", context=within(FIRST), return_immediately=True)
        await caller.task("live", task_id=task.id, context=within(SECOND))
    assert seen == [FIRST]
