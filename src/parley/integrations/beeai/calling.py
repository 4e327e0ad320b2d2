"""A2A agents as tools of BeeAI."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from beeai_framework.context import RunContext
from beeai_framework.emitter import Emitter
from beeai_framework.tools import JSONToolOutput, StringToolOutput, Tool, ToolError
from beeai_framework.utils.models import JSONSchemaModel

from parley.agent.remote.uses import Callee
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills


async def tools(agent: Callee, **options: Any) -> list[Any]:
    """Return the skills of an A2A agent as tools, with the schemas of its card.

    In a turn of Parley they carry its deadline, trace and cancellation, and questions of the remote
    agent are asked of the turn's caller. Elsewhere a question is the tool's result, and its next
    call answers it. ``options`` are those of ``parley.connect``. Raises what that raises.
    """
    return [BeeRemoteTool(skill) for skill in await remote_skills(agent, **options)]


class BeeRemoteTool(Tool[Any, Any, Any]):  # type: ignore[misc]
    """A skill of an A2A agent as a tool of the framework."""

    _parley_remote_skill: ClassVar[bool] = True

    def __init__(self, skill: RemoteSkill) -> None:
        super().__init__()
        self._skill = skill
        self._waiting: Any = None

    @property
    def name(self) -> str:
        """The name of the skill."""
        return self._skill.name

    @property
    def description(self) -> str:
        """What the skill does, whose it is, examples."""
        return self._skill.description

    @cached_property
    def input_schema(self) -> Any:
        """The parameters of the skill."""
        return JSONSchemaModel.create(self.name, dict(self._skill.parameters))

    def _create_emitter(self) -> Any:
        return Emitter.root().child(namespace=["tool", "a2a"], creator=self)

    async def _run(self, input: Any, options: Any, context: RunContext) -> Any:
        arguments = input.model_dump(mode="json", exclude_none=True)
        skill = self._skill
        try:
            if self._waiting is not None:
                task, self._waiting = self._waiting, None
                said = arguments.get("message", "") if skill.takes_words else arguments
                result = await skill.answer(task, said)
            else:
                result = await skill.call(arguments)
        except RemoteQuestion as question:
            self._waiting = question.task
            return StringToolOutput(
                f"{skill.card.name} asks: {question}\nCall the tool again to answer."
            )
        if result.is_error:
            raise ToolError(result.text)
        if result.data is not None and not any(part.text for part in result.parts):
            return JSONToolOutput(result.data)
        return StringToolOutput(result.text)

    async def clone(self) -> BeeRemoteTool:
        """Return the same tool, without a question that waits."""
        return BeeRemoteTool(self._skill)
