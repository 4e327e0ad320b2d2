"""Envelope cards: what they say, who may see them, and that it is enforced."""

from __future__ import annotations

import asyncio
import hashlib
import json

import jsonschema
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import parley
from parley import (
    Agent,
    Caller,
    CardDetails,
    DeclaredPerformance,
    EnvelopeSettings,
    MaintenanceWindow,
    Turn,
)
from parley.envelope.binding import EnvelopeBinding
from parley.envelope.cards import read_card
from parley.envelope.codec import members_of, read_message
from parley.envelope.declared import MaintenanceGate
from parley.envelope.messages import UnderMaintenance
from parley.envelope.signatures import jwk_of, read_key, sign_message, verify_signature
from parley.model.struct import Timestamp
from parley.security import ApiKey, Bearer, MutualTls, anonymous
from parley.security.signing.keys import SigningKeys, new_key_set, write_key_set
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from tests.kit.http import JSON, ask, post
from tests.server.envelope.guarded import SHARED, Clock, message

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


# -- what a card declares is enforced: over POST, over sockets, and over A2A's own bindings --------


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


async def test_a_window_refuses_new_work_over_every_binding_and_nothing_else():
    clock = Clock()
    begins, ends = (Timestamp.from_milliseconds(clock.ms + ms) for ms in (60_000, 120_000))
    window = MaintenanceWindow(start=str(begins), end=str(ends))
    agent = Agent("Echo", card=CardDetails(envelope=EnvelopeSettings(maintenance_windows=[window])))

    @agent.skill
    async def ask_name(turn: Turn) -> str:
        name = await turn.ask("Who are you?")
        return f"Hello {name.text}"

    app = parley.asgi(agent, store=MemoryTaskStore(clock=clock))
    async with serving(app) as url:
        before = (await rpc(url)).json["result"]["task"]
        assert before["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        clock.ms += 75_500
        refused = await rpc(url)
        assert refused.error["data"][0]["reason"] == "MAINTENANCE"
        assert refused.headers["retry-after"] == "45"
        _, payload = await posted(url, written("visitor", "ask_name"))
        assert payload["error"]["code"] == "MAINTENANCE"
        assert payload["error"]["retryAfter"] == 44_500
        # What runs can be read, and goes on when it is answered.
        read = {"action": "a2a.GetTask", "parameters": {"id": before["id"]}}
        _, payload = await posted(url, written("visitor", payload=read))
        assert payload["status"] == "success"
        answer = {"messageId": "m2", "role": "ROLE_USER", "parts": [{"text": "Ada"}]}
        after = await rpc(url, params={"message": {**answer, "taskId": before["id"]}})
        assert after.json["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        clock.ms += 45_000
        assert "result" in (await rpc(url)).json


# -- requests at once, and per minute ----------------------------------------------------------


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


async def test_the_rate_of_one_caller_is_its_own():
    agent = echo(EnvelopeSettings(requests_per_minute=2), security=keys(ada=(), eve=()))
    async with serving(parley.asgi(agent)) as url:
        ada, eve = {"X-API-Key": "ada"}, {"X-API-Key": "eve"}
        assert (await posted(url, written("ada"), **ada))[1]["status"] == "success"
        assert "result" in (await rpc(url, **ada)).json
        for _ in range(3):
            _, payload = await posted(url, written("ada"), **ada)
            assert payload["error"]["code"] == "TOO_MANY_REQUESTS"
            assert payload["error"]["retryAfter"] >= 1000
        # Who is spoofed pays nothing.
        for _ in range(3):
            _, payload = await posted(url, written("eve"), **ada)
            assert payload["error"]["code"] == "SOURCE_MISMATCH"
        assert (await posted(url, written("eve"), **eve))[1]["status"] == "success"


# -- identity over POST and sockets ------------------------------------------------------------


async def test_neither_a_post_nor_a_socket_lets_a_caller_be_another():
    agent = echo(security=keys(ada=(), bob=()) | anonymous)
    async with serving(parley.asgi(agent)) as url:
        _, payload = await posted(url, written("ada"), **{"X-API-Key": "ada"})
        assert payload["results"][0]["text"].startswith("ada")
        address = f"ws{url.removeprefix('http')}/envelope"
        for headers, source in (({"X-API-Key": "ada"}, "bob"), ({}, "bob"), ({}, "ada")):
            _, payload = await posted(url, written(source), **headers)
            assert payload["error"]["code"] == "SOURCE_MISMATCH"
            async with connect(
                address, subprotocols=[PROTOCOL], additional_headers=headers
            ) as socket:
                await socket.send(json.dumps(written(source)))
                answer = json.loads(await socket.recv())
                assert answer["payload"]["error"]["code"] == "SOURCE_MISMATCH"


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


async def test_restricted_data_is_for_signed_messages_alone_and_answers_are_signed():
    server_keys = SigningKeys.parse(write_key_set(new_key_set(["EdDSA"], 0)))
    settings = EnvelopeSettings(data_classification="restricted", required_permissions=["say"])
    agent = echo(settings, security=keys(shop=("say",)))
    app = parley.asgi(
        agent, bindings=[EnvelopeBinding(keys=[jwk_of(SHARED)])], signing_keys=server_keys
    )
    proof = {"X-API-Key": "shop"}
    async with serving(app) as url:
        assert (await rpc(url, **proof)).error["data"][0]["reason"] == "SIGNATURE_REQUIRED"
        _, payload = await posted(url, written("shop"), **proof)
        assert payload["error"]["code"] == "SIGNATURE_REQUIRED"
        unsigned = read_message(json.dumps(written("shop")))
        sent = members_of(sign_message(unsigned, SHARED))
        body = json.dumps(sent).encode()
        response = await ask(url, "POST", "/envelope", body, {**JSON, **proof})
        answer = read_message(response.body)
        assert answer.payload.status == "success"
        public = next(iter(server_keys.published["keys"]))
        verify_signature(answer, read_key(public, owner="echo"))
        _, payload = await posted(url, sent, **proof)  # again, over another connection
        assert payload["error"]["code"] == "MESSAGE_REPLAYED"


# -- maintenance windows: their edges, midnight, daylight saving time, and what they refuse --------


def at(text: str) -> int:
    return Timestamp.parse(text).milliseconds


def end_of(text: str, *windows: MaintenanceWindow) -> str | None:
    end = MaintenanceGate(windows, lambda: 0).end_at(at(text))
    return None if end is None else str(Timestamp.from_milliseconds(end))[:19] + "Z"


ONCE = MaintenanceWindow(start="2026-12-24T22:00:00+01:00", end="2026-12-24T23:00:00Z")
SUNDAY = MaintenanceWindow(day="sunday", start="01:30", end="03:30", time_zone="Europe/Berlin")
NIGHT = MaintenanceWindow(day="saturday", start="23:00", end="01:00")


def test_a_window_is_from_its_start_until_before_its_end():
    assert end_of("2026-12-24T20:59:59.999Z", ONCE) is None
    assert end_of("2026-12-24T21:00:00Z", ONCE) == "2026-12-24T23:00:00Z"
    assert end_of("2026-12-24T22:59:59.999Z", ONCE) == "2026-12-24T23:00:00Z"
    assert end_of("2026-12-24T23:00:00Z", ONCE) is None


def test_a_weekly_window_is_on_its_day_in_its_time_zone():
    # Sunday the 7th of June: Berlin is two hours ahead of UTC.
    assert end_of("2026-06-06T23:29:59Z", SUNDAY) is None
    assert end_of("2026-06-06T23:30:00Z", SUNDAY) == "2026-06-07T01:30:00Z"
    assert end_of("2026-06-07T01:30:00Z", SUNDAY) is None
    assert end_of("2026-06-08T00:00:00Z", SUNDAY) is None
    # And one hour in January.
    assert end_of("2026-01-04T00:30:00Z", SUNDAY) == "2026-01-04T02:30:00Z"


def test_a_window_over_midnight_ends_on_the_next_day():
    assert end_of("2026-06-06T22:59:59Z", NIGHT) is None
    assert end_of("2026-06-06T23:30:00Z", NIGHT) == "2026-06-07T01:00:00Z"
    assert end_of("2026-06-07T00:59:59Z", NIGHT) == "2026-06-07T01:00:00Z"
    assert end_of("2026-06-07T23:30:00Z", NIGHT) is None
    whole = MaintenanceWindow(day="sunday", start="00:00", end="24:00")
    assert end_of("2026-06-07T00:00:00Z", whole) == "2026-06-08T00:00:00Z"


def test_where_clocks_change_the_window_is_what_clocks_show():
    # 2026-03-29, 02:00 to 03:00 do not exist: one hour of two is left.
    assert end_of("2026-03-29T00:29:59Z", SUNDAY) is None
    assert end_of("2026-03-29T00:30:00Z", SUNDAY) == "2026-03-29T01:30:00Z"
    assert end_of("2026-03-29T01:30:00Z", SUNDAY) is None
    # 2026-10-25, 02:00 to 03:00 are there twice: three hours.
    assert end_of("2026-10-24T23:30:00Z", SUNDAY) == "2026-10-25T02:30:00Z"
    assert end_of("2026-10-25T02:29:59Z", SUNDAY) == "2026-10-25T02:30:00Z"
    # One that begins and ends within the hour that is there twice lasts until the second.
    inside = MaintenanceWindow(day="sunday", start="02:15", end="02:45", time_zone="Europe/Berlin")
    assert end_of("2026-10-25T00:15:00Z", inside) == "2026-10-25T01:45:00Z"
    assert end_of("2026-10-25T01:44:59Z", inside) == "2026-10-25T01:45:00Z"


def test_windows_that_meet_end_together():
    second = MaintenanceWindow(start="2026-12-24T23:00:00Z", end="2026-12-25T01:00:00Z")
    assert end_of("2026-12-24T21:30:00Z", ONCE, second) == "2026-12-25T01:00:00Z"
    always = MaintenanceWindow(day="daily", start="00:00", end="24:00")
    assert end_of("2026-12-24T21:30:00Z", always) is not None  # and it is found out soon


def test_the_refusal_says_when_to_come_again():
    settings = EnvelopeSettings(maintenance_windows=[ONCE])
    windows = MaintenanceGate(settings.maintenance_windows, lambda: at("2026-12-24T22:59:58.500Z"))
    with pytest.raises(UnderMaintenance, match="2026-12-24T23:00:00Z") as caught:
        windows.check()
    assert caught.value.retry_after == 1.5
    assert EnvelopeSettings().rules.gates(lambda: 0) == ()
