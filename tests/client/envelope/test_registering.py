"""Agents behind a client's socket: registered with a real server, and asked through it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

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
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

CARD = {
    "agentInfo": {"id": "remote-desk", "name": "Desk"},
    "capabilities": [{"name": "greet"}, {"name": "count"}],
}
gateway = Agent("Gateway")


@gateway.skill
async def say(turn: Turn) -> str:
    """Says it again."""
    return turn.text


def who(headers: Any) -> Caller:
    return Caller(id=headers.get("x-user", ""), authenticated="x-user" in headers)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    options = EnvelopeBinding(registration=RegistrationSettings(anonymous=True))
    async with serving(parley.asgi(gateway, drain=0.0, bindings=[options])) as address:
        yield address


async def test_an_agent_behind_a_socket_is_asked_through_the_server(url: str) -> None:
    settings = LinkSettings(backoff=Backoff(0.01, 0.05))
    taken: list[IncomingRequest] = []
    async with FaultProxy(url.replace("http", "tcp")) as line:
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
            async with parley.envelope.connect(url) as client:
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
