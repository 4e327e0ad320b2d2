"""The client with servers that stall, flood or reject, over connections that break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

import parley
from parley import Agent, Caller, Turn
from parley.conformance import faults
from parley.envelope import (
    EnvelopeBinding,
    EnvelopeFailed,
    IncomingRequest,
    LinkSettings,
    RegistrationSettings,
)
from parley.model.backoff import Backoff
from parley.model.errors import InvalidParamsError
from parley.server.run import serving
from parley.testing import FaultProxy
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


def quick() -> LinkSettings:
    return LinkSettings(backoff=Backoff(0.01, 0.05), transport="socket", retries=100)


async def texts(client: parley.envelope.EnvelopeClient, sub_type: str) -> str:
    """Return the text of a stream, of its events alone."""
    found = []
    async with client.stream("count", sub_type=sub_type, timeout=30) as stream:
        async for event in stream:
            for result in event.results:
                update = result.get("artifactUpdate") if isinstance(result, dict) else None
                parts = update["artifact"]["parts"] if update else ()
                found += [part["text"] for part in parts]
    return "".join(found)


@pytest.mark.parametrize("sub_type", ["query", "command"])
async def test_a_stream_that_is_cut_at_any_byte_is_complete_and_has_nothing_twice(
    url: str, sub_type: str
) -> None:
    async with parley.envelope.connect(f"{url}/envelope", settings=quick()) as client:
        whole = await texts(client, sub_type)
    assert whole == "".join(f"{number} " for number in range(12))
    begun.clear()

    async def cut_at(byte: int) -> None:
        line = FaultProxy(url.replace("http", "tcp"))
        for place in (byte, byte + 400, byte + 900):
            line.fault(faults.cut(after_bytes=place))
        address = f"http://{line.url}/envelope"
        async with line, parley.envelope.connect(address, settings=quick()) as client:
            assert await texts(client, sub_type) == whole, byte

    for first in range(230, 4000, 377):  # behind the handshake, in steps that hit all frames
        await asyncio.gather(*[cut_at(first + 37 * n) for n in range(10)])
    assert len(begun) == len(set(begun)) == 100


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


CARD = {
    "agentInfo": {"id": "remote-desk", "name": "Desk"},
    "capabilities": [{"name": "greet"}, {"name": "count"}],
}


def who(headers: Any) -> Caller:
    return Caller(id=headers.get("x-user", ""), authenticated="x-user" in headers)


@pytest.fixture
async def registering_url() -> AsyncIterator[str]:
    options = EnvelopeBinding(registration=RegistrationSettings(anonymous=True))
    async with serving(parley.asgi(gateway, drain=0.0, bindings=[options])) as address:
        yield address


async def test_an_agent_behind_a_socket_is_asked_through_the_server(registering_url: str) -> None:
    settings = LinkSettings(backoff=Backoff(0.01, 0.05))
    taken: list[IncomingRequest] = []
    async with FaultProxy(registering_url.replace("http", "tcp")) as line:
        line.fault(faults.cut(after_bytes=6000))
        address = f"http://{line.url}/envelope"
        async with parley.envelope.connect(
            address, agent_id="remote-desk", settings=settings
        ) as desk:

            @desk.on_request
            async def handle(request: IncomingRequest) -> Any:
                taken.append(request)
                if request.action != "greet":
                    raise InvalidParamsError("greet is all there is")
                return [f"hello {request.parameters['name']}"]

            answer = await desk.register(CARD)
            assert answer.status == "success"
            async with parley.envelope.connect(registering_url) as client:
                greet = {"name": "Ada"}
                asked = await client.request("greet", greet, target="remote-desk", timeout=10)
                assert asked.results == ("hello Ada",)
                with pytest.raises(EnvelopeFailed, match="greet is all"):
                    await client.request("count", {}, target="remote-desk", timeout=10)

                async def is_back() -> bool:
                    long = {"name": "x" * 500}
                    try:
                        await client.request("greet", long, target="remote-desk", timeout=5)
                    except EnvelopeFailed:  # its line was cut: it registers again by itself
                        return False
                    return desk.connection.reconnects > 0

                await until(is_back, 10)
    assert taken[0].parameters == {"name": "Ada"}


gateway = Agent("Gateway")


@gateway.skill
async def say(turn: Turn) -> str:
    """Says it again."""
    return turn.text
