"""Agents of the SDK as Parley agents, and remote agents as its tools and sub-agents."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import agents
import msgspec
from agents.items import ItemHelpers, TResponseStreamEvent
from agents.models.chatcmpl_stream_handler import ChatCmplStreamHandler
from agents.run_internal import run_loop
from agents.tool_context import ToolContext
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from parley.agent.agent import Agent
from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.answers import PARAMETERS, OpenQuestions, answer_of
from parley.integrations.message_files import file_of
from parley.integrations.openai_agents.turn_run import TOLD, TurnRun, reachable, schema_of
from parley.integrations.serving import described, framework_agent
from parley.llm.model import ModelUsage, text_of
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, card_of, remote_skills, result_of
from parley.llm.run_output import ModelRequests, RunOutput, current_run
from parley.model.ids import new_id
from parley.model.parts import Message, Part
from parley.model.tasks import Task


def agent(
    thing: agents.Agent[Any],
    *,
    name: str | None = None,
    description: str | None = None,
    session: Callable[[str], Any] | None = None,
    context: Callable[[Turn], Any] | None = None,
    run_config: agents.RunConfig | None = None,
    hooks: agents.RunHooks[Any] | None = None,
    max_turns: int | None = 10,
    refusal: Callable[[Exception], str] | None = None,
    **options: Any,
) -> Agent:
    """Return an agent of the SDK as a Parley agent. ``options`` are options of ``Agent``.

    Each turn is a streamed run. Its state is kept in the task's log after every round of tool calls
    and at every question, so a crash repeats no completed tool. A tool that needs approval asks the
    caller. A tripwire of a guardrail rejects the task; ``refusal`` makes its message.

    The conversation of a ``contextId`` is kept in its context, bounded. ``session`` keeps it
    elsewhere: a function of the thread's id that returns a session of the SDK, such as ``lambda
    thread: SQLiteSession(thread, "memory.db")``. The next message goes to the agent that last had
    the conversation. ``context`` makes the run context of a turn, which is kept across crashes and
    answers if it is data. ``run_config``, ``hooks`` and ``max_turns`` are options of the SDK's
    ``Runner``.

    Unconnected MCP servers of the agent are connected while the agent is served.

    Raises ``TypeError`` for anything but an agent of the SDK.
    """
    if not isinstance(thing, agents.Agent):
        raise TypeError(
            f"openai_agents.agent serves an agents.Agent, not {type(thing).__name__}; "
            "for an agent of the realtime or voice API, serve the agent behind it"
        )
    run_loop.get_model = _counted
    ChatCmplStreamHandler.handle_stream = staticmethod(_with_finish_reason)
    servers = [server for each in reachable(thing) for server in each.mcp_servers]
    if servers:
        options["lifespan"] = _connected(servers, options.get("lifespan"))

    name = name or thing.name
    tools = [(each.name, getattr(each, "description", "")) for each in thing.tools]
    said = described(thing.handoff_description, name, tools)
    if others := [each.name for each in reachable(thing)][1:]:
        said = f"{said} Hands over to: {', '.join(others)}."

    async def run(turn: Turn, output: RunOutput) -> None:
        await TurnRun(
            thing,
            output,
            session=session,
            context=context,
            config=run_config,
            refusal=refusal,
            hooks=hooks,
            max_turns=max_turns,
        ).run()

    return framework_agent(
        run,
        name=name,
        description=said if description is None else description,
        tags=("agent", *(each.name for each in thing.tools)),
        output_schema=schema_of(thing),
        told=TOLD,
        **options,
    )


def _connected(
    servers: list[Any], lifespan: Callable[[Agent], AbstractAsyncContextManager[Any]] | None
) -> Callable[[Agent], AbstractAsyncContextManager[Any]]:
    """Return a lifespan that connects MCP servers, wrapped around the author's lifespan."""

    @asynccontextmanager
    async def connected(served: Agent) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            for server in {id(each): each for each in servers}.values():
                if getattr(server, "session", None) is None:
                    await stack.enter_async_context(server)
            value = None if lifespan is None else await stack.enter_async_context(lifespan(served))
            yield value

    return connected


FINISH = "parley:finish_reason"
"""The key of the finish reason in the metadata of a streamed chat completion."""


class CountedModel:
    """A model whose replies are counted in a turn. A truncated reply does not reach the run."""

    def __init__(self, model: Any, requests: ModelRequests) -> None:
        self._model, self._requests = model, requests

    def __getattr__(self, name: str) -> Any:
        """Return the model's attribute."""
        return getattr(self._model, name)

    async def get_response(self, *given: Any, **options: Any) -> Any:
        """Return the reply of the model."""
        with self._requests.asking():
            reply = await self._model.get_response(*given, **options)
        self._requests.replied(_usage(reply.usage))
        return reply

    async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        """Yield the events of a reply. A reply of maximum length counts as truncated."""
        events = self._model.stream_response(*given, **options)
        try:
            with self._requests.asking():
                async for event in events:
                    if event.type in ("response.completed", "response.incomplete"):
                        said, number = event.response, event.sequence_number
                        self._replied(said)
                        yield ResponseCompletedEvent(
                            type="response.completed", response=said, sequence_number=number
                        )
                        return
                    yield event
            self._requests.replied(None, ending="")
        finally:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()

    def _replied(self, said: Any) -> None:
        ending, details = (said.metadata or {}).get(FINISH), said.incomplete_details
        if ending is None:
            ending = said.status if details is None else details.reason
        refusal = "".join(ItemHelpers.extract_refusal(each) or "" for each in said.output)
        self._requests.replied(_usage(said.usage), ending=ending, refusal=refusal)


def _usage(used: Any) -> ModelUsage | None:
    return used and ModelUsage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)


_get_model = run_loop.get_model
_handle_stream = ChatCmplStreamHandler.handle_stream


# The SDK has no hook for the models of agents inside tools, and drops the finish reason of a
# streamed chat completion. Outside of a turn nothing changes.


def _counted(agent: Any, config: Any) -> Any:
    model, run = _get_model(agent, config), current_run(TurnRun)
    if run is None or isinstance(model, RemoteAgentModel):
        return model
    return CountedModel(model, run.requests)


def _with_finish_reason(response: Any, stream: Any, *given: Any, **options: Any) -> Any:
    async def chunks() -> AsyncIterator[Any]:
        response.metadata = {FINISH: ""}
        async for chunk in stream:
            for choice in chunk.choices:
                if choice.finish_reason:
                    response.metadata = {FINISH: choice.finish_reason}
            yield chunk

    if current_run(TurnRun) is not None:  # the turn reports faults of a reply
        options |= {"require_finish_reason": False, "raise_on_length_truncation": False}
    return _handle_stream(response, chunks(), *given, **options)


async def tools(agent: Callee, **options: Any) -> list[agents.FunctionTool]:
    """Return the skills of another agent as tools, with the schemas and descriptions of its card.

    Within a turn that ``openai_agents.agent`` serves, a call is made once in the life of the task,
    and the turn's caller answers questions of the agent. Elsewhere a question is the result of the
    call, and an additional tool answers it; the model is offered that tool while a question is
    open.

    ``options`` are options of ``parley.connect``. Raises the errors of ``parley.connect``.
    """
    skills = await remote_skills(agent, **options)
    if not skills:
        return []
    questions = OpenQuestions(skills[0].card.name)

    async def answer(context: ToolContext[Any], arguments: str) -> Any:
        given = json.loads(arguments or "{}")
        found = questions.answer(str(given.get("task", "")), str(given.get("answer", "")))
        return output_of(await found)

    answering = agents.FunctionTool(
        name=questions.tool_name,
        description=questions.description,
        params_json_schema=dict(PARAMETERS),
        on_invoke_tool=answer,
        is_enabled=lambda context, agent: bool(questions),
    )
    return [*(_tool(skill, questions) for skill in skills), answering]


def _tool(skill: RemoteSkill, questions: OpenQuestions) -> agents.FunctionTool:
    async def call(context: ToolContext[Any], arguments: str) -> Any:
        """Return the result of the call, or the result that the turn's run already has."""
        run = current_run(TurnRun)
        result = None if run is None else run.results.get(context.tool_call_id)
        if result is None:
            try:
                key = "" if run is None else run.call_key(f"{skill.name}:{arguments}")
                result = await skill.call(json.loads(arguments or "{}"), key=key)
            except RemoteQuestion as question:
                result = questions.ask(skill, question)
        return output_of(result)

    async def stops_the_run(context: object, arguments: object, call_id: str) -> bool:
        # The run of a turn is suspended for the call, so that its state is kept before a question.
        return current_run(TurnRun) is not None

    call.skill = skill  # type: ignore[attr-defined]
    return agents.FunctionTool(
        name=skill.name,
        description=skill.description,
        params_json_schema=dict(skill.parameters),
        on_invoke_tool=call,
        strict_json_schema=False,
        needs_approval=stops_the_run,
    )


def output_of(result: ToolResult) -> Any:
    """Return a result in the form that the SDK gives the model: text, images and files."""
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
"""The prefix of the ids of messages that are questions of a remote task; the task's id follows."""


async def sub_agent(agent: Callee, *, name: str | None = None, **options: Any) -> agents.Agent[Any]:
    """Return a remote agent as an agent of the SDK, with the name and description of its card.

    Put it into ``handoffs``, or make a tool of it with ``as_tool``. It receives the newest user
    message, and its answer is the remote agent's answer. Within a turn that ``openai_agents.agent``
    serves, its questions reach the turn's caller; elsewhere a question is its answer, and the next
    message answers it.

    ``options`` are options of ``parley.connect``. Raises the errors of ``parley.connect``.
    """
    card = await card_of(agent, options)
    skills = "; ".join(f"{each.name}: {each.description}" for each in card.skills)
    return agents.Agent(
        name=name or card.name,
        handoff_description=f"{card.description} Skills: {skills}"[:1024],
        model=RemoteAgentModel(agent, options),
    )


class RemoteAgentModel(agents.Model):  # type: ignore[misc]
    """A remote agent in the role of a model. It has no tools, and makes no handoffs."""

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
        run, streamed = current_run(TurnRun), ""
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
    """Return the id and the text of the message with an answer."""
    try:
        return new_id(), result_of(answer).text
    except RemoteQuestion as question:
        return f"{ASKS}{question.task.id}", question.text


def _newest(given: Any) -> tuple[str, str | None]:
    """Return the newest user message, and the remote task whose question it answers."""
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
