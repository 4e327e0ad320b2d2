"""Publishing, heartbeats and probes of a served registry, from its callers' view."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import parley
from parley.registry.health.settings import HealthSettings
from parley.registry.publishing.proofs import PROOF_PATH
from parley.registry.served.registration import RegistryRegistration
from parley.server.run import serving
from tests.kit.processes import free_port
from tests.kit.scripted_server import Exchange
from tests.kit.waiting import until
from tests.registry.app.serving import PUBLISHER, SCHEME, Served, agents, currency, key, served
from tests.registry.ingest.sites import A2A, HERE_ONLY, card, catalog, entry, site

pytestmark = pytest.mark.anyio

ONE = f"urn:air:{PUBLISHER}:test:one"
OPTIONS: dict[str, Any] = {"auth": SCHEME, "public_search": True, "egress": HERE_ONLY}


async def prove(here: Served, name: str = "ada") -> None:
    """Prove the domain of this machine with a document."""
    async with site() as web:
        asked = {"domain": PUBLISHER, "origin": web.url}
        challenge = await here.post("/publish/challenges", asked, key(name))
        assert challenge.status == 201, challenge.body
        web.pages[PROOF_PATH] = challenge.json["document"]
        proved = await here.post("/publish/domains", asked, key(name))
        assert proved.status == 200, proved.body


def one(**more: Any) -> dict[str, Any]:
    return entry("one", data=card("http://127.0.0.1:1", name="One"), **more)


async def test_a_heartbeat_is_of_ones_own_agents() -> None:
    async with served(**OPTIONS) as here:
        await prove(here)
        await here.post("/publish", {"entries": [one()]}, key("ada"))
        beat = {"identifiers": [ONE]}
        assert (await here.post("/heartbeats", beat)).status == 401
        assert (await here.post("/heartbeats", beat, key("bob"))).status == 403
        answer = await here.post("/heartbeats", beat, key("ada"))
        assert answer.json["alive"] == [ONE]
        shown = await here.search("one")
        assert shown["results"][0]["registry"]["liveness"] == "alive"


async def test_an_agent_that_answers_is_healthy() -> None:
    async with agents() as there:
        settings = HealthSettings(poll=0.05)
        async with served(sources=[there], health=settings) as here:

            async def healths() -> set[str]:
                found = await here.search("currency")
                return {each["registry"].get("health", "") for each in found["results"]}

            async def is_healthy() -> bool:
                return await healths() == {"healthy"}

            await until(is_healthy, seconds=30)


async def test_only_operators_import() -> None:
    async with served(**OPTIONS) as here:
        body = {"catalog": catalog(one())}
        assert (await here.post("/operator/import/agents.json", body, key("ada"))).status == 403
        done = await here.post("/operator/import/agents.json", body, key("root"))
        assert [each["standing"] for each in done.json["entries"]] == ["listed"]


@pytest.mark.slow
async def test_a_server_publishes_itself_and_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(**OPTIONS) as here:
        await prove(here)
        monkeypatch.setenv("PARLEY_AUTH_ORIGIN", here.url)
        monkeypatch.setenv("PARLEY_API_KEY", key("ada")["X-API-Key"])
        port = free_port()
        app = parley.asgi(
            currency(), publisher=PUBLISHER, url=f"http://127.0.0.1:{port}", registry=here.url
        )
        async with serving(app, port=port):

            async def is_alive() -> bool:
                found = await here.search("currency")
                states = [each["registry"].get("liveness") for each in found["results"]]
                return states == ["alive"]

            await until(is_alive, seconds=30)


@pytest.mark.slow
async def test_a_registry_that_forgets_is_not_asked_without_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The registry reports an entry as held, and as unknown at the heartbeat."""
    loop = asyncio.get_running_loop()
    asked: list[tuple[str, float]] = []

    async def publish(exchange: Exchange) -> None:
        asked.append(("publish", loop.time()))
        entries = json.loads(exchange.body)["catalog"]["entries"]
        held = [
            {"identifier": each["identifier"], "standing": "held", "reason": "why"}
            for each in entries
        ]
        await exchange.json({"entries": held, "refused": [], "withdrawn": 0})

    async def beat(exchange: Exchange) -> None:
        asked.append(("beat", loop.time()))
        names = json.loads(exchange.body)["identifiers"]
        await exchange.json({"alive": [], "unknown": names, "interval": 0})

    address = "http://127.0.0.1:1/card.json"
    listed = {"identifier": f"urn:air:{PUBLISHER}:agent:x", "displayName": "X", "type": A2A}
    document = json.dumps({"entries": [{**listed, "url": address}]}).encode()
    async with site() as web:
        web.pages |= {"/publish": publish, "/heartbeats": beat}
        registration = RegistryRegistration(web.url, "http://127.0.0.1:1", first_seconds=0)
        registration.start(lambda: document)
        try:
            await until(lambda: len(asked) > 2, seconds=20)
        finally:
            await registration.stop()
    assert [name for name, _ in asked[:3]] == ["publish", "beat", "publish"]
    assert asked[2][1] - asked[1][1] > 0.8
    assert "is held: why" in registration.problem
    said = [each.getMessage() for each in caplog.records if each.name == "parley.host"]
    assert sum("is held: why" in each for each in said) == 1
    assert not any("answers again" in each for each in said)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"registry": "https://find.example"}, "publisher="),
        ({"registry": "https://find.example", "publisher": "example.com"}, "url="),
        (
            {"registry": "agents.json", "publisher": "example.com", "url": "https://a.example"},
            "address",
        ),
    ],
)
def test_a_registration_that_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parley.asgi(currency(), **options)
