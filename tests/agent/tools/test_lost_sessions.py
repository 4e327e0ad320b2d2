"""MCP servers that lose a session, end, or fail one request: real ones, and ones that misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from parley import Agent, McpServer, TaskState, ToolResult, Turn
from parley.mcp.tool_calls import McpSessions
from tests.agent.tools.shop import SCRIPT, running_shop
from tests.agent.tools.test_hostile_servers import Speaking
from tests.agent.tools.test_turn_tools import served
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_server_that_is_deployed_anew_is_called_in_a_new_session(
    tmp_path: Path, legacy: bool
) -> None:
    agent, texts = Agent("Mechanic"), list[str]()
    with ExitStack() as first, ExitStack() as second:
        shop = first.enter_context(running_shop(tmp_path))
        server = McpServer(shop.url, legacy=legacy)

        @agent.skill(replies="task")
        async def work(turn: Turn) -> None:
            async with turn.tools(server) as tools:
                texts.append((await tools.call("process")).text)
                killed = asyncio.ensure_future(tools.call("order", {"part": "8"}))
                await until(lambda: "ordered 8" in shop.did)
                await asyncio.to_thread(first.close)
                assert (await killed).is_error
                down = await tools.call("raise_platform", {"height_meters": 1})
                assert down.is_error
                assert "cannot be reached" in down.text
                port = urlsplit(shop.url).port or 0
                await asyncio.to_thread(second.enter_context, running_shop(tmp_path, port))
                both = tools.call("raise_platform", {"height_meters": 2}), tools.call("process")
                for result in await asyncio.gather(*both):
                    texts.append(result.text)
            async with turn.tools(server) as tools:
                assert "process" in tools

        async with served(agent) as caller:
            assert (await caller.task("go")).state is TaskState.COMPLETED
        before, raised, after = texts
        assert "2.0" in raised
        assert before != after
        assert shop.did == ["ordered 8", "raised 2"]


async def test_a_turn_begins_with_a_new_session_where_the_server_has_lost_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.mcp.session.MAX_AGE", -1)  # each use lists anew
    agent = Agent("Mechanic")
    with ExitStack() as first, ExitStack() as second:
        shop = first.enter_context(running_shop(tmp_path))
        server = McpServer(shop.url, legacy=True)

        @agent.skill(replies="task")
        async def work(turn: Turn) -> str:
            async with turn.tools(server) as tools:
                return (await tools.call("read_code")).text

        async with served(agent) as caller:
            assert (await caller.task("go")).text == "P0300"
            first.close()
            second.enter_context(running_shop(tmp_path, urlsplit(shop.url).port or 0))
            assert (await caller.task("go")).text == "P0300"


async def test_a_program_that_ended_between_two_calls_is_started_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal.txt"
    server = McpServer.stdio(sys.executable, str(SCRIPT), env={"JOURNAL": str(journal)})
    agent, results = Agent("Mechanic"), list[ToolResult]()

    @agent.skill(replies="task")
    async def work(turn: Turn) -> None:
        async with turn.tools(server) as tools:
            results.append(await tools.call("process"))
            (session,) = turn._services.shared(McpSessions)._kept.values()
            os.kill(int(results[0].text), signal.SIGKILL)
            await until(lambda: session.retired)
            results.append(await tools.call("raise_platform", {"height_meters": 1}))
            results.append(await tools.call("stop"))  # ends in the middle of the call
            results.append(await tools.call("process"))

    async with served(agent) as caller:
        assert (await caller.task("go")).state is TaskState.COMPLETED
    first, raised, stopped, last = results
    assert not raised.is_error
    assert stopped.is_error
    assert "not known whether it was executed" in stopped.text
    assert first.text != last.text
    assert journal.read_text().splitlines() == ["raised 1", "stop"]


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


@pytest.mark.parametrize("message", ["Session not found in the browser", "it broke"])
async def test_what_may_have_been_done_is_not_called_again(message: str) -> None:
    forgetting = Forgetting(1, 200, {"code": -32000, "message": message})
    agent = Agent("Mechanic")
    forgetting.server.start()
    try:
        server = McpServer(f"{forgetting.server.url}/mcp", legacy=True, timeout=5)

        @agent.skill(replies="task")
        async def work(turn: Turn) -> str:
            async with turn.tools(server) as tools:
                return (await tools.call("work")).text

        async with served(agent) as caller:
            assert message in (await caller.task("go")).text
    finally:
        forgetting.server.stop()
    assert (forgetting.sessions, forgetting.calls) == (1, 1)


@pytest.mark.parametrize("kind", ["http", "legacy http", "stdio"])
async def test_an_answer_that_is_too_large_fails_its_call_alone(tmp_path: Path, kind: str) -> None:
    agent, large = Agent("Mechanic"), list[str]()
    with running_shop(tmp_path) as shop:
        if kind == "stdio":
            env = {"JOURNAL": str(shop.journal)}
            server = McpServer.stdio(sys.executable, str(SCRIPT), env=env, max_result_bytes=1000)
        else:
            server = McpServer(shop.url, legacy=kind != "http", max_result_bytes=1000)

        @agent.skill(replies="task")
        async def work(turn: Turn) -> str:
            async with turn.tools(server) as tools:
                (session,) = {tool._tool.use.session for tool in tools}
                waiting = asyncio.ensure_future(tools.call("order", {"part": "7"}))
                await until(lambda: "ordered 7" in shop.did)
                for size in (2000, 200_000):
                    result = await tools.call("noise", {"size": size})
                    assert result.is_error
                    large.append(result.text)
                shop.go.touch()
                texts = [(await waiting).text, (await tools.call("read_code")).text]
                assert {tool._tool.use.session for tool in tools} == {session}
            return ", ".join(texts)

        async with served(agent) as caller:
            assert (await caller.task("go")).text == "ordered 7, P0300"
    assert "the limit is 1,000" in large[0]
    assert ("1,000" if kind == "stdio" else "66,536 byte") in large[1].replace("66536", "66,536")


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
