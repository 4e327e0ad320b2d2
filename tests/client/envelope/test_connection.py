"""Requests over WebSockets that drop and reconnect, and over HTTP without a WebSocket."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

import parley
from parley.client.errors import AuthenticationRequired
from parley.envelope import LinkSettings
from parley.model.backoff import Backoff
from tests.client.envelope.scripted import ScriptedAgent, echo, scripted_agent

pytestmark = pytest.mark.anyio

QUICK = Backoff(0.01, 0.05)


def quick(**settings: Any) -> LinkSettings:
    return LinkSettings(**{"backoff": QUICK, "heartbeat": 5.0, **settings})


async def test_a_server_that_never_answers_the_handshake_is_asked_by_http() -> None:
    async with scripted_agent(echo) as agent:
        stuck = asyncio.Event()
        upgrade = agent.upgrade

        async def hang(request: web.Request) -> web.StreamResponse:
            await stuck.wait()
            return await upgrade(request)

        agent.upgrade = hang  # type: ignore[method-assign]
        async with _with_upgrade(agent, hang) as url:
            settings = quick(handshake=0.05)
            http = parley.client.bindings.http.HttpTransport(connect_timeout=0.1)
            async with http, parley.envelope.connect(url, settings=settings, http=http) as client:
                assert (await client.request("echo", 1)).result == 1
                assert not client.uses_socket
            stuck.set()


async def test_redirects_of_the_upgrade_are_not_followed() -> None:
    async with scripted_agent(echo) as thief, scripted_agent(echo) as agent:
        agent.refuse = lambda _: web.Response(status=307, headers={"Location": thief.url})
        async with parley.envelope.connect(agent.url, bearer="secret") as client:
            assert (await client.request("echo", 1)).result == 1
    assert thief.upgrades == []
    assert agent.upgrades[0]["Authorization"] == "Bearer secret"


async def test_refused_credentials_are_an_error_and_no_fallback() -> None:
    async with scripted_agent(echo) as agent:
        agent.refuse = lambda _: web.Response(
            status=401, headers={"WWW-Authenticate": 'Bearer realm="x"'}
        )
        with pytest.raises(AuthenticationRequired, match="credentials"):
            await parley.envelope.connect(agent.url, bearer="wrong")
    assert agent.received == []


def _with_upgrade(agent: ScriptedAgent, upgrade: Any) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def serve() -> Any:
        app = web.Application()
        app.router.add_get("/envelope", upgrade)
        app.router.add_post("/envelope", agent.post)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/envelope"  # type: ignore[union-attr]
        await runner.cleanup()

    return serve()
