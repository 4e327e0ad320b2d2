"""Typical tests of a new user: typed input, files, lifespans and middleware, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from parley import Agent, Turn
from parley.testing import ScriptedAgent, client, completed, containing, input_required

pytestmark = pytest.mark.anyio


@dataclass
class Conversion:
    amount: float
    currency: str = "EUR"


async def test_typed_input_can_be_asked_for() -> None:
    agent = Agent("Rates")

    @agent.skill(invalid_input="ask")
    async def convert(request: Conversion) -> str:
        return f"{request.amount} {request.currency}"

    async with client(agent) as remote:
        task = await remote.send("Some money, please")
        assert task.id
        assert task == input_required(data=containing({"schema": containing({"type": "object"})}))
        assert await remote.send({"amount": 3}, task=task) == completed(containing("3.0 EUR"))


async def test_the_lifespan_of_an_agent_begins_again_after_a_crash() -> None:
    happened: list[str] = []

    @asynccontextmanager
    async def lifespan(agent: Agent) -> AsyncIterator[str]:
        happened.append("up")
        try:
            yield "ready"
        finally:
            happened.append("down")

    agent = Agent("Stateful", lifespan=lifespan)

    @agent.skill
    async def state(turn: Turn) -> str:
        return str(turn.state)

    async with client(agent) as remote:
        assert (await remote.send("?")).text == "ready"
        await remote.crash()
        assert (await remote.send("?")).text == "ready"
        assert happened == ["up", "up"]
    assert happened == ["up", "up", "down"]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_a_large_file_goes_out_and_outlives_a_crash(store: str, tmp_path: Path) -> None:
    agent = Agent("Archive")
    large = b"0123456789abcdef" * 1024 * 1024

    @agent.skill
    async def make(turn: Turn) -> None:
        path = tmp_path / "large.bin"
        path.write_bytes(large)
        await turn.artifact(path, name="large")

    at = store if store == "memory:" else f"sqlite:///{tmp_path}/tasks.db"
    async with client(agent, store=at) as remote:
        task = await remote.send("?")
        assert task.id
        await remote.crash()
        [artifact] = (await remote.get(task.id)).artifacts
        assert artifact.parts[0].url is not None
        [got] = await remote.download(artifact, tmp_path / "got")
        assert got.read_bytes() == large


async def test_an_agent_that_calls_two_others_and_crashes_sends_to_each_once() -> None:
    slow = ScriptedAgent("Slow").on().works().takes(timedelta(hours=1)).replies("slow")
    asking = ScriptedAgent("Asking").on().asks("Which?").replies(lambda answer: answer.text)
    agent = Agent("Planner")

    @agent.skill
    async def plan(turn: Turn) -> str:
        first, second = await asyncio.gather(
            turn.delegate("https://slow.example", "one"),
            turn.delegate("https://asking.example", "two"),
        )
        return f"{first.text} {second.text}"

    remotes = {"https://slow.example": slow, "https://asking.example": asking}
    async with client(agent, remotes=remotes) as remote:
        sending = asyncio.create_task(remote.send("Go"))
        await remote.advance(timedelta(minutes=10))
        await remote.crash()
        await remote.advance(timedelta(minutes=10))
        await remote.crash("https://slow.example")
        await remote.advance(timedelta(hours=2))
        task = await sending
        assert task.id
        assert task == input_required("Which?")
        await remote.crash()
        assert await remote.send("this", task=task) == completed("slow this")
    assert slow.texts == ["one"]
    assert asking.texts == ["two", "this"]
