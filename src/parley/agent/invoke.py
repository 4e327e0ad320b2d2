"""Calling an author's function, whatever form it has."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from parley.agent.artifact_stream import ArtifactStream
from parley.agent.blocking_turn import BlockingTurn
from parley.agent.turn import Turn
from parley.engine.content import checked
from parley.engine.skill import Form
from parley.engine.turn.attempt import Attempt
from parley.model.parts import Artifact, Message
from parley.model.tasks import TaskState

if TYPE_CHECKING:
    from parley.engine.executor import AgentExecutor


async def call(run: Attempt, executor: AgentExecutor) -> object:
    """Run the skill's function for this turn and return its value; what it yields is streamed."""
    skill = run.request.skill
    form = skill.form
    arguments: tuple[Any, ...] = ()
    if skill.takes == "turn":
        turn = Turn(run)
        arguments = (BlockingTurn(turn) if form.in_thread else turn,)
    elif skill.takes == "text":
        arguments = (run.request.message.text,)
    value: Any
    if form is Form.COROUTINE:
        value = await skill.function(*arguments)
        if type(value) is str:
            return value
    elif form is Form.PLAIN:
        value = await executor.in_thread(skill.function, *arguments)
        if inspect.isawaitable(value):
            value = await value
    else:
        value = skill.function(*arguments)
    if isinstance(value, AsyncIterator) and hasattr(value, "aclose"):
        await _stream(run, value)
        return None
    if inspect.isgenerator(value):
        await _stream_from_thread(run, executor, value)
        return None
    return value


async def _stream(run: Attempt, values: Any) -> None:
    async with (
        aclosing(values),
        ArtifactStream(run, name=run.request.skill.name) as out,
    ):
        async for value in values:
            give(run, out, value)
            writer = run.lane.writer
            if writer is not None and writer.is_full:
                await writer.room()


async def _stream_from_thread(
    run: Attempt, executor: AgentExecutor, values: Iterator[object]
) -> None:
    loop = asyncio.get_running_loop()
    async with ArtifactStream(run, name=run.request.skill.name) as out:

        async def give_one(value: object) -> None:
            give(run, out, value)
            writer = run.lane.writer
            if writer is not None and writer.is_full:
                await writer.room()

        def iterate() -> None:
            for value in values:
                asyncio.run_coroutine_threadsafe(give_one(value), loop).result()

        await executor.in_thread(iterate)


def give(run: Attempt, out: ArtifactStream, value: object) -> None:
    """Write what a generator yielded: a chunk, a whole artifact, or a message about progress."""
    if isinstance(value, Artifact):
        run.write_artifact(checked(value), last=True)
    elif isinstance(value, Message):
        run.writer().status(TaskState.WORKING, run.message(value))
    else:
        if run.lane.writer is None:
            run.working()  # what yields is a task, and its caller should know it now
        out.put(value)
