"""Questions of remote tasks to a program that runs a framework without Parley."""

from __future__ import annotations

from collections import OrderedDict

from parley.agent.tools.tool import ToolResult
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, tool_name
from parley.model.parts import Part

MAX_QUESTIONS = 100
"""How many questions of an agent wait for an answer; older ones are lost."""

PARAMETERS = {
    "type": "object",
    "properties": {
        "task": {"type": "string", "description": "The id of the task that asks"},
        "answer": {"type": "string", "description": "What to answer"},
    },
    "required": ["task", "answer"],
    "additionalProperties": False,
}
"""The parameters of a tool that answers."""


class OpenQuestions:
    """The questions of a remote agent that tools of its skills have met, by the tasks that ask.

    Conversations may share the tools: a question is answered by who names its task, and only the
    conversation that called the skill has read the task's id.
    """

    def __init__(self, agent_name: str) -> None:
        self.tool_name = tool_name(f"answer_{agent_name}")
        self.description = f"Answers a question of the agent {agent_name}."
        self._open: OrderedDict[str, tuple[RemoteSkill, RemoteQuestion]] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether a question waits."""
        return bool(self._open)

    def ask(self, skill: RemoteSkill, question: RemoteQuestion) -> ToolResult:
        """Return a question as the result of the call that met it."""
        self._wait(skill, question)
        text = (
            f"The agent asks: {question.text}\n"
            f"(The task {question.task.id} waits; answer it with the tool {self.tool_name}.)"
        )
        return ToolResult(parts=(Part(text=text),))

    def _wait(self, skill: RemoteSkill, question: RemoteQuestion) -> None:
        self._open[question.task.id] = (skill, question)
        while len(self._open) > MAX_QUESTIONS:
            self._open.popitem(last=False)

    async def answer(self, task_id: str, answer: str) -> ToolResult:
        """Answer a question, and return what the task then returns, or its next question.

        An answer that fails, or is cancelled, may not have arrived: the question stays.
        """
        skill, question = self._open.pop(task_id, (None, None))
        if skill is None or question is None:
            text = f"No task {task_id[:100]} waits for an answer: call the skill again."
            return ToolResult(parts=(Part(text=text),), is_error=True)
        try:
            result = await skill.answer(question.task, answer)
        except RemoteQuestion as another:
            return self.ask(skill, another)
        except BaseException:
            self._wait(skill, question)
            raise
        if result.is_error:
            self._wait(skill, question)
        return result
