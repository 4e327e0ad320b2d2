"""``turn.tools``: the tools of sources in a turn. Each call is executed once in a task's life."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Self

from parley.agent.tools.tool import (
    Tool,
    ToolResult,
    ToolSource,
    call_once,
    free_name,
    source_name,
    tool_name,
)
from parley.model.blocking import SyncProxy, blocking


class TurnTool:
    """A tool of a source in a turn: a ``Tool``. Names are unique in a turn.

    ``tool`` is its name at the source. ``output_schema`` is the JSON Schema of the ``data`` of its
    results, if the source declares one.
    """

    remembers_calls = True

    def __init__(self, tools: TurnTools, source: ToolSource, tool: Tool, name: str) -> None:
        self.name = name
        self.source = source
        self.tool = tool.name
        self.description = tool.description
        self.parameters = tool.parameters
        self.output_schema: Mapping[str, Any] | None = getattr(tool, "output_schema", None)
        self._tool = tool
        self._tools = tools

    def __repr__(self) -> str:
        return f"<tool {self.name} of {source_name(self.source)}>"

    async def call(
        self, arguments: Mapping[str, Any] | None = None, *, key: str = "", timeout: float = 0.0
    ) -> ToolResult:
        """Call it once in the life of the task; later attempts get the result from the log.

        ``key`` identifies the call; the default is its order among the tool's calls. ``timeout``,
        in seconds, replaces the source's.

        Raises ``ValueError`` for a key that this turn has used.
        """
        key = key or self._tools.next_key(f"{source_name(self.source)}/{self._tool.name}")
        options = {"timeout": timeout} if timeout else {}
        return await call_once(
            self._tools.turn, self._tool, dict(arguments or {}), key=key, options=options
        )


class TurnTools:
    """The tools of some sources in a turn: ``tools["name"]``, or ``await tools.call("name")``.

    Iterate over it, or use ``list``.
    """

    def __init__(self, turn: Any, counts: Counter[str]) -> None:
        self.list: tuple[TurnTool, ...] = ()
        self.turn = turn
        self._counts = counts
        self._closing = asyncio.Event()
        self._held: list[asyncio.Task[None]] = []

    def __iter__(self) -> Iterator[TurnTool]:
        return iter(self.list)

    def __len__(self) -> int:
        return len(self.list)

    def __contains__(self, name: object) -> bool:
        return any(each.name == name for each in self.list)

    def __getitem__(self, name: str) -> TurnTool:
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
        """Call a tool by name: see ``TurnTool.call``. Raises ``KeyError`` for an unknown name."""
        return await self[name].call(arguments, key=key, timeout=timeout)

    def next_key(self, tool: str) -> str:
        """Return the key of a call without its own key: its number among the tool's calls."""
        self._counts[tool] += 1
        return f"{tool}#{self._counts[tool]}"

    async def open(self, sources: Sequence[ToolSource], options: Mapping[str, Any]) -> None:
        """Open all sources concurrently. Raises the first error of a source."""
        try:
            found = await asyncio.gather(*(self._open(each, options) for each in sources))
        except BaseException:
            for each in self._held:
                each.cancel()
            raise
        self.list = tuple(self._named([*zip(sources, found, strict=True)]))

    async def _open(self, source: ToolSource, options: Mapping[str, Any]) -> Sequence[Tool]:
        """Open a source in a separate asyncio task, which closes it too."""
        opened: asyncio.Future[Sequence[Tool]] = asyncio.get_running_loop().create_future()

        async def hold() -> None:
            async with source.open_tools(self.turn, **options) as tools:
                opened.set_result(tools)
                await self._closing.wait()

        held = asyncio.create_task(hold())
        self._held.append(held)
        either: set[asyncio.Future[Any]] = {held, opened}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            await held
        return opened.result()

    def _named(self, found: Sequence[tuple[ToolSource, Sequence[Tool]]]) -> Iterator[TurnTool]:
        counts = Counter(tool_name(tool.name) for _, tools in found for tool in tools)
        names: set[str] = set()
        for source, tools in found:
            for tool in tools:
                wanted = tool_name(tool.name)
                if counts[wanted] > 1:
                    wanted = tool_name(f"{source_name(source)}_{tool.name}")
                name = free_name(wanted, names)
                names.add(name)
                yield TurnTool(self, source, tool, name)

    def close(self) -> None:
        """Let the sources close. Idempotent."""
        self._closing.set()

    async def aclose(self) -> None:
        """Close the sources. Idempotent."""
        self.close()
        await asyncio.gather(*self._held)


class TurnToolsOpening:
    """Tools that are not open yet: ``async with`` it, or ``await`` it. Closed with the turn at the
    latest."""

    def __init__(
        self, turn: Any, sources: Sequence[ToolSource], counts: Counter[str], *, progress: bool
    ) -> None:
        for each in sources:
            if not isinstance(each, ToolSource):
                raise TypeError(
                    'turn.tools takes sources of tools, such as McpServer("https://host/mcp") or '
                    f'McpServer.stdio("python", "server.py"), not {each!r:.200}'
                )
        self._sources = sources
        self._options = {} if progress else {"progress": False}
        self._tools = TurnTools(turn, counts)

    def __await__(self) -> Generator[Any, None, TurnTools]:
        return self.open().__await__()

    async def __aenter__(self) -> TurnTools:
        return await self.open()

    async def __aexit__(self, *error: object) -> None:
        await self._tools.aclose()

    async def open(self) -> TurnTools:
        """Open all sources. Raises the first error of a source."""
        tools, attempt = self._tools, self._tools.turn._attempt
        with attempt.waits.busy():
            await tools.open(self._sources, self._options)
        attempt.on_end += (tools.close,)
        return tools


class BlockingTools(SyncProxy[TurnTools]):
    """``TurnTools`` with blocking methods, for a function that runs in a thread."""

    def __init__(self, turn: SyncProxy[Any], opening: TurnToolsOpening) -> None:
        super().__init__(turn._run(opening.open()), turn._thread)

    @property
    def list(self) -> tuple[TurnTool, ...]:
        """The tools, to call them by name."""
        return self._target.list

    call = blocking(TurnTools.call)
    close = blocking(TurnTools.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
