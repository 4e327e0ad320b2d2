"""A2A agents as tools of BeeAI."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from beeai_framework.context import RunContext
from beeai_framework.emitter import Emitter
from beeai_framework.tools import JSONToolOutput, StringToolOutput, Tool, ToolError
from beeai_framework.utils.models import JSONSchemaModel

from parley.agent.remote.uses import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.open_questions import PARAMETERS, OpenQuestions
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, remote_skills


async def tools(agent: Callee, **options: Any) -> list[Any]:
    """Return the skills of an A2A agent as tools, with the schemas of its card.

    In a turn of Parley they carry its deadline, trace and cancellation, and questions of the remote
    agent are asked of the turn's caller. Elsewhere a question is the tool's result, and one more
    tool answers it. ``options`` are those of ``parley.connect``. Raises what that raises.
    """
    skills = await remote_skills(agent, **options)
    if not skills:
        return []
    questions = OpenQuestions(skills[0].card.name)
    return [*(BeeRemoteTool(skill, questions) for skill in skills), BeeAnswerTool(questions)]


class BeeRemoteTool(Tool[Any, Any, Any]):  # type: ignore[misc]
    """A skill of an A2A agent as a tool of the framework."""

    _parley_remote_skill: ClassVar[bool] = True

    def __init__(self, skill: RemoteSkill, questions: OpenQuestions) -> None:
        super().__init__()
        self._skill = skill
        self._questions = questions

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
        try:
            result = await self._skill.call(input.model_dump(mode="json", exclude_none=True))
        except RemoteQuestion as question:
            result = self._questions.ask(self._skill, question)
        return _output(result)

    async def clone(self) -> BeeRemoteTool:
        """Return the same tool."""
        return BeeRemoteTool(self._skill, self._questions)


class BeeAnswerTool(Tool[Any, Any, Any]):  # type: ignore[misc]
    """Answers questions of an A2A agent that was called outside of a turn."""

    _parley_remote_skill: ClassVar[bool] = True

    def __init__(self, questions: OpenQuestions) -> None:
        super().__init__()
        self._questions = questions

    @property
    def name(self) -> str:
        """The name of the tool, which has that of the agent."""
        return self._questions.tool_name

    @property
    def description(self) -> str:
        """Whose questions it answers."""
        return self._questions.description

    @cached_property
    def input_schema(self) -> Any:
        """The task that asks, and the answer."""
        return JSONSchemaModel.create(self.name, dict(PARAMETERS))

    def _create_emitter(self) -> Any:
        return Emitter.root().child(namespace=["tool", "a2a"], creator=self)

    async def _run(self, input: Any, options: Any, context: RunContext) -> Any:
        given = input.model_dump(mode="json")
        return _output(await self._questions.answer(str(given["task"]), str(given["answer"])))

    async def clone(self) -> BeeAnswerTool:
        """Return the same tool."""
        return BeeAnswerTool(self._questions)


def _output(result: ToolResult) -> Any:
    if result.is_error:
        raise ToolError(result.text)
    if result.data is not None and not any(part.text for part in result.parts):
        return JSONToolOutput(result.data)
    return StringToolOutput(result.text)
