"""``parley mcp serve`` in processes of its own, used by other people's hosts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client.streamable_http import streamable_http_client

from tests.integrations.mcp import workshop
from tests.kit.certificates import Authority, trusting
from tests.kit.processes import Running
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


def bridge(folder: Path, *words: str, **environment: str) -> StdioServerParameters:
    """Return the program that a host starts in a folder, with the credentials of Ann."""
    own = {"A2ACLI_BEARER": "token-of-ann", "HOME": str(folder)}
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "parley.cli", "mcp", "serve", *words],
        env={**own, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **environment},
        cwd=folder,
    )


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


async def test_it_serves_https_and_a_signal_ends_it(agent_url: str, tmp_path: Path) -> None:
    authority = Authority()
    authority.server().write(tmp_path, "tls")
    flags = ("--http", "--port", "0", "--tls-cert", "tls.pem", "--tls-key", "tls.key")
    with Running(("mcp", "serve", agent_url, *flags), tmp_path) as running:
        url = address(running, "/mcp")
        assert url.startswith("https://127.0.0.1:")
        url = url.replace("127.0.0.1", "localhost")
        async with (
            httpx2.AsyncClient(verify=trusting(authority)) as http,
            Client(streamable_http_client(url, http_client=http)) as host,
        ):
            quoted = await host.call_tool("quote", {"car": "Golf"})
        assert not quoted.is_error
        assert await asyncio.to_thread(running.end, signal.SIGINT) == 0


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
    program = bridge(tmp_path, agent_url, "--registry", "agents.json")
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


async def test_agents_are_named_as_for_every_command(agent_url: str, tmp_path: Path) -> None:
    card = httpx2.get(f"{agent_url}/.well-known/agent-card.json").text
    (tmp_path / "card.json").write_text(card)
    entry = {
        "identifier": "urn:air:example.com:agent:workshop",
        "displayName": "Workshop",
        "type": "application/a2a-agent-card+json",
        "url": f"{agent_url}/.well-known/agent-card.json",
    }
    (tmp_path / "agents.json").write_text(json.dumps({"specVersion": "1.0", "entries": [entry]}))
    registry = ("--registry", "agents.json")
    words: dict[tuple[str, ...], int] = {
        ("card.json", entry["identifier"], "-a", agent_url, *registry): 3,
        (entry["identifier"], *registry): 1,
        (): 1,
    }
    for given, count in words.items():
        program = bridge(tmp_path, *given, A2ACLI_AGENT_CARD=agent_url)
        async with asyncio.timeout(60), Client(program) as host:
            names = [tool.name for tool in (await host.list_tools()).tools]
            callers = [name for name in names if name.endswith("caller")]
            answers = [said(await host.call_tool(each, {"message": "x"})) for each in callers]
        assert answers == ["ann"] * count


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
        (("serve", "urn:air:a.example:b"), "--registry or PARLEY_REGISTRY names it"),
        (("serve", "h.example", "--search", "paint"), "--search needs --registry"),
        (("serve", "h.example", "--port", "9021"), "--port needs --http"),
        (("serve", "h.example", "--http", "--host", "0.0.0.0"), "--allow-anonymous"),
        (("serve", "h.example", "--http", "--tls-key", "key.pem"), "belong together"),
        (("serve", "h.example", "--call-time", "0"), "above 0"),
    ],
    ids=["nothing", "unreachable", "identifier", "search", "stdio", "anonymous", "tls", "time"],
)
def test_what_is_wrong_is_said(parley: Any, words: tuple[str, ...], said: str) -> None:
    ran = parley("mcp", *words)
    assert ran.status != 0
    assert said in ran.stderr


def test_an_agent_whose_card_is_not_signed_is_no_tool_where_that_is_required(
    parley: Any, agent_url: str
) -> None:
    ran = parley("mcp", "serve", agent_url, "--require-signature")
    assert ran.status != 0
    assert "no agent can be offered" in ran.stderr
    assert "sign" in ran.stderr.partition("no agent can be offered")[2]
