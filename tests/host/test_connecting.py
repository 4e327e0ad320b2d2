"""``parley.connect`` to an agent or an app of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI

import parley
from parley import Agent, Execution, Turn
from parley.client.bindings.http import HttpTransport
from parley.client.errors import CardNotFound
from parley.host.in_process import AppNotStarted

pytestmark = pytest.mark.anyio


def echo() -> Agent:
    agent = Agent("Echo", execution=Execution(direct_reply_timeout=0.05))

    @agent.skill
    async def say(turn: Turn) -> str:
        if turn.text == "work":
            await turn.working("At it")
        return turn.text

    return agent


async def test_a_connection_can_be_awaited() -> None:
    remote = await parley.connect(echo())
    assert (await remote.send("Hello")).text == "Hello"
    await remote.aclose()
    with pytest.raises(parley.ClientError, match="was closed"):
        await remote.send("Hello")


async def test_agents_that_share_an_app_have_paths() -> None:
    other = Agent("Other")
    other.skill(id="x", description="x")(lambda turn: "other")
    app = parley.asgi([echo(), other])
    with pytest.raises(CardNotFound, match=r"has 2 agents; connect to one of them: .*/other"):
        await parley.connect(app)
    async with parley.connect(app, path="/other") as remote:
        assert (await remote.send("Hello")).text == "other"


async def test_the_address_of_an_app_is_that_which_it_was_given() -> None:
    app = parley.asgi(echo(), url="https://example.com/agents/echo")
    async with parley.connect(app, bearer="secret") as remote:
        assert remote.interface.url.startswith("https://example.com/agents/echo")
        assert (await remote.send("Hello")).text == "Hello"


async def test_an_app_that_does_not_start_says_why() -> None:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    with pytest.raises(AppNotStarted, match="no database"):
        await parley.connect(FastAPI(lifespan=lifespan))


async def test_an_app_without_a_lifespan_and_without_an_agent() -> None:
    async def app(scope, receive, send) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"nothing"})

    with pytest.raises(CardNotFound, match=r"no agent card at https://agent\.test"):
        await parley.connect(app)


async def test_an_app_that_fails_is_a_server_that_fails() -> None:
    async def app(scope, receive, send) -> None:
        raise ZeroDivisionError

    with pytest.raises(CardNotFound, match=r"\(500\)"):
        await parley.connect(app)


@pytest.mark.slow
async def test_a_call_can_time_out() -> None:
    agent = Agent("Slow")

    @agent.skill
    async def work(turn: Turn) -> None:
        await turn.working()
        await asyncio.Event().wait()

    async with parley.connect(agent) as remote:
        with pytest.raises(parley.ClientError, match="no answer within"):
            await remote.send("?", timeout=0.05)


async def test_what_cannot_be_connected_to_is_refused() -> None:
    with pytest.raises(ValueError, match="gRPC needs a socket"):
        parley.connect(echo(), binding="GRPC")
    with pytest.raises(ValueError, match="http= is for agents on the network"):
        parley.connect(echo(), http=HttpTransport())
    with pytest.raises(TypeError, match="connect takes an address, a card, an agent, a result"):
        parley.connect(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="path is for an address or an app"):
        parley.connect({"name": "x"}, path="/x")


async def test_signatures_are_those_of_the_client() -> None:
    import inspect

    options = inspect.signature(parley.connect).parameters
    assert {"path", "bearer", "binding", "version", "timeout", "http"} <= options.keys()
    assert parley.connect.__name__ == "connect"
    assert parley.connect_sync.__name__ == "connect_sync"
    assert "An ASGI app" in (parley.connect.__doc__ or "").replace("an ``Agent`` or an", "An")


async def test_an_agent_of_this_process_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server variables in the environment do not apply to the agent, even if they are wrong."""
    monkeypatch.setenv("PARLEY_PUBLISHER", "localhost")
    async with parley.connect(echo()) as remote:
        assert (await remote.send("Hello")).task is None
