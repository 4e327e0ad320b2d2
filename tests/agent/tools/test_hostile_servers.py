"""Attacks by MCP servers on the agents that use them: each must fail."""

from __future__ import annotations

import gzip
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from parley import Agent, McpServer, McpServerUnavailable, TaskState, Turn
from parley.conformance.background_server import BackgroundServer
from parley.mcp.session_http import http_client
from parley.mcp.tool_calls import _wrong
from tests.agent.tools.test_turn_tools import served

pytestmark = pytest.mark.anyio


class Answering:
    """A server that gives every request the same response, and counts requests."""

    def __init__(self, body: bytes = b"{}", **headers: str) -> None:
        self.count = 0

        async def answer(request: Request) -> Response:
            self.count += 1
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            return Response(body, media_type="application/json", headers=given)

        route = Route("/{rest:path}", answer, methods=["GET", "POST"])
        self.server = BackgroundServer(Starlette(routes=[route]))


@pytest.mark.slow
async def test_a_small_answer_does_not_become_a_huge_one() -> None:
    answering = Answering(gzip.compress(b'"' + b"x" * 20_000_000 + b'"'), content_encoding="gzip")
    answering.server.start()
    try:
        server = McpServer(f"{answering.server.url}/mcp")
        async with http_client(server, None) as http:
            with pytest.raises(httpx2.ReadError, match="compressed"):
                await http.post(server.url, json={})
    finally:
        answering.server.stop()


async def test_the_schema_of_a_question_reads_no_address() -> None:
    answering = Answering(b'{"type": "integer"}')
    answering.server.start()
    try:
        name = {"$ref": f"{answering.server.url}/schema"}
        assert _wrong({"type": "object", "properties": {"name": name}}, {"name": "Ann"}) == ""
    finally:
        answering.server.stop()
    assert not answering.count


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"properties": {"name": {"$ref": "#/$defs/nowhere"}}},
        {"properties": {"name": {"type": "string", "pattern": "^(a+)+$"}}},
        {"patternProperties": {"^(n+)+$": {"type": "integer"}}},
        {"properties": {"name": {"minLength": "long"}}},
        {"properties": {"name": {"type": "words"}}},
    ],
)
async def test_a_schema_that_cannot_be_checked_is_left_to_the_server(schema: Any) -> None:
    assert _wrong(schema, {"name": "a" * 64 + "!"}) == ""


TOOL = {"name": "work", "inputSchema": {"type": "object"}}
MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}


class Speaking:
    """A server of both protocols; every tool call returns ``result``."""

    def __init__(self, result: Any, *tools: Any) -> None:
        self.result = result
        self.tools = tools or (TOOL,)
        route = Route("/mcp", self._answer, methods=["POST"])
        self.server = BackgroundServer(Starlette(routes=[route]))

    async def _answer(self, request: Request) -> Response:
        call = await request.json()
        match call["method"]:
            case "initialize":
                said: Any = {
                    "protocolVersion": call["params"]["protocolVersion"],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "raw", "version": "1"},
                }
            case "server/discover":
                said = {
                    "supportedVersions": ["2026-07-28"],
                    "capabilities": {"tools": {}},
                    **MODERN,
                }
            case "tools/list":
                said = {"tools": self.tools, **MODERN}
            case "tools/call":
                said = self.result
            case _:
                return Response(status_code=202)
        return JSONResponse({"jsonrpc": "2.0", "id": call.get("id"), "result": said})


@pytest.mark.slow
@pytest.mark.parametrize(
    "result", [{"content": 5}, {"content": [{"type": "text"}]}, ["words"], {"content": None}]
)
async def test_a_result_that_is_none_is_an_error_for_the_function(result: Any) -> None:
    speaking, agent = Speaking(result), Agent("Mechanic")
    speaking.server.start()
    try:
        server = McpServer(f"{speaking.server.url}/mcp", legacy=True, timeout=5)

        @agent.skill(replies="task")
        async def work(turn: Turn) -> str:
            async with turn.tools(server) as tools:
                answer = await tools.call("work")
            return f"{answer.is_error} {answer.text}"

        async with served(agent) as caller:
            task = await caller.task("go")
    finally:
        speaking.server.stop()
    assert task.state is TaskState.COMPLETED
    assert task.text.startswith("True work")


BAD = {
    "its input is a list": {"name": "bad", "inputSchema": {"type": "array"}},
    "it has no input": {"name": "bad"},
    "its input is no schema": {
        "name": "bad",
        "inputSchema": {"type": "object", "properties": {"n": {"type": "banana"}}},
    },
    "its output is no schema": {
        "name": "bad",
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object", "required": [5]},
    },
    "it describes itself by a number": {**TOOL, "name": "bad", "description": 5},
    "its name is a number": {"name": 5, "inputSchema": {"type": "object"}},
    "it has no name": {"inputSchema": {"type": "object"}},
    "its name is empty": {**TOOL, "name": " "},
    "its name is long": {**TOOL, "name": "x" * 129},
    "it has the name of another": {**TOOL, "description": "not me"},
    "it requires a task": {**TOOL, "name": "bad", "execution": {"taskSupport": "required"}},
    "it is a text": "bad",
    "it is null": None,
}


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_a_bad_tool_is_left_out_and_the_others_are_offered(
    bad: Any, legacy: bool, caplog: pytest.LogCaptureFixture
) -> None:
    result = {"content": [{"type": "text", "text": "done"}], "resultType": "complete"}
    good = {
        "name": "good",
        "inputSchema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"n": {"type": "string", "pattern": "^\\p{L}+$"}},
        },
    }
    speaking, agent = Speaking(result, TOOL, bad, good), Agent("Mechanic")
    speaking.server.start()
    try:
        server = McpServer(f"{speaking.server.url}/mcp", legacy=legacy)
        wanted = McpServer(f"{speaking.server.url}/mcp", legacy=legacy, tools=["bad"])

        @agent.skill(replies="task")
        async def work(turn: Turn) -> str:
            async with turn.tools(server) as tools:
                assert [tool.name for tool in tools] == ["work", "good"]
                said = (await tools.call("work")).text
            with pytest.raises(McpServerUnavailable, match="bad"):
                await turn.tools(wanted)
            return said

        async with served(agent) as caller:
            task = await caller.task("go")
    finally:
        speaking.server.stop()
    assert (task.state, task.text) == (TaskState.COMPLETED, "done")
    said = [each.getMessage() for each in caplog.records if each.name == "parley.agent"]
    assert len(said) == 1
    name = str(bad.get("name")) if isinstance(bad, dict) else str(bad)
    assert said[0].startswith(f"the tool {name[:20]!r}"[:-1])
    assert " is left out: " in said[0]
