"""No stream outlives the credentials that opened it, over any binding."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from uuid import uuid4

import pytest

import parley
from parley import Agent, Turn
from parley.model.errors import UnauthenticatedError
from parley.model.service import Caller
from parley.security import Bearer
from tests.contract.conftest import Serve, Speech, reach

pytestmark = pytest.mark.anyio

VALID: set[str] = set()
agent = Agent("Endless", security=Bearer(lambda text: Caller(id="ada") if text in VALID else None))


@agent.skill(replies="task")
async def endless(turn: Turn) -> str:
    await turn.ask("More?")
    return "done"


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, agent), caller=None)


async def test_a_stream_ends_when_its_credentials_do(
    addresses: Sequence[str], speech: Speech
) -> None:
    first, second = uuid4().hex, uuid4().hex
    VALID.update((first, second))
    bearing = [{"authorization": f"Bearer {token}"} for token in (first, second)]
    async with (
        reach(addresses, speech, headers=bearing[0]) as ending,
        reach(addresses, speech, headers=bearing[1]) as staying,
    ):
        task = await staying.send("hi")
        streams = [each.subscribe(task.id) for each in (ending, staying)]
        for stream in streams:
            await anext(stream)
        VALID.remove(first)
        async with asyncio.timeout(10):
            with pytest.raises(UnauthenticatedError):
                await anext(streams[0])
            await staying.send("enough", task_id=task.id)
            events = [event async for event in streams[1]]
        assert events[-1].status.state.name == "COMPLETED"
