"""A registry finds, verifies and lists the cards of Parley servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent
from parley.registry.catalog.entries import AirUrn
from parley.registry.commands.dns import DnsAgent, records_of
from parley.registry.ingest.addresses import DnsNames
from parley.registry.records import SourceKind, Trust
from parley.server.app import Settings
from parley.server.run import serving
from tests.registry.ingest.dns_server import dns_server
from tests.registry.ingest.sites import reader
from tests.security.signing.key_sets import key_file, private_jwk

pytestmark = pytest.mark.anyio


def agent(name: str, **options: Any) -> Agent:
    made = Agent(name, description=f"{name}: tells the time.", version="1.2.0", **options)

    @made.skill(tags=["time"], examples=["What time is it?", "And in Tokyo?"])
    async def tell_time(text: str) -> str:
        """Tells the time of a zone."""
        return "noon"

    return made


def app_of(agents: Any, **options: Any) -> Any:
    settings = Settings(allowed_hosts=("*",))
    return parley.asgi(
        agents, settings=settings, publisher="agent.localhost", store="memory:", **options
    )


async def test_a_server_is_a_site_whose_agents_are_listed() -> None:
    agents = {"/": agent("Root", key="front"), "/time": agent("Clock")}
    async with serving(app_of(agents)) as url, reader() as reads:
        ended = await reads.visit(url, SourceKind.SITE)
        await reads.visit_all()
    assert ended.reason == f"{url}/.well-known/ard.json (Agentmap of robots.txt)"
    assert reads.index.listed == {
        "urn:air:agent.localhost:agent:front",
        "urn:air:agent.localhost:agent:time",
    }
    clock = reads.index.one("urn:air:agent.localhost:agent:time")
    assert clock.fields["card.skills.tags"] == ("time",)
    assert clock.trust is Trust.UNPROVED
    assert clock.reason == ""


async def test_the_catalogs_of_tenants_are_followed() -> None:
    tenants = {"acme": agent("Shop"), "globex": agent("Help desk")}
    async with serving(app_of(agent("Front"), tenants=tenants)) as url, reader() as reads:
        await reads.visit(url, SourceKind.SITE)
        assert await reads.visit_all() == 3
    cards = {each.fields["card.name"] for each in reads.index.kept.values() if each.card}
    assert cards == {("Front",), ("Shop",), ("Help desk",)}
    assert {each.standing for each in reads.index.kept.values()} == {"listed"}


async def test_what_a_server_signs_is_verified(tmp_path: Path) -> None:
    keys = key_file(tmp_path / "keys.json", private_jwk("ES256", kid="k1"))
    async with serving(app_of(agent("Clock"), signing_keys=keys)) as url, reader() as reads:
        await reads.visit(url, SourceKind.SITE)
        await reads.visit_all()
    [found] = reads.index.kept.values()
    assert (found.standing, found.trust) == ("listed", Trust.VERIFIED), found.trust_reason
    assert found.fields["trustManifest.signedBy"]


async def test_the_records_that_are_printed_for_dns_lead_to_the_catalog() -> None:
    catalog = "https://agents.acme.test:8443/.well-known/ard.json"
    planner = DnsAgent(AirUrn("acme.test", ("agent",), "planner"), "https://acme.test/card.json")
    records = records_of("acme.test", catalog, [planner], ttl=300, alpn="h2")
    for kind in ("SVCB", "TXT"):
        async with dns_server() as dns:
            for each in records:
                if each.type == kind:
                    dns.add(each.name.rstrip("."), kind, each.value)
            found = await DnsNames([dns.address]).catalogs("acme.test")
        assert [each.url for each in found] == [catalog]
        assert found[0].record == f"{kind} _entries._agents.acme.test"
