"""Registries over REST, as Parley and as others write them."""

from __future__ import annotations

from typing import Any

import pytest

import parley
from parley.client.auth import Bearer
from parley.client.errors import AuthenticationRequired, NotEncrypted, ResponseTooLarge
from parley.registry.client.places import NotARegistry
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
        assert len(server.exchanges) == 4  # asked for once
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


# -- from an address to a registry -------------------------------------------------------------
