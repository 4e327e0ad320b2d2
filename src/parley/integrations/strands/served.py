"""Agents, graphs and swarms of Strands as Parley agents: the card, the runs, counted requests."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeAlias

import strands
from strands.event_loop import event_loop
from strands.multiagent.base import MultiAgentBase, MultiAgentResult, Status
from strands.types._events import ModelStopReason
from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
    ModelThrottledException,
    StructuredOutputException,
)
from strands.types.session import decode_bytes_values

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.conversations import TaskValue, thread_id
from parley.integrations.serving import RunOver, described, framework_agent
from parley.integrations.strands.agent_run import AgentRun
from parley.integrations.strands.contents import StrandsDisplay, prompt_of, written
from parley.integrations.strands.interrupts import (
    CurrentRun,
    check_copied,
    copy_of,
    current_run,
    silenced,
    unanswered,
)
from parley.llm.model import ModelUsage
from parley.llm.run_output import RunOutput
from parley.model.errors import an

Made: TypeAlias = "strands.Agent | MultiAgentBase"


def agent(
    thing: strands.Agent | Callable[[str], Made],
    *,
    name: str | None = None,
    description: str | None = None,
    invocation_state: Callable[[Turn], dict[str, Any]] | None = None,
    **options: Any,
) -> Agent:
    """Return an agent of Strands as a Parley agent. ``options`` are options of ``Agent``.

    ``thing`` is an agent, of which each turn gets a copy, or a function of the thread's id that
    returns a new agent, graph or swarm for each turn: for those with a session manager, and for
    graphs and swarms. A function needs a ``name``; its docstring is the description.

    Interrupts ask the caller, and the answer is the interrupt's response: data, or else text. The
    conversation of a ``contextId`` is kept in its context, unless a session manager keeps it. The
    agent's snapshot is kept in the task's log after each round of tool calls and at each interrupt.
    ``invocation_state`` makes that of a turn.

    Raises ``TypeError`` for what cannot be served so, and ``ValueError`` without a name.
    """
    if isinstance(thing, MultiAgentBase):
        kind = type(thing).__name__
        raise TypeError(
            f"{an(kind)} holds the state of one run; give a function that makes one: "
            f"strands.agent(lambda thread: ..., name=...)"
        )
    if isinstance(thing, strands.Agent):
        check_copied(thing)
        name, template = name or thing.name, thing
        specs = thing.tool_registry.registry.items()
        tools = [(tool, held.tool_spec.get("description")) for tool, held in specs]
        said = described(thing.description, name, tools)
        tags = tuple(thing.tool_names)
        make: Callable[[str], Made] = lambda thread: copy_of(template)  # noqa: E731
    elif callable(thing):
        if name is None:
            raise ValueError("a function that makes agents needs a name=, for the card")
        make, tags, said = thing, (), inspect.getdoc(thing) or ""
    else:
        raise TypeError(
            f"strands.agent serves a strands.Agent, or a function that makes agents, graphs or "
            f"swarms, not {type(thing).__name__}"
        )

    async def run(turn: Turn, output: RunOutput) -> None:
        thread = thread_id(turn)
        made = silenced(make(thread))
        state = {} if invocation_state is None else invocation_state(turn)
        if isinstance(made, strands.Agent):
            await AgentRun(made, turn, output, state).run()
        elif isinstance(made, MultiAgentBase):
            await GraphRun(made, turn, output, state).run()
        else:
            raise TypeError(f"the function made {an(type(made).__name__)}, not an agent or a graph")

    count_requests()
    schema = None
    if isinstance(thing, strands.Agent) and thing._default_structured_output_model is not None:
        schema = thing._default_structured_output_model.model_json_schema()
    return framework_agent(
        run,
        name=name,
        description=said if description is None else description,
        tags=tags,
        output_schema=schema,
        told=told,
        **options,
    )


STEP = "strands-graph"


class GraphRun:
    """Runs a graph or a swarm for one turn. It is this turn's own.

    Its state at an interrupt is a step of the task. Its state after each node is kept in the
    context until the task ends, so a crash repeats the nodes that had not ended.
    """

    def __init__(
        self, thing: MultiAgentBase, turn: Turn, output: RunOutput, state: dict[str, Any]
    ) -> None:
        self._graph: Any = thing
        self._turn = turn
        self._output = output
        self._state = state
        self._display = StrandsDisplay(output, set())
        self._run = CurrentRun(turn, thing, output.requests)
        self._nodes = TaskValue(turn, "urn:parley:strands:graph")
        self._is_live = False

    async def run(self) -> None:
        """Run until all nodes have ended, and show what the last ones said."""
        prompt: Any = await prompt_of(self._turn)
        if len(prompt) == 1 and "text" in prompt[0]:
            prompt = prompt[0]["text"]
        await self._finish(await self._run.steps(STEP, self._go, prompt))

    async def _go(self, prompt: Any, kept: dict[str, Any] | None, number: int) -> dict[str, Any]:
        if not self._is_live:
            self._is_live = True
            newest = await self._nodes.read()  # after a node, or else at the newest interrupt
            if newest is None or newest["number"] != number:
                newest = kept
            if newest is not None:
                self._graph.deserialize_state(decode_bytes_values(newest["state"]))
        result = await self._result(prompt, number)
        if result.status is not Status.INTERRUPTED:
            raise RunOver(result)
        interrupts = unanswered(result.interrupts)
        return {
            "number": number,
            "state": written(self._graph.serialize_state()),
            "interrupts": interrupts,
        }

    async def _result(self, prompt: Any, number: int) -> MultiAgentResult:
        result: MultiAgentResult | None = None
        async with aclosing(self._graph.stream_async(prompt, self._state)) as events:
            async for event in events:
                self._run.check()
                if isinstance(found := event.get("result"), MultiAgentResult):
                    result = found
                    continue
                await self._display.show(event)
                if event.get("type") == "multiagent_node_stop":
                    await self._nodes.write(
                        {"number": number, "state": written(self._graph.serialize_state())}
                    )
        assert result is not None
        return result

    async def _finish(self, result: MultiAgentResult) -> None:
        if result.status is Status.FAILED:
            for each in result.results.values():
                if isinstance(each.result, Exception):
                    raise each.result
            self._turn.fail("The run reached its limit of nodes, handoffs or time.")
        text = "\n".join(str(result.results[name]).strip() for name in self._last(result))
        await self._output.whole(text)

    def _last(self, result: Any) -> list[str]:
        """Return the ids of the nodes whose results are the answer: those that none follows."""
        order = getattr(result, "execution_order", None) or getattr(result, "node_history", [])
        names = [each.node_id for each in order]
        followed = {each.from_node.node_id for each in getattr(self._graph, "edges", ())}
        ends = [name for name in dict.fromkeys(names) if name not in followed]
        chosen = ends if followed and ends else names[-1:]
        return [name for name in chosen if name in result.results]


_TOLD = {
    ModelThrottledException: "The language model is busy; try again later.",
    MaxTokensReachedException: "The language model's reply reached its longest length.",
    ContextWindowOverflowException: "The conversation is longer than the model can read.",
    StructuredOutputException: "The reply of the language model could not be used.",
}


def told(error: BaseException) -> str:
    """Return the sentence for callers about an error of Strands, empty for other errors."""
    while isinstance(error, EventLoopException) and error.original_exception is not None:
        error = error.original_exception
    return next((said for kind, said in _TOLD.items() if isinstance(error, kind)), "")


_stream_messages = event_loop.stream_messages


def count_requests() -> None:
    """Let each request to a model in a turn count; outside of a turn nothing changes.

    No hook of Strands sees the requests of agents that tools run.
    """
    event_loop.stream_messages = _counted


async def _counted(model: Any, *given: Any, **options: Any) -> AsyncIterator[Any]:
    run = current_run()
    if run is None:
        async for event in _stream_messages(model, *given, **options):
            yield event
        return
    run.check()
    chat, ending = ChatReply(), ""
    with run.requests.asking():
        async for event in _stream_messages(chat.seen(model), *given, **options):
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


class ChatReply:
    """What ``OpenAIModel`` drops of a reply: a refusal, and that a stream ended without a reason.

    ``ending`` is ``None`` for the replies of other models.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self.ending: str | None = None

    def seen(self, model: Any) -> Any:
        """Return a model whose replies are looked at here."""
        if "OpenAIModel" not in [each.__name__ for each in type(model).__mro__]:
            return model
        seen = copy.copy(model)
        seen._get_client = lambda: self._client(model)
        return seen

    @asynccontextmanager
    async def _client(self, model: Any) -> AsyncIterator[Any]:
        async with model._get_client() as given:
            client = given.with_options()
            create = client.chat.completions.create

            async def created(**request: Any) -> Any:
                self.ending = ""
                reply = await create(**request)
                if request["stream"]:
                    return self._chunks(reply)
                self._look_at(reply, "message")
                return reply

            client.chat.completions.create = created
            yield client

    async def _chunks(self, stream: Any) -> AsyncIterator[Any]:
        async for chunk in stream:
            self._look_at(chunk, "delta")
            yield chunk

    def _look_at(self, reply: Any, said: str) -> None:
        for choice in reply.choices or ():
            self.ending = choice.finish_reason or self.ending
            self.refusal += getattr(getattr(choice, said), "refusal", None) or ""
