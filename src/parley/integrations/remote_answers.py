"""Remote agents outside of a framework's tools: the answer in place of a model, open questions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult, failed, tool_name
from parley.client.message import Sendable
from parley.host.connecting import connect
from parley.llm.current_turn import current_turn
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill
from parley.model.bounded import Bounded
from parley.model.parts import Message, Part
from parley.model.tasks import Task, TaskArtifactUpdateEvent


async def answer_of(
    agent: Callee,
    options: Mapping[str, Any],
    said: Sendable,
    *,
    key: str = "",
    task_id: str | None = None,
    context_id: str | None = None,
) -> AsyncGenerator[str | Task | Message]:
    """Yield the text of an answer as it comes, and at last the answer.

    Within a turn the message is sent once under its ``key``, questions reach the caller, and the
    agent remembers what was said in the turn's context. Only the answer is yielded then.
    ``task_id`` and ``context_id`` are for a message outside of a turn. ``options`` are options of
    ``parley.connect``.
    """
    turn = current_turn()
    if turn is not None:
        async with turn.connect(agent, **options) as bound:
            yield await bound.send(
                said, key=key or None, context_key="", pass_questions=True, progress=True
            )
        return
    direct: Message | None = None
    async with connect(agent, **options) as remote:  # type: ignore[arg-type]
        async with remote.stream(said, task_id=task_id, context_id=context_id) as events:
            async for event in events:
                if isinstance(event, Message):
                    direct = event
                elif isinstance(event, TaskArtifactUpdateEvent):
                    yield "".join(part.text or "" for part in event.artifact.parts)
        yield direct if direct is not None else await remote.get(events.task_id)


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
        self._open: Bounded[str, tuple[RemoteSkill, RemoteQuestion]] = Bounded(MAX_QUESTIONS)

    def __bool__(self) -> bool:
        """Whether a question waits."""
        return bool(self._open)

    def ask(self, skill: RemoteSkill, question: RemoteQuestion) -> ToolResult:
        """Return a question as the result of the call that met it."""
        self._open[question.task.id] = (skill, question)
        text = (
            f"The agent asks: {question.text}\n"
            f"(The task {question.task.id} waits; answer it with the tool {self.tool_name}.)"
        )
        return ToolResult(parts=(Part(text=text),))

    async def answer(self, task_id: str, answer: str) -> ToolResult:
        """Answer a question, and return the result of the task, or its next question.

        An answer that fails, or is cancelled, may not have arrived: the question stays.
        """
        skill, question = self._open.pop(task_id, (None, None))
        if skill is None or question is None:
            text = f"No task {task_id[:100]} waits for an answer: call the skill again."
            return failed(text)
        try:
            result = await skill.answer(question.task, answer)
        except RemoteQuestion as another:
            return self.ask(skill, another)
        except BaseException:
            self._open[task_id] = (skill, question)
            raise
        if result.is_error:
            self._open[task_id] = (skill, question)
        return result
