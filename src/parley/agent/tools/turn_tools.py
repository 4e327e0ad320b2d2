"""``turn.tools``: the tools of MCP servers in a turn, each call once in the life of its task."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from parley.agent.tools.mcp_server import McpServer, McpServerUnavailable
from parley.agent.tools.mcp_sessions import McpSessions, ServerUse
from parley.agent.tools.tool import ToolResult
from parley.engine.turn.attempt import Attempt

if TYPE_CHECKING:
    from mcp import types

    from parley.agent.tools.mcp_session import McpSession

NAME_LENGTH = 64
"""How long the name of a tool may be."""

DESCRIPTION_LENGTH = 4000
"""How many characters of a tool's description are kept."""


class McpTool:
    """A tool of an MCP server, bound to a turn: a ``Tool``.

    ``name`` is unique among the tools of the turn; ``tool`` is the name that the server has for it.
    ``output_schema`` is the JSON Schema of the ``data`` of its results, if the server says.
    ``is_repeatable``: a call may be repeated after a crash.
    """

    def __init__(self, tools: TurnTools, use: ServerUse, described: types.Tool, name: str) -> None:
        self.name = name
        self.tool = described.name
        self.server = use.server
        self.description = (described.description or described.title or "")[:DESCRIPTION_LENGTH]
        self.parameters: Mapping[str, Any] = described.input_schema
        self.output_schema: Mapping[str, Any] | None = described.output_schema
        hints = described.annotations
        self.is_read_only = bool(hints and hints.read_only_hint)
        self.is_repeatable = (
            self.server.repeats or self.is_read_only or bool(hints and hints.idempotent_hint)
        )
        self._tools = tools
        self.use = use

    def __repr__(self) -> str:
        return f"<tool {self.name} of {self.server.address}>"

    async def call(
        self, arguments: Mapping[str, Any] | None = None, *, key: str = "", timeout: float = 0.0
    ) -> ToolResult:
        """Call it once in the life of the task; later attempts take the result from the log.

        ``key`` identifies the call, else its order among those of the tool. What the server refuses
        and what fails is a result with ``is_error``. The server's questions go to the turn's
        caller. ``timeout``, in seconds, replaces that of the server.

        Raises ``ValueError`` for a key that this turn has used.
        """
        from parley.agent.tools.mcp_calls import McpCall

        call = McpCall(self._tools.attempt, self, self._tools.key(self, key))
        return await call.run(
            dict(arguments or {}),
            timeout=timeout or self.server.timeout,
            progress=self._tools.progress,
        )


class TurnTools:
    """The tools of some MCP servers in a turn: ``tools["name"]``, or ``await tools.call("name")``.

    Iterate over it, or take ``list``.
    """

    def __init__(
        self, attempt: Attempt, sessions: McpSessions, *, progress: bool, counts: Counter[str]
    ) -> None:
        self.list: tuple[McpTool, ...] = ()
        self.attempt = attempt
        self.sessions = sessions
        self.progress = progress
        self._counts = counts
        self._uses: list[ServerUse] = []

    def __iter__(self) -> Iterator[McpTool]:
        return iter(self.list)

    def __len__(self) -> int:
        return len(self.list)

    def __contains__(self, name: object) -> bool:
        return any(each.name == name for each in self.list)

    def __getitem__(self, name: str) -> McpTool:
        for tool in self.list:
            if tool.name == name:
                return tool
        names = ", ".join(each.name for each in self.list) or "none"
        raise KeyError(f"there is no tool {name!r}; there are: {names}")

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        timeout: float = 0.0,
    ) -> ToolResult:
        """Call a tool by its name: see ``McpTool.call``. Raises ``KeyError`` for another name."""
        return await self[name].call(arguments, key=key, timeout=timeout)

    def key(self, tool: McpTool, key: str) -> str:
        """Return the name of a call in the log: its key, or its number among those of the tool."""
        if not key:
            name = f"{tool.server.name}/{tool.tool}"
            self._counts[name] += 1
            key = f"{name}#{self._counts[name]}"
        return key

    async def open(self, servers: Sequence[McpServer]) -> None:
        """Connect to all servers, at once. Raises ``McpServerUnavailable``."""
        results = await asyncio.gather(*map(self._open, servers), return_exceptions=True)
        failed = [each for each in results if isinstance(each, BaseException)]
        if failed:
            self.close()
            raise failed[0]
        found = [each for each in results if not isinstance(each, BaseException)]
        self.list = tuple(self._named(found))

    async def _open(self, server: McpServer) -> tuple[ServerUse, Sequence[types.Tool]]:
        use = ServerUse(self.sessions, server)
        self._uses.append(use)

        async def tools_of(session: McpSession) -> list[types.Tool]:
            return offered(server, await session.list_tools(), session.left_out)

        return use, await use.run(tools_of)

    def _named(self, found: Sequence[tuple[ServerUse, Sequence[types.Tool]]]) -> Iterator[McpTool]:
        counts = Counter(tool_name(tool.name) for _, tools in found for tool in tools)
        names: set[str] = set()
        for use, tools in found:
            for tool in tools:
                wanted = tool_name(tool.name)
                if counts[wanted] > 1:
                    wanted = tool_name(f"{use.server.name}_{tool.name}")
                name, number = wanted, 2
                while name in names:
                    name = f"{wanted[: NAME_LENGTH - 4]}_{number}"
                    number += 1
                names.add(name)
                yield McpTool(self, use, tool, name)

    def close(self) -> None:
        """Give the connections back. Idempotent."""
        uses, self._uses = self._uses, []
        for use in uses:
            use.release()


class TurnToolsOpening:
    """Tools to be opened: ``async with`` it, or ``await`` it. They close with the turn at last."""

    def __init__(
        self,
        attempt: Attempt,
        sessions: McpSessions,
        servers: Sequence[McpServer],
        *,
        progress: bool,
        counts: Counter[str],
    ) -> None:
        for each in servers:
            if not isinstance(each, McpServer):
                raise TypeError(
                    'turn.tools takes MCP servers: McpServer("https://host/mcp"), or '
                    f'McpServer.stdio("python", "server.py"), not {each!r:.200}'
                )
        self._servers = servers
        self._tools = TurnTools(attempt, sessions, progress=progress, counts=counts)

    def __await__(self) -> Generator[Any, None, TurnTools]:
        return self._open().__await__()

    async def __aenter__(self) -> TurnTools:
        return await self._open()

    async def __aexit__(self, *error: object) -> None:
        self._tools.close()

    async def _open(self) -> TurnTools:
        tools = self._tools
        with tools.attempt.waits.busy():
            await tools.open(self._servers)
        tools.attempt.on_end += (tools.close,)
        return tools


def offered(
    server: McpServer, tools: Sequence[types.Tool], left_out: Mapping[str, str]
) -> list[types.Tool]:
    """Return the tools that a server is to offer. Raises ``McpServerUnavailable``.

    ``left_out`` are the names of unusable tools, and the reasons.
    """
    for name in sorted(left_out.keys() & (server.tools or ())):
        raise McpServerUnavailable(
            f"the tool {name} of the MCP server {server.address} cannot be used: {left_out[name]}"
        )
    found = [each for each in tools if server.tools is None or each.name in server.tools]
    if server.tools is not None and (absent := server.tools - {each.name for each in found}):
        raise McpServerUnavailable(
            f"the MCP server {server.address} has no tool {', '.join(sorted(absent))}"
        )
    if len(found) > server.max_tools:
        raise McpServerUnavailable(
            f"the MCP server {server.address} has {len(found)} tools, more than {server.max_tools}:"
            " name those that are needed (tools=[...]), or raise max_tools"
        )
    return found


def tool_name(text: str) -> str:
    """Return a name for models: letters, digits, ``_`` and ``-``, at most 64."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_")[:NAME_LENGTH] or "tool"


class BlockingTools:
    """``TurnTools`` with blocking methods, for a function that runs in a thread."""

    def __init__(self, opening: TurnToolsOpening, wait: Any) -> None:
        self._wait = wait
        self._opening = opening

        async def opened() -> TurnTools:
            return await opening

        self.tools: TurnTools = wait(opened())

    @property
    def list(self) -> tuple[McpTool, ...]:
        """The tools; call them by their names."""
        return self.tools.list

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str = "",
        timeout: float = 0.0,
    ) -> ToolResult:
        """Call a tool by its name, once in the life of the task."""
        result: ToolResult = self._wait(self.tools.call(name, arguments, key=key, timeout=timeout))
        return result

    def close(self) -> None:
        """Give the connections back. Idempotent; the turn's end does it too."""

        async def close() -> None:
            self.tools.close()

        self._wait(close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
