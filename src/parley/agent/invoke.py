"""Calls an author's function in any of its forms. The host passes ``call`` to the executor."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

from parley.agent.artifact_stream import ArtifactStream
from parley.agent.blocking_turn import BlockingTurn, TurnThread
from parley.agent.files import referred
from parley.agent.services import TurnServices
from parley.agent.turn import Turn
from parley.agent.typed_questions import ask_inputs
from parley.engine.content import checked
from parley.engine.handoff import Handoff
from parley.engine.skill import Form
from parley.engine.turn.attempt import Attempt, Failed
from parley.engine.typed.inputs import Inputs
from parley.model.parts import Artifact, Message
from parley.model.tasks import TaskState
from parley.model.typed.violations import Mismatch
from parley.observe import logs
from parley.security.egress import turn_egress


async def call(services: TurnServices, attempt: Attempt, *, is_own: bool = False) -> object:
    """Call the skill's function for an attempt and return its value; stream yielded values.

    In a conversation that was handed over, the other agent answers instead, unless the agent's own
    function must answer (``is_own``).
    """
    skill = attempt.request.skill
    turn_egress.set(services.egress)
    if logs.are_wanted:
        logs.running.set(ref(attempt.runner))
    if services.handoffs is not None and not is_own and skill.replies != "message":
        from parley.agent.handoff import in_turns

        return await in_turns(services, attempt, _call)
    form = skill.form
    function = skill.function
    arguments: tuple[Any, ...] = ()
    if skill.takes == "turn":
        arguments = (_turn(services, attempt),)
    elif skill.takes == "text":
        arguments = (_text(attempt.request.message, skill.function),)
    elif skill.inputs is not None:
        function = await _filled(skill.inputs, services, attempt)
    value: Any
    try:
        if form is Form.COROUTINE:
            value = await function(*arguments)
            if value is None or type(value) is str:
                return value
        elif form is Form.PLAIN:
            value = await attempt.runner.in_thread(function, *arguments)
            if inspect.isawaitable(value):
                value = await value
        else:
            value = function(*arguments)
        if isinstance(value, AsyncIterator) and hasattr(value, "aclose"):
            await _stream(services, attempt, value)
            return None
    except AttributeError as error:
        if inspect.iscoroutine(error.obj):
            error.add_note(f"the call was not awaited: write (await ...).{error.name}")
        raise
    if inspect.isgenerator(value):
        await _stream_from_thread(services, attempt, value)
        return None
    if type(value) is str:
        return value
    if isinstance(value, Handoff):
        from parley.agent.handoff import ended

        return value if is_own else ended(attempt, value)
    return await referred(services, attempt, value)


def _text(message: Message, function: Callable[..., Any], name: str = "") -> str:
    """Return the text of a message.

    A message without text may have it as data: as the value, or as the member named like the
    parameter (by default the function's first).
    """
    text = message.text
    if text:
        return text
    data = next((part.data for part in message.parts if part.has_data), None)
    if isinstance(data, dict):
        data = data.get(name or next(iter(inspect.signature(function).parameters)))
    return data if isinstance(data, str) else ""


def _turn(services: TurnServices, attempt: Attempt) -> Turn | BlockingTurn:
    turn = Turn(attempt, services)
    return BlockingTurn(turn) if attempt.request.skill.form.in_thread else turn


async def _filled(inputs: Inputs, services: TurnServices, attempt: Attempt) -> Callable[[], Any]:
    """Return the skill's function with its arguments filled in.

    The values come from the message that began the task, in every attempt; missing values come from
    the answers in the log.
    """
    skill, message = attempt.request.skill, attempt.request.message
    function = skill.function
    values = attempt.request.inputs
    if values is None:
        try:
            values = inputs.read(message)
        except Mismatch as mismatch:
            if skill.invalid_input != "ask":  # the type has changed since the task began
                raise Failed(f"The input no longer fits: {mismatch}") from None
            values = await ask_inputs(attempt, inputs, mismatch)
    text = _text(message, function, inputs.text) if inputs.text else ""
    by_position, by_name = inputs.arguments(values, _turn(services, attempt), text)
    return partial(function, *by_position, **by_name)


async def _stream(services: TurnServices, attempt: Attempt, values: Any) -> None:
    async with aclosing(values), ArtifactStream(attempt, name=attempt.request.skill.name) as out:
        async for value in values:
            if isinstance(value, Path):
                value = await referred(services, attempt, value)
            give(attempt, out, value)
            writer = attempt.runner.writer
            if writer is not None and writer.is_full:
                await writer.drain()


async def _stream_from_thread(
    services: TurnServices, attempt: Attempt, values: Iterator[object]
) -> None:
    thread = TurnThread(attempt)
    async with ArtifactStream(attempt, name=attempt.request.skill.name) as out:

        async def give_one(value: object) -> None:
            if isinstance(value, Path):
                value = await referred(services, attempt, value)
            give(attempt, out, value)
            writer = attempt.runner.writer
            if writer is not None and writer.is_full:
                await writer.drain()

        def iterate() -> None:
            for value in values:
                thread.run(give_one(value))

        await attempt.runner.in_thread(iterate)


def give(attempt: Attempt, out: ArtifactStream, value: object) -> None:
    """Write a value yielded by a generator: a chunk, a whole artifact, or a progress message."""
    if isinstance(value, Handoff):
        raise TypeError(
            "a function that yields cannot hand a conversation over: return handoff(...) from one "
            "that writes its artifacts with turn.stream() or turn.artifact()"
        )
    if isinstance(value, Artifact):
        attempt.write_artifact(checked(value), last=True)
    elif isinstance(value, Message):
        attempt.writer().status(TaskState.WORKING, attempt.message(value))
    else:
        if attempt.runner.writer is None:
            attempt.working()  # a generator has a task, which its caller gets now
        out.put(value)


async def _call(services: TurnServices, attempt: Attempt) -> object:
    return await call(services, attempt, is_own=True)
