"""Tools from sources other than MCP servers: ``turn.tools(source)``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from parley import Agent, Part, TaskState, ToolResult, Turn
from parley.agent.tools.tool import ToolsUnavailable
from tests.agent.tools.test_turn_tools import served
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


class Count:
    name, description = "count up", "Counts."
    parameters: Any = {"type": "object", "properties": {}}

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def call(self, arguments: Any, *, key: str) -> ToolResult:
        self.calls.append(key)
        return ToolResult(parts=(Part(text=f"{len(self.calls)}"),), data=len(self.calls))


class Source:
    def __init__(self, name: str, tool: Count, *, is_away: bool = False) -> None:
        self.name, self.tool, self.is_away = name, tool, is_away
        self.seen: list[str] = []

    @asynccontextmanager
    async def open_tools(self, turn: Turn) -> AsyncIterator[list[Count]]:
        if self.is_away:
            raise ToolsUnavailable("away")
        self.seen.append("opened")
        try:
            yield [self.tool]
        finally:
            self.seen.append("closed")


async def test_a_call_is_made_once_and_sources_close_with_the_turn() -> None:
    tool, agent = Count(), Agent("Counter")
    one, two = Source("one", tool), Source("two", tool)

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        tools = await turn.tools(one, two)
        first = await tools.call("one_count_up")
        second = await tools.call("two_count_up")
        await turn.ask("More?")
        return f"{first.data} {second.text}"

    async with served(agent) as caller:
        asked = await caller.task("go")
        await until(lambda: one.seen == two.seen == ["opened", "closed"])
        ended = await caller.task("yes", task_id=asked.id)
        await until(lambda: one.seen == two.seen == ["opened", "closed"] * 2)
    assert (ended.state, ended.text) == (TaskState.COMPLETED, "1 2")
    assert tool.calls == ["one/count up#1", "two/count up#1"]


async def test_a_source_that_is_away_closes_the_others() -> None:
    agent, there = Agent("Counter"), Source("there", Count())

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        with pytest.raises(ToolsUnavailable, match="away"):
            await turn.tools(there, Source("gone", Count(), is_away=True))
        with pytest.raises(TypeError, match="sources of tools, such as McpServer"):
            turn.tools("https://host/mcp")
        with pytest.raises(TypeError, match="progress"):
            await turn.tools(there, progress=False)
        return "done"

    async with served(agent) as caller:
        assert (await caller.task("go")).text == "done"
        await until(lambda: there.seen == ["opened", "closed"])


async def test_what_turns_share_is_made_once_and_closed_with_the_server() -> None:
    agent, made = Agent("Sharing"), []

    class Tower:
        is_closed = False

        def __init__(self) -> None:
            made.append(self)

        async def aclose(self) -> None:
            self.is_closed = True

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        return str(turn.shared(Tower) is made[0])

    async with served(agent) as caller:
        assert [(await caller.task("go")).text for _ in range(2)] == ["True", "True"]
    assert [tower.is_closed for tower in made] == [True]


async def test_functions_that_each_turn_makes_do_not_share_without_bound() -> None:
    agent = Agent("Leaking")

    class Tower:
        async def aclose(self) -> None: ...

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        for _ in range(100):
            turn.shared(lambda: Tower())
        with pytest.raises(RuntimeError, match=r"share 100 resources: give turn\.shared the same"):
            turn.shared(lambda: Tower())
        return "refused"

    async with served(agent) as caller:
        assert (await caller.task("go")).text == "refused"
