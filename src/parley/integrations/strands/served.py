"""Agents, graphs and swarms of Strands as Parley agents; A2A agents as their tools and nodes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

import strands
from strands.agent.agent_result import AgentResult
from strands.agent.base import AgentBase
from strands.event_loop import event_loop
from strands.interrupt import InterruptException
from strands.multiagent.base import MultiAgentBase
from strands.telemetry.metrics import EventLoopMetrics
from strands.types._events import ModelStopReason, ToolInterruptEvent, ToolResultEvent
from strands.types.exceptions import (
    ContextWindowOverflowException,
    MaxTokensReachedException,
    ModelThrottledException,
    StructuredOutputException,
)
from strands.types.tools import AgentTool, ToolContext

from parley.agent.agent import Agent
from parley.agent.remote.callees import Callee
from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.answers import answer_of
from parley.integrations.conversations import thread_id
from parley.integrations.litellm_streams import HeardReply
from parley.integrations.serving import described, framework_agent
from parley.integrations.strands.runs import (
    REMOTE,
    AgentRun,
    GraphRun,
    StrandsRun,
    blocks_of,
    check_copied,
    copy_of,
    silenced,
)
from parley.llm.model import Json, ModelUsage
from parley.llm.remote_skills import RemoteQuestion, RemoteSkill, card_of, remote_skills, result_of
from parley.llm.run_output import RunOutput, current_run
from parley.model.cards import AgentCard
from parley.model.errors import an


def agent(
    thing: strands.Agent | Callable[[str], Any],
    *,
    name: str | None = None,
    description: str | None = None,
    invocation_state: Callable[[Turn], Json] | None = None,
    **options: Any,
) -> Agent:
    """Return an agent of Strands as a Parley agent. ``options`` are options of ``Agent``.

    ``thing`` is an agent, copied for each turn, or a function of the thread's id that returns a new
    agent, graph or swarm for each turn: for agents with a session manager, and for graphs and
    swarms. A function needs a ``name``; its docstring is the description.

    Interrupts ask the caller, and the answer is the interrupt's response: data, or else text. The
    conversation of a ``contextId`` is kept in its context, unless a session manager keeps it. The
    agent's snapshot is kept with the task after each round of tool calls and at each interrupt.
    ``invocation_state`` returns the invocation state of a turn.

    Raises ``TypeError`` for an object that cannot be served, and ``ValueError`` without a name.
    """
    if isinstance(thing, MultiAgentBase):
        kind = type(thing).__name__
        raise TypeError(
            f"{an(kind)} holds the state of one run; give a function that creates it: "
            f"strands.agent(lambda thread: ..., name=...)"
        )
    schema, tags, make = None, (), thing
    if isinstance(thing, strands.Agent):
        check_copied(thing)
        name, tags = name or thing.name, tuple(thing.tool_names)
        specs = thing.tool_registry.registry.items()
        tools = [(tool, held.tool_spec.get("description")) for tool, held in specs]
        said = described(thing.description, name, tools)
        make = lambda thread: copy_of(thing)  # noqa: E731
        if thing._default_structured_output_model is not None:
            schema = thing._default_structured_output_model.model_json_schema()
    elif not callable(thing):
        raise TypeError(
            f"strands.agent serves a strands.Agent, or a function that makes agents, graphs or "
            f"swarms, not {type(thing).__name__}"
        )
    elif name is None:
        raise ValueError("a function that makes agents needs a name=, for the card")
    else:
        said = inspect.getdoc(thing) or ""

    async def run(turn: Turn, output: RunOutput) -> None:
        made = silenced(make(thread_id(turn)))
        state = {} if invocation_state is None else invocation_state(turn)
        if not isinstance(made, strands.Agent | MultiAgentBase):
            raise TypeError(f"the function made {an(type(made).__name__)}, not an agent or a graph")
        kind = AgentRun if isinstance(made, strands.Agent) else GraphRun
        await kind(made, output, state).run()

    event_loop.stream_messages = _counted
    return framework_agent(
        run,
        name=name,
        description=said if description is None else description,
        tags=tags,
        output_schema=schema,
        told=TOLD,
        **options,
    )


TOLD = (
    (ModelThrottledException, "", "The language model is busy; try again later."),
    (MaxTokensReachedException, "", "The language model's reply reached its maximum length."),
    (ContextWindowOverflowException, "", "The conversation is longer than the model can read."),
    (StructuredOutputException, "", "The reply of the language model could not be used."),
)


_stream_messages = event_loop.stream_messages


async def _counted(model: Any, *given: Any, **options: Any) -> AsyncIterator[Any]:
    """Call a model as Strands does, and count the request in a turn.

    Hooks of Strands do not see the requests of agents inside tools.
    """
    run = current_run(StrandsRun)
    if run is None:
        async for event in _stream_messages(model, *given, **options):
            yield event
        return
    run.check()
    chat, ending = HeardReply(), ""
    with run.requests.asking():
        async for event in _stream_messages(_seen(model, chat), *given, **options):
            ending = event.get("event", {}).get("messageStop", {}).get("stopReason", ending)
            if isinstance(event, ModelStopReason):
                reason, _, used, _ = event["stop"]
                if reason == "cancelled" or chat.ending is None:
                    chat.ending = reason if reason == "cancelled" else ending
                usage = ModelUsage(
                    input_tokens=used["inputTokens"], output_tokens=used["outputTokens"]
                )
                try:
                    run.requests.replied(usage, ending=chat.ending, refusal=chat.refusal)
                except BaseException as error:
                    run.ended = error
                    raise
            yield event


def _seen(model: Any, heard: HeardReply) -> Any:
    """Return a model whose raw replies are recorded: ``OpenAIModel`` drops refusals and missing
    ends.
    """
    if "OpenAIModel" not in [each.__name__ for each in type(model).__mro__]:
        return model

    @asynccontextmanager
    async def client_of() -> AsyncIterator[Any]:
        async with model._get_client() as given:
            client = given.with_options()
            create = client.chat.completions.create

            async def created(**request: Any) -> Any:
                reply = await create(**request)
                if request["stream"]:
                    return heard.chunks(reply)
                heard.look_at(reply, "message")
                heard.ending = heard.ending or ""
                return reply

            client.chat.completions.create = created
            yield client

    seen = copy.copy(model)
    seen._get_client = client_of
    return seen


async def tools(agent: Callee, **options: Any) -> list[AgentTool]:
    """Return the skills of another agent as tools, with the schemas and descriptions of its card.

    Within a turn that ``strands.agent`` serves, a call interrupts the agent, and the turn makes it
    once in the life of the task; the turn's caller answers questions of the remote agent. Elsewhere
    a question interrupts the agent, and the response answers it.

    ``options`` are options of ``parley.connect``. Raises the errors of ``parley.connect``.
    """
    return [RemoteTool(each) for each in await remote_skills(agent, **options)]


class RemoteTool(AgentTool):  # type: ignore[misc]
    """A remote skill as a tool."""

    tool_type = "a2a"

    def __init__(self, skill: RemoteSkill) -> None:
        super().__init__()
        self.skill = skill
        self._asked: dict[str, tuple[RemoteQuestion, int]] = {}

    @property
    def tool_name(self) -> str:
        """The name, from the id of the skill."""
        return self.skill.name

    @property
    def tool_spec(self) -> Json:
        """The description and the schema, from the card."""
        return {
            "name": self.skill.name,
            "description": self.skill.description,
            "inputSchema": {"json": dict(self.skill.parameters)},
        }

    async def stream(
        self, tool_use: Any, invocation_state: Json, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Call the skill, and yield its result, or an interrupt."""
        context: Any = ToolContext(
            tool_use=tool_use, agent=invocation_state["agent"], invocation_state=invocation_state
        )
        run, use_id, arguments = current_run(StrandsRun), tool_use["toolUseId"], tool_use["input"]
        try:
            if run is not None:
                call = {"tool": self.tool_name, "arguments": arguments, "call_id": use_id}
                context.interrupt(REMOTE, reason=call)
                result = run.results[use_id]
            else:
                result = await self._outside(use_id, arguments, context)
        except InterruptException as error:
            yield ToolInterruptEvent(tool_use, [error.interrupt])
            return
        status = "error" if result.is_error else "success"
        yield ToolResultEvent({"toolUseId": use_id, "status": status, "content": blocks_of(result)})

    async def _outside(self, use_id: str, arguments: Json, context: Any) -> ToolResult:
        """Call outside of a turn: questions interrupt the agent, and are kept in this process."""
        question, number = self._asked.pop(use_id, (None, 0))
        while True:
            try:
                if question is None:
                    return await self.skill.call(arguments)
                self._asked[use_id] = (question, number)
                answer = context.interrupt(f"question-{number}", reason=question.text)
                del self._asked[use_id]
                return await self.skill.answer(question.task, answer)
            except RemoteQuestion as asked:
                question, number = asked, number + 1


async def sub_agent(agent: Callee, **options: Any) -> RemoteNode:
    """Return a remote agent as an agent of Strands, with the name and description of its card.

    Use it as a node of a graph. Within a turn that ``strands.agent`` serves, its questions reach
    the turn's caller; elsewhere a question raises ``RemoteQuestion``.

    ``options`` are options of ``parley.connect``. Raises the errors of ``parley.connect``.
    """
    return RemoteNode(agent, await card_of(agent, options), options)


class RemoteNode(AgentBase):  # type: ignore[misc]
    """A remote agent. Each call sends a message; the agent remembers its own context."""

    def __init__(self, agent: Callee, card: AgentCard, options: Mapping[str, Any]) -> None:
        self.name, self.description = card.name, card.description
        self._callee = agent, dict(options)

    def __call__(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Raise ``RuntimeError``: a remote agent must be called asynchronously."""
        raise RuntimeError(
            "await remote.invoke_async(...): a remote agent must be called asynchronously"
        )

    async def invoke_async(self, prompt: Any = None, **kwargs: Any) -> AgentResult:
        """Ask the remote agent, and return its answer."""
        return [event async for event in self.stream_async(prompt, **kwargs)][-1]["result"]

    async def stream_async(self, prompt: Any = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield the text of the answer as it comes, and the result at the end."""
        said, run, streamed = _text(prompt), current_run(StrandsRun), ""
        key = "" if run is None else run.call_key(said)
        async with aclosing(answer_of(*self._callee, said, key=key)) as heard:
            async for each in heard:
                if isinstance(each, str):
                    streamed += each
                    yield {"data": each}
                else:
                    result = result_of(each)
        if not streamed:
            yield {"data": result.text}
        if result.is_error:
            raise RuntimeError(f"{self.name}: {result.text}")
        message = {"role": "assistant", "content": [{"text": result.text}]}
        yield {"result": AgentResult("end_turn", message, EventLoopMetrics(), {})}


def _text(prompt: Any) -> str:
    """Return the text of a prompt: a string, content blocks, or the last of some messages."""
    if isinstance(prompt, str):
        return prompt
    blocks = list(prompt or ())
    if blocks and isinstance(blocks[-1], dict) and "content" in blocks[-1]:
        blocks = blocks[-1]["content"]
    return "\n".join(each["text"] for each in blocks if isinstance(each, dict) and "text" in each)
