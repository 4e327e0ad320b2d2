"""A shop that waits for a payment, and the stand-in for a provider that makes the callback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

import parley
from parley import TaskState
from parley.server.run import serving
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio


@pytest.fixture
async def shop(example: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The shop, with a stand-in for the payment provider."""
    payments = example("payments")
    async with under_uvicorn(payments.app) as url:
        monkeypatch.setenv("PAYMENTS_URL", url)
        module = example("bookshop")
        module.payments = payments
        yield module


async def pay(task: parley.Task) -> None:
    assert task.status.message is not None
    page = task.status.message.text.removeprefix("Please pay at ")
    async with aiohttp.ClientSession() as session, session.post(page) as answer:
        assert (await answer.json())["paid"] is True


async def waiting(remote: parley.RemoteAgent, text: str) -> parley.Task:
    """Order a book, and return the task when it waits for the payment."""
    task = await remote.send(text, return_immediately=True)
    async with asyncio.timeout(10):
        while not (task.status.message and "Please pay" in task.status.message.text):
            await let_time_pass(0.01)
            task = await remote.get(task.id)
    assert task.state is TaskState.WORKING
    return task


async def test_a_book_is_sent_when_it_is_paid(shop: Any, serve: Any) -> None:
    async with serve(shop.agent) as remote:
        task = await waiting(remote, "The Odyssey")
        other = await waiting(remote, "The Iliad")
        await pay(task)
        done = await remote.wait(task.id, timeout=10)
        assert done.text == "The Odyssey is on its way. Paid: 12.50 EUR."
        assert (await remote.get(other.id)).state is TaskState.WORKING
        await pay(task)  # the provider repeats its callback
        await pay(other)
        assert (await remote.wait(other.id, timeout=10)).state is TaskState.COMPLETED
    assert len(shop.payments.payments) == 2


async def test_a_payment_arrives_while_the_shop_is_closed(
    shop: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider retries the given address until the shop is open."""
    monkeypatch.setattr(shop.payments, "FIRST_PAUSE", 0.02)
    store = f"sqlite:///{tmp_path}/shop.db"
    async with serving(parley.asgi(shop.agent, store=store)) as url, parley.connect(url) as remote:
        task = await waiting(remote, "The Odyssey")
    await pay(task)
    port = int(url.rpartition(":")[2])
    async with (
        serving(parley.asgi(shop.agent, store=store), port=port) as url,
        parley.connect(url) as remote,
    ):
        done = await remote.wait(task.id, timeout=20)
        assert done.state is TaskState.COMPLETED
