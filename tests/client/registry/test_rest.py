"""Registries over REST, from Parley and from other implementations."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

import parley
from parley.client.auth import Bearer
from parley.client.errors import AuthenticationRequired, ClientError, NotEncrypted, ResponseTooLarge
from parley.registry.client.places import AgentNotFound, NoRegistry, NotARegistry, RegistryRefused
from tests.kit.scripted_server import Exchange, scripted

pytestmark = pytest.mark.anyio


A2A = "application/a2a-agent-card+json"
FX = {
    "identifier": "urn:air:far.example:agent:fx",
    "displayName": "Currency converter",
    "type": A2A,
    "url": "https://far.example/card.json",
}


def answering(value: Any, status: int = 200, **headers: str) -> Any:
    async def answer(exchange: Exchange) -> None:
        await exchange.json(value, status, **headers)

    return answer


@pytest.mark.parametrize(
    ("given", "score"),
    [
        ({"score": 200}, 100),
        ({"score": -3}, 0),
        ({}, 0),
        ({"score": "high"}, 0),
        ({"score": 10**400}, 0),
        ({"score": 55.6}, 56),
        ({"score": True}, 0),
    ],
)
async def test_scores_of_others_are_between_0_and_100(given: dict[str, Any], score: int) -> None:
    async with scripted(answering({"results": [{**FX, **given}]})) as server:
        [found] = await parley.find("x", registry=server.url)
        assert (found.score, found.source) == (score, f"{server.url}/")


async def test_an_answer_is_bounded() -> None:
    large = {"results": [{**FX, "description": "x" * (9 << 20)}]}
    async with scripted(answering(large)) as server:
        with pytest.raises(ResponseTooLarge):
            await parley.find("x", registry=server.url)


async def test_a_redirect_is_not_followed() -> None:
    async with scripted(answering({"results": [FX]})) as other:

        async def lead(exchange: Exchange) -> None:
            await exchange.body_of(b"", 308, location=f"{other.url}/search")

        async with scripted(lead) as server:
            with pytest.raises(NotARegistry, match="redirects"):
                await parley.find("x", registry=f"{server.url}/api", bearer="token")
        assert other.exchanges == []


# -- one entry ---------------------------------------------------------------------------------


@pytest.mark.parametrize("filters", [True, False])
async def test_an_entry_of_a_registry_without_that_route_is_searched_for(filters: bool) -> None:
    async def answer(exchange: Exchange) -> None:
        if exchange.method == "GET":
            await exchange.json({"errorCode": "NOT_FOUND", "message": "no route"}, 404)
        elif json.loads(exchange.body)["query"].get("filter") and not filters:
            await exchange.json({"errorCode": "INVALID_ARGUMENT"}, 400)
        else:
            other = {**FX, "identifier": "urn:air:far.example:agent:other"}
            await exchange.json({"results": [other, FX]})

    async with scripted(answer) as server, parley.RemoteRegistry(server.url) as registry:
        assert (await registry.entry(FX["identifier"])).identifier == FX["identifier"]
        with pytest.raises(AgentNotFound, match="has no entry 'urn:air"):
            await registry.entry("urn:air:far.example:nobody")


async def test_a_registry_without_facets_says_so() -> None:
    async with (
        scripted(answering({"message": "not implemented"}, 501)) as server,
        parley.RemoteRegistry(f"{server.url}/api") as registry,
    ):
        with pytest.raises(RegistryRefused) as caught:
            await registry.explore("x")
    assert caught.value.status == 501


# -- credentials -------------------------------------------------------------------------------


async def test_credentials_go_to_the_registry() -> None:
    async def answer(exchange: Exchange) -> None:
        if exchange.headers.get("authorization") != "Bearer right":
            await exchange.json({"errorCode": "UNAUTHENTICATED"}, 401, www_authenticate="Bearer")
        else:
            await exchange.json({"results": [FX]})

    async with scripted(answer) as server:
        [_] = await parley.find("x", registry=server.url, bearer="right")
        assert len(server.exchanges) == 1
        async with parley.RemoteRegistry(server.url, auth=Bearer("right")) as registry:
            [_] = await registry.find("x")
            [_] = await registry.find("x")
        assert len(server.exchanges) == 4  # challenged only once
        with pytest.raises(AuthenticationRequired, match="requires credentials"):
            await parley.find("x", registry=server.url)
        with pytest.raises(AuthenticationRequired) as caught:
            await parley.find("x", registry=server.url, bearer="wrong")
        assert "wrong" not in str(caught.value)
        user = server.url.replace("://", "://me:pw@")
        with pytest.raises(AuthenticationRequired) as caught:
            await parley.find("x", registry=user)
        assert "pw" not in str(caught.value)
        assert server.exchanges[-1].headers["authorization"].startswith("Basic ")


async def test_credentials_are_not_sent_without_encryption() -> None:
    with pytest.raises(NotEncrypted):
        await parley.find("x", registry="http://registry.example.com", bearer="token")


async def test_credentials_do_not_follow_a_catalog_to_another_origin() -> None:
    async with scripted(answering({"results": [FX]})) as registry:
        entry = {
            "identifier": "urn:air:agent.localhost:registry:r",
            "displayName": "Registry",
            "type": "application/ai-registry+json",
            "url": f"{registry.url}/search",
        }
        async with scripted(answering({"specVersion": "1.0", "entries": [entry]})) as site:
            url = f"{site.url}/.well-known/ard.json"
            [_] = await parley.find("x", registry=url, bearer="token")
            assert "authorization" in site.exchanges[0].headers
            assert "authorization" not in registry.exchanges[0].headers
            [_] = await parley.find("x", registry=url, bearer="t", trust_origins=[registry.url])
            assert "authorization" in registry.exchanges[1].headers


# -- discovery of a registry from an address ---------------------------------------------------


async def test_pages_are_followed_up_to_the_limit() -> None:
    async def paged(exchange: Exchange) -> None:
        given = json.loads(exchange.body)
        start = int(given.get("pageToken", "0"))
        results = [
            {**FX, "identifier": f"urn:air:far.example:agent:a{number}"}
            for number in range(start, start + given["pageSize"])
        ]
        await exchange.json({"results": results, "pageToken": str(start + given["pageSize"])})

    async with scripted(paged) as server:
        found = await parley.find("x", registry=server.url, limit=250)
        assert len(found) == 250
        assert len(server.exchanges) == 3


async def test_an_entry_is_asked_for_by_its_identifier() -> None:
    async with (
        scripted(
            answering({"entry": {**FX, "registry": {"marks": ["roles"]}}, "authority": "proved"})
        ) as server,
        parley.RemoteRegistry(server.url) as registry,
    ):
        found = await registry.agent(FX["identifier"].upper())
    assert unquote(server.exchanges[0].target) == "/agents/URN:AIR:FAR.EXAMPLE:AGENT:FX"
    assert found.identifier == FX["identifier"]
    assert found.marks == ("roles",)
    assert found.details == {"authority": "proved"}


async def test_facets_and_lists_are_read() -> None:
    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/explore":
            assert json.loads(exchange.body) == {
                "query": {"text": "fx"},
                "resultType": {"facets": [{"field": "type", "limit": 20, "minCount": 1}]},
            }
            buckets = [{"value": A2A, "count": 3}, {"value": "other"}, 7]
            await exchange.json({"facets": {"type": {"buckets": buckets, "otherCount": 2}}})
        else:
            asked = parse_qs(exchange.target.partition("?")[2])
            assert asked == {"filter": ["type = 'x'"], "pageSize": ["2"]}
            await exchange.json({"items": [FX, {}], "total": 9, "pageToken": "p"})

    async with scripted(answer) as server, parley.RemoteRegistry(server.url) as registry:
        facet = (await registry.explore("fx"))["type"]
        assert [(each.value, each.count) for each in facet.buckets] == [(A2A, 3), ("other", 0)]
        assert facet.other_count == 2
        listed = await registry.browse(filter="type = 'x'", page_size=2)
        assert [each.identifier for each in listed.entries] == [FX["identifier"]]
        assert (listed.total, listed.page_token, len(listed.rejected)) == (9, "p", 1)


async def test_a_domain_that_publishes_as_ard_0_9_is_read() -> None:
    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/.well-known/ai-catalog.json":
            await exchange.json({"specVersion": "1.0", "entries": [FX]})
        else:
            await exchange.body_of(b"", 404)

    async with scripted(answer) as server:
        [found] = await parley.find("convert a currency", registry=server.url)
    assert found.identifier == FX["identifier"]
    paths = [each.path for each in server.exchanges]
    assert paths == ["/search", "/.well-known/ard.json", "/.well-known/ai-catalog.json"]


async def test_a_catalog_without_a_registry_is_searched_here() -> None:
    weather = {**FX, "identifier": "urn:air:far.example:agent:w", "displayName": "Weather"}
    async with scripted(answering({"specVersion": "1.0", "entries": [FX, weather]})) as server:
        url = f"{server.url}/catalog.json"
        [found] = await parley.find("convert a currency", registry=url)
        assert (found.identifier, found.source) == (FX["identifier"], url)


async def test_without_a_registry_there_is_an_error_that_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PARLEY_REGISTRY", raising=False)
    with pytest.raises(NoRegistry, match="PARLEY_REGISTRY") as caught:
        await parley.find("x")
    assert isinstance(caught.value, ValueError)
    assert not isinstance(caught.value, ClientError)
    async with scripted(answering({"results": [FX]})) as server:
        monkeypatch.setenv("PARLEY_REGISTRY", server.url)
        [_] = await parley.find("x")
        assert await parley.find("x", registry={"entries": []}) == []
