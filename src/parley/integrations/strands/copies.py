"""Copies of agents: each turn has its own, because an agent holds one conversation."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import strands
from strands.agent._concurrency import _ConcurrencyController
from strands.agent.state import AgentState
from strands.handlers.callback_handler import PrintingCallbackHandler, null_callback_handler
from strands.interrupt import _InterruptState
from strands.multiagent.base import MultiAgentBase
from strands.telemetry.metrics import EventLoopMetrics
from strands.tools._caller import _ToolCaller


def check_copied(thing: strands.Agent) -> None:
    """Raise ``TypeError`` for an agent that cannot be copied for each turn."""
    if thing._session_manager is not None:
        raise TypeError(
            "this agent has a session manager, so all callers would have one conversation; give a "
            "function that makes the agent of a thread: "
            "strands.agent(lambda thread: Agent(..., session_manager=...(session_id=thread)), "
            "name=...)"
        )
    if thing._background_tasks is not None:
        raise TypeError(
            "this agent runs background tasks, which belong to one conversation; give a function "
            "that makes the agent of a thread: strands.agent(lambda thread: Agent(...), name=...)"
        )


def copy_of(thing: strands.Agent) -> strands.Agent:
    """Return an agent with the same model, tools, hooks and plugins, and a state of its own."""
    new = copy.copy(thing)
    new.messages = copy.deepcopy(thing.messages)
    new.state = AgentState(copy.deepcopy(thing.state.get()))
    new.conversation_manager = copy.copy(thing.conversation_manager)
    new.event_loop_metrics = EventLoopMetrics()
    new.tool_registry = copy.copy(thing.tool_registry)
    new.tool_registry.registry = dict(thing.tool_registry.registry)
    new.tool_registry.dynamic_tools = dict(thing.tool_registry.dynamic_tools)
    new.tool_registry._tool_providers = []  # they end with the agent that was given
    new.tool_caller = _ToolCaller(new)
    new._interrupt_state = _InterruptState()
    new._concurrency = _ConcurrencyController(thing._concurrency.mode)
    new._cancel_signal = threading.Event()
    new._model_state = copy.deepcopy(thing._model_state)
    return new


def agents_in(thing: Any) -> Iterator[strands.Agent]:
    """Yield an agent, or the agents in the nodes of a graph or a swarm."""
    if isinstance(thing, strands.Agent):
        yield thing
    elif isinstance(thing, MultiAgentBase):
        for node in getattr(thing, "nodes", {}).values():
            yield from agents_in(node.executor)


def silenced(thing: Any) -> Any:
    """Return an agent, graph or swarm whose agents do not print what they say."""
    for each in agents_in(thing):
        if isinstance(each.callback_handler, PrintingCallbackHandler):
            each.callback_handler = null_callback_handler
    return thing
