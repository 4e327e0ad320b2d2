"""Where a card's address leads, and what goes there."""

from __future__ import annotations

import ssl

import pytest

from parley.client import connect
from parley.client.bindings.http import HttpTransport
from parley.client.errors import AuthenticationRequired, CardInvalid, UnexpectedStatus
from parley.client.origin import is_same_server
from tests.client.bindings.test_http import CERTIFICATE
from tests.kit.scripted_server import Exchange, card, scripted

pytestmark = pytest.mark.anyio

SECRETS = {"bearer": "the-bearer", "api_key": "the-key", "headers": {"X-Secret": "the-header"}}


def leads_to(*places: str):
    """Redirect to one place after the other; the last stays."""
    left = list(places)

    async def handler(exchange: Exchange) -> None:
        place = left.pop(0) if len(left) > 1 else left[0]
        await exchange.head(302, location=place, content_length="0")

    return handler


async def test_another_server_is_told_no_header_that_may_be_secret() -> None:
    async def theirs(exchange: Exchange) -> None:
        await exchange.json(card("http://agent.example"))

    async with (
        scripted(theirs) as there,
        scripted(leads_to(f"{there.url}/card.json")) as here,
        connect(f"{here.url}/card.json", **SECRETS, trust_origins=["http://agent.example"]),
    ):
        assert here.exchanges[0].headers["x-secret"] == "the-header"
        assert there.exchanges[0].headers["accept"] == "application/json"
        assert "the-" not in str([exchange.headers for exchange in there.exchanges])


async def test_credentials_are_for_the_server_that_was_named_not_for_one_that_it_leads_to() -> None:
    async def wants(exchange: Exchange) -> None:
        await exchange.body_of(b"who?", 401, www_authenticate="Bearer")

    async with scripted(wants) as there, scripted(leads_to(f"{there.url}/card.json")) as here:
        with pytest.raises(AuthenticationRequired, match=f"{there.url}/card.json wants"):
            await connect(f"{here.url}/card.json", **SECRETS)
        assert len(here.exchanges) == len(there.exchanges) == 1
        assert "the-" not in str([exchange.headers for exchange in there.exchanges])
        assert "authorization" not in here.exchanges[0].headers


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file:///etc/passwd", "redirects to 'file:///etc/passwd', which is no address"),
        ("ftp://host/card.json", "which is no address of the form https://host/path"),
        ("http://[broken", "which is no address"),
        ("https:///card.json", "which is no address"),
        ("/card.json", "redirects more than 3 times"),
    ],
)
async def test_a_redirect_to_nowhere_is_not_followed(place: str, words: str) -> None:
    async with scripted(leads_to(place)) as server:
        with pytest.raises(UnexpectedStatus, match=words) as caught:
            await connect(f"{server.url}/card.json")
        assert caught.value.status == 302
        assert len(server.exchanges) == (4 if place.startswith("/") else 1)


async def test_a_redirect_never_leaves_encryption() -> None:
    async def theirs(exchange: Exchange) -> None:
        await exchange.json(card("http://agent.example"))

    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(CERTIFICATE)
    ours = ssl.create_default_context(cafile=str(CERTIFICATE))
    async with (
        scripted(theirs) as there,
        scripted(leads_to(f"{there.url}/card.json"), tls=server_side) as here,
        HttpTransport(tls=ours) as http,
    ):
        with pytest.raises(UnexpectedStatus, match="which is not encrypted"):
            await http.get(f"{here.url}/card.json", {})
        assert there.exchanges == []


def test_the_same_server_is_its_name_and_port_and_its_encrypted_self() -> None:
    for one, other, same in (
        ("http://a/x", "http://a/y", True),
        ("http://a/x", "http://A:80/y", True),
        ("http://a/x", "https://a/x", True),
        ("https://a/x", "http://a/x", False),
        ("http://a:8080/x", "https://a/x", False),
        ("http://a/x", "http://b/x", False),
        ("http://a:1/x", "http://a:2/x", False),
    ):
        assert is_same_server(one, other) is same, (one, other)


@pytest.mark.parametrize("depth", [5_000, 100_000])
async def test_a_card_that_is_nested_without_end_is_no_card(depth: int) -> None:
    deep = b'{"name": ' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(CardInvalid, match="nested too deeply"):
        await connect(deep)
