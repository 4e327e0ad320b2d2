"""The run of a turn: steps, interrupts as questions, remote calls, a copy of the agent."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import strands
from strands.agent._concurrency import _ConcurrencyController
from strands.agent.state import AgentState
from strands.handlers.callback_handler import PrintingCallbackHandler, null_callback_handler
from strands.interrupt import _InterruptState
from strands.multiagent.base import MultiAgentBase
from strands.telemetry.metrics import EventLoopMetrics
from strands.tools._caller import _ToolCaller

from parley.agent.tools.tool import ToolResult
from parley.agent.turn import Turn
from parley.integrations.answers import said_in
from parley.integrations.remembered_calls import CallKeys
from parley.integrations.serving import result_of_steps
from parley.llm.remote_skills import RemoteSkill
from parley.llm.run_output import ModelRequests
from parley.model.errors import an
from parley.model.parts import Part

REMOTE = "parley:remote-call"
"""The name of an interrupt that is a call of a remote skill, which the turn makes."""


_RUN: ContextVar[CurrentRun | None] = ContextVar("parley_strands_run", default=None)


class CurrentRun:
    """The run of an agent, a graph or a swarm in a turn.

    ``results`` has the results of remote calls, by tool use. ``ended`` is the exception with which
    a request to a model ended the run: Strands continues without a tool or a node that ends so.
    """

    def __init__(self, turn: Turn, thing: Any, requests: ModelRequests) -> None:
        self.results: dict[str, ToolResult] = {}
        self.requests = requests
        self.ended: BaseException | None = None
        self._turn = turn
        self._thing = thing
        self._keys = CallKeys()

    def call_key(self, said: str) -> str:
        """Return a key for a call of a remote node: by what is said, and how often before."""
        return self._keys.key("strands", said)

    async def steps(self, name: str, go: Callable[..., Awaitable[Any]], prompt: Any) -> Any:
        """Return the result of a run, whose interrupts are questions: see ``result_of_steps``."""
        with _running(self):
            return await result_of_steps(self._turn, name, go, self._prompt, prompt)

    async def _prompt(self, kept: Any, number: int) -> Any:
        if kept["interrupts"]:
            return await self.answers(kept["interrupts"])
        return {"checkpointResume": {"checkpoint": kept["checkpoint"]}}

    def check(self) -> None:
        """Raise the end of the run."""
        if self.ended is not None:
            raise self.ended

    async def answers(self, interrupts: list[dict[str, Any]]) -> list[Any]:
        """Return the prompt that resumes: the response to each interrupt.

        Remote calls are made at the same time; questions are asked one after the other.
        """
        remote = [each for each in interrupts if each["name"] == REMOTE]
        await asyncio.gather(*[self._call(each) for each in remote])
        found = []
        for each in interrupts:
            response = "done" if each["name"] == REMOTE else await self._ask(each)
            found.append({"interruptResponse": {"interruptId": each["id"], "response": response}})
        return found

    async def _ask(self, interrupt: dict[str, Any]) -> Any:
        reason = interrupt.get("reason")
        if isinstance(reason, str) and reason:
            asked: Any = reason
        elif reason is None:
            asked = interrupt["name"]
        else:
            text = f"{interrupt['name']}: {json.dumps(reason, ensure_ascii=False)}"
            asked = [Part(text=text), Part(data=reason, media_type="application/json")]
        answer = await self._turn.ask(asked, key=f"strands:{interrupt['id']}")
        said = said_in(answer)
        return answer.text if said is None else said

    async def _call(self, interrupt: dict[str, Any]) -> None:
        call = interrupt["reason"]
        skill = self._skill(call["tool"])
        result = await skill.call(call["arguments"], key=f"strands:{interrupt['id']}")
        self.results[call["toolUseId"]] = result

    def _skill(self, tool: str) -> RemoteSkill:
        for each in agents_in(self._thing):
            skill = getattr(each.tool_registry.registry.get(tool), "skill", None)
            if isinstance(skill, RemoteSkill):
                return skill
        raise LookupError(f"the tool {tool!r}, which a call waits for, is no remote skill any more")


def current_run() -> CurrentRun | None:
    """Return the run of a turn, ``None`` outside of one."""
    return _RUN.get()


@contextmanager
def _running(run: CurrentRun) -> Iterator[None]:
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)


def unanswered(interrupts: Any) -> list[dict[str, Any]]:
    """Return interrupts as JSON. Raises ``TypeError`` for a reason that is no JSON."""
    found = []
    for each in interrupts or ():
        try:
            json.dumps(each.reason)
        except (TypeError, ValueError):
            raise TypeError(
                f"the reason of the interrupt {each.name!r} is {an(type(each.reason).__name__)}, "
                "which is no JSON; it is sent to the caller"
            ) from None
        found.append({"id": each.id, "name": each.name, "reason": each.reason})
    return found


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
