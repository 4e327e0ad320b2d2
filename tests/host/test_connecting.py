"""``parley.connect`` of an agent or an app of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from fastapi import FastAPI

import parley
from parley import Agent, Execution, Message, Task, Turn
from parley.client.bindings.http import HttpTransport
from parley.client.errors import CardNotFound
from parley.host.in_process import AppNotStarted
from parley.testing import completed, working

pytestmark = pytest.mark.anyio


def echo() -> Agent:
    agent = Agent("Echo", execution=Execution(direct_reply_timeout=0.05))

    @agent.skill
    async def say(turn: Turn) -> str:
        if turn.text == "work":
            await turn.working("At it")
        return turn.text

    return agent


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_an_agent_is_called_without_a_socket(binding: str) -> None:
    async with parley.connect(echo(), binding=binding) as remote:
        assert (await remote.send("Hello")).text == "Hello"
        assert [event async for event in remote.stream("work")][1:2] == [working("At it")]


def test_blocking_code_calls_agents_too() -> None:
    with parley.connect_sync(echo()) as remote:
        assert remote.send("work") == completed("work")


async def test_a_connection_can_be_awaited() -> None:
    remote = await parley.connect(echo())
    assert (await remote.send("Hello")).text == "Hello"
    await remote.aclose()
    with pytest.raises(parley.ClientError, match="was closed"):
        await remote.send("Hello")


async def test_an_app_is_started_and_stopped() -> None:
    app = parley.asgi(echo())
    async with parley.connect(app) as remote:
        assert app.lifecycle.started
        assert (await remote.send("Hello")).text == "Hello"
    assert not app.lifecycle.started


async def test_an_app_that_runs_goes_on_running() -> None:
    app = parley.asgi(echo())
    async with app.lifespan():
        async with parley.connect(app) as remote:
            await remote.send("Hello")
        assert app.lifecycle.started
    assert not app.lifecycle.started


async def test_the_last_of_several_connections_stops_the_app() -> None:
    app = parley.asgi(echo())
    one, other = await parley.connect(app), await parley.connect(app)
    await one.aclose()
    assert app.lifecycle.started
    assert (await other.send("Hello")).text == "Hello"
    await other.aclose()
    assert not app.lifecycle.started


def test_two_agents_at_one_path_are_refused() -> None:
    """Otherwise the second would take the place of the first, and nothing would say so."""
    agents = {"/time": Agent("Time"), "/time/": Agent("Other")}
    with pytest.raises(ValueError, match="two agents have the same path"):
        parley.asgi(agents, store="memory:")


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


async def test_an_app_of_another_framework_that_mounts_agents_is_called() -> None:
    app = parley.asgi(echo())
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[dict[str, str]]:
        async with app.lifespan():
            seen.append("up")
            yield {"of": "FastAPI"}
            seen.append("down")

    outer = FastAPI(lifespan=lifespan)
    outer.mount("/agents/echo", app)
    async with parley.connect(outer, path="/agents/echo/") as remote:
        assert remote.interface.url.startswith("https://agent.test/agents/echo")
        assert (await remote.send("Hello")).text == "Hello"
        assert seen == ["up"]
    assert seen == ["up", "down"]


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


async def test_context_variables_of_callers_stay_with_them() -> None:
    from contextvars import ContextVar

    secret: ContextVar[str] = ContextVar("secret", default="unknown")
    agent = Agent("Reader")

    @agent.skill
    async def read(turn: Turn) -> str:
        return secret.get()

    async with parley.connect(agent) as remote:
        secret.set("known")
        assert (await remote.send("?")).text == "unknown"


async def test_leaving_a_stream_disconnects_and_the_task_goes_on() -> None:
    agent = Agent("Slow")
    go_on = asyncio.Event()

    @agent.skill
    async def work(turn: Turn) -> str:
        await turn.working("one")
        await go_on.wait()
        return "done"

    async with parley.connect(agent) as remote:
        stream = remote.stream("?")
        async for event in stream:
            if event == working("one"):
                break
        await stream.aclose()
        go_on.set()
        assert await remote.wait(stream.task_id) == completed("done")


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


async def test_a_reply_in_an_app_is_a_message_or_a_task_as_over_http() -> None:
    async with parley.connect(echo()) as remote:
        assert isinstance(await remote.send("Hello"), Message)
        assert isinstance(await remote.send("work"), Task)


async def test_signatures_are_those_of_the_client() -> None:
    import inspect

    options = inspect.signature(parley.connect).parameters
    assert {"path", "bearer", "binding", "version", "timeout", "http"} <= options.keys()
    assert parley.connect.__name__ == "connect"
    assert parley.connect_sync.__name__ == "connect_sync"
    assert "An ASGI app" in (parley.connect.__doc__ or "").replace("an ``Agent`` or an", "An")


async def test_an_agent_of_this_process_publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says of servers is not about it, even if it is wrong."""
    monkeypatch.setenv("PARLEY_PUBLISHER", "localhost")
    async with parley.connect(echo()) as remote:
        assert isinstance(await remote.send("Hello"), Message)
