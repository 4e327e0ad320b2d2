"""How many connections a client opens to an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

import parley
from parley import Agent, Turn
from parley.model.errors import TaskNotFoundError
from parley.server.run import serving
from parley.testing import FaultProxy

pytestmark = pytest.mark.anyio

agent = Agent(name="Echo", description="Says it again.")


@agent.skill
async def say(turn: Turn) -> Any:
    """Says it again."""
    if turn.text != "list":
        return turn.text
    async with turn.stream(name="list") as out:
        for word in ("one", "two", "three"):
            await out.write(word)
    return None


@pytest.fixture(params=["JSONRPC", "HTTP+JSON"])
async def counted(request: Any) -> AsyncIterator[tuple[parley.RemoteAgent, FaultProxy]]:
    """A client, and what has an item for each connection that it opens."""
    async with (
        serving(parley.asgi(agent, drain=0.0)) as url,
        FaultProxy(url.replace("http", "tcp")) as proxy,
    ):
        card = {
            "name": "Echo",
            "description": "Says it again.",
            "version": "1",
            "capabilities": {"streaming": True},
            "skills": [],
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "supportedInterfaces": [
                {
                    "url": f"http://{proxy.url}",
                    "protocolBinding": request.param,
                    "protocolVersion": "1.0",
                }
            ],
        }
        async with parley.connect(card) as remote:
            yield remote, proxy


async def test_calls_one_after_another_share_a_connection(counted) -> None:
    remote, proxy = counted
    for number in range(50):
        assert (await remote.send(f"message {number}")).text == f"message {number}"
        with pytest.raises(TaskNotFoundError):
            await remote.get(f"none-{number}")
    assert len(proxy.requests) == 1


async def test_streams_that_were_read_to_their_end_share_a_connection(counted) -> None:
    remote, proxy = counted
    for _ in range(5):
        assert [event async for event in remote.stream("list")]
        await remote.send("hello")
    assert len(proxy.requests) == 1


async def test_calls_at_once_have_a_connection_each_and_keep_it(counted) -> None:
    remote, proxy = counted
    for _ in range(5):
        await asyncio.gather(*[remote.send(f"message {number}") for number in range(8)])
    assert 1 < len(proxy.requests) <= 8


async def test_a_stream_that_is_left_early_costs_its_own_connection(counted) -> None:
    remote, proxy = counted
    for _ in range(3):
        async with aclosing(remote.stream("list")) as events:
            assert await anext(events)
        await remote.send("hello")
    assert len(proxy.requests) <= 4
