"""Agents that register over their sockets, and answer requests there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import parley
from parley.envelope.binding import EnvelopeBinding
from parley.envelope.registration import RegistrationSettings
from parley.envelope.routing import SHARING_SCOPE
from parley.envelope.server.services import HeartbeatSettings
from parley.model.service import Caller
from parley.registry.served.registration import RestRegistrar
from parley.security import ApiKey, Bearer, anonymous
from parley.security.api_keys import digest_of
from tests.host.envelope.talking import Socket, answer, post, posted, request, searching, socket
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

KEYS = {name: f"key-of-{name}-0123456789" for name in ("stock", "mallory", "trusted", "ada")}
SCHEME = ApiKey(
    keys={
        digest_of(key): Caller(
            id=name,
            authenticated=True,
            scopes=frozenset({SHARING_SCOPE} if name == "trusted" else ()),
        )
        for name, key in KEYS.items()
    }
)
STOCK = {"agentId": "stock"}


def key(name: str) -> dict[str, str]:
    return {"X-API-Key": KEYS[name]}


def card(id: str, *skills: str, kind: str = "warehouse", **security: Any) -> dict[str, Any]:
    return {
        "agentInfo": {"id": id, "name": id, "type": kind, "version": "1.0"},
        "capabilities": [{"name": each} for each in skills or ("stock.count",)],
        "security": security,
    }


def register(who: str, given: dict[str, Any]) -> dict[str, Any]:
    return request("registry.register", given, source=who)


def code(found: dict[str, Any]) -> str:
    return str(found["payload"]["error"]["code"])


@asynccontextmanager
async def server(**options: Any) -> AsyncIterator[str]:
    front = searching("front")
    front.security = SCHEME | anonymous
    app = parley.asgi({"/front": front}, bindings=[EnvelopeBinding(**options)])
    async with under_uvicorn(app) as url:
        yield f"{url}/front"


async def serve_one(agent: Socket, results: list[Any], who: str = "stock") -> dict[str, Any]:
    """Answer the next REQUEST, and return it."""
    asked = await agent.receive("REQUEST")
    await agent.send(answer(asked, results, source=who))
    return asked


@pytest.mark.slow
async def test_an_agent_that_registers_is_reached_over_its_socket() -> None:
    async with server() as url, socket(url, key("stock")) as agent:
        registered = await agent.ask(register("stock", card("stock")))
        assert registered["payload"]["results"] == [{"agentId": "stock", "acceptsRequests": True}]
        calling = asyncio.create_task(
            post(url, request("stock.count", {"item": "bolt"}, target=STOCK, timeout=5000))
        )
        asked = await serve_one(agent, [{"count": 7}])
        assert asked["payload"]["parameters"] == {"item": "bolt"}
        assert 0 < asked["payload"]["metadata"]["timeout"] <= 5000
        found = await calling
        assert found["payload"]["results"] == [{"count": 7}]
        assert found["payload"]["metadata"]["agentId"] == "stock"
        assert found["source"]["agentId"] == "stock"
        for target in (
            {"agentType": "warehouse", "routingStrategy": "broadcast"},
            {"routingStrategy": "load-balance"},
        ):
            calling = asyncio.create_task(post(url, request("stock.count", {}, target=target)))
            await serve_one(agent, [{"count": 8}])
            assert (await calling)["payload"]["status"] == "success"
        left = await agent.ask(request("registry.deregister", {}, source="stock"))
        assert left["payload"]["results"] == [{"agentId": "stock", "registered": False}]
        gone = await post(url, request("stock.count", {}, target=STOCK))
        assert code(gone) == "TARGET_NOT_FOUND"


async def test_a_registered_agent_gets_no_new_work_in_its_maintenance_windows() -> None:
    def with_windows(*windows: str) -> dict[str, Any]:
        availability = {"maintenanceWindows": list(windows)}
        return card("stock") | {"constraints": {"availability": availability}}

    async with server() as url, socket(url, key("stock")) as agent:
        refused = await agent.ask(register("stock", with_windows("at night")))
        assert code(refused) == "INVALID_PARAMS"
        assert "Sunday 02:00-04:00 UTC" in refused["payload"]["error"]["message"]
        always = with_windows("Daily 00:00-12:00 UTC", "Daily 12:00-24:00 UTC")
        registered = await agent.ask(register("stock", always))
        assert registered["payload"]["status"] == "success"
        for target in (STOCK, {"routingStrategy": "load-balance"}):
            asked = await post(url, request("stock.count", {}, target=target))
            assert code(asked) == "MAINTENANCE"


@pytest.mark.slow
async def test_nobody_registers_under_the_id_of_another() -> None:
    async with server() as url:
        async with socket(url, key("mallory")) as mallory:
            for id in ("stock", "front", "Mallory"):
                assert code(await mallory.ask(register("mallory", card(id)))) == "PERMISSION_DENIED"
        async with socket(url) as nobody:
            refused = await nobody.ask(register("stranger", card("stranger")))
            assert code(refused) == "UNAUTHENTICATED"
        assert code(await post(url, request("stock.count", {}, target=STOCK))) == "TARGET_NOT_FOUND"
    anyone = RegistrationSettings(anonymous=True)
    async with server(registration=anyone) as url, socket(url) as first, socket(url) as second:
        assert (await first.ask(register("probe", card("probe"))))["payload"]["status"] == "success"
        assert code(await second.ask(register("probe", card("probe")))) == "PERMISSION_DENIED"
        assert code(await second.ask(register("other", card("probe")))) == "SOURCE_MISMATCH"
        async with socket(url) as third:
            assert code(await third.ask(register("front", card("front")))) == "PERMISSION_DENIED"
            stolen = register("stock", card("stock"))  # this server knows the key of "stock"
            assert code(await third.ask(stolen)) in ("SOURCE_MISMATCH", "PERMISSION_DENIED")


async def test_whoever_proves_an_id_takes_it_from_those_who_only_say_it() -> None:
    """The server learns the ids of callers with tokens only when they connect."""

    def judge(token: str) -> Caller | None:
        scopes = frozenset({SHARING_SCOPE})
        return Caller(id="depot", authenticated=True, issuer=token, scopes=scopes)

    front = searching("front")
    front.security = Bearer(judge) | anonymous
    options = EnvelopeBinding(registration=RegistrationSettings(anonymous=True))
    app = parley.asgi({"/front": front}, bindings=[options])
    target = {"agentId": "depot"}
    async with under_uvicorn(app) as base, socket(f"{base}/front") as squatter:
        url = f"{base}/front"
        taken = await squatter.ask(register("depot", card("depot")))
        assert taken["payload"]["status"] == "success"
        async with (
            socket(url, {"Authorization": "Bearer one"}) as proved,
            socket(url, {"Authorization": "Bearer two"}) as other,
        ):
            found = await proved.ask(register("depot", card("depot")))
            assert found["payload"]["status"] == "success"
            # The id "depot" from two issuers means two callers.
            assert code(await other.ask(register("depot", card("depot")))) == "PERMISSION_DENIED"
            for _ in range(3):
                calling = asyncio.create_task(post(url, request("stock.count", {}, target=target)))
                await serve_one(proved, [1], "depot")
                assert (await calling)["payload"]["results"] == [1]


def test_two_agents_never_have_one_name_in_the_registry() -> None:
    registrar = RestRegistrar("https://registry.example.com", "example.com")
    ids = ["bob", "Bob", "BOB", "a b", "a-b", "a\u00e4b"]
    for _ in range(2):  # the second time, with the names of other agents as ids
        names = {id: registrar.identifier_of(id, "").casefold() for id in ids}
        assert len(set(names.values())) == len(ids)
        ids += [name.rsplit(":", 1)[1] for name in names.values()]
        ids = list(dict.fromkeys(ids))
    assert registrar.identifier_of("bob", "") == "urn:air:example.com:connected:bob"


async def test_an_answer_counts_only_from_the_socket_that_was_asked() -> None:
    async with (
        server() as url,
        socket(url, key("stock")) as agent,
        socket(url, key("mallory")) as mallory,
    ):
        await agent.ask(register("stock", card("stock")))
        calling = asyncio.create_task(post(url, request("stock.count", {}, target=STOCK)))
        asked = await agent.receive("REQUEST")
        await mallory.send(answer(asked, [{"count": -1}], source="mallory"))
        await mallory.send(answer(asked, [{"count": -2}], source="stock"))
        await mallory.ask(request(source="mallory"))  # the server has read both answers
        assert not calling.done()
        await agent.send(answer({"messageId": "unknown"}, [{"count": -3}], source="stock"))
        await agent.send(answer(asked, [{"count": 1}], source="stock", agentId="front"))
        found = await calling
        assert found["payload"]["results"] == [{"count": 1}]
        assert found["payload"]["metadata"]["agentId"] == "stock"


async def test_who_waits_for_an_agent_that_leaves_is_told_to_come_back() -> None:
    async with server() as url:
        async with socket(url, key("stock")) as agent:
            await agent.ask(register("stock", card("stock")))
            calling = asyncio.create_task(post(url, request("stock.count", {}, target=STOCK)))
            await agent.receive("REQUEST")
        found = await calling
        assert code(found) == "UNAVAILABLE"
        assert found["payload"]["error"]["retryAfter"] > 0
        assert code(await post(url, request("stock.count", {}, target=STOCK))) == "TARGET_NOT_FOUND"


@pytest.mark.slow
async def test_an_agent_is_reached_no_longer_than_its_credentials_are_valid() -> None:
    valid = {digest_of(KEYS["stock"]): Caller(id="stock")}
    front = searching("front")
    front.security = ApiKey(keys=lambda digest: valid.get(digest), cache_seconds=0) | anonymous
    async with under_uvicorn(parley.asgi({"/front": front})) as site:
        url = f"{site}/front"
        async with socket(url, key("stock")) as agent:
            await agent.ask(register("stock", card("stock")))
            calling = asyncio.create_task(post(url, request("stock.count", {}, target=STOCK)))
            await agent.receive("REQUEST")
            valid.clear()
            assert code(await calling) == "UNAVAILABLE"
            await asyncio.wait_for(agent.connection.wait_closed(), 10)
            assert agent.connection.close_code == 1008
            left = await post(url, request("stock.count", {}, target=STOCK))
            assert code(left) == "TARGET_NOT_FOUND"


async def test_a_request_over_a_socket_is_refused_once_its_credentials_are() -> None:
    valid = {digest_of(KEYS["ada"]): Caller(id="ada")}
    scheme = ApiKey(keys=lambda digest: valid.get(digest), cache_seconds=0)
    app = parley.asgi({"/front": searching("front", security=scheme)})
    async with under_uvicorn(app) as site, socket(f"{site}/front", key("ada")) as ada:
        assert (await ada.ask(request(source="ada")))["payload"]["status"] == "success"
        valid.clear()
        assert code(await ada.ask(request(source="ada"))) == "UNAUTHENTICATED"
        await asyncio.wait_for(ada.connection.wait_closed(), 10)
        assert ada.connection.close_code == 1008


@pytest.mark.slow
async def test_an_agent_that_goes_silent_is_taken_out() -> None:
    beats = HeartbeatSettings(interval=0.05, tolerance=3)
    async with server(heartbeats=beats) as url, socket(url, key("stock")) as agent:
        await agent.ask(register("stock", card("stock")))
        for _ in range(6):  # an agent that answers HEARTBEATs stays registered
            beat = await agent.receive("HEARTBEAT")
            assert beat["payload"]["draining"] is False
            reply = {**beat, "messageId": f"answer-{beat['messageId']}"}
            reply["source"] = STOCK
            reply["message"] = {"type": "HEARTBEAT", "correlationId": beat["messageId"]}
            await agent.send(reply)
        await until(lambda: agent.connection.state.name == "CLOSED")
        assert agent.connection.close_code == 4408
        assert "heartbeats" in str(agent.connection.close_reason)
        assert code(await post(url, request("stock.count", {}, target=STOCK))) == "TARGET_NOT_FOUND"


async def test_requests_for_skills_of_this_server_do_not_go_to_whoever_registers_them() -> None:
    target = {"routingStrategy": "broadcast"}
    async with server() as url, socket(url, key("mallory")) as mallory:
        await mallory.ask(register("mallory", card("mallory", "search")))
        summary = (await posted(url, request(target=target)))[-1]
        assert [each["agentId"] for each in summary["payload"]["results"]] == ["front"]
        async with socket(url, key("trusted")) as trusted:
            await trusted.ask(register("trusted", card("trusted", "search")))
            calling = asyncio.create_task(posted(url, request(target=target)))
            await serve_one(trusted, [{"by": "trusted"}], "trusted")
            summary = (await calling)[-1]
        assert {each["agentId"] for each in summary["payload"]["results"]} == {"front", "trusted"}


async def test_the_card_of_a_connected_agent_says_who_may_ask_it() -> None:
    async with server() as url, socket(url, key("stock")) as agent:
        closed = card("stock", dataClassification="internal")
        await agent.ask(register("stock", closed))
        assert code(await post(url, request("stock.count", {}, target=STOCK))) == "TARGET_NOT_FOUND"
        ada = request("stock.count", {}, target=STOCK, source="ada")
        calling = asyncio.create_task(post(url, ada, key("ada")))
        asked = await serve_one(agent, [{"count": 3}])
        assert asked["source"] == {"agentId": "ada"}
        assert KEYS["ada"] not in str(asked)
        assert (await calling)["payload"]["status"] == "success"


async def test_what_cannot_be_registered_is_refused_with_what_would_be_right() -> None:
    async with server() as url, socket(url, key("stock")) as agent:
        for given, field in (
            ({"name": 1}, "agentInfo"),
            ({"card": card("stock"), "colour": "red"}, "colour"),
            ({"card": card("stock"), "acceptsRequests": "yes"}, "acceptsRequests"),
            (card("stock", dataClassification="secret"), "security.dataClassification"),
        ):
            refused = await agent.ask(register("stock", given))
            assert code(refused) == "INVALID_PARAMS", given
            [violation] = refused["payload"]["error"]["violations"]
            assert violation["field"] == f"payload.parameters.{field}"
        posted_one = await post(url, register("stock", card("stock")), key("stock"))
        assert code(posted_one) == "INVALID_PARAMS"
        assert "WebSocket" in posted_one["payload"]["error"]["message"]
        unlisted = {"card": card("stock"), "identifier": "urn:air:example.com:agent:stock"}
        assert code(await agent.ask(register("stock", unlisted))) == "INVALID_PARAMS"
    with pytest.raises(ValueError, match="scopes"):
        RegistrationSettings(anonymous=True, scopes=("a",))


async def test_an_agent_that_connects_again_takes_the_place_of_its_dead_socket() -> None:
    def of(instance: str) -> dict[str, Any]:
        asked = register("stock", card("stock"))
        return {**asked, "source": {"agentId": "stock", "instanceId": instance}}

    spread = {"agentId": "stock", "routingStrategy": "broadcast"}
    async with (
        server() as url,
        socket(url, key("stock")) as dead,
        socket(url, key("stock")) as again,
        socket(url, key("stock")) as other,
    ):
        await dead.ask(of("one"))
        await again.ask(of("one"))
        await other.ask(of("two"))
        calling = asyncio.create_task(posted(url, request("stock.count", {}, target=spread)))
        await serve_one(again, [1])
        await serve_one(other, [2])
        summary = (await calling)[-1]
        assert [each["results"] for each in summary["payload"]["results"]] in (
            [[1], [2]],
            [[2], [1]],
        )
