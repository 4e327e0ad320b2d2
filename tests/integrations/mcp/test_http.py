"""The bridge over HTTP: tokens, OAuth, and an agent that calls it with own credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from parley import Agent, McpServer, McpServerUnavailable, Turn, connect
from parley.client.auth import Bearer, ClientCredentials
from parley.conformance.issuer import Issuer
from parley.mcp.bridge import McpBridge
from parley.mcp.http import http_app
from parley.server.run import serving
from parley.server.sockets import listen
from tests.integrations.mcp import workshop
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def listening(make: Callable[[str], Any]) -> AsyncIterator[str]:
    """Serve an app that is created for its address, as the command does."""
    with listen("127.0.0.1", 0)[0] as free:
        port = free.getsockname()[1]
    async with serving(make(f"http://127.0.0.1:{port}"), port=port) as url:
        yield f"{url.rstrip('/')}/mcp"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_call_that_a_host_cancels_is_canceled_at_the_agent(mode: str) -> None:
    workshop.ended.clear()
    async with (
        listening(lambda url: http_app(McpBridge(workshop.agent))) as url,
        Client(url, mode=mode) as host,
    ):
        at_work = asyncio.Event()

        async def progress(done: float, total: float | None, message: str | None) -> None:
            at_work.set()

        call = asyncio.ensure_future(
            host.call_tool("slow", {"message": "60"}, progress_callback=progress)
        )
        await asyncio.wait_for(at_work.wait(), 10)
        call.cancel()
        await until(lambda: workshop.ended == ["canceled"])


async def test_a_bridge_with_a_token_lets_in_who_has_it() -> None:
    def make(url: str) -> Any:
        return http_app(McpBridge(workshop.agent, binds=True), tokens=["one", "two"])

    async with listening(make) as url:
        async with (
            httpx2.AsyncClient(headers={"Authorization": "Bearer two"}) as http,
            Client(streamable_http_client(url, http_client=http)) as host,
        ):
            caller = await host.call_tool("caller", {"message": "x"})
        async with httpx2.AsyncClient() as http:
            body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            for headers in ({}, {"Authorization": "Bearer three"}):
                refused = await http.post(url, json=body, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"].startswith("Bearer")
                assert "resource_metadata" not in refused.headers["www-authenticate"]
            known = url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
            assert (await http.get(known)).status_code == 404  # no issuer is configured
    assert caller.content[0].text == "nobody"  # the bridge does not forward its token


async def test_a_task_is_named_by_its_caller_alone_unless_the_bridge_is_told_otherwise() -> None:
    def make(url: str) -> Any:
        return http_app(McpBridge(workshop.agent), tokens=["one", "two"])

    async with listening(make) as url:
        handle = ""
        for token in ("one", "two", "one"):
            async with (
                httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
                Client(streamable_http_client(url, http_client=http)) as host,
            ):
                if not handle:
                    sold = await host.call_tool("sell", {"message": "x"})
                    handle = sold.structured_content["task"]
                elif token == "one":
                    ended = await host.call_tool("cancel_task", {"task": handle})
                else:
                    with pytest.raises(MCPError, match="no such task"):
                        await host.call_tool("cancel_task", {"task": handle})
    assert ended.content[0].text == "The task is canceled."


async def test_agents_use_tools_with_tokens_of_an_issuer() -> None:
    seen: dict[str, Any] = {}
    async with Issuer() as issuer:

        def make(url: str) -> Any:
            return http_app(McpBridge(workshop.agent, binds=True), url=url, oidc=issuer.url)

        async with listening(make) as url:
            own = ClientCredentials("service", "secret", issuer=issuer.url)
            guess = ClientCredentials("service", "guess", issuer=issuer.url)
            service, wrong = McpServer(url, auth=own), McpServer(url, auth=guess)
            bearer = McpServer(url, auth=Bearer(lambda: issuer.token(sub="ada", audience=url)))
            other = McpServer(url, auth=issuer.token(sub="ada", audience="another"))
            agent = Agent("Mechanic")

            @agent.skill(replies="task")
            async def work(turn: Turn) -> str:
                for name, server in (("service", service), ("bearer", bearer)):
                    async with turn.tools(server) as tools:
                        seen[name] = await tools.call("quote", {"car": "Golf"})
                for server in (wrong, other):
                    with pytest.raises(McpServerUnavailable):
                        await turn.tools(server)
                return "done"

            async with connect(agent) as remote:
                assert (await remote.send("go")).text == "done"
    assert seen["service"].data == {"price": 400.0, "currency": "EUR"}
    assert seen["bearer"].data == {"price": 400.0, "currency": "EUR"}
    assert issuer.requests["token"] == 2


async def test_an_agent_reaches_an_agent_behind_a_bridge_and_its_questions_come_through() -> None:
    async with listening(lambda url: http_app(McpBridge(workshop.agent))) as url:
        agent, server = Agent("Mechanic"), McpServer(url)

        @agent.skill(replies="task")
        async def work(turn: Turn) -> str:
            async with turn.tools(server) as tools:
                return (await tools.call("sell", {"message": "the Golf"})).text

        async with connect(agent) as remote:
            task = await remote.send("go")
            task = await remote.send(data={"name": "Ann", "size": "large"}, task=task)
            assert task.text == "Why?"
            task = await remote.send("it is red", task=task)
    assert task.text == "sold to Ann (large), it is red"


def test_a_secret_goes_to_the_issuer_that_is_named_alone() -> None:
    with pytest.raises(ValueError, match="name the right issuer"):
        McpServer("https://shop.example/mcp", auth=ClientCredentials("service", "secret"))


def test_an_issuer_needs_the_address_that_clients_know() -> None:
    with pytest.raises(ValueError, match="needs url"):
        http_app(McpBridge("http://127.0.0.1:9"), oidc="https://issuer.example")
