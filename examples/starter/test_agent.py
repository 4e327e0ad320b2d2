"""Tests my agent, without a socket: `pytest`."""

import asyncio

from agent import agent
from parley.testing import client


def test_a_trip_has_a_fare() -> None:
    async def run() -> None:
        async with client(agent) as remote:
            answer = await remote.send(data={"km": 120, "passengers": 2})
        assert answer.data == {"euros": 63.5}

    asyncio.run(run())


def test_it_asks_for_the_kilometres() -> None:
    async def run() -> None:
        async with client(agent) as remote:
            asked = await remote.send("How much is it?")
            assert asked.question is not None
            assert list(asked.question.schema["properties"]) == ["km"]
            answer = await remote.send(data={"km": 4}, task=asked)
        assert answer.data == {"euros": 4.5}

    asyncio.run(run())
