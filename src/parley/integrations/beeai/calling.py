"""A2A agents as tools of BeeAI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any

from beeai_framework.context import RunContext
from beeai_framework.emitter import Emitter
from beeai_framework.tools import JSONToolOutput, StringToolOutput, Tool, ToolError
from beeai_framework.utils.models import JSONSchemaModel

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.remote_answers import PARAMETERS, OpenQuestions
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills


async def tools(agent: Callee, **options: Any) -> list[Any]:
    """Return the skills of an A2A agent as tools, with the schemas of its card.

    In a turn of Parley they carry its deadline, trace and cancellation, and questions of the remote
    agent are asked of the turn's caller. Elsewhere a question is the tool's result, and one more
    tool answers it. ``options`` are options of ``parley.connect``. Raises what that raises.
    """
    skills = await remote_skills(agent, **options)
    if not skills:
        return []
    questions = OpenQuestions(skills[0].card.name)

    def tool_of(skill: RemoteSkill) -> BeeRemoteTool:
        async def call(arguments: dict[str, Any]) -> ToolResult:
            try:
                return await skill.call(arguments)
            except RemoteQuestion as question:
                return questions.ask(skill, question)

        return BeeRemoteTool(skill.name, skill.description, skill.parameters, call)

    async def answer(given: dict[str, Any]) -> ToolResult:
        return await questions.answer(str(given["task"]), str(given["answer"]))

    about = (questions.tool_name, questions.description, PARAMETERS)
    return [*map(tool_of, skills), BeeRemoteTool(*about, answer, answers=True)]


class BeeRemoteTool(Tool[Any, Any, Any]):  # type: ignore[misc]
    """A skill of an A2A agent as a tool of the framework, or what ``answers`` its questions."""

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        call: Callable[[dict[str, Any]], Awaitable[ToolResult]],
        *,
        answers: bool = False,
    ) -> None:
        super().__init__()
        self.answers = answers
        self._about = (name, description)
        self._parameters = parameters
        self._call = call

    @property
    def name(self) -> str:
        """The name of the skill."""
        return self._about[0]

    @property
    def description(self) -> str:
        """What the skill does, whose it is, examples."""
        return self._about[1]

    @cached_property
    def input_schema(self) -> Any:
        """The parameters of the skill."""
        return JSONSchemaModel.create(self.name, dict(self._parameters))

    def _create_emitter(self) -> Any:
        return Emitter.root().child(namespace=["tool", "a2a"], creator=self)

    async def _run(self, input: Any, options: Any, context: RunContext) -> Any:
        result = await self._call(input.model_dump(mode="json", exclude_none=True))
        if result.is_error:
            raise ToolError(result.text)
        if result.data is not None and not any(part.text for part in result.parts):
            return JSONToolOutput(result.data)
        return StringToolOutput(result.text)

    async def clone(self) -> BeeRemoteTool:
        """Return the same tool."""
        return BeeRemoteTool(*self._about, self._parameters, self._call, answers=self.answers)
