"""The client with servers that stall, flood or reject, over connections that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

import parley
from parley import Agent, Turn
from parley.envelope import LinkSettings
from parley.model.backoff import Backoff
from parley.server.run import serving
from tests.client.envelope.scripted import Peer, Sent, answer_to, echo, scripted_agent
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio


QUICK = LinkSettings(backoff=Backoff(0.01, 0.05), heartbeat=5.0)


@pytest.mark.slow
async def test_messages_that_nobody_reads_are_bounded_in_size() -> None:
    async def flood(peer: Peer, request: Sent) -> None:
        for _ in range(25):
            await peer.send(answer_to({"messageId": "x"}, "EVENT", "partial", pad="x" * 1_000_000))
        await echo(peer, request)

    async with scripted_agent(flood) as agent, parley.envelope.connect(agent.url) as client:
        await client.request("echo")
        unread = client.messages()
        found = 0
        async with asyncio.timeout(5):
            while found < 16:
                await anext(unread)
                found += 1
        waiting = asyncio.ensure_future(anext(unread))
        await let_time_pass(0.05)
        assert not waiting.done()
        waiting.cancel()


async def test_a_kept_connection_is_opened_again_after_its_credentials_were_refused() -> None:
    refusals = 0

    def refuse(_: web.Request) -> web.StreamResponse | None:
        nonlocal refusals
        if not agent.peers or refusals >= 2:
            return None
        refusals += 1
        error = {"code": "UNAUTHENTICATED", "message": "expired"}
        body = answer_to({"messageId": ""}, "RESPONSE", "error", error=error)
        return web.json_response(body, status=401)

    async with scripted_agent(echo) as agent:
        agent.refuse = refuse
        async with parley.envelope.connect(agent.url, settings=QUICK) as client:
            client.messages()
            agent.peers[0].cut()
            await until(lambda: len(agent.peers) == 2, seconds=5)
    assert refusals == 2


# -- the envelope client and a real server, over a connection that breaks --------------------------


agent = Agent("Streams")
begun: list[str] = []


@agent.skill(replies="task")
async def count(turn: Turn) -> AsyncIterator[str]:
    """Counts."""
    begun.append(turn.task_id)
    for number in range(12):
        yield f"{number} "
        await asyncio.sleep(0)


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with serving(parley.asgi(agent, drain=0.0)) as address:
        yield address


# -- agents that register over a client's socket with a real server, and get requests --------------


gateway = Agent("Gateway")


@gateway.skill
async def say(turn: Turn) -> str:
    """Says it again."""
    return turn.text
