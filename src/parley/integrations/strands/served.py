"""Agents, graphs and swarms of Strands as Parley agents: the card, and what runs a turn."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import strands
from strands.multiagent.base import MultiAgentBase

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.serving import described, framework_agent
from parley.integrations.strands.agent_run import AgentRun
from parley.integrations.strands.copies import check_copied, copy_of, silenced
from parley.integrations.strands.failures import told
from parley.integrations.strands.graph_run import GraphRun
from parley.integrations.strands.model_replies import count_requests
from parley.integrations.threads import thread_id
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
    """Return an agent of Strands as a Parley agent. ``options`` are those of ``Agent``.

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
