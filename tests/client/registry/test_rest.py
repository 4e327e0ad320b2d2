"""Registries over REST, as Parley and as others write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

import parley
from parley.client.auth import Bearer
from parley.client.errors import (
    AddressNotAllowed,
    AuthenticationRequired,
    ClientError,
    NotEncrypted,
    ResponseTooLarge,
    Unreachable,
)
from parley.registry.catalog.reading import read_entry
from parley.registry.catalog.searching import ListedResult
from parley.registry.client.places import AgentNotFound, NoRegistry, NotARegistry, RegistryRefused
from parley.security.egress import Egress
from tests.kit.scripted_server import Exchange, scripted

pytestmark = pytest.mark.anyio

A2A = "application/a2a-agent-card+json"
FX = {
    "identifier": "urn:air:far.example:agent:fx",
    "displayName": "Currency converter",
    "type": A2A,
    "url": "https://far.example/card.json",
}

SITE_ONLY = Egress.of(allow=["127.0.0.1"], public=False)


def answering(value: Any, status: int = 200, **headers: str) -> Any:
    async def answer(exchange: Exchange) -> None:
        await exchange.json(value, status, **headers)

    return answer


async def test_a_search_sends_the_need_and_returns_agents() -> None:
    answer = {"results": [{**FX, "score": 91, "source": "https://index.example/"}]}
    async with scripted(answering(answer)) as server:
        [found] = await parley.find(
            "currency conversion", registry=server.url, filter={"tags": "finance"}, limit=3
        )
    [asked] = server.exchanges
    assert (asked.method, asked.target) == ("POST", "/search")
    assert json.loads(asked.body) == {
        "query": {
            "text": "currency conversion",
            "filter": {"tags": ["finance"], "type": [A2A, "application/agent-card+json"]},
        },
        "federation": "auto",
        "pageSize": 3,
    }
    assert (found.name, found.score, found.source) == (
        "Currency converter",
        91,
        "https://index.example/",
    )
    assert found.card_url == "https://far.example/card.json"


@pytest.mark.parametrize("path", ["", "/", "/search", "/search/", "/agents", "/explore"])
@pytest.mark.parametrize("prefix", ["", "/api/v1"])
async def test_the_address_of_any_route_is_that_of_the_registry(prefix: str, path: str) -> None:
    async with scripted(answering({"results": []})) as server:
        assert await parley.find("x", registry=f"{server.url}{prefix}{path}") == []
    assert server.exchanges[0].target == f"{prefix}/search"


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


async def test_what_others_write_differently_is_read_and_what_is_wrong_is_left_out() -> None:
    media = {name: value for name, value in FX.items() if name != "type"}
    results = [
        7,
        {},
        {**FX, "url": None},
        {**FX, "type": "application/mcp-server-card+json", "identifier": "urn:air:x.example:mcp"},
        {**media, "identifier": "urn:air:x.example:a", "mediaType": A2A},
        {"entry": {**FX, "identifier": "urn:air:x.example:b"}, "score": 4},
        {**FX, "score": 3, "source": None, "unknown": {"deep": [1]}},
        FX,
    ]
    async with scripted(answering({"items": results, "nextPageToken": None})) as server:
        found = await parley.find("x", registry=server.url)
    assert [each.identifier.rpartition(":")[2] for each in found] == ["a", "b", "fx"]


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


async def test_pages_that_go_round_in_circles_end() -> None:
    async with scripted(answering({"results": [FX], "pageToken": "again"})) as server:
        [_] = await parley.find("x", registry=server.url)
        assert len(server.exchanges) == 2


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"errorCode": "INVALID_ARGUMENT", "message": "no such filter"}, 400, "no such filter"),
        ({"error": {"code": "X", "message": "inner"}}, 422, "inner"),
        ({"detail": "not here"}, 409, "not here"),
        (b"<html>", 500, "500"),
    ],
)
async def test_errors_of_a_registry_say_what_it_said(body: Any, status: int, said: str) -> None:
    async with scripted(answering(body, status)) as server:
        with pytest.raises(RegistryRefused, match=said) as caught:
            await parley.find("x", registry=server.url)
    assert caught.value.status == status
    if status == 400:
        assert caught.value.code == "INVALID_ARGUMENT"


async def test_what_a_registry_says_in_an_error_stays_on_one_line() -> None:
    answer = {"errorCode": "\x1b[2J", "message": "no\n2026 WARNING forged \x1b[31m"}
    async with scripted(answering(answer, 400)) as server:
        with pytest.raises(RegistryRefused) as caught:
            await parley.find("x", registry=server.url)
    assert str(caught.value).endswith("answered 400: no 2026 WARNING forged ?[31m")
    assert caught.value.code == ""


async def test_a_busy_registry_is_asked_again() -> None:
    busy = [503, 429, 200]

    async def answer(exchange: Exchange) -> None:
        status = busy.pop(0)
        await exchange.json({"results": []}, status, retry_after="0")

    async with scripted(answer) as server:
        assert await parley.find("x", registry=server.url) == []


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"{}", b'{"results": ' + b"[" * 9999])
async def test_what_is_no_registry_is_named(body: bytes) -> None:
    async with scripted(answering(body)) as server:
        with pytest.raises(NotARegistry, match="is not a registry, or its response is invalid"):
            await parley.find("x", registry=f"{server.url}/api")


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


async def test_nothing_that_answers_is_an_error_of_the_network() -> None:
    with pytest.raises(Unreachable):
        await parley.find("x", registry="http://127.0.0.1:9", retries=0)


# -- one entry ---------------------------------------------------------------------------------


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


@pytest.mark.parametrize("type", ["application/ai-registry+json", "application/ai-registry"])
async def test_an_address_that_is_no_registry_may_name_one_in_its_catalog(type: str) -> None:
    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/.well-known/ard.json":
            url = f"http://{exchange.headers['host']}/api/v1/search"
            entry = {"identifier": "urn:air:agent.localhost:r", "displayName": "R", "type": type}
            await exchange.json({"specVersion": "1.0", "entries": [FX, {**entry, "url": url}]})
        elif exchange.path == "/api/v1/search":
            await exchange.json({"results": [FX]})
        else:
            await exchange.body_of(b"<html>", 404)

    async with scripted(answer) as server:
        async with parley.RemoteRegistry(server.url) as registry:
            [_] = await registry.find("x")
            [_] = await registry.find("x")
            assert registry.name == f"{server.url}/api/v1/"
        assert [each.path for each in server.exchanges] == [
            "/search",
            "/.well-known/ard.json",
            "/api/v1/search",
            "/api/v1/search",
        ]


async def test_a_registry_that_lacks_a_route_is_not_taken_for_a_catalog() -> None:
    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/search":
            await exchange.json({"results": [FX]})
        elif exchange.path == "/.well-known/ard.json":
            await exchange.json({"specVersion": "1.0", "entries": []})
        else:
            await exchange.json({"errorCode": "NOT_FOUND", "message": "no route"}, 404)

    async with scripted(answer) as server, parley.RemoteRegistry(server.url) as registry:
        with pytest.raises(RegistryRefused, match="no route"):
            await registry.explore("x")
        with pytest.raises(RegistryRefused, match="no route"):
            await registry.browse()
        [_] = await registry.find("x")
        assert "/.well-known/ard.json" not in [each.path for each in server.exchanges]


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


async def test_results_with_their_identifiers_alone_are_asked_for_one_by_one() -> None:
    """A registry may leave out all the rest, and then has the entry (ARD 0.91 §5.3.2)."""
    known = {**FX, "registry": {"trust": "verified"}}
    other = "urn:air:far.example:agent:other"

    async def answer(exchange: Exchange) -> None:
        if exchange.path == "/search":
            short = {"identifier": FX["identifier"], "score": 80}
            results = [
                {**short, "source": f"{server.url}/"},
                {"identifier": other, "score": 70, "source": "https://elsewhere.example/"},
                {"identifier": f"{other}s", "displayName": "No address", "type": "a/b"},
            ]
            await exchange.json({"results": results})
        elif exchange.path == f"/agents/{FX['identifier']}":
            await exchange.json(known)
        else:
            await exchange.json({"errorCode": "NOT_FOUND", "message": "none"}, 404)

    async with scripted(answer) as server, parley.RemoteRegistry(server.url) as registry:
        [found] = await registry.find("currency")
        assert (found.card_url, found.score, found.known) == (FX["url"], 80, {"trust": "verified"})
        asked = [each.path for each in server.exchanges if each.path != "/search"]
        assert asked == [f"/agents/{FX['identifier']}", f"/agents/{other}s"]


@pytest.mark.parametrize("is_bare", [True, False])
async def test_both_forms_of_one_entry_are_read(is_bare: bool) -> None:
    details = {"authority": "proved", "versions": []}
    bare = {**FX, "registry": {"trust": "unproved", "details": details}}
    answer = answering(bare if is_bare else {"entry": FX, **details})
    async with scripted(answer) as server, parley.RemoteRegistry(server.url) as registry:
        found = await registry.agent(FX["identifier"])
    assert (found.card_url, found.details) == (FX["url"], details)


async def test_a_catalog_without_a_registry_is_searched_here() -> None:
    weather = {**FX, "identifier": "urn:air:far.example:agent:w", "displayName": "Weather"}
    async with scripted(answering({"specVersion": "1.0", "entries": [FX, weather]})) as server:
        url = f"{server.url}/catalog.json"
        [found] = await parley.find("convert a currency", registry=url)
        assert (found.identifier, found.source) == (FX["identifier"], url)


async def test_a_registry_that_a_catalog_names_elsewhere_is_dialled_only_in_public(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The catalog may be of the internet, and lead into this network."""
    from parley.registry.client.remote_registry import RemoteRegistry

    async with scripted(answering({"results": [FX]})) as inside:
        entry = {"identifier": "urn:air:x.example:r", "displayName": "R", "url": inside.url}
        catalog = {"entries": [{**entry, "type": "application/ai-registry+json"}]}
        async with scripted(answering(catalog)) as site:
            monkeypatch.setattr(RemoteRegistry, "_is_named_here", False)
            url = f"{site.url}/catalog.json"
            with pytest.raises(AddressNotAllowed):
                await parley.find("x", registry=url)
            assert inside.exchanges == []
            [_] = await parley.find("x", registry=url, allow_private=["127.0.0.0/8"])


async def test_a_registry_elsewhere_is_not_trusted_for_who_named_it(tmp_path: Path) -> None:
    """A file, and a catalog on this machine, vouch for the registry and not for its entries."""
    result = read_entry({**FX, "url": "http://127.0.0.1:9/card.json"})
    listed = {
        "identifier": "urn:air:x.example:r",
        "displayName": "R",
        "type": "application/ai-registry+json",
        "url": "https://registry.example/",
    }
    file = tmp_path / "agents.json"
    file.write_text(json.dumps({"entries": [listed]}))
    async with scripted(answering({"entries": [listed]})) as site:
        for reference in (file, f"{site.url}/catalog.json"):
            async with parley.RemoteRegistry(reference, egress=SITE_ONLY, retries=0) as registry:
                with pytest.raises(ClientError):
                    await registry.find("x")
                assert registry.name == "https://registry.example/"
                found = registry.found(ListedResult(entry=result, document={}))
            assert found.egress is not None
            with pytest.raises(AddressNotAllowed):
                await parley.connect(found)


async def test_a_registry_on_this_machine_lists_agents_of_this_machine() -> None:
    near = {**FX, "url": "http://127.0.0.1:9/card.json"}
    inside = {**FX, "identifier": f"{FX['identifier']}2", "url": "https://169.254.169.254/c.json"}
    async with scripted(answering({"results": [near, inside]})) as server:
        found = await parley.find("x", registry=server.url)
    with pytest.raises(Unreachable):
        await parley.connect(found[0], retries=0)
    with pytest.raises(AddressNotAllowed, match="allow_private"):
        await parley.connect(found[1], retries=0)


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


@pytest.mark.parametrize(
    "wrong",
    [
        {"need": " "},
        {"need": "x" * 2001},
        {"limit": 0},
        {"limit": 1001},
        {"limit": True},
        {"federation": "maybe"},
        {"filter": {"tags": []}},
        {"filter": {"": "x"}},
        {"filter": {"tags": [7]}},
        {"filter": {f"f{number}": "x" for number in range(33)}},
        {"registry": "ftp://registry.example.com"},
        {"registry": "https://registry.example.com/?key=1"},
        {"registry": "what is this"},
        {"bearer": "x", "auth": Bearer("x")},
        {"allow_private": ["not a place!"]},
    ],
)
async def test_what_no_registry_takes_is_refused_before_anything_is_sent(
    wrong: dict[str, Any],
) -> None:
    async with scripted(answering({"results": []})) as server:
        options = {"need": "x", "registry": server.url, **wrong}
        with pytest.raises(ValueError, match=r"\w+"):
            await parley.find(options.pop("need"), **options)
        assert server.exchanges == []
