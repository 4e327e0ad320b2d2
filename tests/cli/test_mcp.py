"""``parley mcp serve`` in processes of its own, used by other people's hosts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client.streamable_http import streamable_http_client

from tests.cli.processes import Running
from tests.integrations.mcp import workshop
from tests.peers.environments import INSPECTOR, NotMade, command

pytestmark = pytest.mark.anyio

ANN = {"Authorization": "Bearer token-of-ann"}


def address(running: Running, word: str) -> str:
    line = next(line for line in running.until(word).splitlines() if word in line)
    return line.split()[-1]


@pytest.fixture(scope="module")
def agent_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    words = ("serve", str(workshop.__file__), "--port", "0", "--store", "memory:")
    with Running(words, tmp_path_factory.mktemp("agent")) as running:
        running.until("Ctrl-C")
        line = next(line for line in running.stdout.splitlines() if "http://" in line)
        yield next(word for word in line.split() if word.startswith("http://"))


@pytest.fixture(scope="module")
def bridge_url(agent_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    words = ("mcp", "serve", agent_url, "--http", "--port", "0", "--call-time", "1")
    with Running(words, tmp_path_factory.mktemp("bridge")) as running:
        yield address(running, "/mcp")


@pytest.fixture(scope="module")
def inspector() -> list[str]:
    try:
        node, _, home = command(INSPECTOR, "")
    except NotMade as error:
        pytest.skip(str(error))
    package = Path(home) / "node_modules" / "@modelcontextprotocol" / "inspector"
    program = json.loads((package / "package.json").read_text("utf-8"))["bin"]
    return [node, str(package / program["mcp-inspector"]), "--cli", "--quiet"]


def inspected(words: list[str], *more: str) -> Any:
    done = subprocess.run([*words, *more], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def elicit(context: Any, params: types.ElicitRequestFormParams) -> types.ElicitResult:
    fields = params.requested_schema["properties"]
    content: Any = {"name": "Ann", "size": "small"} if "name" in fields else {"answer": "it is red"}
    return types.ElicitResult(action="accept", content=content)


def said(result: types.CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, types.TextContent)
    return block.text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_uses_agents_over_http(bridge_url: str, mode: str) -> None:
    shown: list[str | None] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        shown.append(message)

    async with Client(bridge_url, mode=mode, elicitation_callback=elicit) as host:
        quoted = await host.call_tool("quote", {"car": "Golf"})
        sold = await host.call_tool("sell", {"message": "x"}, progress_callback=progress)
        repaired = await host.call_tool("repair", {"message": "x"}, progress_callback=progress)
    assert quoted.structured_content == {"price": 400.0, "currency": "EUR"}
    assert said(sold) == "sold to Ann (small), it is red"
    assert said(repaired) == "as good as new"
    assert "looking" in shown


async def test_credentials_of_a_caller_go_to_the_agent_and_tasks_are_theirs(
    bridge_url: str,
) -> None:
    async with (
        httpx2.AsyncClient(headers=ANN) as http,
        Client(streamable_http_client(bridge_url, http_client=http)) as ann,
        Client(bridge_url) as nobody,
    ):
        assert said(await ann.call_tool("caller", {"message": "x"})) == "ann"
        assert said(await nobody.call_tool("caller", {"message": "x"})) == "nobody"
        started = await ann.call_tool("start_task", {"tool": "sell", "arguments": {"message": "x"}})
        task = {"task": started.structured_content["task"]}
        with pytest.raises(MCPError, match="no such task"):
            await nobody.call_tool("follow_task", task)
        assert "Who buys?" in said(await ann.call_tool("follow_task", task))
        assert said(await ann.call_tool("cancel_task", task)) == "The task is canceled."
    wrong = {"Authorization": "Bearer wrong"}
    async with (
        httpx2.AsyncClient(headers=wrong) as http,
        Client(streamable_http_client(bridge_url, http_client=http)) as host,
    ):
        refused = await host.call_tool("caller", {"message": "x"})
    assert refused.is_error


async def test_pages_and_names_of_other_hosts_are_refused(bridge_url: str) -> None:
    async with httpx2.AsyncClient() as http:
        for headers, status in (
            ({"Host": "attacker.example"}, 421),
            ({"Origin": "https://attacker.example"}, 403),
        ):
            given = {**headers, "Accept": "application/json, text/event-stream"}
            body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            answer = await http.post(bridge_url, json=body, headers=given)
            assert answer.status_code == status


async def test_the_official_client_starts_it_over_stdio(agent_url: str, tmp_path: Path) -> None:
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "parley.cli", "mcp", "serve", agent_url, "--registry", "agents.json"],
        env={"A2ACLI_BEARER": "token-of-ann", "HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    (tmp_path / "agents.json").write_text('{"specVersion": "1.0", "entries": []}')
    async with asyncio.timeout(60), Client(program, elicitation_callback=elicit) as host:
        names = {tool.name for tool in (await host.list_tools()).tools}
        caller = await host.call_tool("caller", {"message": "x"})
        sold = await host.call_tool("sell", {"message": "x"})
        found = await host.call_tool("find_agents", {"need": "paint"})
    assert {"quote", "find_agents", "follow_task"} <= names
    assert said(caller) == "ann"
    assert said(sold) == "sold to Ann (small), it is red"
    assert found.structured_content == {"results": []}


@pytest.mark.peer
@pytest.mark.may_be_missing
def test_the_inspector_of_mcp_uses_agents(
    inspector: list[str], bridge_url: str, agent_url: str, tmp_path: Path
) -> None:
    modern = ("--protocol-era", "modern")
    tools = inspected(inspector, bridge_url, "--strict", "--method", "tools/list")["tools"]
    assert {"quote", "start_task", "follow_task"} <= {tool["name"] for tool in tools}
    words = ("--method", "tools/call", "--tool-name", "quote", "--tool-arg", "car=Golf")
    for call in ((bridge_url, *words), (bridge_url, *words, *modern)):
        assert inspected(inspector, *call)["structuredContent"]["price"] == 400
    slow = ("--method", "tools/call", "--tool-name", "slow", "--tool-arg", "message=30")
    task = inspected(inspector, bridge_url, *slow)["structuredContent"]["task"]
    stop = ("--method", "tools/call", "--tool-name", "cancel_task", "--tool-arg", f"task={task}")
    stopped = inspected(inspector, bridge_url, *stop)
    assert stopped["content"][0]["text"] == "The task is canceled."
    read = ("--method", "resources/read", "--uri", "agent-card://workshop")
    card = inspected(inspector, bridge_url, *read)["contents"][0]
    assert json.loads(card["text"])["name"] == "Workshop"
    program = (sys.executable, "-m", "parley.cli", "mcp", "serve", agent_url)
    assert inspected(inspector, *program, *words)["structuredContent"]["price"] == 400


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve",), "name an agent, or a registry"),
        (("serve", "http://127.0.0.1:9/none"), "no agent can be offered"),
        (("serve", "h.example", "--search", "paint"), "--search needs --registry"),
        (("serve", "h.example", "--port", "9021"), "--port needs --http"),
        (("serve", "h.example", "--http", "--host", "0.0.0.0"), "--allow-anonymous"),
        (("serve", "h.example", "--http", "--tls-key", "key.pem"), "belong together"),
        (("serve", "h.example", "--call-time", "0"), "above 0"),
    ],
    ids=["nothing", "unreachable", "search", "stdio", "anonymous", "tls", "time"],
)
def test_what_is_wrong_is_said(parley: Any, words: tuple[str, ...], said: str) -> None:
    ran = parley("mcp", *words)
    assert ran.status != 0
    assert said in ran.stderr
