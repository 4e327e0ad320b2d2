"""Probes of real agents: every binding and version, agents with credentials, and non-agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import parley
from parley import Agent
from parley.registry.health.probing import AgentProbe
from parley.registry.health.settings import HealthSettings, ProbeFinding, ProbeOutcome
from parley.registry.records import Authority, IndexedEntry
from parley.security import ApiKey
from parley.security.egress import Egress
from parley.server.run import serving
from tests.kit.scripted_server import card
from tests.registry.ingest.sites import HERE_ONLY, WebSite, site

pytestmark = pytest.mark.anyio

QUICK = HealthSettings(request_seconds=0.5, probe_seconds=2.0)


def entry(url: str = "", **more: Any) -> IndexedEntry:
    values: dict[str, Any] = {
        "identifier": "urn:air:agent.localhost:test:one",
        "source": "test",
        "publisher": "agent.localhost",
        "authority": Authority.DOMAIN,
        "entry": {},
        "url": url,
        "key": 1,
        "created_at": 0,
        "updated_at": 0,
        "seen_at": 0,
    }
    return IndexedEntry(**{**values, **more})


async def probe(
    given: IndexedEntry, *, egress: Egress = HERE_ONLY, message: bool = False
) -> ProbeFinding:
    made = AgentProbe(egress, QUICK)
    try:
        return await made.probe(given, may_message=message)
    finally:
        await made.close()


@pytest.fixture
async def web() -> AsyncIterator[WebSite]:
    async with site() as made:
        yield made


def echo(said: list[str] | None = None, **options: Any) -> Agent:
    agent = Agent("Echo", description="Echoes.", **options)

    @agent.skill(tags=["echo"])
    async def echo(text: str) -> str:
        """Echoes."""
        if said is not None:
            said.append(text)
        return text

    return agent


async def test_an_agent_that_wants_credentials_is_healthy_as_far_as_can_be_known() -> None:
    async with serving(parley.asgi(echo(), auth=ApiKey(keys={}))) as url:
        found = await probe(entry(url))
    assert found.outcome is ProbeOutcome.GUARDED
    assert "wants credentials" in found.reason


async def test_an_agent_whose_card_is_gone_is_called_by_the_known_one() -> None:
    async with serving(parley.asgi(echo())) as url:
        async with parley.connect(url) as agent:
            known = agent.card_json
        found = await probe(entry(f"{url}/gone.json", card=known))
        assert found.outcome is ProbeOutcome.ERRORS
        assert "its card cannot be fetched" in found.reason
        found = await probe(entry(f"{url}/gone.json"))
    assert found.outcome is ProbeOutcome.FAILED


@pytest.mark.parametrize("answer", [404, 500, b"<html>", {"hello": 1}])
async def test_what_is_no_agent_is_a_failure(web: WebSite, answer: Any) -> None:
    web.pages["*"] = answer
    found = await probe(entry(entry={"data": card(web.url)}))
    assert found.outcome is not ProbeOutcome.FINE
    assert found.outcome is not ProbeOutcome.GUARDED
    assert found.reason


async def test_nothing_private_is_dialled(web: WebSite) -> None:
    found = await probe(entry(entry={"data": card(web.url)}), egress=Egress())
    assert found.outcome is ProbeOutcome.FAILED
    assert web.requests == []
    found = await probe(entry(f"{web.url}/card.json"), egress=Egress())
    assert found.outcome is ProbeOutcome.FAILED
    assert web.requests == []


async def test_no_credentials_of_the_registry_go_out(
    web: WebSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLEY_AUTH_ORIGIN", web.url)
    monkeypatch.setenv("PARLEY_TOKEN", "secret-token-of-the-registry")
    await probe(entry(entry={"data": card(web.url)}))
    assert web.requests
    for exchange in web.requests:
        assert b"secret-token" not in repr(vars(exchange)).encode()


async def test_a_message_goes_to_an_agent_whose_owner_asked_for_it_at_its_home() -> None:
    said: list[str] = []
    asked = {"metadata": {"parley.probe": "ping"}}
    async with serving(parley.asgi(echo(said))) as url:
        found = await probe(entry(url, entry=asked), message=True)
        assert (found.outcome, found.messaged) == (ProbeOutcome.FINE, True)
        assert said == ["ping"]
        assert not (await probe(entry(url, entry=asked), message=False)).messaged
        # Another publisher's entry refers to the same agent: the agent gets no message.
        other = entry(url, entry=asked, publisher="evil.example")
        assert not (await probe(other, message=True)).messaged
        # An operator who vouches for the entry is not its owner either.
        other = entry(url, entry=asked, authority=Authority.OPERATOR)
        assert not (await probe(other, message=True)).messaged
    assert said == ["ping"]


async def test_a_failing_answer_to_the_message_is_an_error() -> None:
    agent = Agent("Broken", description="Fails.")

    @agent.skill(tags=["x"])
    async def fail(text: str) -> str:
        """Fails."""
        raise RuntimeError("broken")

    async with serving(parley.asgi(agent)) as url:
        found = await probe(entry(url, entry={"metadata": {"parley.probe": "hi"}}), message=True)
    assert found.outcome is ProbeOutcome.ERRORS
    assert "probe message" in found.reason
