"""``turn.callback``: an external system completes the event that a turn waits for."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

import parley
from parley import Agent, BlockingTurn, TaskState, Turn
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.servers import grpc_of

pytestmark = pytest.mark.anyio


def shop(name: str = "Shop", **options: Any) -> Agent:
    agent = Agent(name, **options)

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        address = await turn.callback(turn.text)
        payment = await turn.wait_event(turn.text, message=address)
        return f"paid with {json.dumps(payment)}"

    @agent.skill(replies="task")
    def order_in_thread(turn: BlockingTurn) -> str:
        address = turn.callback(turn.text, expires=timedelta(hours=1))
        return f"paid with {json.dumps(turn.wait_event(turn.text, message=address))}"

    @agent.skill(replies="task")
    async def keep(turn: Turn) -> str:
        return await turn.callback(turn.text, expires=timedelta(milliseconds=1))

    return agent


async def test_over_grpc_the_server_needs_an_address_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(parley.asgi(shop()), grpc=GrpcOptions(port=0)) as url:
        trusted = await grpc_of(url)
        async with parley.connect(url, binding="GRPC", trust_origins=trusted) as remote:
            task = await remote.send("payment:42")
            assert task.state is TaskState.FAILED
    assert "give it with url=" in caplog.text
