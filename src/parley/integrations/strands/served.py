"""Agents, graphs and swarms of Strands as Parley agents: the card, the runs, counted requests."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import strands
from strands.event_loop import event_loop
from strands.multiagent.base import MultiAgentBase
from strands.types._events import ModelStopReason
from strands.types.exceptions import (
    ContextWindowOverflowException,
    MaxTokensReachedException,
    ModelThrottledException,
    StructuredOutputException,
)

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.conversations import thread_id
from parley.integrations.litellm_streams import HeardReply
from parley.integrations.serving import described, framework_agent
from parley.integrations.strands.runs import (
    AgentRun,
    GraphRun,
    StrandsRun,
    check_copied,
    copy_of,
    silenced,
)
from parley.llm.model import ModelUsage
from parley.llm.run_output import RunOutput, current_run
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
        if not isinstance(made, strands.Agent | MultiAgentBase):
            raise TypeError(f"the function made {an(type(made).__name__)}, not an agent or a graph")
        kind = AgentRun if isinstance(made, strands.Agent) else GraphRun
        await kind(made, output, state).run()

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
        told=TOLD,
        **options,
    )


TOLD = (
    (ModelThrottledException, "", "The language model is busy; try again later."),
    (MaxTokensReachedException, "", "The language model's reply reached its longest length."),
    (ContextWindowOverflowException, "", "The conversation is longer than the model can read."),
    (StructuredOutputException, "", "The reply of the language model could not be used."),
)


_stream_messages = event_loop.stream_messages


def count_requests() -> None:
    """Let each request to a model in a turn count; outside of a turn nothing changes.

    No hook of Strands sees the requests of agents that tools run.
    """
    event_loop.stream_messages = _counted


async def _counted(model: Any, *given: Any, **options: Any) -> AsyncIterator[Any]:
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
    """Return a model whose replies are heard: ``OpenAIModel`` drops refusals and missing ends."""
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
