"""``turn.trace`` is the trace of the turn's message: in every run, after every restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, CallContext, Execution, TaskState, Turn
from parley.model.service import NO_TRACE, TraceContext
from parley.store.events import RecordKind, TurnStarted, logged
from parley.store.sqlite.store import SqliteTaskStore
from tests.engine.fleet import Fleet, until_state

pytestmark = pytest.mark.anyio

FIRST = TraceContext(
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", tracestate="a=1"
)
SECOND = TraceContext(traceparent="00-11111111111111111111111111111111-2222222222222222-00")


def within(trace: TraceContext) -> CallContext:
    """Return the context of a request that belongs to a trace."""
    return CallContext(trace=trace)


async def test_a_turn_that_runs_again_belongs_to_the_trace_of_its_message(
    talk: Any, tmp_path: Path
) -> None:
    seen: list[tuple[int, int, TraceContext]] = []
    begun = asyncio.Event()
    agent = Agent("Slow", execution=Execution(cancel_grace=0.1))

    @agent.skill(replies="task")
    async def slow(turn: Turn) -> str:
        seen.append((turn.number, turn.attempt, turn.trace))
        if turn.attempt == 1:
            begun.set()
            await asyncio.Event().wait()
        await turn.ask("More?")
        return "done"

    path = tmp_path / "again.db"
    async with talk(agent, SqliteTaskStore(path)) as caller:
        task = await caller.task("go", context=within(FIRST), return_immediately=True)
        await asyncio.wait_for(begun.wait(), 20)
    begun.clear()
    async with talk(agent, SqliteTaskStore(path)) as caller:
        await until_state(caller, task.id, TaskState.INPUT_REQUIRED)
        sent = caller.task("a", task_id=task.id, context=within(SECOND), return_immediately=True)
        await asyncio.gather(sent, asyncio.wait_for(begun.wait(), 20))
    async with talk(agent, SqliteTaskStore(path)) as caller:
        await until_state(caller, task.id, TaskState.COMPLETED)
    assert seen == [(1, 1, FIRST), (1, 2, FIRST), (2, 1, SECOND), (2, 2, SECOND)]


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


async def test_without_a_trace_the_log_is_as_it_was(talk: Any) -> None:
    seen: list[TraceContext] = []
    agent = Agent("Plain")

    @agent.skill
    async def ask(turn: Turn) -> str:
        seen.append(turn.trace)
        return (await turn.ask("One?")).text

    async with talk(agent) as caller:
        task = await caller.task("go")
        assert not await caller.store.private_records(task.id, [RecordKind.TURN])
        await caller.task("a", task_id=task.id)
        [received] = await caller.store.private_records(task.id, [RecordKind.RECEIVED])
        [turn] = await caller.store.private_records(task.id, [RecordKind.TURN])
        assert b"trace" not in received.payload + turn.payload
    assert seen == [NO_TRACE] * 2


def test_a_record_without_a_trace_is_read() -> None:
    turn = logged("t", 1, 1, 1, RecordKind("turn"), 0, b'{"turn":1,"skill":"ask"}')
    assert turn.event == TurnStarted(turn=1, skill="ask", trace=None)
