"""From a reference to a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parley.client import connect
from parley.client.bindings.http import HttpTransport
from parley.client.card.resolver import CardResolver
from parley.client.errors import (
    AuthenticationRequired,
    CardInvalid,
    CardNotFound,
    ClientError,
    Unreachable,
)
from parley.client.retry import Retry
from tests.kit.scripted_server import Exchange, card, scripted

pytestmark = pytest.mark.anyio

AT_ONCE = Retry(calls=2, streams=2, first=0.0, limit=0.0)
WELL_KNOWN = "/.well-known/agent-card.json"


class Site:
    """Serves cards at some paths, and counts the requests for each."""

    def __init__(self, *paths: str, **headers: str) -> None:
        self.paths = paths
        self.headers = headers

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.path in self.paths:
            await exchange.json(card("http://agent.example"), **self.headers)
        else:
            await exchange.body_of(b"nothing here", 404, content_type="text/plain")


async def resolve(reference, **options):
    async with HttpTransport() as http:
        return await CardResolver(http, retry=AT_ONCE, **options).resolve(reference)


async def test_a_card_is_taken_as_it_is_from_files_json_and_values(tmp_path: Path) -> None:
    value = card("http://agent.example")
    file = tmp_path / "agent.json"
    file.write_text(json.dumps(value))
    read = await resolve(value)
    for reference in (
        file,
        str(file),
        file.as_uri(),
        json.dumps(value),
        json.dumps(value).encode(),
    ):
        assert (await resolve(reference)).card == read.card
    assert (await resolve(read.card)).card is read.card


async def test_the_reference_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    async with scripted(Site()) as server:
        with pytest.raises(CardNotFound, match=r"agent-card\.json \(404\), .*agent\.json \(404\)"):
            await resolve(server.url)
    with pytest.raises(CardNotFound, match="cannot be read"):
        await resolve(tmp_path / "missing.json")
    with pytest.raises(CardNotFound, match="cannot be read"):
        await resolve("missing/card.json")
    with pytest.raises(CardNotFound, match="neither an address nor a card file"):
        await resolve("not an address")
    with pytest.raises(Unreachable):
        await resolve(server.url)
    for broken in ("http://[broken", "http:///nowhere", "http://a b/"):
        with pytest.raises(ClientError):
            await resolve(broken)


async def test_a_large_card_is_refused() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.head(content_type="application/json", transfer_encoding="chunked")
        for _ in range(1000):
            await exchange.chunk(b" " * 65536)
        await exchange.never()

    async with scripted(handler) as server:
        with pytest.raises(CardInvalid, match="larger than 1,000 bytes"):
            await resolve(server.url + "/card.json", max_size=1000)
        await server.until_idle()


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ({"cache_control": "no-store", "etag": '"x"'}, {}),
        ({"cache_control": "no-cache, max-age=60", "etag": '"x"'}, {"if-none-match": '"x"'}),
        (
            {"last_modified": "Thu, 01 Oct 2026 00:00:00 GMT"},
            {"if-modified-since": "Thu, 01 Oct 2026 00:00:00 GMT"},
        ),
        ({}, {}),
    ],
)
async def test_a_card_that_may_not_be_kept_is_asked_for_again(headers, sent) -> None:
    async with scripted(Site(WELL_KNOWN, **headers)) as server, HttpTransport() as http:
        resolver = CardResolver(http)
        await resolver.resolve(server.url)
        await resolver.resolve(server.url)
        conditions = {k: v for k, v in server.exchanges[1].headers.items() if k.startswith("if-")}
        assert conditions == sent


async def test_credentials_go_to_the_cards_server_only_when_it_asks() -> None:
    async def open_to_all(exchange: Exchange) -> None:
        await exchange.json(card(f"http://{exchange.headers['host']}"))

    async def closed(exchange: Exchange) -> None:
        if exchange.headers.get("authorization") == "Bearer secret":
            await exchange.json(card(f"http://{exchange.headers['host']}"))
        else:
            await exchange.body_of(b"who?", 401, www_authenticate='Bearer realm="cards"')

    async with scripted(open_to_all) as server, connect(server.url, bearer="secret"):
        assert "authorization" not in server.exchanges[0].headers
    async with scripted(closed) as server:
        async with connect(server.url, bearer="secret", headers={"X-Trace": "7"}):
            assert [e.headers.get("authorization") for e in server.exchanges] == [
                None,
                "Bearer secret",
            ]
            assert server.exchanges[0].headers["x-trace"] == "7"
        with pytest.raises(AuthenticationRequired) as caught:
            await connect(server.url)
        assert (caught.value.status, caught.value.challenge) == (401, 'Bearer realm="cards"')


async def test_redirects_to_the_card_are_followed_and_relative_addresses_start_from_its_end() -> (
    None
):
    async def handler(exchange: Exchange) -> None:
        if exchange.path == "/old.json":
            await exchange.head(302, location="/new/card.json", content_length="0")
        else:
            value = card("")
            value["supportedInterfaces"][0]["url"] = "rpc"
            await exchange.json(value)

    async with scripted(handler) as server, connect(server.url + "/old.json") as agent:
        assert agent.interface.url == server.url + "/new/rpc"


async def test_a_card_without_a_place_has_no_relative_addresses() -> None:
    for address in ("/rpc", "http://[broken", "ftp://host/rpc", "https:///rpc"):
        value = card("")
        value["supportedInterfaces"][0]["url"] = address
        with pytest.raises(CardInvalid, match=r"expected one of the form https://host/path"):
            await connect(value)
