"""Remote agents as sub-agents of ADK, and their skills as tools."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import PrivateAttr

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.client.errors import ClientError
from parley.host.connecting import connect
from parley.integrations.google_adk.interrupts import INPUT, REMOTE_ANSWER, adk_parts, parts_of
from parley.llm.current_turn import current_turn
from parley.llm.model import Json
from parley.llm.remote_skills import (
    RemoteQuestion,
    RemoteSkill,
    answered_by,
    card_of,
    progress_in,
    remote_skills,
)
from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.model.parts import Message, Part
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState

CONTEXT = "parley:context:{}"
QUESTION = "parley:question:{}"


async def sub_agent(
    agent: Callee, *, name: str | None = None, description: str | None = None, **options: Any
) -> AdkRemoteAgent:
    """Return a remote agent as an agent of ADK, for ``sub_agents=`` or as a root.

    Name and description come from its card. ``options`` are options of ``parley.connect``. Raises
    the errors of ``parley.connect``.
    """
    card = await card_of(agent, options)
    return AdkRemoteAgent(agent, card, options, name=name, description=description)


class AdkRemoteAgent(BaseAgent):
    """A remote agent, called with the messages since its last answer.

    Its answer is streamed as partial events, its progress are thoughts, its questions ADK's
    requests for input. A session of ADK has one context at the agent. Within a turn of Parley the
    call carries the turn's deadline and trace, each message is sent once in the life of the task,
    and the remote task is canceled with it.
    """

    _agent: Any = PrivateAttr()
    _card: AgentCard = PrivateAttr()
    _options: Json = PrivateAttr()

    def __init__(
        self,
        agent: Callee,
        card: AgentCard,
        options: Json,
        *,
        name: str | None = None,
        description: str | None = None,
    ) -> None:
        told = "; ".join(skill.description or skill.name for skill in card.skills)
        super().__init__(
            name=name or identifier(card.name),
            description=description or f"{card.description}\n{told}".strip(),
        )
        self._agent = agent
        self._card = card
        self._options = options

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        state, turn = ctx.session.state, current_turn()
        kept: Json = {}
        asked = state.get(QUESTION.format(self.name))
        answer = _answer_to(ctx, asked) if asked else None
        message: Json = {
            "context_id": state.get(CONTEXT.format(self.name)),
            "task_id": asked["task"] if asked and answer is not None else None,
        }
        if turn is None:
            remotes: Any = connect(self._agent, **self._options)
        else:
            remotes = turn.connect(self._agent, **self._options)
            message["key"] = f"{self.name}:{ctx.invocation_id}:{len(ctx.session.events)}"
        try:
            async with remotes as remote:
                content = self._heard(ctx) if answer is None else answer
                async with aclosing(answered_by(remote, content, **message)) as events:
                    async for event in events:
                        found = event
                        for part in _partial(event):
                            yield self._event(ctx, [part], partial=True)
        except (A2AError, ClientError) as error:
            yield self._event(ctx, [], error_code=type(error).__name__, error_message=str(error))
            return
        if isinstance(found, Task):
            kept[CONTEXT.format(self.name)] = found.context_id
            if asked:
                kept[QUESTION.format(self.name)] = None
            if found.state.is_interrupted:
                yield self._question(ctx, found, kept)
                return
            if found.state is not TaskState.COMPLETED:
                last = found.status.message
                text = last.text if last is not None else "the task ended"
                failed: Json = {"error_code": found.state.name, "error_message": text}
                yield self._event(ctx, [], state=kept, **failed)
                return
        yield self._event(ctx, adk_parts(_answered(found)) or [types.Part(text=" ")], state=kept)

    def _heard(self, ctx: InvocationContext) -> list[Part]:
        """Return the messages since the last answer of this agent: from the user, and from other
        agents.
        """
        heard: list[Part] = []
        for event in reversed(ctx.session.events):
            if event.author == self.name and event.content is not None:
                break
            parts = parts_of(event.content)
            if event.author != "user" and event.author != self.name:
                parts = [
                    Part(text=f"{event.author}: {part.text}") if part.text else part
                    for part in parts
                ]
            heard = parts + heard
            if event.author == "user" and parts and event.invocation_id == ctx.invocation_id:
                break
        return heard or parts_of(ctx.user_content)

    def _event(
        self,
        ctx: InvocationContext,
        parts: list[types.Part],
        *,
        partial: bool = False,
        state: Json | None = None,
        **fields: Any,
    ) -> Event:
        return Event(
            author=self.name,
            invocation_id=ctx.invocation_id,
            branch=ctx.branch,
            content=types.Content(role="model", parts=parts) if parts else None,
            partial=partial or None,
            actions=EventActions(state_delta=state or {}),
            **fields,
        )

    def _question(self, ctx: InvocationContext, task: Task, kept: Json) -> Event:
        call_id = f"{task.id}-{len(ctx.session.events)}"
        kept[QUESTION.format(self.name)] = {"task": task.id, "call": call_id}
        asked = RemoteQuestion(task)
        args: Json = {"message": asked.text}
        if asked.schema is not None:
            args["response_schema"] = asked.schema
        call = types.FunctionCall(id=call_id, name=INPUT, args=args)
        return self._event(
            ctx, [types.Part(function_call=call)], state=kept, long_running_tool_ids={call_id}
        )


def _answer_to(ctx: InvocationContext, asked: Json) -> Any:
    """Return the answer to a question, ``None`` if there is none."""
    for event in reversed(ctx.session.events):
        for response in event.get_function_responses():
            if response.id == asked["call"] and event.author == "user":
                value = response.response or {}
                answer = value["result"] if set(value) == {"result"} else value
                return answer if isinstance(answer, str | dict) else [Part(data=answer)]
    return None


def _partial(event: Any) -> list[types.Part]:
    if isinstance(event, TaskArtifactUpdateEvent):
        return [types.Part(text=part.text) for part in event.artifact.parts if part.text]
    text = progress_in(event)
    return [types.Part(text=text, thought=True)] if text else []


def _answered(found: Task | Message) -> list[Part]:
    if isinstance(found, Message):
        return list(found.parts)
    parts = [part for artifact in found.artifacts for part in artifact.parts]
    message = found.status.message
    return parts or (list(message.parts) if message is not None else [])


def identifier(name: str) -> str:
    """Return a name in the form of ADK's agent names: a Python identifier."""
    found = re.sub(r"\W+", "_", name).strip("_").lower() or "agent"
    if found[0].isdigit() or found == "user":
        found = f"agent_{found}"
    return found


ASKED = "parley:{}"
"""The key of the session's state under which a call keeps the task that asks."""


async def tools(agent: Callee, **options: Any) -> list[BaseTool]:
    """Return the skills of an agent, for ``LlmAgent(tools=await google_adk.tools(url))``.

    Names, descriptions and parameters come from the card. A question of the agent is a tool
    confirmation of ADK: its hint is the question, its payload has the answer. Within a turn
    (``agent``) the caller of the turn is asked. ``options`` are options of ``parley.connect``.
    Raises the errors of ``parley.connect``.
    """
    return [AdkSkillTool(skill) for skill in await remote_skills(agent, **options)]


class AdkSkillTool(BaseTool):
    """A skill of a remote agent as a tool."""

    def __init__(self, skill: RemoteSkill) -> None:
        super().__init__(name=skill.name, description=skill.description)
        self.skill = skill

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name,
            description=self.description,
            parameters_json_schema=dict(self.skill.parameters),
        )

    async def run_async(self, *, args: Json, tool_context: ToolContext) -> Any:
        """Call the skill; or answer its task's question."""
        call_id = tool_context.function_call_id or ""
        asked = tool_context.state.get(ASKED.format(call_id))
        confirmation = tool_context.tool_confirmation
        try:
            if asked is None or confirmation is None:
                result = await self.skill.call(args, key=call_id, pass_questions=False)
            elif not confirmation.confirmed:
                return {"error": "The question of the agent was not answered."}
            else:
                given = confirmation.payload
                answer = given.get(REMOTE_ANSWER) if isinstance(given, dict) else given
                result = await self.skill.answer(
                    asked["task"], answer, key=f"{call_id}/{asked['questions']}"
                )
        except RemoteQuestion as question:
            number = (asked or {}).get("questions", 0) + 1
            tool_context.state[ASKED.format(call_id)] = {
                "task": question.task.id, "questions": number
            }  # fmt: skip
            payload: Json = {REMOTE_ANSWER: ""}
            if question.schema is not None:
                payload["schema"] = question.schema
            tool_context.request_confirmation(hint=question.text, payload=payload)
            return {"status": "asked", "question": question.text}
        if asked is not None:
            tool_context.state[ASKED.format(call_id)] = None
        return said(result)


def said(result: ToolResult) -> Json:
    """Return the result of a skill as the response of a function."""
    if result.is_error:
        return {"error": result.text}
    if result.data is not None:
        return result.data if isinstance(result.data, dict) else {"result": result.data}
    files = [_named(part) for part in result.parts if part.is_file]
    return {"result": result.text, "files": files} if files else {"result": result.text}


def _named(part: Part) -> Json:
    known = {"name": part.filename, "mediaType": part.media_type, "url": part.url}
    return {key: value for key, value in known.items() if value}
