"""Remote agents for the SDK: skills as tools, an agent to hand over to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import agents
import msgspec
from agents.items import TResponseStreamEvent
from agents.tool_context import ToolContext
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.integrations.message_files import file_of
from parley.integrations.openai_agents.turn_run import current_run
from parley.integrations.remote_answers import PARAMETERS, OpenQuestions, answer_of
from parley.llm.model import text_of
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, card_of, remote_skills, result_of
from parley.model.ids import new_id
from parley.model.parts import Message, Part
from parley.model.tasks import Task


async def tools(agent: Callee, **options: Any) -> list[agents.FunctionTool]:
    """Return the skills of another agent as tools, with the schemas and descriptions of its card.

    Within a turn that ``openai_agents.agent`` serves, a call is made once in the life of the task,
    and questions of the agent reach the turn's caller. Elsewhere a question is the result of the
    call, and one more tool answers it; the model is offered that while a question waits.

    ``options`` are options of ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    skills = await remote_skills(agent, **options)
    if not skills:
        return []
    questions = OpenQuestions(skills[0].card.name)
    return [*(_tool(skill, questions) for skill in skills), _answering(questions)]


class RemoteInvocation:
    """Calls a remote skill for the SDK, or returns what the turn's run has called already."""

    def __init__(self, skill: RemoteSkill, questions: OpenQuestions) -> None:
        self.skill = skill
        self._questions = questions

    async def __call__(self, context: ToolContext[Any], arguments: str) -> Any:
        """Return what the model reads of the call."""
        run = current_run()
        result = None if run is None else run.results.get(context.tool_call_id)
        if result is None:
            try:
                key = "" if run is None else run.call_key(f"{self.skill.name}:{arguments}")
                result = await self.skill.call(json.loads(arguments or "{}"), key=key)
            except RemoteQuestion as question:
                result = self._questions.ask(self.skill, question)
        return output_of(result)


def _answering(questions: OpenQuestions) -> agents.FunctionTool:
    async def answer(context: ToolContext[Any], arguments: str) -> Any:
        given = json.loads(arguments or "{}")
        return output_of(
            await questions.answer(str(given.get("task", "")), str(given.get("answer", "")))
        )

    return agents.FunctionTool(
        name=questions.tool_name,
        description=questions.description,
        params_json_schema=dict(PARAMETERS),
        on_invoke_tool=answer,
        is_enabled=lambda context, agent: bool(questions),
    )


def _tool(skill: RemoteSkill, questions: OpenQuestions) -> agents.FunctionTool:
    async def stops_the_run(context: object, arguments: object, call_id: str) -> bool:
        # A run of a turn stands still for the call, so that a question finds its state kept.
        return current_run() is not None

    return agents.FunctionTool(
        name=skill.name,
        description=skill.description,
        params_json_schema=dict(skill.parameters),
        on_invoke_tool=RemoteInvocation(skill, questions),
        strict_json_schema=False,
        needs_approval=stops_the_run,
    )


def output_of(result: ToolResult) -> Any:
    """Return a result as the SDK gives it to the model: text, and images and files beside it."""
    files = [found for part in result.parts if (found := _file(part)) is not None]
    said = [part.text for part in result.parts if part.text]
    said += [msgspec.json.encode(part.data).decode() for part in result.parts if part.has_data]
    text = "\n".join(said)
    if result.is_error:
        text = f"Error: {text}"
    return text if not files else [agents.ToolOutputText(text=text or "(files)"), *files]


def _file(part: Part) -> Any:
    if part.url is not None:
        if part.media_type.startswith("image/"):
            return agents.ToolOutputImage(image_url=part.url)
        return agents.ToolOutputFileContent(file_url=part.url, filename=part.filename or None)
    if part.raw is None:
        return None
    file = file_of(part, part.raw)
    if file.kind == "image":
        return agents.ToolOutputImage(image_url=file.data_url)
    if (text := file.text) is not None:
        return agents.ToolOutputText(text=text)
    return agents.ToolOutputFileContent(
        file_data=file.data_url, filename=file.filename or f"file.{file.subtype}"
    )


ASKS = "a2a-asks-"
"""The ids of messages that are questions of a remote task begin like this; its id follows."""


async def sub_agent(agent: Callee, *, name: str | None = None, **options: Any) -> agents.Agent[Any]:
    """Return a remote agent as an agent of the SDK, with the name and description of its card.

    Put it into ``handoffs``, or make a tool of it with ``as_tool``. It gets the newest message of
    the user, and its answer is the remote agent's. Within a turn that ``openai_agents.agent``
    serves, its questions reach the turn's caller; elsewhere a question is its answer, and the next
    message answers it.

    ``options`` are options of ``parley.connect``. Raises what ``parley.connect`` raises.
    """
    card = await card_of(agent, options)
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
