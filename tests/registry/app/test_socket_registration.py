"""Registration over sockets: of the registry itself, and of a server that publishes to it."""

from __future__ import annotations

from typing import Any

import pytest

import parley
from parley import Agent, CardDetails
from parley.envelope.declared import EnvelopeSettings
from parley.registry.app.searching import PATH
from parley.registry.health.settings import HealthSettings
from parley.security import anonymous
from parley.server.run import serving
from tests.host.envelope.talking import post, posted, request, searching, socket
from tests.kit.processes import free_port
from tests.kit.waiting import until
from tests.registry.app.serving import PUBLISHER, SCHEME, Served, key, served
from tests.registry.app.test_care import OPTIONS, prove
from tests.registry.ingest.sites import card as a2a_card

pytestmark = pytest.mark.anyio

STOCK = f"urn:air:{PUBLISHER}:agent:stock"


def card(id: str) -> dict[str, Any]:
    return {
        "agentInfo": {"id": id, "name": "Stock", "type": "warehouse", "version": "1.0"},
        "capabilities": [{"name": "stock.count", "description": "Counts what is in stock."}],
        "endpoints": {"primary": "ws://127.0.0.1:1/envelope", "backup": "http://127.0.0.1:1/e"},
    }


def register(who: str, identifier: str = STOCK, given: Any = None) -> dict[str, Any]:
    parameters = {"card": given or card(who), "identifier": identifier}
    return request("registry.register", parameters, source=who)


def code(found: dict[str, Any]) -> str:
    return str(found["payload"]["error"]["code"])


async def liveness(here: Served) -> list[str]:
    found = await here.search("stock")
    return [str(each["registry"].get("liveness", "")) for each in found["results"]]


async def test_an_agent_registers_in_a_registry_over_its_socket() -> None:
    health = HealthSettings(beat=1.0)
    async with served(**OPTIONS, health=health) as here, socket(here.url + PATH, key("ada")) as ada:
        refused = await ada.ask(register("ada"))
        assert code(refused) == "PERMISSION_DENIED"
        assert "prove" in refused["payload"]["error"]["message"]
        await prove(here)
        nameless = await ada.ask(request("registry.register", card("ada"), source="ada"))
        assert code(nameless) == "INVALID_PARAMS"
        done = await ada.ask(register("ada"))
        [result] = done["payload"]["results"]
        assert result["identifier"] == STOCK
        assert result["standing"] == "listed", result
        assert await liveness(here) == [""]
        beat = {**request(source="ada"), "message": {"type": "HEARTBEAT"}, "payload": {}}
        await ada.send(beat)
        assert (await ada.receive("HEARTBEAT"))["message"]["correlationId"] == beat["messageId"]

        async def is_alive() -> bool:
            return await liveness(here) == ["alive"]

        await until(is_alive)
        async with socket(here.url + PATH, key("bob")) as bob:
            assert code(await bob.ask(register("bob"))) == "PERMISSION_DENIED"
            beat = request("registry.heartbeat", {"identifiers": [STOCK]}, source="bob")
            assert code(await bob.ask(beat)) == "PERMISSION_DENIED"
            leave = request("registry.deregister", {"identifier": STOCK}, source="bob")
            assert code(await bob.ask(leave)) == "PERMISSION_DENIED"
        answered = await ada.ask(request("registry.heartbeat", {}, source="ada"))
        assert answered["payload"]["results"][0]["alive"] == [STOCK]
        assert (await ada.ask(request("registry.deregister", {}, source="ada")))["payload"][
            "status"
        ] == "success"
        assert await here.names("stock") == []
        # An A2A card is accepted too.
        own = a2a_card("http://127.0.0.1:1", name="Stock")
        assert (await ada.ask(register("ada", given=own)))["payload"]["status"] == "success"
        assert await here.names("stock") == ["Stock"]


async def test_a_server_passes_registrations_on_under_names_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(**OPTIONS) as here:
        await prove(here)
        monkeypatch.setenv("PARLEY_AUTH_ORIGIN", here.url)
        monkeypatch.setenv("PARLEY_API_KEY", key("ada")["X-API-Key"])
        port = free_port()
        front = searching("front")
        front.security = SCHEME | anonymous
        url = f"http://127.0.0.1:{port}"
        app = parley.asgi(front, publisher=PUBLISHER, url=url, registry=here.url)
        async with serving(app, port=port), socket(url, key("bob")) as bob:
            stolen = await bob.ask(register("bob", f"urn:air:{PUBLISHER}:agent:front"))
            assert code(stolen) == "PERMISSION_DENIED"
            done = await bob.ask(request("registry.register", card("bob"), source="bob"))
            [result] = done["payload"]["results"]
            assert result["identifier"] == f"urn:air:{PUBLISHER}:connected:bob"
            assert result["standing"] == "listed"
            names = [f"urn:air:{PUBLISHER}:agent:front"]
            beat = request("registry.heartbeat", {"identifiers": names}, source="bob")
            assert code(await bob.ask(beat)) == "PERMISSION_DENIED"
            assert (await bob.ask(request("registry.deregister", {}, source="bob")))["payload"][
                "status"
            ] == "success"
            assert await here.names("stock") == []


async def test_messages_reach_agents_of_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    far = Agent("far", key="far", card=CardDetails(envelope=EnvelopeSettings(agent_type="library")))
    seen: list[Any] = []
    chains: list[Any] = []

    @far.skill(id="search", examples=["Find a book", "Look up refunds"])
    async def search(turn: parley.Turn) -> list[dict[str, Any]]:
        """Searches books."""
        seen.append((turn.caller.authenticated, turn.data))
        chains.append(turn._attempt.request.chain)
        return [{"by": "far"}]

    near = Agent("near", key="near")

    @near.skill(id="idle")
    async def idle(turn: parley.Turn) -> str:
        return "idle"

    near.security = SCHEME | anonymous
    port = free_port()
    async with (
        serving(parley.asgi(far, publisher=PUBLISHER)) as there,
        served(**OPTIONS | {"sources": [there]}) as here,
    ):

        async def is_listed() -> bool:
            return await here.names("search books") == ["far"]

        await until(is_listed)
        url = f"http://127.0.0.1:{port}"
        app = parley.asgi(near, publisher="near.localhost", url=url, registry=here.url)
        async with serving(app, port=port):
            for target in (
                {"routingStrategy": "load-balance"},
                {"agentType": "library", "routingStrategy": "load-balance"},
                {"agentId": f"urn:air:{PUBLISHER}:agent:far"},
            ):
                asked = request(target=target, source="ada", timeout=5000)
                found = await post(url, asked, key("ada"))
                assert found["payload"]["results"] == [{"by": "far"}], found
                metadata = found["payload"]["metadata"]
                assert metadata["agentId"] == f"urn:air:{PUBLISHER}:agent:far"
            spread = request(target={"routingStrategy": "broadcast"})
            summary = (await posted(url, spread))[-1]
            assert summary["payload"]["metadata"]["totalResults"] == 1
            foreign = request("a2a.ListTasks", {}, target=target)
            assert code(await post(url, foreign)) == "INVALID_PARAMS"
    assert seen == [(False, {"query": "refunds"})] * 4
    assert [each.hops for each in chains] == [1] * 4
    assert [each.deadline is not None for each in chains] == [True] * 3 + [False]
