"""A remote agent as an agent of the SDK: to hand over to, or to use as a tool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
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

from parley.agent.remote.callees import Callee
from parley.host.connecting import connect
from parley.integrations.openai_agents.turn_run import current_run
from parley.integrations.remote_answers import answer_of
from parley.llm.model import text_of
from parley.llm.remote_skills import RemoteQuestion, result_of
from parley.model.ids import new_id
from parley.model.parts import Message
from parley.model.tasks import Task

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

    def __init__(self, agent: Callee, options: Mapping[str, Any]) -> None:
        self._agent = agent
        self._options = dict(options)

    async def get_response(
        self, system_instructions: str | None, input: Any, *others: Any, **more: Any
    ) -> agents.ModelResponse:
        """Return the answer of the remote agent."""
        async for event in self.stream_response(system_instructions, input):
            answer = event
        return agents.ModelResponse(
            output=answer.response.output, usage=agents.Usage(), response_id=None
        )

    async def stream_response(
        self, system_instructions: str | None, input: Any, *others: Any, **more: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Yield the answer of the remote agent, as it comes."""
        said, waiting = _newest(input)
        run, streamed = current_run(), ""
        key = "" if run is None else run.call_key(said)
        answers = answer_of(self._agent, self._options, said, key=key, task_id=waiting)
        async with aclosing(answers) as heard:
            async for each in heard:
                if isinstance(each, str):
                    streamed += each
                    yield _delta(each)
                else:
                    message_id, text = _answer(each)
        if not streamed:
            yield _delta(text)
        content = ResponseOutputText(type="output_text", text=text, annotations=[])
        message = ResponseOutputMessage(
            id=message_id, type="message", role="assistant", status="completed", content=[content]
        )
        yield ResponseCompletedEvent.construct(
            type="response.completed", response=Response.construct(id=new_id(), output=[message])
        )


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


def _delta(text: str) -> ResponseTextDeltaEvent:
    return ResponseTextDeltaEvent.construct(type="response.output_text.delta", delta=text)
