"""A stream that waits has let go of its request: counted in tasks and objects, not in bytes."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextlib import AsyncExitStack

import pytest

import parley
from parley import Agent, Turn
from parley.server.run import serving
from tests.kit.http import JSON, WAIT, call, connection

pytestmark = pytest.mark.anyio

OF_A_REQUEST = (
    "DirectExchange", "HeadFields", "JsonRpcRequests", "KnownHead", "RequestHead",
    "SendMessageRequest", "ServiceCall", "scope",
)  # fmt: skip
STREAMS = 6


def counted() -> Counter[str]:
    """The objects that there are, by the names of their classes, and the scopes of requests."""
    gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        found[type(each).__name__] += 1
        if type(each) is dict and each.get("type") == "http" and "raw_path" in each:
            found["scope"] += 1
    return found


async def test_an_idle_stream_holds_two_tasks_and_nothing_of_its_request() -> None:
    agent = Agent("Idle")
    over = asyncio.Event()

    @agent.skill(replies="task")
    async def wait(turn: Turn) -> None:
        """Works for ever."""
        await turn.working()
        await over.wait()

    app = parley.asgi(agent)
    async with asyncio.timeout(WAIT * 6), serving(app) as url, AsyncExitStack() as stack:

        async def opened(number: int) -> None:
            said = {"messageId": f"m-{number}", "role": "ROLE_USER", "parts": [{"text": "x"}]}
            http = await stack.enter_async_context(connection(url))
            body = call("SendStreamingMessage", {"message": said})
            await http.request("POST", "/", body, JSON)
            await http.head()
            frames = http.frames()
            stack.push_async_callback(frames.aclose)
            for _ in range(2):
                await anext(frames)

        await opened(0)
        before, tasks = counted(), len(asyncio.all_tasks())
        for number in range(1, STREAMS + 1):
            await opened(number)
        after, grown = counted(), len(asyncio.all_tasks()) - tasks
        over.set()
    assert grown == 2 * STREAMS  # the agent's, and the stream's
    assert [name for name in OF_A_REQUEST if after[name] > before[name]] == []
    assert after["AsgiExchange"] - before["AsgiExchange"] == STREAMS
