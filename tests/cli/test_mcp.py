"""``parley mcp serve`` in separate processes, used by MCP hosts of other vendors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters, types
from mcp.client.streamable_http import streamable_http_client

from tests.integrations.mcp import workshop
from tests.kit.processes import Running

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


def bridge(folder: Path, *words: str, **environment: str) -> StdioServerParameters:
    """Return the program that a host starts in a folder, with Ann's credentials."""
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
