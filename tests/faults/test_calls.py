"""An agent dies while it calls other agents: no message is sent twice, and no call is lost."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import parley
from parley import Agent, Execution, TaskState, Turn
from parley.server.run import serving
from tests.faults.conftest import Served
from tests.kit.waiting import let_time_pass, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KILLS = int(os.environ.get("PARLEY_KILLS", "4"))
CALLING = Path(__file__).with_name("calling.py")


class Peer:
    """An agent that counts the messages that begin a task, and waits until a test releases it."""

    def __init__(self, name: str, *, asks: bool = False) -> None:
        self.messages: Counter[str] = Counter()
        self.told: Counter[str] = Counter()
        self.go = asyncio.Event()
        self.agent = Agent(name, execution=Execution(cancel_grace=0.2))

        @self.agent.skill
        async def work(turn: Turn) -> str:
            """Counts, asks, waits."""
            if turn.number == 1:
                self.messages[turn.text] += 1
            if asks:
                answer = await turn.ask("Which day?")
                self.told[answer.text] += 1
            await turn.working("at it")
            await self.go.wait()
            return f"{name}: {turn.text}"


@asynccontextmanager
async def calling(tmp_path: Path, *peers: Peer) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(serving(parley.asgi(peer.agent, drain=0.2)))
            for peer in peers
        ]
        served = Served(tmp_path / "tasks.db", script=CALLING, args=urls)
        await served.start()
        try:
            yield served
        finally:
            if served.process is not None and served.process.returncode is None:
                await served.end()


async def test_an_agent_that_waits_for_two_others_is_killed(tmp_path: Path) -> None:
    peers = [Peer("Flights"), Peer("Hotels")]
    async with calling(tmp_path, *peers) as served, parley.connect(served.url) as remote:
        task = await remote.send("Rome", return_immediately=True)
        assert task.id
        for _ in range(3):
            await until(lambda: [sum(p.messages.values()) for p in peers] == [2, 1])
            await served.end()
            await served.start()
        for peer in peers:
            peer.go.set()
        done = await remote.wait(task.id, timeout=30)
    assert done.state is TaskState.COMPLETED
    assert done.text == "Flights: Rome 0; Hotels: Rome 1; Flights: Rome again"
    assert peers[0].messages == {"Rome 0": 1, "Rome again": 1}
    assert peers[1].messages == {"Rome 1": 1}


@pytest.mark.parametrize("seed", range(KILLS))
async def test_kills_at_random_moments_send_nothing_twice(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    peers = [Peer("Flights"), Peer("Hotels", asks=True), Peer("Cars")]
    async with calling(tmp_path, *peers) as served, parley.connect(served.url) as remote:
        task = await remote.send("Rome", return_immediately=True)
        assert task.id
        for _ in range(chance.randint(1, 3)):
            await let_time_pass(chance.uniform(0.0, 0.3))
            await served.end()
            await served.start()
        asked = await remote.wait(task.id, timeout=30)
        assert asked.state is TaskState.INPUT_REQUIRED
        await remote.send("Monday", task=asked, return_immediately=True)
        for _ in range(chance.randint(1, 3)):
            await let_time_pass(chance.uniform(0.0, 0.3))
            await served.end()
            await served.start()
        for peer in peers:
            peer.go.set()
        await until(lambda: peers[1].told == {"Monday": 1}, 30)
        done = await remote.wait(task.id, timeout=30)
    assert done.state is TaskState.COMPLETED
    assert done.text == "Flights: Rome 0; Hotels: Rome 1; Cars: Rome 2; Flights: Rome again"
    assert peers[0].messages == {"Rome 0": 1, "Rome again": 1}
    assert [peer.messages for peer in peers[1:]] == [{"Rome 1": 1}, {"Rome 2": 1}]
    assert peers[1].told == {"Monday": 1}


async def test_a_task_that_is_canceled_after_a_kill_cancels_what_it_began(tmp_path: Path) -> None:
    peers = [Peer("Flights"), Peer("Hotels", asks=True)]
    async with calling(tmp_path, *peers) as served:
        async with parley.connect(served.url) as remote:
            task = await remote.send("Rome")
            assert task.id
            assert task.state is TaskState.INPUT_REQUIRED
            await served.end()
            await served.start()
            canceled = await remote.cancel(task.id)
        assert canceled.state is TaskState.CANCELED
        for url in served._args:
            async with parley.connect(url) as remote:
                states = {each.state async for each in remote.tasks()}
            assert states == {TaskState.CANCELED}
