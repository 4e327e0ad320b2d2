"""An agent of the SDK as a Parley agent: its card, its MCP servers, its turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import agents

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.integrations.openai_agents.failures import told
from parley.integrations.openai_agents.model_replies import count_requests
from parley.integrations.openai_agents.output_types import schema_of
from parley.integrations.openai_agents.turn_run import TurnRun, reachable
from parley.integrations.serving import described, framework_agent
from parley.llm.run_output import RunOutput


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
    """Return an agent of the SDK as a Parley agent. ``options`` are those of ``Agent``.

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
