"""What MCP servers must not be able to do to the agents that use them."""

from __future__ import annotations

import gzip
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from parley import McpServer
from parley.agent.tools.mcp_http import http_client
from parley.agent.tools.mcp_questions import _wrong
from parley.testing.background_server import BackgroundServer

pytestmark = pytest.mark.anyio


class Answering:
    """A server that gives every request the same answer, and counts them."""

    def __init__(self, body: bytes = b"{}", **headers: str) -> None:
        self.count = 0

        async def answer(request: Request) -> Response:
            self.count += 1
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            return Response(body, media_type="application/json", headers=given)

        route = Route("/{rest:path}", answer, methods=["GET", "POST"])
        self.server = BackgroundServer(Starlette(routes=[route]))


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
