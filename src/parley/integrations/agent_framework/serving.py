"""Agents of Microsoft Agent Framework as A2A agents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent_framework import AgentResponse, AgentSession, Workflow, WorkflowAgent
from agent_framework._tools import _FUNCTION_INVOCATION_LIMIT_FALLBACK_TEXT as NO_ANSWER
from agent_framework.exceptions import WorkflowConvergenceException

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.agent_framework.checkpoints import check_types
from parley.integrations.agent_framework.contents import message_of
from parley.integrations.agent_framework.replay import (
    RememberReplies,
    RememberResults,
    Steps,
    counted,
)
from parley.integrations.agent_framework.requests import answers_to
from parley.integrations.agent_framework.running import plain, schema_of
from parley.integrations.agent_framework.sessions import Bounds
from parley.integrations.agent_framework.shown import ShownUpdates
from parley.integrations.agent_framework.workflows import run_workflow
from parley.integrations.conversations import MAX_BYTES, ContextState
from parley.integrations.serving import described, framework_agent
from parley.integrations.threads import thread_id
from parley.llm.run_output import RunOutput

SESSION = "agent_framework.context"
"""The key of the session in a context."""

MAX_MESSAGES = 200
"""How many messages of its history a session keeps."""


def agent(
    thing: Any,
    *,
    name: str | None = None,
    description: str | None = None,
    max_messages: int = MAX_MESSAGES,
    max_bytes: int = MAX_BYTES,
    remember_runs: bool = True,
    checkpoint_types: Iterable[str] = (),
    **options: Any,
) -> Agent:
    """Return an agent, or what builds a workflow, as an A2A agent.

    ``thing`` is anything that the framework calls an agent (``SupportsAgentRun``), or a function
    without parameters that returns a ``Workflow``: a workflow has the state of its run, so each
    turn gets one of its own.

    The session belongs to the context: it is kept in Parley's store, with the newest
    ``max_messages`` of its history and at most ``max_bytes`` of JSON; session ids that providers of
    the framework see differ from caller to caller. Tools with ``approval_mode="always_require"``,
    and what a workflow requests, ask the turn's caller. Replies of the model and results of tools
    are remembered in the task, so neither an answer nor a crash repeats them, unless
    ``remember_runs`` is false. A workflow goes on from its newest checkpoint, in which
    ``checkpoint_types`` are the author's own types (``module:name``). ``options`` are those of
    ``Agent``.

    Raises ``TypeError`` for anything else, and ``ValueError`` for an invalid option, or if
    ``checkpoint_types`` lacks a type that the workflow passes.
    """
    if isinstance(thing, Workflow | WorkflowAgent):
        raise TypeError(
            f"{type(thing).__name__} {thing.name!r} has the state of one run, and many callers "
            "would share it; give the function that builds it: agent(build_workflow)"
        )
    if not hasattr(thing, "run"):
        return _workflow_agent(
            thing,
            name,
            description,
            Bounds(max_messages, max_bytes),
            tuple(checkpoint_types),
            options,
        )
    name = name or getattr(thing, "name", None) or type(thing).__name__
    if description is None:
        said = getattr(thing, "description", None)
        description = described(said, name, _tools_of(thing))
    return framework_agent(
        _Runs(thing, Bounds(max_messages, max_bytes), remember=remember_runs),
        name=name,
        description=description,
        tags=("agent-framework",),
        told=told,
        input_modes=("text/plain", "application/json", "image/*", "audio/*", "application/pdf"),
        **options,
    )


def _workflow_agent(
    build: Callable[[], Any],
    name: str | None,
    description: str | None,
    bounds: Bounds,
    types: tuple[str, ...],
    options: dict[str, Any],
) -> Agent:
    def built() -> Any:
        made = build()
        return made.workflow if isinstance(made, WorkflowAgent) else made

    workflow = built() if callable(build) else None
    if not isinstance(workflow, Workflow):
        raise TypeError(
            f"{type(build).__name__} is no agent of the framework: give an Agent, another object "
            "with run(), or a function that returns a Workflow"
        )

    check_types(workflow, types)

    async def run(turn: Turn, output: RunOutput) -> object:
        with counted(output.requests):
            return await run_workflow(built, turn, output, bounds=bounds, types=types)

    return framework_agent(
        run,
        name=name or workflow.name or "workflow",
        description=description or workflow.description or "",
        tags=("agent-framework", "workflow"),
        told=told,
        **options,
    )


class _Runs:
    """Runs an agent for a turn."""

    def __init__(self, agent: Any, bounds: Bounds, *, remember: bool) -> None:
        self._agent = agent
        self._bounds = bounds
        takes = inspect.signature(agent.run).parameters
        self._remembers = remember and "middleware" in takes
        self._format = (getattr(agent, "default_options", None) or {}).get("response_format")

    async def __call__(self, turn: Turn, output: RunOutput) -> object:
        with counted(output.requests):
            await self._run(turn, output)
        return None

    async def _run(self, turn: Turn, output: RunOutput) -> None:
        most = self._bounds.max_bytes
        kept = ContextState(turn, SESSION, max_bytes=most, shorten=self._bounds.shortened)
        before = await kept.read(step="session")
        if before:
            session = AgentSession.from_dict(before)
        else:
            session = self._agent.create_session(session_id=thread_id(turn))
        options: dict[str, Any] = {}
        if self._remembers:
            steps = Steps(turn)
            options["middleware"] = [
                RememberReplies(steps, output.requests),
                RememberResults(steps),
            ]
        message = await message_of(turn)
        asked = 0
        while True:
            shown = ShownUpdates(output, hidden=self._format is not None)
            response = await self._once(message, session, shown, options)
            if response.text.endswith(NO_ANSWER):
                turn.fail(
                    "The agent reached its most model requests without an answer "
                    "(max_iterations of its client's function_invocation_configuration)."
                )
            requests = response.user_input_requests
            if not requests:
                break
            await output.new_message()
            message = await answers_to(turn, requests, first=asked)
            asked += len(requests)
        if self._format is not None:
            await output.data(plain(response.value), schema=schema_of(self._format))
        await kept.write(before, session.to_dict())

    async def _once(
        self, message: Any, session: Any, shown: ShownUpdates, options: Mapping[str, Any]
    ) -> Any:
        stream = self._agent.run(message, stream=True, session=session, **options)
        if not hasattr(stream, "__aiter__"):
            stream = await stream
        updates = []
        async for update in stream:
            updates.append(update)
            await shown.update(update)
        await shown.flush()
        if hasattr(stream, "get_final_response"):
            return await stream.get_final_response()
        return AgentResponse.from_updates(updates)


def told(error: Exception) -> str:
    """Return what a caller may know of an error of the framework."""
    if isinstance(error, WorkflowConvergenceException):
        return "The workflow reached its most rounds (max_iterations) without an end."
    if "ContentFilter" in type(error).__name__:
        return "A content filter of the language model stopped the answer."
    return ""


def _tools_of(thing: Any) -> list[tuple[str, object]]:
    """Return the tools of an agent, and what they do."""
    tools = (getattr(thing, "default_options", None) or {}).get("tools") or ()
    return [(tool.name, tool.description) for tool in tools if hasattr(tool, "name")]
