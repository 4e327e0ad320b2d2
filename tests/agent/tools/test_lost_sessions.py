"""MCP servers that lose a session, end, or fail a request: real servers, and misbehaving ones."""

from __future__ import annotations

import asyncio

import pytest

from parley import Agent, McpServer, Turn
from tests.agent.tools.test_hostile_servers import Speaking
from tests.agent.tools.test_turn_tools import served

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_a_large_answer_without_a_stream_fails_its_call_alone() -> None:
    speaking, agent = Speaking({"content": [{"type": "text", "text": "x" * 100_000}]}), Agent("M")
    speaking.server.start()
    try:
        server = McpServer(f"{speaking.server.url}/mcp", legacy=True, max_result_bytes=1000)

        @agent.skill(replies="task")
        async def work(turn: Turn) -> str:
            async with turn.tools(server) as tools:
                (large, other) = await asyncio.gather(tools.call("work"), tools.call("work"))
                assert other.is_error
                speaking.result = {"content": [{"type": "text", "text": "small"}]}
                small = await tools.call("work")
                (use,) = {tool._tool.use for tool in tools}
                assert not use.session.retired
            return f"{large.is_error} {large.text} {small.text}"

        async with served(agent) as caller:
            text = (await caller.task("go")).text
    finally:
        speaking.server.stop()
    assert text == "True work: the response has more than 66,536 bytes small"
