"""Absurd answers of a server lead to a Parley error, or are ignored."""

from __future__ import annotations

import json

import pytest

from parley.client import connect
from parley.client.bindings.http import HttpTransport
from parley.client.card.resolver import CardResolver
from parley.client.errors import CardInvalid, ClientError
from tests.kit.scripted_server import card

pytestmark = pytest.mark.anyio

DEEP = 100_000
NEST = b'{"a":' * DEEP + b"1" + b"}" * DEEP


@pytest.mark.parametrize("name", ["skills", "securitySchemes", "provider", "name"])
async def test_a_nest_within_a_card_is_no_crash(name: str) -> None:
    raw = json.dumps({**card("http://x"), name: "NEST"}).encode().replace(b'"NEST"', NEST)
    async with HttpTransport() as http:
        with pytest.raises(CardInvalid):
            await CardResolver(http).resolve(raw)


@pytest.mark.parametrize(
    "reference",
    [
        "http://localhost:99999/",
        "http://localhost:-1/",
        "http://localhost:" + "9" * 5000,
        "localhost:99999",
        "http://localhost/\0",
        "http://loc\0alhost/",
        "a\0b",
        "./a\0b",
        "file:///a%00b",
        "http://localhost/\udc80",
        "\udc80",
        "./\udc80",
        '{"name": "\udc80"}',
        "http://[::1/",
        "x" * 100_000,
        "./" + "x" * 100_000,
    ],
    ids=lambda text: ascii(text)[:40],
)
async def test_an_absurd_reference_is_no_agent(reference: str) -> None:
    with pytest.raises(ClientError):
        async with connect(reference, retries=0, timeout=5):
            pass
