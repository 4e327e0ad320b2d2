"""MCP servers that lose a session, end, or fail a request: real servers, and misbehaving ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from parley import Agent, McpServer, Turn
from tests.agent.tools.test_hostile_servers import Speaking
from tests.agent.tools.test_turn_tools import served

pytestmark = pytest.mark.anyio


class Forgetting(Speaking):
    """A server with sessions, which it forgets: of the first ``losses`` each after its list."""

    def __init__(self, losses: int, status: int, said: Any) -> None:
        super().__init__({"content": [{"type": "text", "text": "done"}]})
        self.losses, self.status, self.said = losses, status, said
        self.sessions = 0
        self.calls = 0

    async def _answer(self, request: Request) -> Response:
        call = await request.json()
        if call["method"] == "initialize":
            self.sessions += 1
            answer = await super()._answer(request)
            answer.headers["Mcp-Session-Id"] = str(self.sessions)
            return answer
        if call["method"] == "tools/call":
            self.calls += 1
            if int(request.headers["Mcp-Session-Id"]) <= self.losses:
                if isinstance(self.said, str):
                    return PlainTextResponse(self.said, self.status)
                error = {"jsonrpc": "2.0", "id": call["id"], "error": self.said}
                return JSONResponse(error, self.status)
        return await super()._answer(request)


NOT_FOUND = {"code": -32001, "message": "Session not found"}


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


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, "nothing here"),
        (404, {"code": -32600, "message": "Who are you?"}),
        (200, NOT_FOUND),
        (400, NOT_FOUND),
        (400, {"code": -32000, "message": "Bad Request: No valid session ID provided"}),
        (400, {"code": -32000, "message": "Bad Request: Server not initialized"}),
    ],
)
@pytest.mark.parametrize("losses", [1, 1000])
async def test_a_lost_session_is_begun_anew_once_for_each_call(
    losses: int, status: int, said: Any
) -> None:
    forgetting, agent = Forgetting(losses, status, said), Agent("Mechanic")
    forgetting.server.start()
    try:
        server = McpServer(f"{forgetting.server.url}/mcp", legacy=True, timeout=5)

        @agent.skill(replies="task")
        async def work(turn: Turn) -> str:
            async with turn.tools(server) as tools:
                result = await tools.call("work")
            return f"{result.is_error} {result.text}"

        async with served(agent) as caller:
            task = await caller.task("go")
    finally:
        forgetting.server.stop()
    assert (forgetting.sessions, forgetting.calls) == (2, 2)
    if losses == 1:
        assert task.text == "False done"
    else:
        assert task.text.startswith("True work: the MCP server http://127.0.0.1")
        assert "has lost the session, and so has the new session" in task.text
