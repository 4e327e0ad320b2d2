"""Envelope cards: contents, visibility, and enforcement."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import parley
from parley import Agent, Caller, CardDetails, DeclaredPerformance, EnvelopeSettings, Turn
from parley.envelope.codec import members_of
from parley.security import ApiKey, anonymous
from parley.server.run import serving
from tests.kit.http import JSON, ask, post
from tests.server.envelope.guarded import message

pytestmark = pytest.mark.anyio


CARD, SCHEMA = "/envelope/card", "/envelope/schema.json"


def keys(**callers: tuple[str, ...]) -> ApiKey:
    """Keys equal to their caller's name, with scopes."""
    return ApiKey(
        keys={
            hashlib.sha256(name.encode()).hexdigest(): Caller(id=name, scopes=frozenset(scopes))
            for name, scopes in callers.items()
        }
    )


def clock(envelope=True, listed_interfaces=None, **options) -> Agent:
    """An agent with a typed skill, and one skill for ada only."""
    agent = Agent(
        "Clock",
        description="Tells the time.",
        card=CardDetails(envelope=envelope, listed_interfaces=listed_interfaces),
        **options,
    )

    @agent.skill(tags=["time"])
    def now(zone: str, round_to: int = 1) -> dict[str, str]:
        """Return the time of a zone."""
        return {"time": "12:00"}

    return agent


# -- visibility ----------------------------------------------------------------------------------


async def test_what_one_caller_sees_is_shown_to_no_other():
    agent = clock(security=keys(ada=(), eve=()) | anonymous)
    agent.skill(id="vault", listed=lambda caller: caller.id == "ada")(lambda: "gold")
    async with serving(parley.asgi(agent)) as url:

        async def skills(name: str) -> set[str]:
            response = await ask(url, "GET", CARD, headers={"X-API-Key": name} if name else {})
            assert response.headers["cache-control"].startswith("private")
            return {each["name"] for each in response.json["capabilities"]}

        for _ in range(2):
            assert await skills("") == {"now"}
            assert await skills("ada") == {"now", "vault"}
            assert await skills("eve") == {"now"}


# -- a card's declarations are enforced: over POST, over sockets, and over A2A's bindings ----------


PROTOCOL = "parley.envelope.v1"


def written(source: str, action: str = "echo", **changes):
    """Return a REQUEST as JSON."""
    members = members_of(message(source, target="echo"))
    members["payload"] = {"action": action, "parameters": {"text": "hi"}}
    return members | changes


async def posted(url, members, **headers):
    """Return the status and the payload of the answer to a POST."""
    response = await ask(
        url, "POST", "/envelope", json.dumps(members).encode(), {**JSON, **headers}
    )
    return response.status, response.json["payload"]


async def rpc(url, method="SendMessage", params=None, **headers):
    """Return the answer to a call over JSON-RPC."""
    sent = params or {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": sent}).encode()
    return await post(url, body, {"A2A-Version": "1.0", **headers})


def echo(settings: EnvelopeSettings | None = None, **options) -> Agent:
    agent = Agent("Echo", card=CardDetails(envelope=settings or True), **options)

    @agent.skill
    async def echo(turn: Turn, text: str = "") -> str:
        return f"{turn.caller.id}: {text}"

    return agent


# -- maintenance windows -----------------------------------------------------------------------


# -- concurrent requests, and requests per minute ------------------------------------------------


async def test_a_skill_serves_as_many_requests_at_once_as_it_declares():
    performance = {
        "slow": DeclaredPerformance(max_concurrent_requests=1, average_response_time=2500)
    }
    agent = Agent("Echo", card=CardDetails(envelope=EnvelopeSettings(performance=performance)))
    goes_on = asyncio.Event()
    has_begun = asyncio.Event()

    @agent.skill(default=True)
    async def slow(turn: Turn) -> str:
        has_begun.set()
        await goes_on.wait()
        return "done"

    @agent.skill
    async def quick(turn: Turn) -> str:
        return "done"

    async with serving(parley.asgi(agent)) as url:
        first = asyncio.create_task(posted(url, written("visitor", "slow")))
        await has_begun.wait()
        refused = await rpc(url)
        assert refused.error["data"][0]["reason"] == "OVERLOADED"
        assert refused.headers["retry-after"] == "3"
        _, payload = await posted(url, written("visitor", "slow"))
        assert payload["error"] == payload["error"] | {"code": "OVERLOADED", "retryAfter": 3000}
        _, payload = await posted(url, written("visitor", "quick"))
        assert payload["status"] == "success"
        goes_on.set()
        assert (await first)[1]["status"] == "success"
        _, payload = await posted(url, written("visitor", "slow"))
        assert payload["status"] == "success"


# -- identity over POST and sockets ------------------------------------------------------------


async def test_permissions_and_numbers_of_sockets_hold_before_a_socket_opens():
    settings = EnvelopeSettings(required_permissions=["say"], concurrent_connections=1)
    agent = echo(settings, security=keys(ada=("say",), eve=()))
    async with serving(parley.asgi(agent)) as url:
        address = f"ws{url.removeprefix('http')}/envelope"

        def opening(name: str):
            headers = {"X-API-Key": name} if name else {}
            return connect(address, subprotocols=[PROTOCOL], additional_headers=headers)

        for name, status in (("", 401), ("eve", 403)):
            with pytest.raises(InvalidStatus) as caught:
                await opening(name)
            assert caught.value.response.status_code == status
        _, payload = await posted(url, written("eve"), **{"X-API-Key": "eve"})
        assert payload["error"]["code"] == "PERMISSION_DENIED"
        assert (await rpc(url, **{"X-API-Key": "eve"})).error["code"] == -32011
        async with opening("ada"):
            with pytest.raises(InvalidStatus) as caught:
                await opening("ada")
            assert caught.value.response.status_code == 429
        async with opening("ada"):
            pass


# -- maintenance windows: edges, midnight, daylight saving time, and rejected requests -------------
