"""A remote agent as an agent of the SDK: to hand over to, or to use as a tool."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import agents
from agents.items import TResponseStreamEvent
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from parley.agent.remote.uses import Callee
from parley.host.connecting import connect
from parley.integrations.openai_agents.turn_run import current_run
from parley.llm.current_turn import current_turn
from parley.llm.model import text_of
from parley.llm.remote_skills import RemoteQuestion, result_of
from parley.model.parts import Message
from parley.model.tasks import Task, TaskArtifactUpdateEvent
from parley.model.uuid7 import new_id

ASKS = "a2a-asks-"
"""The ids of messages that are questions of a remote task begin like this; its id follows."""


async def sub_agent(agent: Callee, *, name: str | None = None, **options: Any) -> agents.Agent[Any]:
    """Return a remote agent as an agent of the SDK, with the name and description of its card.

    Put it into ``handoffs``, or make a tool of it with ``as_tool``. It gets the newest message of
    the user, and its answer is the remote agent's. Within a turn that ``openai_agents.agent``
    serves, its questions reach the turn's caller; elsewhere a question is its answer, and the next
    message answers it.

    ``options`` are those of ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    async with connect(agent, **options) as remote:  # type: ignore[arg-type]
        card = remote.card
    skills = "; ".join(f"{each.name}: {each.description}" for each in card.skills)
    return agents.Agent(
        name=name or card.name,
        handoff_description=f"{card.description} Skills: {skills}"[:1024],
        model=RemoteAgentModel(agent, options),
    )


class RemoteAgentModel(agents.Model):  # type: ignore[misc]
    """A remote agent in the place of a model. It has no tools, and hands over to nobody."""

    is_remote_agent = True

    def __init__(self, agent: Callee, options: Mapping[str, Any]) -> None:
        self._agent = agent
        self._options = dict(options)

    async def get_response(
        self, system_instructions: str | None, input: Any, *others: Any, **more: Any
    ) -> agents.ModelResponse:
        """Return the answer of the remote agent."""
        said, waiting = _newest(input)
        message_id, text = await self._in_turn(said) or await self._outside(said, waiting)
        output = _message(message_id, text)
        return agents.ModelResponse(output=[output], usage=agents.Usage(), response_id=None)

    async def stream_response(
        self, system_instructions: str | None, input: Any, *others: Any, **more: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Yield the answer of the remote agent, as it comes."""
        said, waiting = _newest(input)
        number, streamed = 0, ""
        answer = await self._in_turn(said)
        if answer is None:
            task_id: str | None = None
            direct: Message | None = None
            async with connect(self._agent, **self._options) as remote:  # type: ignore[arg-type]
                async with remote.stream(said, task_id=waiting) as events:
                    async for event in events:
                        if isinstance(event, Message):
                            direct = event
                        elif isinstance(event, TaskArtifactUpdateEvent):
                            delta = "".join(part.text or "" for part in event.artifact.parts)
                            if delta:
                                number += 1
                                streamed += delta
                                yield _delta(delta, number)
                    task_id = events.task_id
                answer = _answer(direct if direct is not None else await remote.get(task_id or ""))
        message_id, text = answer
        if not streamed:
            number += 1
            yield _delta(text, number)
        output = _message(message_id, text)
        yield ResponseCompletedEvent(
            type="response.completed",
            sequence_number=number + 1,
            response=Response(
                id=new_id(),
                created_at=time.time(),
                model="a2a",
                object="response",
                output=[output],
                tool_choice="none",
                tools=[],
                parallel_tool_calls=False,
            ),
        )

    async def _in_turn(self, said: str) -> tuple[str, str] | None:
        """Ask within a turn, which passes questions on; ``None`` outside of one."""
        turn, run = current_turn(), current_run()
        if turn is None:
            return None
        async with turn.connect(self._agent, **self._options) as bound:
            answer = await bound.send(
                said,
                key=None if run is None else run.call_key(said),
                context_key="",
                pass_questions=True,
                progress=True,
            )
        return _answer(answer)

    async def _outside(self, said: str, waiting: str | None) -> tuple[str, str]:
        async with connect(self._agent, **self._options) as remote:  # type: ignore[arg-type]
            return _answer(await remote.send(said, task_id=waiting))


def _answer(answer: Task | Message) -> tuple[str, str]:
    """Return the id and the text of the message that says an answer."""
    try:
        return new_id(), result_of(answer).text
    except RemoteQuestion as question:
        return f"{ASKS}{question.task.id}", question.text


def _newest(given: Any) -> tuple[str, str | None]:
    """Return the newest message of the user, and the remote task whose question it answers."""
    if isinstance(given, str):
        return given, None
    said, waiting = "", None
    for item in reversed(given):
        if not isinstance(item, dict):
            continue
        if item.get("role") == "user" and not said:
            said = text_of(item)
        elif item.get("role") == "assistant" and said:
            message_id = str(item.get("id", ""))
            waiting = message_id.removeprefix(ASKS) if message_id.startswith(ASKS) else None
            break
    return said, waiting


def _message(message_id: str, text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(
        id=message_id, type="message", role="assistant", status="completed", content=[content]
    )


def _delta(text: str, number: int) -> ResponseTextDeltaEvent:
    return ResponseTextDeltaEvent(
        type="response.output_text.delta",
        item_id="answer",
        output_index=0,
        content_index=0,
        delta=text,
        logprobs=[],
        sequence_number=number,
    )
