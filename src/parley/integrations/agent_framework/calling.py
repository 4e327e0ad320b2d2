"""A2A agents as tools and agents of Microsoft Agent Framework."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from agent_framework import (
    AgentResponse,
    AgentResponseUpdate,
    BaseAgent,
    Content,
    FunctionInvocationContext,
    FunctionTool,
    ResponseStream,
    normalize_messages,
)

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.agent_framework.replay import PARLEY, file_of
from parley.integrations.remote_answers import answer_of
from parley.llm.current_turn import current_turn
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, card_of, remote_skills
from parley.model.cards import AgentCard
from parley.model.parts import Message as A2AMessage
from parley.model.parts import Part
from parley.model.tasks import Task, TaskState, TaskStatus

QUESTIONS = "parley.questions"
"""The key of a session's state for tasks that wait for an answer."""


async def tools(agent: Callee, *, approval_mode: str | None = None, **options: Any) -> list[Any]:
    """Return the skills of an A2A agent as tools (``FunctionTool``), with the schemas of its card.

    In a turn of Parley they carry its deadline, trace and cancellation, and questions of the agent
    are asked of the turn's caller. Elsewhere a question is the tool's result; the next call in the
    same session answers it. ``approval_mode`` is that of the framework, ``options`` are options of
    ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    skills = await remote_skills(agent, **options)
    return [_tool(skill, approval_mode) for skill in skills]


def _tool(skill: RemoteSkill, approval_mode: str | None) -> Any:
    async def call(ctx: FunctionInvocationContext, **arguments: Any) -> Any:
        turn = current_turn()
        state = {} if ctx.session is None else ctx.session.state
        waiting = state.get(QUESTIONS, {}).pop(skill.name, None) if turn is None else None
        try:
            if waiting is not None:
                answer = arguments.get("message", arguments) if skill.takes_words else arguments
                return _contents(await skill.answer(_task(waiting), answer))
            return _contents(await skill.call(arguments))
        except RemoteQuestion as question:
            task = question.task
            ids = {"id": task.id, "context_id": task.context_id}
            state.setdefault(QUESTIONS, {})[skill.name] = ids
            return (
                f"{skill.card.name} asks: {question}\n"
                "Call the tool again to answer; ask the user if you do not know."
            )

    return FunctionTool(
        name=skill.name,
        description=skill.description,
        input_model=dict(skill.parameters),
        func=call,
        approval_mode=approval_mode,
        additional_properties={PARLEY: True},
    )


def _task(ids: dict[str, str]) -> Task:
    status = TaskStatus(state=TaskState.INPUT_REQUIRED)
    return Task(id=ids["id"], context_id=ids["context_id"], status=status)


def _contents(result: ToolResult) -> Any:
    if result.is_error:  # of an exception the framework tells the model nothing but that
        return f"Error: {result.text}"
    files = [part for part in result.parts if part.is_file]
    if not files:
        return result.text
    return [Content.from_text(result.text), *(_file(part) for part in files)]


def _file(part: Part) -> Any:
    media_type = part.media_type or "application/octet-stream"
    if isinstance(part.url, str):
        return Content.from_uri(part.url, media_type=media_type)
    return Content.from_data(bytes(part.raw), media_type)  # type: ignore[arg-type]


async def sub_agent(
    agent: Callee, *, name: str | None = None, description: str | None = None, **options: Any
) -> CalledAgent:
    """Return an A2A agent as an agent of the framework, to run, to orchestrate or ``as_tool()``.

    ``options`` are options of ``parley.connect``. Raises what that raises.
    """
    card = await card_of(agent, options)
    return CalledAgent(agent, card, name=name, description=description, options=options)


class CalledAgent(BaseAgent):  # type: ignore[misc]
    """An A2A agent as an agent of the framework.

    A session is a context of the remote agent. Within a turn of Parley the call is part of the
    turn: its deadline, trace and cancellation, its questions, its log. Elsewhere a question of the
    agent is its response, and the next run in the session answers it.
    """

    def __init__(
        self,
        agent: Callee,
        card: AgentCard,
        *,
        name: str | None = None,
        description: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            name=name or card.name, description=description or card.description or card.name
        )
        self.card = card
        self._agent = agent
        self._options = dict(options or {})

    def run(
        self, messages: Any = None, *, stream: bool = False, session: Any = None, **_: Any
    ) -> Any:
        """Send the newest messages of the user, and return the response or its stream."""
        updates = self._updates(normalize_messages(messages), session)
        response = ResponseStream(updates, finalizer=AgentResponse.from_updates)
        return response if stream else response.get_final_response()

    async def _updates(self, messages: list[Any], session: Any) -> AsyncIterator[Any]:
        parts = _newest(messages)
        known = {} if session is None else session.state.setdefault("parley", {})
        where = {} if current_turn() is not None else known
        answers = answer_of(
            self._agent,
            self._options,
            parts,
            task_id=where.pop("task_id", None),
            context_id=where.get("context_id"),
        )
        shown = False
        async with aclosing(answers) as heard:
            async for each in heard:
                if not isinstance(each, str):
                    answer = each
                elif each:
                    shown = True
                    yield self._update(Part(text=each))
        where["context_id"] = answer.context_id
        if isinstance(answer, Task) and answer.state.is_interrupted:
            where["task_id"] = answer.id
            yield self._update(Part(text=RemoteQuestion(answer).text))
            return
        for part in _parts_of(answer):
            if part.text is None or not shown:
                yield self._update(part)

    def _update(self, part: Part) -> Any:
        if part.is_file:
            content = _file(part)
        else:
            text = part.text if isinstance(part.text, str) else ToolResult(data=part.data).text
            content = Content.from_text(text)
        return AgentResponseUpdate(contents=[content], role="assistant", author_name=self.name)


def _newest(messages: list[Any]) -> list[Part]:
    """Return what came after the newest message of an agent, as parts."""
    newest: list[Any] = []
    for message in reversed(messages):
        if str(message.role) == "assistant" and newest:
            break
        newest.insert(0, message)
    parts = []
    for message in newest:
        for content in message.contents:
            if content.type == "text":
                parts.append(Part(text=content.text))
            elif (file := file_of(content)) is not None:
                parts.append(file)
    return parts or [Part(text="")]


def _parts_of(answer: Task | A2AMessage) -> list[Part]:
    """Return the parts of an answer. Raises ``RuntimeError`` for a task without success."""
    if isinstance(answer, A2AMessage):
        return list(answer.parts)
    if answer.state is not TaskState.COMPLETED:
        raise RuntimeError(f"the remote task ended as {answer.state.name.lower()}: {answer.text}")
    parts = [part for artifact in answer.artifacts for part in artifact.parts]
    return parts or list(answer.status.message.parts if answer.status.message else ())
