"""Tests my agent, without a socket: `pytest`."""

import asyncio

from agent import agent
from parley.client import question
from parley.testing import client, message


def test_a_trip_has_a_fare() -> None:
    async def run() -> None:
        async with client(agent) as remote:
            answer = await remote.send(data={"km": 120, "passengers": 2})
        assert answer == message(data={"euros": 63.5})

    asyncio.run(run())


def test_it_asks_for_the_kilometres() -> None:
    async def run() -> None:
        async with client(agent) as remote:
            asked = await remote.send("How much is it?")
            assert list(question(asked).schema["properties"]) == ["km"]
            answer = await remote.send(data={"km": 4}, task=asked)
        assert answer.artifacts[0].parts[0].data == {"euros": 4.5}

    asyncio.run(run())
