"""A2A agents as tools of CrewAI."""

from __future__ import annotations

import asyncio
from typing import Any

from crewai.tools import BaseTool
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, create_model

from parley.agent.remote.callees import Callee
from parley.integrations.crewai.threaded_run import current_run
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills


async def tools(agent: Callee, **options: Any) -> list[Any]:
    """Return the skills of an A2A agent as tools, with the schemas of its card.

    Give them to an agent or a task of the framework, or to a coworker that the others delegate to.
    In a turn of Parley they carry its deadline, trace and cancellation, and questions of the remote
    agent are asked of the turn's caller. Elsewhere a question is the tool's result, with the id of
    the task that waits; a call that names it answers. ``options`` are options of
    ``parley.connect``. Raises what that raises.
    """
    return [CrewRemoteTool.of(skill) for skill in await remote_skills(agent, **options)]


class CrewRemoteTool(BaseTool):  # type: ignore[misc]
    """A skill of an A2A agent as a tool of the framework."""

    _skill: Any = PrivateAttr(default=None)
    _task_field: str = PrivateAttr(default="")

    @classmethod
    def of(cls, skill: RemoteSkill, *, in_turn: bool = False) -> CrewRemoteTool:
        """Return a skill as a tool; in a turn, its caller answers the questions of the agent."""
        properties = skill.parameters.get("properties", {})
        field = "" if in_turn else next(each for each in TASK_FIELDS if each not in properties)
        tool = cls(
            name=skill.name,
            description=skill.description,
            args_schema=_model_of(skill, field),
            cache_function=lambda *_: False,
        )
        tool._skill, tool._task_field = skill, field
        return tool

    def in_turn(self) -> CrewRemoteTool:
        """Return the tool as the turn of a task uses it, with the schema of the card alone."""
        return CrewRemoteTool.of(self._skill, in_turn=True)

    def _run(self, **arguments: Any) -> str:
        run = current_run()
        if run is not None:
            return run.wait(self._arun(**arguments))
        return asyncio.run(self._arun(**arguments))

    async def _arun(self, **given: Any) -> str:
        arguments = {name: value for name, value in given.items() if value is not None}
        skill: RemoteSkill = self._skill
        waiting = arguments.pop(self._task_field, None) if self._task_field else None
        try:
            if waiting:
                said = arguments.get("message", "") if skill.takes_words else arguments
                result = await skill.answer(str(waiting), said)
            else:
                result = await skill.call(arguments)
        except RemoteQuestion as question:
            return (
                f"{skill.card.name} asks: {question}\nThe task {question.task.id} waits. "
                f"To answer, call the tool again with that {self._task_field}."
            )
        if result.is_error:
            raise RuntimeError(result.text)
        return result.text


KINDS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list[Any],
    "object": dict[str, Any],
}


TASK_FIELDS = ("task", "waiting_task", "a2a_waiting_task_id")
"""How the parameter may be called that says which question a call answers."""


def _model_of(skill: RemoteSkill, task_field: str) -> type[BaseModel]:
    """Return the parameters of a skill as the pydantic model that the framework wants.

    A field of the name ``task_field`` is added to them.
    """
    schema = skill.parameters
    required = set(schema.get("required", ()))
    fields: dict[str, Any] = {}
    for name, about in schema.get("properties", {}).items():
        kind = KINDS.get(about.get("type", ""), Any)
        default = ... if name in required else about.get("default")
        field = Field(default, description=about.get("description", name))
        fields[name] = (kind if name in required else kind | None, field)
    if task_field:
        about = "The id of the task whose question this answers; none for a new request"
        fields[task_field] = (str | None, Field(None, description=about))
    config = ConfigDict(extra="allow" if schema.get("additionalProperties") else "ignore")
    return create_model(f"{skill.name}_arguments", __config__=config, **fields)
