"""Turns that wait for something outside: completed by the test, and by an address."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import parley
from parley import Agent, Task, Turn
from parley.store.protocols.tables import EventCompleted
from parley.testing import client, completed, working

pytestmark = pytest.mark.anyio


def shop() -> Agent:
    agent = Agent("Shop")

    @agent.skill
    async def order(turn: Turn) -> str:
        """Waits for a payment, at an address or by its key."""
        address = await turn.callback(f"payment:{turn.text}")
        await turn.working(address)
        paid = await turn.wait_event(f"payment:{turn.text}", timeout=timedelta(days=3))
        return f"paid {paid['amount']}"

    return agent


@pytest.fixture(params=["memory:", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.param if request.param == "memory:" else f"sqlite:///{tmp_path}/tasks.db"


async def test_a_test_completes_an_event(store: str) -> None:
    async with client(shop(), store=store) as remote:
        task = await remote.send("42", return_immediately=True)
        assert isinstance(task, Task)
        await remote.advance(timedelta(days=1))
        await remote.crash()
        assert await remote.complete("payment:42", {"amount": 10})
        assert await remote.get(task.id) == completed("paid 10")
        assert not await remote.complete("payment:42", {"amount": 10})
        with pytest.raises(EventCompleted):
            await remote.complete("payment:42", {"amount": 11})


async def test_whatever_completes_events_in_production_does_in_a_test(store: str) -> None:
    agent = shop()
    async with client(agent, store=store) as remote:
        task = await remote.send("42", return_immediately=True)
        assert isinstance(task, Task)
        await remote.settle()
        await parley.complete("payment:42", {"amount": 10}, agent=agent, store=remote.store)
        assert await remote.wait(task.id) == completed("paid 10")


async def test_an_address_of_the_agent_is_called_without_a_socket(store: str) -> None:
    async with client(shop(), store=store) as remote:
        task = await remote.send("42", return_immediately=True)
        assert isinstance(task, Task)
        await remote.settle()
        status = (await remote.get(task.id)).status
        assert status.message is not None
        address = status.message.text
        assert address.startswith("https://agent.test/")
        await remote.crash()
        json = {"Content-Type": "application/json"}
        reply = await remote.http.send("POST", address, json, b'{"amount": 7}')
        assert reply.status < 300
        assert await remote.wait(task.id) == completed("paid 7")


async def test_an_address_expires_by_moved_time() -> None:
    async with client(shop()) as remote:
        task = await remote.send("42", return_immediately=True)
        assert isinstance(task, Task)
        await remote.settle()
        assert await remote.get(task.id) == working()
        status = (await remote.get(task.id)).status
        assert status.message is not None
        await remote.advance(timedelta(days=60))
        json = {"Content-Type": "application/json"}
        reply = await remote.http.send("POST", status.message.text, json, b'{"amount": 7}')
        assert reply.status == 410
