"""The skills of another agent as tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult, failed, free_name, tool_name
from parley.client.errors import ClientError
from parley.extensions.call_chain import ChainBudget
from parley.extensions.declared import SkillSchema, schemas_on
from parley.extensions.questions import question
from parley.extensions.usage import Spent, spent_on
from parley.host.connecting import connect
from parley.llm.current_turn import current_turn
from parley.llm.model import Json
from parley.model.cards import AgentCard, AgentSkill
from parley.model.errors import A2AError
from parley.model.parts import Message, Part
from parley.model.tasks import Replied, Task, TaskState, TaskStatusUpdateEvent, reply_of

Progress = Callable[[str], Awaitable[None]]
"""Receives the text of each status of a remote task while a tool waits for it."""

WORDS = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "What to say to the agent"}},
    "required": ["message"],
}
"""The parameters of a skill whose card has no schema."""


class RemoteQuestion(Exception):
    """The remote task asks a question that no turn can forward: ``task`` has the question.

    ``text`` is the question, without earlier messages of the task. ``schema`` is the JSON Schema of
    the answer, ``None`` without a schema. Answer with ``RemoteSkill.answer(task, ...)``.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        typed = question(task)
        asked = task.status.message
        said = typed.text if typed is not None else "" if asked is None else asked.text
        self.text = said or "The agent asks for input."
        self.schema = None if typed is None else typed.schema
        super().__init__(self.text)


class RemoteSkill:
    """A skill of another agent as a ``Tool``.

    Within a turn (``current_turn``) it is called like ``turn.delegate``: once in the life of the
    task, with the deadline, the trace and the cancellation of the turn, and the turn's caller
    answers questions of the agent. The calls of a context share a context of the other agent, which
    remembers the conversation. Outside a turn a question raises ``RemoteQuestion``.
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
        self.name = name or tool_name(skill.id, "skill")
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
        budget: ChainBudget | None = None,
    ) -> ToolResult:
        """Call the skill. A task that fails, and an agent that rejects it, is a result with an
        error.

        ``key`` identifies the call in the turn. ``pass_questions=False`` raises ``RemoteQuestion``
        in a turn too. ``on_progress`` is for calls outside of a turn; in a turn, progress is shown
        as the turn's own. In a turn the agent may spend ``budget``, by default the caller's budget.
        """
        return await self._sent(
            self._content(arguments),
            on_progress,
            key=key or None,
            context_key="",
            budget=budget,
            metadata={"skill": self.skill.id},
            pass_questions=pass_questions,
        )

    async def answer(
        self, task: Task | str, content: Any, *, key: str = "", on_progress: Progress | None = None
    ) -> ToolResult:
        """Answer a question that a call raised, and return the result of the task.

        ``task`` is the task or its id. Within a turn the answer is sent once in the turn's life;
        ``key`` identifies it there. Raises ``RemoteQuestion`` for a further question.
        """
        task_id = task if isinstance(task, str) else task.id
        return await self._sent(content, on_progress, key=key or None, task_id=task_id)

    async def _sent(
        self, content: Any, on_progress: Progress | None, task_id: str | None = None, **said: Any
    ) -> ToolResult:
        """Send a message, and return the result. ``said`` is for messages within a turn."""
        turn = current_turn()
        try:
            if turn is not None:
                async with turn.connect(self._agent, **self._options) as bound:
                    answer = await bound.send(content, task_id=task_id, progress=True, **said)
                return result_of(answer)
            about: Json = {"task_id": task_id, "metadata": {"skill": self.skill.id}}
            async with connect(self._agent, **self._options) as remote:  # type: ignore[arg-type]
                if on_progress is None:
                    return result_of(await remote.send(content, **about))
                async with aclosing(answered_by(remote, content, **about)) as events:
                    async for event in events:
                        answer = event
                        if text := progress_in(event):
                            await on_progress(text)
        except (A2AError, ClientError) as error:
            return failed(f"{self.card.name}: {error}")
        return result_of(answer)

    def _content(self, arguments: Mapping[str, Any]) -> Any:
        if self.takes_words:
            return str(arguments.get("message", ""))
        return dict(arguments)


async def answered_by(remote: Any, content: Any, **options: Any) -> AsyncGenerator[Any]:
    """Yield the events of an agent's answer, and finally the answer: a message, or the task."""
    direct: Message | None = None
    async with remote.stream(content, **options) as events:
        async for event in events:
            if isinstance(event, Message):
                direct = event
            else:
                yield event
    yield direct if direct is not None else await remote.get(events.task_id)


def progress_in(event: Any) -> str:
    """Return the text of a status while a task works, empty for other events."""
    if isinstance(event, TaskStatusUpdateEvent) and event.status.state is TaskState.WORKING:
        return "" if event.status.message is None else event.status.message.text
    return ""


async def remote_skills(agent: Callee, **options: Any) -> list[RemoteSkill]:
    """Return the skills on an agent's card as tools. ``options`` are options of ``parley.connect``.

    Names are unique: later skills of the same name get a number. Raises the errors of
    ``parley.connect``.
    """
    return skills_on(agent, await card_of(agent, options), options)


async def card_of(agent: Callee, options: Mapping[str, Any]) -> AgentCard:
    """Return an agent's card. Raises the errors of ``parley.connect``."""
    async with connect(agent, **options) as remote:  # type: ignore[arg-type]
        return remote.card


def skills_on(
    agent: Callee, card: AgentCard, options: Mapping[str, Any], only: Sequence[str] = ()
) -> list[RemoteSkill]:
    """Return the skills on a card as tools: all, or the skills with some ids."""
    schemas = schemas_on(card)
    names: set[str] = set()
    found = []
    for skill in card.skills:
        if only and skill.id not in only:
            continue
        name = free_name(tool_name(skill.id, "skill"), names)
        names.add(name)
        found.append(RemoteSkill(agent, card, skill, schemas.get(skill.id), options, name=name))
    return found


def result_of(answer: Task | Message | Replied) -> ToolResult:
    """Return the answer of an agent as the result of a tool.

    Raises ``RemoteQuestion`` for a task that waits for its caller.
    """
    answer = reply_of(answer)
    if isinstance(answer, Message):
        return _result(tuple(answer.parts), is_error=False, spent=spent_on(answer))
    if answer.state in (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED):
        raise RemoteQuestion(answer)
    is_error = answer.state is not TaskState.COMPLETED
    parts = tuple(part for artifact in answer.artifacts for part in _joined(artifact.parts))
    message = answer.status.message
    if message is not None and (is_error or not parts):
        parts += tuple(message.parts)
    if is_error and not parts:
        parts = (Part(text=f"the task ended as {answer.state.name.lower()}"),)
    return _result(parts, is_error=is_error, spent=spent_on(answer))


def _joined(parts: Iterable[Part]) -> list[Part]:
    """Return the parts of an artifact, with text chunks joined."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and _is_plain(last) and _is_plain(part):
            joined[-1] = Part(text=f"{last.text}{part.text}")
        else:
            joined.append(part)
    return joined


def _is_plain(part: Part) -> bool:
    return part.text is not None and not (part.metadata or part.media_type or part.filename)


def _result(parts: tuple[Part, ...], *, is_error: bool, spent: Spent) -> ToolResult:
    data = [part.data for part in parts if part.has_data]
    value = None if not data else data[0] if len(data) == 1 else data
    return ToolResult(parts=parts, data=value, is_error=is_error, spent=spent)


def described(card: AgentCard, skill: AgentSkill) -> str:
    """Return the description of a skill for a model: its purpose, its agent, examples."""
    text = skill.description or skill.name or card.description
    if skill.examples:
        text += "\nExamples: " + "; ".join(skill.examples[:3])
    return f"{text}\n(a skill of the agent {card.name})"[:1024]
