"""An agent of a framework as a Parley agent: what all adapters do alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.extensions.run_progress import RunProgress
from parley.extensions.skill_schemas import SkillSchema, SkillSchemas
from parley.llm.run_output import RunOutput
from parley.model.cards import AgentExtension
from parley.model.distribution import install_command
from parley.model.extensions import Extension

Run = Callable[[Turn, RunOutput], Awaitable[object]]
"""Runs the framework for one turn, and returns what a skill may return, usually nothing."""


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
    **options: Any,
) -> Agent:
    """Return an agent with one skill, which runs a framework for each turn.

    The skill is durable before the framework runs. What the run shows through its ``RunOutput`` is
    streamed; the turn is ``current_turn`` meanwhile. The card has ``input_schema`` and
    ``output_schema``, JSON Schemas of data in messages and results. ``options`` are those of
    ``Agent``.

    Raises ``ValueError`` for an invalid option.
    """
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
        async with RunOutput(turn) as output:
            return await run(turn, output)

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


def missing(extra: str, error: ImportError) -> ImportError:
    """Return the error that says how to install a framework."""
    return ImportError(
        f"{extra} is not installed (no module {error.name!r}): {install_command(extra)}"
    )
