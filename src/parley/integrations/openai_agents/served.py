"""An agent of the SDK as a Parley agent: card, MCP servers, turns, counted requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import agents
from agents.items import ItemHelpers
from agents.models.chatcmpl_stream_handler import ChatCmplStreamHandler
from agents.run_internal import run_loop
from openai.types.responses import ResponseCompletedEvent

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.openai_agents.remote_tools import RemoteAgentModel
from parley.integrations.openai_agents.turn_run import (
    TurnRun,
    current_run,
    reachable,
    schema_of,
    told,
)
from parley.integrations.serving import described, framework_agent
from parley.llm.model import ModelUsage
from parley.llm.run_output import ModelRequests, RunOutput


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
    and at every question, so a crash repeats no tool that returned. A tool that needs approval asks
    the caller. A tripwire of a guardrail rejects the task; ``refusal`` makes its message.

    The conversation of a ``contextId`` is kept in its context, bounded. ``session`` keeps it
    elsewhere: a function of the thread's id that returns a session of the SDK, such as
    ``lambda thread: SQLiteSession(thread, "memory.db")``. The agent that last had the conversation
    has the next message. ``context`` makes the run context of a turn, which lives on over crashes
    and answers if it is data. ``run_config``, ``hooks`` and ``max_turns`` are those of the SDK's
    ``Runner``.

    The agent's MCP servers that are not connected are connected while the agent is served.

    Raises ``TypeError`` for anything but an agent of the SDK.
    """
    if not isinstance(thing, agents.Agent):
        raise TypeError(
            f"openai_agents.agent serves an agents.Agent, not {type(thing).__name__}; "
            "for an agent of the realtime or voice API, serve the agent behind it"
        )
    count_requests()
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
            turn,
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
        told=told,
        **options,
    )


def _connected(
    servers: list[Any], lifespan: Callable[[Agent], AbstractAsyncContextManager[Any]] | None
) -> Callable[[Agent], AbstractAsyncContextManager[Any]]:
    """Return a lifespan that connects MCP servers, around the author's own."""

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
"""The metadata of a streamed chat completion in which its finish reason is."""


class CountedModel:
    """A model whose replies count in a turn. A reply that is cut does not reach the run."""

    def __init__(self, model: Any, requests: ModelRequests) -> None:
        self._model = model
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        """Return what the model has."""
        return getattr(self._model, name)

    async def get_response(self, *given: Any, **options: Any) -> Any:
        """Return the reply of the model."""
        with self._requests.asking():
            reply = await self._model.get_response(*given, **options)
        self._requests.replied(_usage(reply.usage))
        return reply

    async def stream_response(self, *given: Any, **options: Any) -> AsyncIterator[Any]:
        """Yield the events of a reply. A reply that reached its longest length is one, too."""
        events = self._model.stream_response(*given, **options)
        try:
            with self._requests.asking():
                async for event in events:
                    if event.type in ("response.completed", "response.incomplete"):
                        yield self._completed(event)
                        return
                    yield event
            self._requests.replied(None, ending="")
        finally:
            if (close := getattr(events, "aclose", None)) is not None:
                await close()

    def _completed(self, event: Any) -> ResponseCompletedEvent:
        said = event.response
        ending, details = (said.metadata or {}).get(FINISH), said.incomplete_details
        if ending is None:
            ending = said.status if details is None else details.reason
        refusal = "".join(ItemHelpers.extract_refusal(each) or "" for each in said.output)
        self._requests.replied(_usage(said.usage), ending=ending, refusal=refusal)
        return ResponseCompletedEvent(
            type="response.completed", response=said, sequence_number=event.sequence_number
        )


def _usage(used: Any) -> ModelUsage | None:
    return used and ModelUsage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)


_get_model = run_loop.get_model
_handle_stream = ChatCmplStreamHandler.handle_stream


def count_requests() -> None:
    """Let each request to a model in a turn count; outside of a turn nothing changes.

    The SDK has no hook for the models of agents that tools run, and drops the finish reason of a
    streamed chat completion.
    """
    run_loop.get_model = _counted
    ChatCmplStreamHandler.handle_stream = staticmethod(_with_finish_reason)


def _counted(agent: Any, config: Any) -> Any:
    model, run = _get_model(agent, config), current_run()
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

    if current_run() is not None:  # the turn says what is wrong with a reply
        options |= {"require_finish_reason": False, "raise_on_length_truncation": False}
    return _handle_stream(response, chunks(), *given, **options)
