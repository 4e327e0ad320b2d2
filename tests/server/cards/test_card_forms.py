"""One agent card in several forms: for all versions at once, or exactly for one."""

import msgspec
import pytest

from parley.model.cards import AgentCard, AgentCardSignature
from parley.model.struct import encode
from parley.server.app import Endpoint, Settings, create_app
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.discovery import CardPage
from parley.server.run import serving
from tests.kit.http import ask
from tests.kit.scripted import Scripted, app_of, card_of

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"
OLD = {"url", "preferredTransport", "protocolVersion"}
EXACT = {member for member in AgentCard.__struct_encode_fields__}
FORMS = [
    ({}, "", "merged"),
    ({"A2A-Version": ""}, "", "merged"),
    ({"A2A-Version": "1.0"}, "", "1.0"),
    ({"A2A-Version": "1.0.3"}, "", "1.0"),
    ({"A2A-Version": " 1.0 "}, "", "1.0"),
    ({"A2A-Version": "1.2"}, "", "1.0"),
    ({}, "?A2A-Version=1.0", "1.0"),
    ({}, "?a2a-version=1.0", "1.0"),
    ({"A2A-Version": "0.3"}, "?A2A-Version=1.0", "0.3"),
    ({"A2A-Version": "0.3.0"}, "", "0.3"),
    # The card is where its reader finds out which versions are spoken.
    ({"A2A-Version": "7.5"}, "", "merged"),
    ({"A2A-Version": "nonsense"}, "", "merged"),
]


def form_of(card):
    """Which form a card has, by its members."""
    members = set(card)
    if members >= OLD:
        return "merged" if "supportedInterfaces" in members else "0.3"
    return "1.0" if members <= EXACT and "supportedInterfaces" in members else "neither"


def signed(interfaces):
    signature = AgentCardSignature(protected="eyJhbGciOiJFUzI1NiJ9", signature="c2lnbmVk")
    return msgspec.structs.replace(card_of()(interfaces), signatures=(signature,))


@pytest.fixture(scope="module")
async def both():
    async with serving(app_of()) as url:
        yield url


@pytest.mark.parametrize(("headers", "query", "form"), FORMS)
async def test_the_form_of_a_card_is_that_of_the_version_that_is_asked_for(
    both, headers, query, form
):
    response = await ask(both, "GET", CARD + query, headers=headers)
    assert response.status == 200
    assert form_of(response.json) == form


async def test_caches_tell_the_forms_apart(both):
    tags = set()
    for headers in ({}, {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}):
        response = await ask(both, "GET", CARD, headers=headers)
        assert "A2A-Version" in response.headers["vary"]
        tag = response.headers["etag"]
        tags.add(tag)
        known = await ask(both, "GET", CARD, headers={**headers, "If-None-Match": tag})
        assert known.status == 304
        head = await ask(both, "HEAD", CARD, headers=headers)
        assert (head.status, head.headers["etag"]) == (200, tag)
        assert head.headers["content-length"] == str(len(response.body))
    assert len(tags) == 3


async def test_a_server_can_be_told_to_have_exact_cards_alone():
    async with serving(app_of(settings=Settings(card="1.0"))) as url:
        for headers in ({}, {"A2A-Version": "1.0"}, {"A2A-Version": "7.5"}):
            assert form_of((await ask(url, "GET", CARD, headers=headers)).json) == "1.0"
        old = await ask(url, "GET", CARD, headers={"A2A-Version": "0.3"})
        assert form_of(old.json) == "0.3"


async def test_nothing_is_put_into_a_card_that_was_signed():
    async with serving(create_app({"": Endpoint(Scripted(), signed)})) as url:
        plain = await ask(url, "GET", CARD)
        exact = await ask(url, "GET", CARD, headers={"A2A-Version": "1.0"})
        assert plain.body == exact.body
        assert form_of(plain.json) == "1.0"
        assert plain.json["signatures"]
        # What was signed is not what is said in another version.
        old = await ask(url, "GET", CARD, headers={"A2A-Version": "0.3"})
        assert form_of(old.json) == "0.3"
        assert "signatures" not in old.json


async def test_the_exact_card_is_the_data_model_and_nothing_else(both):
    exact = await ask(both, "GET", CARD, headers={"A2A-Version": "1.0"})
    advertised = AdvertisedInterfaces("", url=both, trust_proxy=False)
    assert exact.body == encode(card_of()(advertised.interfaces_at(advertised.url)))


def test_interfaces_name_all_supported_versions_newest_first():
    advertised = AdvertisedInterfaces("", url=None, trust_proxy=False, tenants={"acme"})
    interfaces = advertised.interfaces_at("https://a.example/x/")
    versions = [each.protocol_version for each in interfaces]
    assert versions == sorted(versions, reverse=True)
    assert (interfaces[0].protocol_binding, interfaces[0].protocol_version) == ("JSONRPC", "1.0")
    for each in interfaces:
        is_rpc = each.protocol_binding == "JSONRPC"
        assert each.url == ("https://a.example/x/" if is_rpc else "https://a.example/x")
        assert each.tenant == ""
    for each in advertised.interfaces_at("https://a.example/x", "acme"):
        if each.protocol_version == "0.3":
            assert (each.url, each.tenant) == ("https://a.example/x/acme", "")
        else:
            assert (each.url, each.tenant) == ("https://a.example/x", "acme")
    # A tenant without a path cannot be reached by those who cannot name it.
    unknown = advertised.interfaces_at("https://a.example/x", "initech")
    assert {each.protocol_version for each in unknown} == {"1.0"}


async def test_all_forms_of_all_addresses_share_one_bound(both):
    page = CardPage(
        Endpoint(Scripted(), card_of()),
        AdvertisedInterfaces("", url=None, trust_proxy=False),
        settings=Settings(),
    )

    async def send(message):
        pass

    for number in range(100):
        for version in (b"", b"1.0", b"0.3"):
            headers = [(b"host", b"h%d.example" % number), (b"a2a-version", version)]
            scope = {"type": "http", "method": "GET", "scheme": "http", "path": CARD}
            await page({**scope, "query_string": b"", "headers": headers}, None, send)
    assert len(page._files) == 64
