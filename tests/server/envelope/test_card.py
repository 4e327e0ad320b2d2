"""Envelope cards: what they say, and who may see them."""

from __future__ import annotations

import hashlib

import jsonschema
import pytest

import parley
from parley import (
    Agent,
    Caller,
    CardDetails,
    DeclaredPerformance,
    EnvelopeSettings,
    MaintenanceWindow,
)
from parley.envelope.binding import EnvelopeBinding
from parley.envelope.cards import read_card
from parley.security import ApiKey, Bearer, MutualTls, anonymous
from parley.server.run import serving
from tests.kit.http import ask

pytestmark = pytest.mark.anyio

CARD, SCHEMA = "/envelope/card", "/envelope/schema.json"
WINDOW = MaintenanceWindow(day="sunday", start="02:00", end="03:00", time_zone="Europe/Berlin")


def keys(**callers: tuple[str, ...]) -> ApiKey:
    """Keys that are the name of their caller, with scopes."""
    return ApiKey(
        keys={
            hashlib.sha256(name.encode()).hexdigest(): Caller(id=name, scopes=frozenset(scopes))
            for name, scopes in callers.items()
        }
    )


def clock(envelope=True, listed_interfaces=None, **options) -> Agent:
    """An agent with a typed skill, and one that only ada sees."""
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


async def card_at(url, path=CARD, **headers):
    response = await ask(url, "GET", path, headers=headers)
    assert response.status == 200, response.body
    return response.json


async def test_the_card_says_what_is_declared_and_served():
    agent = clock(
        EnvelopeSettings(
            agent_type="clock",
            vendor="Acme",
            license="Apache-2.0",
            tags=["time"],
            requests_per_minute=90,
            schedule="office hours",
            maintenance_windows=[WINDOW],
            performance={
                "now": DeclaredPerformance(
                    average_response_time=20, max_concurrent_requests=4, reliability=0.99
                )
            },
        ),
        limits=["60/minute per caller", "5/minute per address"],
    )
    async with serving(parley.asgi(agent, url="https://agents.example.com")) as url:
        card = await card_at(url)
        schema = (await ask(url, "GET", SCHEMA)).json
    jsonschema.validate(card, {"$ref": "#/$defs/card", "$defs": schema["$defs"]})
    assert card["agentInfo"] == {
        "id": "clock",
        "name": "Clock",
        "type": "clock",
        "version": "0.1.0",
        "description": "Tells the time.",
        "vendor": "Acme",
        "license": "Apache-2.0",
    }
    capability = card["capabilities"][0]
    assert capability["name"] == "now"
    assert capability["inputSchema"]["required"] == ["zone"]
    assert capability["outputSchema"]["additionalProperties"] == {"type": "string"}
    assert capability["performance"] == {
        "averageResponseTime": 20,
        "maxConcurrentRequests": 4,
        "reliability": 0.99,
    }
    assert card["endpoints"] == {
        "primary": "wss://agents.example.com/envelope",
        "backup": "https://agents.example.com/envelope",
        "healthCheck": "https://agents.example.com/health/ready",
    }
    assert card["security"] == {"authMethods": ["none"], "dataClassification": "public"}
    limits = card["constraints"]["rateLimits"]
    assert limits == {"requestsPerMinute": 60, "concurrentConnections": 16}
    assert card["constraints"]["availability"]["maintenanceWindows"][0]["day"] == "sunday"
    assert card["metadata"]["documentation"] == "https://agents.example.com/docs"
    assert read_card(card).metadata.tags == ("time",)


async def test_the_addresses_are_those_that_a_client_can_use():
    app = parley.asgi({"/clock": clock()}, tenants={"acme": clock(key="acme-clock")})
    async with serving(app) as url:
        port = url.rpartition(":")[2]
        for path in ("/clock", "/acme", "/a2a/clock"):
            card = await card_at(url, f"{path}{CARD}")
            assert card["endpoints"]["primary"] == f"ws://127.0.0.1:{port}{path}/envelope"
            assert card["endpoints"]["healthCheck"] == f"{url}/health/ready"
            a2a = await card_at(url, f"{path}/.well-known/agent-card.json")
            last = a2a["supportedInterfaces"][-1]
            assert last["url"] == card["endpoints"]["backup"] == f"{url}{path}/envelope"
            assert last["protocolBinding"] == "urn:parley:envelope:v1"


async def test_the_methods_are_those_of_the_schemes():
    for security, expected in (
        (keys(ada=()) | Bearer(lambda token: None), ["api-key", "bearer-token"]),
        (MutualTls() | anonymous, ["mutual-tls", "none"]),
    ):
        async with serving(parley.asgi(clock(security=security))) as url:
            assert (await card_at(url))["security"]["authMethods"] == expected


async def test_an_agent_without_the_protocol_has_no_card():
    async with serving(parley.asgi(clock(envelope=False))) as url:
        for path in (CARD, SCHEMA, "/envelope"):
            assert (await ask(url, "GET", path)).status == 404
        bindings = {
            each["protocolBinding"]
            for each in (await card_at(url, "/.well-known/agent-card.json"))["supportedInterfaces"]
        }
    assert bindings == {"JSONRPC", "HTTP+JSON"}
    hidden = clock(listed_interfaces={"urn:parley:envelope:v1": False})
    async with serving(parley.asgi(hidden)) as url:
        offered = (await card_at(url, "/.well-known/agent-card.json"))["supportedInterfaces"]
        assert {each["protocolBinding"] for each in offered} == {"JSONRPC", "HTTP+JSON"}
        await card_at(url)  # hidden, and not closed


async def test_a_public_card_is_kept_by_caches_and_asked_for_conditionally():
    async with serving(parley.asgi(clock())) as url:
        response = await ask(url, "GET", CARD)
        assert response.headers["cache-control"] == "public, max-age=60"
        assert "Authorization" not in response.headers.get("vary", "")
        known = {"If-None-Match": response.headers["etag"]}
        assert (await ask(url, "GET", CARD, headers=known)).status == 304
        head = await ask(url, "HEAD", CARD)
        assert (head.status, head.body) == (200, b"")
        assert (await ask(url, "PUT", CARD, b"{}")).status == 405


async def test_the_times_are_the_same_on_all_replicas_and_after_a_restart(tmp_path):
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    cards = []
    for version in ("1", "1", "2"):
        agent = clock(EnvelopeSettings(), version=version)
        async with serving(parley.asgi(agent, store=store)) as url:
            metadata = (await card_at(url))["metadata"]
            del metadata["documentation"]  # an address of this server
            cards.append(metadata)
    assert cards[0] == cards[1]
    assert cards[2]["createdAt"] == cards[0]["createdAt"]
    assert cards[2]["updatedAt"] > cards[0]["updatedAt"]


# -- who may see it ----------------------------------------------------------------------------

SEEN = [  # classification, permissions, who sees it
    ("public", ("read",), {"": 200, "ada": 200, "eve": 200}),
    ("internal", (), {"": 401, "ada": 200, "eve": 200}),
    ("confidential", ("read",), {"": 401, "ada": 200, "eve": 403}),
    ("restricted", ("read",), {"": 401, "ada": 200, "eve": 403}),
]


@pytest.mark.parametrize(("kind", "permissions", "seen"), SEEN, ids=[each[0] for each in SEEN])
async def test_the_classification_decides_who_sees_the_card(kind, permissions, seen):
    agent = clock(
        EnvelopeSettings(data_classification=kind, required_permissions=permissions),
        security=keys(ada=("read",), eve=()) | anonymous,
    )
    shared = [{"kty": "oct", "kid": "k", "owner": "ada", "k": "A" * 43}]
    async with serving(parley.asgi(agent, bindings=[EnvelopeBinding(keys=shared)])) as url:
        for name, status in seen.items():
            response = await ask(url, "GET", CARD, headers={"X-API-Key": name} if name else {})
            assert response.status == status, name
            if kind != "public":
                assert "public" not in response.headers["cache-control"]
                assert "x-api-key" in response.headers["vary"].lower()
            assert status == 200 or b"Clock" not in response.body


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
