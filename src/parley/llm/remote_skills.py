"""The skills of another agent as tools."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from parley.agent.remote.uses import Callee
from parley.agent.tools.tool import ToolResult
from parley.client.errors import ClientError
from parley.client.remote_agent import RemoteAgent
from parley.extensions.skill_schemas import SkillSchema, schemas_on
from parley.host.connecting import connect
from parley.llm.current_turn import current_turn
from parley.model.cards import AgentCard, AgentSkill
from parley.model.errors import A2AError
from parley.model.parts import Message, Part
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent

Progress = Callable[[str], Awaitable[None]]
"""Gets the text of each status of a remote task while a tool waits for it."""

WORDS = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "What to say to the agent"}},
    "required": ["message"],
}
"""The parameters of a skill whose card has no schema."""


class RemoteQuestion(Exception):
    """The remote task asks something, and nobody here can pass that on: ``task`` has the question.

    Answer with ``RemoteSkill.answer(task, ...)``.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        super().__init__(task.text)


class RemoteSkill:
    """A skill of another agent as a ``Tool``.

    Within a turn (``current_turn``) it is called as ``turn.delegate`` calls: once in the life of
    the task, with the deadline, the trace and the cancellation of the turn, and questions of the
    agent are asked of the turn's caller. Elsewhere a question raises ``RemoteQuestion``.
    """

    def __init__(
        self,
        agent: Callee,
        card: AgentCard,
        skill: AgentSkill,
        schema: SkillSchema | None,
        options: Mapping[str, Any],
        *,
        name: str = "",
    ) -> None:
        self.card = card
        self.skill = skill
        self.name = name or tool_name(skill.id)
        self.description = described(card, skill)
        self.takes_words = schema is None or schema.input is None
        self.parameters: Mapping[str, Any] = (
            WORDS if schema is None or schema.input is None else schema.input
        )
        self.output_schema = None if schema is None else schema.output
        self._agent = agent
        self._options = dict(options)

    async def call(
        self,
        arguments: Mapping[str, Any],
        *,
        key: str = "",
        on_progress: Progress | None = None,
        pass_questions: bool = True,
    ) -> ToolResult:
        """Call the skill. A task that fails, and an agent that refuses, is a result with an error.

        ``key`` identifies the call in the turn. ``pass_questions=False`` raises ``RemoteQuestion``
        in a turn too. ``on_progress`` is for calls outside of a turn; in one, progress is shown as
        the turn's own.
        """
        content = self._content(arguments)
        turn = current_turn()
        try:
            if turn is not None:
                async with turn.connect(self._agent, **self._options) as bound:
                    answer = await bound.send(
                        content,
                        key=key or None,
                        metadata={"skill": self.skill.id},
                        pass_questions=pass_questions,
                        progress=True,
                    )
            else:
                answer = await self._outside(content, on_progress, task_id=None)
        except (A2AError, ClientError) as error:
            return ToolResult(parts=(Part(text=f"{self.card.name}: {error}"),), is_error=True)
        return result_of(answer)

    async def answer(
        self, task: Task | str, content: Any, *, key: str = "", on_progress: Progress | None = None
    ) -> ToolResult:
        """Answer a question that a call raised, and return what the task then returns.

        ``task`` is the task or its id. Within a turn the answer is sent once in its life; ``key``
        identifies it there. Raises ``RemoteQuestion`` for a further question.
        """
        task_id = task if isinstance(task, str) else task.id
        turn = current_turn()
        try:
            if turn is None:
                answer = await self._outside(content, on_progress, task_id=task_id)
            else:
                async with turn.connect(self._agent, **self._options) as bound:
                    answer = await bound.send(
                        content, key=key or None, task_id=task_id, progress=True
                    )
        except (A2AError, ClientError) as error:
            return ToolResult(parts=(Part(text=f"{self.card.name}: {error}"),), is_error=True)
        return result_of(answer)

    async def _outside(
        self, content: Any, on_progress: Progress | None, task_id: str | None
    ) -> Task | Message:
        async with self._connected() as remote:
            if on_progress is None:
                return await remote.send(
                    content, task_id=task_id, metadata={"skill": self.skill.id}
                )
            direct: Message | None = None
            async with remote.stream(
                content, task_id=task_id, metadata={"skill": self.skill.id}
            ) as events:
                async for event in events:
                    if isinstance(event, Message):
                        direct = event
                    elif isinstance(event, TaskStatusUpdateEvent):
                        said = event.status.message
                        if event.status.state is TaskState.WORKING and said is not None:
                            await on_progress(said.text)
            return direct if direct is not None else await remote.get(events.task_id)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[RemoteAgent]:
        async with connect(self._agent, **self._options) as remote:  # type: ignore[arg-type]
            yield remote

    def _content(self, arguments: Mapping[str, Any]) -> Any:
        if self.takes_words:
            return str(arguments.get("message", ""))
        return dict(arguments)


async def remote_skills(agent: Callee, **options: Any) -> list[RemoteSkill]:
    """Return the skills on an agent's card as tools. ``options`` are those of ``parley.connect``.

    Two skills never have one name: later ones get a number. Raises what ``parley.connect`` raises.
    """
    async with connect(agent, **options) as remote:  # type: ignore[arg-type]
        card = remote.card
    schemas = schemas_on(card)
    names: set[str] = set()
    found = []
    for skill in card.skills:
        name = tool_name(skill.id)
        number = 2
        while name in names:
            name = f"{tool_name(skill.id)[:60]}_{number}"
            number += 1
        names.add(name)
        found.append(RemoteSkill(agent, card, skill, schemas.get(skill.id), options, name=name))
    return found


def result_of(answer: Task | Message) -> ToolResult:
    """Return the answer of an agent as the result of a tool.

    Raises ``RemoteQuestion`` for a task that waits for its caller.
    """
    if isinstance(answer, Message):
        return _result(tuple(answer.parts), is_error=False)
    if answer.state in (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED):
        raise RemoteQuestion(answer)
    is_error = answer.state is not TaskState.COMPLETED
    parts = tuple(part for artifact in answer.artifacts for part in artifact.parts)
    message = answer.status.message
    if message is not None and (is_error or not parts):
        parts += tuple(message.parts)
    if is_error and not parts:
        parts = (Part(text=f"the task ended as {answer.state.name.lower()}"),)
    return _result(parts, is_error=is_error)


def _result(parts: tuple[Part, ...], *, is_error: bool) -> ToolResult:
    data = [part.data for part in parts if part.data is not msgspec.UNSET]
    value = None if not data else data[0] if len(data) == 1 else data
    return ToolResult(parts=parts, data=value, is_error=is_error)


def tool_name(skill_id: str) -> str:
    """Return the name of a skill as a tool: letters, digits, ``_`` and ``-``, at most 64."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", skill_id).strip("_")[:64]
    return name or "skill"


def described(card: AgentCard, skill: AgentSkill) -> str:
    """Return the description of a skill for a model: what it does, whose it is, examples."""
    text = skill.description or skill.name or card.description
    if skill.examples:
        text += "\nExamples: " + "; ".join(skill.examples[:3])
    return f"{text}\n(a skill of the agent {card.name})"[:1024]
