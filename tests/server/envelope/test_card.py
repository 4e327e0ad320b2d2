"""Envelope cards: contents, visibility, and enforcement."""

from __future__ import annotations

import asyncio
import hashlib
import json

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
from parley.envelope.codec import members_of
from parley.envelope.declared import MaintenanceGate
from parley.envelope.messages import UnderMaintenance
from parley.model.struct import Timestamp
from parley.security import ApiKey, anonymous
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from tests.kit.http import JSON, ask, post
from tests.server.envelope.guarded import Clock, message

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
