"""Where the tools of a model come from: functions, other agents, MCP servers, opened for a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.util import find_spec
from typing import Any, Protocol, runtime_checkable

from parley.agent.remote.callees import Callee, UsableAgent
from parley.agent.tools.mcp_server import McpServer
from parley.agent.tools.tool import Tool, ToolResult
from parley.agent.turn import Turn
from parley.client.registry.found import FoundAgent
from parley.llm.current_turn import current_turn
from parley.llm.function_tools import FunctionTool, failed
from parley.llm.remote_skills import skills_on
from parley.model.cards import AgentCard
from parley.model.distribution import install_command
from parley.model.parts import Part

MAX_QUESTION = 2000
"""How many characters of a model's question its caller is asked."""


@runtime_checkable
class ToolSource(Protocol):
    """Something that has tools for a turn, such as a connection that is opened for it."""

    def open_tools(self, turn: Turn) -> AbstractAsyncContextManager[Sequence[Tool]]:
        """Open the tools for a turn, and close them with the block."""
        ...


class AgentSkills:
    """The skills of another agent as tools: all on its card, or those whose ids are named.

    ``agent`` is an address, a card, what ``parley.find`` returned, or an ``Agent`` of this process.
    ``options`` are those of ``parley.connect``, such as ``auth``.
    """

    def __init__(self, agent: Callee, *, skills: Iterable[str] = (), **options: Any) -> None:
        self.agent = agent
        self._only = tuple(skills)
        self._options = options

    def __repr__(self) -> str:
        agent = self.agent
        if isinstance(agent, str):
            return agent.rpartition("@")[2]  # an address may have a password
        return str(getattr(agent, "name", type(agent).__name__))

    @asynccontextmanager
    async def open_tools(self, turn: Turn) -> AsyncIterator[Sequence[Tool]]:
        """Read the agent's card, and yield its skills. Raises what ``turn.connect`` raises."""
        async with turn.connect(self.agent, **self._options) as remote:
            card = remote.card
            yield skills_on(self.agent, card, self._options, self._only)


class McpTools:
    """The tools of an MCP server: connected for a turn, each call done once."""

    def __init__(self, server: McpServer) -> None:
        self.server = server

    def __repr__(self) -> str:
        return self.server.name

    @asynccontextmanager
    async def open_tools(self, turn: Turn) -> AsyncIterator[Sequence[Tool]]:
        """Connect, and yield the tools. Raises ``McpServerUnavailable``."""
        async with turn.tools(self.server) as tools:
            yield tools.list


class AskUser:
    """The tool by which a model asks the caller of the turn: the task needs input meanwhile."""

    name = "ask_user"
    description = (
        "Ask the user a question, and wait for the answer. Use it only for what you need and "
        "cannot find out otherwise."
    )
    parameters: Mapping[str, Any] = {
        "type": "object",
        "properties": {"question": {"type": "string", "description": "The question, in full"}},
        "required": ["question"],
    }

    async def call(self, arguments: Mapping[str, Any], *, key: str) -> ToolResult:
        """Ask, and return the answer."""
        question = arguments.get("question")
        if not isinstance(question, str) or not question.strip():
            return failed("question is the text of the question")
        turn = current_turn()
        if turn is None:
            return failed("nobody can be asked here")
        answer = await turn.ask(question[:MAX_QUESTION], key=key)
        return ToolResult(parts=tuple(answer.parts) or (Part(text=""),))


ToolLike = Any
"""A function, an agent or its address, an MCP server, a ``Tool``, a ``ToolSource``, a list."""


def sorted_out(given: Iterable[ToolLike]) -> list[Tool | ToolSource]:
    """Return what an author gave as tools, as tools and sources of tools.

    Raises ``TypeError`` for anything else.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise TypeError(f"tools is a list: write tools=[{given!r}]")
    found: list[Tool | ToolSource] = []
    for each in given:
        if isinstance(each, list | tuple):
            found += sorted_out(each)
        elif isinstance(each, str | AgentCard | UsableAgent | FoundAgent):
            found.append(AgentSkills(each))
        elif isinstance(each, McpServer):
            found.append(McpTools(each))
        elif isinstance(each, ToolSource) or is_tool(each):
            found.append(each)
        elif callable(each):
            found.append(FunctionTool(_function(each)))
        else:
            raise TypeError(
                "a tool is a function, an agent or its address, an MCP server, or an object with "
                f"name, description, parameters and call, not {each!r}"
            )
    return found


def check_installed(tools: Iterable[Tool | ToolSource]) -> None:
    """Raise ``ImportError`` where a tool needs a package that is not there."""
    for each in tools:
        if isinstance(each, McpTools) and find_spec("mcp") is None:
            raise ImportError(
                f"the tools of {each!r} need the package mcp: {install_command('mcp')}", name="mcp"
            )


def _function(each: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = each
    return function


def is_tool(value: object) -> bool:
    """Return whether a value has the members of a ``Tool``."""
    names = ("name", "description", "parameters", "call")
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def agents_in(tools: Iterable[Tool | ToolSource]) -> list[UsableAgent]:
    """Return the agents of this process among some tools."""
    found = [getattr(each, "agent", None) for each in tools]
    return [agent for agent in found if isinstance(agent, UsableAgent)]
