"""An agent of a framework as a Parley agent: what all adapters do alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.extensions.declared import SkillSchema, SkillSchemas
from parley.extensions.usage import RunProgress
from parley.llm.run_output import BROKE_OFF, MAX_CUT, MAX_MODEL_CALLS, ModelRequests, RunOutput
from parley.model.cards import AgentExtension
from parley.model.distribution import install_command
from parley.model.errors import A2AError
from parley.model.extensions import Extension

Run = Callable[[Turn, RunOutput], Awaitable[object]]
"""Runs the framework for one turn, and returns what a skill may return.

A run that returns ``None`` has shown its answer.
"""

CUT_SECONDS = 2.0
"""The pause before a reply that broke off is asked for again; it grows by this."""

MAX_TOOLS = 30
"""How many tools a description names."""

CUT = "model-reply-cut"
"""Begins the keys of these pauses in a task."""


def framework_agent(
    run: Run,
    *,
    name: str,
    description: str = "",
    skill_id: str = "run",
    skill_name: str = "",
    tags: Iterable[str] = (),
    examples: Iterable[str] = (),
    input_modes: Iterable[str] = (),
    output_modes: Iterable[str] = ("text/plain", "application/json"),
    input_schema: Mapping[str, Any] | None = None,
    output_schema: Mapping[str, Any] | None = None,
    extensions: Iterable[Extension | AgentExtension] = (),
    max_model_calls: int | None = MAX_MODEL_CALLS,
    told: Callable[[Exception], str] | None = None,
    **options: Any,
) -> Agent:
    """Return an agent with one skill, which runs a framework for each turn.

    The skill is durable before the framework runs. What the run shows through its ``RunOutput`` is
    streamed; the turn is ``current_turn`` meanwhile. The card has ``input_schema`` and
    ``output_schema``, JSON Schemas of data in messages and results. ``max_model_calls`` is how many
    requests to models a turn makes at most, ``None`` for any number. ``told`` returns the sentence
    for callers about an error of the framework, empty for nothing; failures of models are told
    without it. ``options`` are options of ``Agent``.

    A run that asked a model and has no answer ends as FAILED or REJECTED with the reason. A reply
    of the model that broke off is asked for again, as after a crash.

    Raises ``ValueError`` for an invalid option.
    """
    if max_model_calls is not None and max_model_calls < 1:
        raise ValueError("max_model_calls is 1 or more, or None for any number")
    extensions = (RunProgress(), *extensions)
    if input_schema or output_schema:
        schema = SkillSchema(
            input=dict(input_schema) if input_schema else None,
            output=dict(output_schema) if output_schema else None,
        )
        extensions = (*extensions, SkillSchemas.of_skills({skill_id: schema}))
    agent = Agent(
        name, description=description, output_modes=output_modes, extensions=extensions, **options
    )

    async def serve(turn: Turn) -> object:
        requests, result = ModelRequests(turn, most=max_model_calls), None
        async with RunOutput(turn, requests=requests) as output:
            try:
                result = await run(turn, output)
            except BaseException as error:
                if not requests.is_cut or isinstance(error, asyncio.CancelledError):
                    if isinstance(error, Exception) and not isinstance(error, A2AError):
                        reason = told(error) if told is not None else ""
                        requests.check_whole()
                        fail_with(turn, reason or requests.failure(error), error)
                    raise
            if requests.is_cut:
                await _ask_again(turn)
            if result is None:
                requests.check_said()
        return result

    agent.skill(
        id=skill_id,
        name=skill_name or name,
        description=description or name,
        tags=tuple(tags) or ("agent",),
        examples=examples,
        input_modes=input_modes,
        replies="task",
        default=True,
    )(serve)
    return agent


async def _ask_again(turn: Turn) -> None:
    """Let the turn run again after a pause: a reply of its model broke off."""
    begun = [key for key in turn._attempt.results or {} if key.startswith(f"sleep:{CUT}")]
    if len(begun) == MAX_CUT:
        turn.fail(BROKE_OFF)
    times = len(begun) + 1
    await turn.sleep(CUT_SECONDS * times, key=f"{CUT}:{times}")


class RunOver(Exception):
    """A run came to its end, with this result."""

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__("the run is over")


async def result_of_steps(
    turn: Turn,
    name: str,
    go: Callable[[Any, Any, int], Awaitable[Any]],
    answers_to: Callable[[Any, int], Awaitable[Any]],
    given: Any = None,
) -> Any:
    """Return the result of a run that asks in between: ``go`` raises it as ``RunOver``.

    ``go`` gets what was ``given``, the state that its last call returned, and its number. The state
    is a step of the task; ``answers_to`` the state is given to the next call.
    """
    number, kept = 0, None
    while True:
        number += 1
        try:
            kept = await turn.step(f"{name}:{number}", go, given, kept, number)
        except RunOver as over:
            return over.result
        given = await answers_to(kept, number)


def described(said: str | None, name: str, tools: Iterable[tuple[str, object]]) -> str:
    """Return the description of an agent: what it says of itself, or its name, and its tools.

    Of what a tool says the first line is shown.
    """
    lines = [(tool, str(text or "").strip().partition("\n")[0]) for tool, text in tools]
    named = [f"{tool} ({line})" if line else tool for tool, line in lines]
    shown = "; ".join([*named[:MAX_TOOLS], *(["…"] if len(named) > MAX_TOOLS else [])])
    return f"{said or f'The agent {name}.'}{f' Tools: {shown}.' if shown else ''}"


def fail_with(turn: Turn, reason: str, error: BaseException) -> None:
    """End the turn as FAILED with a reason that callers may know, if there is one.

    The log has the error.
    """
    if reason:
        turn.log.warning("the run failed: %s", error, exc_info=error)
        turn.fail(reason)


def missing(extra: str, error: ImportError) -> ImportError:
    """Return the error that says how to install a framework."""
    return ImportError(
        f"{extra} is not installed (no module {error.name!r}): {install_command(extra)}"
    )
