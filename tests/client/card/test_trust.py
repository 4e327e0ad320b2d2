"""Signed cards: when the client uses a card, when it rejects a card, and the errors."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import import_key
from msgspec.structs import replace

import parley
from parley.client.bindings.http import HttpTransport
from parley.client.card.trust import CardTrust
from parley.client.card.verification import KeySetClient
from parley.client.errors import CardNotTrusted
from parley.security.egress import Egress
from parley.security.key_sets import KeySetCache
from parley.security.outbound import FetchFailed
from parley.security.signing.canonical import canonical, exact
from parley.wire import versions
from tests.client.card.signer import JWKS, WELL_KNOWN, Signer, new_keys
from tests.kit.scripted_server import scripted
from tests.security.signing.cards import CARD, members, signature, signed
from tests.security.signing.key_sets import key_set

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def signing(signer: Signer):
    async with scripted(signer) as server:
        signer.url = server.url
        yield signer


async def connected(reference: Any, trust: Any = True, **options: Any):
    """Open a connection, close it, and return it."""
    async with parley.connect(reference, trust=trust, auth=False, **options) as agent:
        return agent


async def refused(reference: Any, trust: Any = True, **options: Any) -> CardNotTrusted:
    with pytest.raises(CardNotTrusted) as caught:
        await connected(reference, trust, **options)
    return caught.value


# -- trusted cards ------------------------------------------------------------------------------


async def test_a_card_signed_with_keys_of_its_own_origin_is_trusted() -> None:
    async with signing(Signer()) as signer:
        agent = await connected(signer.url)
        assert agent.card_trust.is_trusted
        assert str(agent.card_trust) == "trusted (key first, ES256)"
        assert agent.card.name == "Käse"
        assert agent.card.signatures
        assert signer.fetches == [WELL_KNOWN, JWKS]
        assert not {"authorization", "cookie"} & set(signer.headers[1])


def pins(signer: Signer, tmp_path: Path) -> dict[str, CardTrust]:
    [jwk] = signer.published["keys"]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(signer.published))
    thumbprint = import_key(jwk).thumbprint()
    return {
        "a JWK": CardTrust(keys=jwk),
        "a JWK Set": CardTrust(keys=signer.published),
        "PEM": CardTrust(keys=import_key(jwk).as_pem(private=False)),
        "a path": CardTrust(keys=file),
        "a list": CardTrust(keys=[new_keys("other").published, str(file)]),
        "a thumbprint": CardTrust(thumbprints=[thumbprint]),
        "a key id and a thumbprint": CardTrust(thumbprints={"first": thumbprint}),
    }


async def test_pinned_keys_are_trusted_and_no_others(tmp_path: Path) -> None:
    async with signing(Signer()) as signer:
        for what, trust in pins(signer, tmp_path).items():
            signer.fetches.clear()
            assert (await connected(signer.url, trust)).card_trust.is_trusted, what
            assert (JWKS in signer.fetches) is ("thumbprint" in what)
        signer.rotate("second")
        for what, trust in pins(replaced(signer), tmp_path).items():
            if what != "a path":
                error = await refused(signer.url, trust)
                assert "second" in str(error), what


def replaced(signer: Signer) -> Signer:
    """Return a site that serves only the previous key."""
    other = Signer()
    other.published = {"keys": signer.published["keys"][1:]}
    return other


async def test_a_published_key_with_another_thumbprint_is_not_trusted() -> None:
    async with signing(Signer()) as signer:
        other = import_key(new_keys("first").published["keys"][0]).thumbprint()
        error = await refused(signer.url, CardTrust(thumbprints={"first": other}))
        assert "thumbprint" in str(error)


async def test_a_card_that_the_caller_passes_needs_a_pin_or_a_trusted_origin(
    tmp_path: Path,
) -> None:
    async with signing(Signer()) as signer:
        card = signer.written()
        file = tmp_path / "card.json"
        file.write_bytes(card)
        for reference in (card, file, json.loads(card), card.decode()):
            error = await refused(reference)
            assert "not fetched from any" in str(error)
            trust = CardTrust(keys=signer.published)
            assert (await connected(reference, trust)).card_trust.is_trusted
            trust = CardTrust(origins=[signer.url], allow_private=["127.0.0.1"])
            assert (await connected(reference, trust)).card_trust.is_trusted


async def test_a_card_in_a_catalog_is_verified() -> None:
    signer = Signer()

    async def catalog(exchange: Any) -> None:
        if exchange.path == "/":
            await exchange.json([{"name": "x", "card": json.loads(signer.written())}])
        elif exchange.path == JWKS:
            await signer(exchange)
        else:
            await exchange.body_of(b"", 404)

    async with scripted(catalog) as server:
        signer.url = server.url
        assert (await connected(server.url)).card_trust.is_trusted
        signer.is_signed = False
        await refused(server.url)


# -- caches, refreshed cards, rotation ---------------------------------------------------------


async def test_a_kept_card_is_fetched_again_when_its_key_is_gone() -> None:
    async with signing(Signer()) as signer:
        signer.caching = {"cache_control": "max-age=3600"}
        async with parley.connect(signer.url, trust=CardTrust(), auth=False) as agent:
            signer.rotate("second", overlap=False)
            agent._cards._verifier.trust.key_sets = KeySetCache()
            assert await agent.refresh_card()
            assert signer.fetches.count(WELL_KNOWN) == 2
            # A card that was just fetched, and is not trusted, is not fetched again.
            signer.is_signed = False
            signer.caching = {}
            agent._cards._verifier.trust.algorithms = frozenset({"RS256"})
            with pytest.raises(CardNotTrusted):
                await agent.refresh_card()
            assert signer.fetches.count(WELL_KNOWN) == 3


async def test_while_the_keys_cannot_be_had_those_that_are_kept_count() -> None:
    now = [0.0]
    cache = KeySetCache(lambda: now[0])
    async with signing(Signer()) as signer, HttpTransport() as http:
        client = KeySetClient(http, Egress(private=True))

        async def find(kid: str = "first"):
            return await cache.find(signer.url + JWKS, kid, lambda: fetch())

        async def fetch():
            return await client.fetch(signer.url + JWKS, None)

        assert (await find()).has("first")
        signer.status = 500
        now[0] += 3000
        assert (await find()).has("first")
        now[0] += 3000
        with pytest.raises(FetchFailed, match="answered 500"):
            await find()
        signer.status = 200
        now[0] += 10
        assert (await find()).has("first")
        await client.aclose()


async def test_extended_cards_that_come_at_once_are_each_verified_as_they_came() -> None:
    """Only the received JSON contains the signed member ``more``."""
    capabilities = replace(CARD.capabilities, extended_agent_card=True)
    card = versions.write_card(replace(CARD, capabilities=capabilities), "1.0")
    asked = []
    both = asyncio.Event()

    class Extending(Signer):
        async def __call__(self, exchange: Any) -> None:
            if exchange.method != "POST":
                await super().__call__(exchange)
                return
            asked.append(exchange)
            number = len(asked)
            if number == 2:
                both.set()
            await both.wait()
            own = {**members(self.card), "name": f"Bank {number}", "more": {"n": number}}
            key = self.keys.signers[0]
            await exchange.result(members(signed(own, key, jku=self.url + JWKS)))

    async with (
        signing(Extending(card=card)) as signer,
        parley.connect(signer.url, trust=True, auth=False) as agent,
    ):
        found = await asyncio.gather(agent.extended_card(), agent.extended_card())
        assert sorted(each.name for each in found) == ["Bank 1", "Bank 2"]
        assert agent.card_trust.verdict is not None
        assert agent.card_trust.verdict.form == "received"


# -- untrusted cards ---------------------------------------------------------------------------


async def test_a_card_without_a_signature_is_refused() -> None:
    async with signing(Signer()) as signer:
        signer.is_signed = False
        error = await refused(signer.url)
        assert "the card has no signature" in str(error)
        assert error.signatures == ()


@pytest.mark.parametrize("required", [True, False])
async def test_a_signature_that_was_there_before_is_missed(required: bool, caplog: Any) -> None:
    async with signing(Signer()) as signer:
        trust = CardTrust(required=required)
        await connected(signer.url, trust)
        signer.is_signed = False
        if required:
            said = str(await refused(signer.url, trust))
        else:
            agent = await connected(signer.url, trust)
            assert agent.card_trust.state == "not signed"
            said = agent.card_trust.reason
            assert said in caplog.text
        assert "it was signed before, by the key first" in said


async def test_published_keys_of_a_server_that_is_not_verified_prove_nothing() -> None:
    async with signing(Signer()) as signer:
        trust = CardTrust(required=False)
        agent = await connected(signer.url, trust, insecure=True)
        assert agent.card_trust.state == "not trusted"
        assert "pin keys" in str(agent.card_trust)
        assert signer.fetches == [WELL_KNOWN]
        assert (await connected(signer.url, trust)).card_trust.is_trusted
        pinned = CardTrust(keys=signer.keys.published)
        assert (await connected(signer.url, pinned, insecure=True)).card_trust.is_trusted


async def test_a_signature_is_of_the_card_that_it_is_on() -> None:
    async with signing(Signer()) as signer:
        moved = members(signer.written())["signatures"]
        evil = members(versions.write_card(replace(CARD, name="Evil"), "1.0"))
        signer.change = lambda card: json.dumps(evil | {"signatures": moved}).encode()
        assert "the card was changed" in str(await refused(signer.url))


# -- allowed sources of keys -------------------------------------------------------------------


async def test_keys_at_another_origin_need_to_be_trusted() -> None:
    async with signing(Signer()) as keys, signing(Signer(jku=keys.url + JWKS)) as signer:
        signer.keys, keys.published = keys.keys, keys.keys.published
        error = await refused(signer.url)
        assert f"CardTrust(origins=['{keys.url}'])" in str(error)
        assert not keys.fetches
        trust = CardTrust(origins=[keys.url], allow_private=["127.0.0.0/8"])
        assert (await connected(signer.url, trust)).card_trust.is_trusted


async def test_a_trusted_origin_at_a_private_address_is_not_dialled() -> None:
    async with signing(Signer()) as keys, signing(Signer(jku=keys.url + JWKS)) as signer:
        error = await refused(signer.url, CardTrust(origins=[keys.url]))
        assert "loopback address" in str(error)
        assert "allow_private" in str(error)
        assert not keys.fetches


@pytest.mark.parametrize(
    ("jku", "said"),
    [
        ("", "names no key set"),
        ("http://agents.example.com/jwks.json", "not encrypted"),
        ("https://169.254.169.254/latest/meta-data", "another origin"),
        ("https://[::ffff:169.254.169.254]/", "another origin"),
        ("https://user:secret@127.0.0.1/jwks", "a name, a password"),
        ("file:///etc/passwd", "is not"),
        ("https://127.0.0.1\\@evil.example/", "is not"),
        ("https://evil.example/#" + "x" * 10, "fragment"),
        ("https://evil.example/" + "x" * 2100, "too long"),
        ("data:application/json,{}", "is not"),
    ],
)
async def test_other_addresses_of_keys_are_not_asked(jku: str, said: str) -> None:
    async with signing(Signer(jku=jku)) as signer:
        error = await refused(signer.url)
        assert said in str(error)
        assert "secret" not in str(error)
        assert signer.fetches == [WELL_KNOWN]


async def test_a_redirect_of_a_key_set_is_not_followed() -> None:
    async with signing(Signer()) as elsewhere, signing(Signer()) as signer:
        elsewhere.published = signer.published
        signer.location = elsewhere.url + JWKS
        assert "redirects" in str(await refused(signer.url))
        assert not elsewhere.fetches


async def test_the_own_origin_is_that_of_the_address_that_the_caller_gave() -> None:
    """A redirect must not change the origin whose keys are trusted."""
    async with signing(Signer()) as signer:

        async def redirect(exchange: Any) -> None:
            await exchange.body_of(b"", 302, location=signer.url + WELL_KNOWN)

        async with scripted(redirect) as server:
            error = await refused(server.url)
            assert f"{signer.url} (the card's is {server.url})" in str(error)


async def test_a_key_set_that_does_not_answer_is_said() -> None:
    async with signing(Signer()) as signer:
        signer.status = 404
        assert "answered 404" in str(await refused(signer.url))


# -- confusion of keys -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "HS256"},
        {"alg": "RS256"},
        {"alg": "ES384"},
        {"alg": None},
        {"kid": None},
        {"kid": "../../../../etc/passwd"},
        {"kid": "https://evil.example/key"},
        {"kid": "first' OR '1'='1"},
        {"kid": "first\x00"},
        {"kid": ["first"]},
        {"crit": ["exp"], "exp": 1},
        {"b64": False},
        {"jwk": new_keys("first").published["keys"][0], "kid": "evil"},
        {"x5u": "https://evil.example/cert", "kid": "evil"},
    ],
    ids=lambda header: json.dumps(header)[:40],
)
async def test_headers_that_ask_for_another_key_or_algorithm_are_refused(header: Any) -> None:
    async with signing(Signer()) as signer:
        key = signer.keys.signers[0]
        card = members(signer.card)
        wrong = {"jku": signer.url + JWKS, **header}
        signer.is_signed = False
        signer.change = lambda _: signed(card, key, canonical_of(card), **wrong)
        error = await refused(signer.url)
        assert "\x00" not in str(error)
        assert len(error.signatures) == 1


def canonical_of(card: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in card.items() if name != "signatures"}


async def test_one_trusted_signature_among_others_is_enough() -> None:
    async with signing(Signer()) as signer:
        card = members(signer.written())
        stranger = new_keys("first").signers[0]
        wrong = signature(canonical(exact(card)), stranger, jku=signer.url + JWKS)
        card["signatures"] = [wrong, {"protected": "x", "signature": "y"}, *card["signatures"]]
        signer.change = lambda _: json.dumps(card).encode()
        agent = await connected(signer.url)
        assert agent.card_trust.is_trusted
        reasons = [each.reason for each in agent.card_trust.verdict.signatures]
        assert reasons[0]
        assert reasons[1]
        assert not reasons[-1]


# -- error messages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keys": []}, "keys is empty"),
        ({"keys": {"kty": "oct", "k": "x" * 64}}, "a secret verifies no card"),
        ({"keys": "/nowhere/keys.json"}, "cannot be read"),
        ({"keys": {"keys": []}}, "no key"),
        ({"thumbprints": ["short"]}, "43 characters"),
        ({"thumbprints": "A" * 43}, "is a list"),
        ({"origins": "https://a.example"}, "is a list"),
        ({"origins": ["https://a.example/path"]}, "more than an origin"),
        ({"algorithms": ["none"]}, "not with none"),
        ({"algorithms": ["HS256"]}, "not with HS256"),
        ({"keys": key_set(), "required": False}, "pinned keys are required"),
        ({"keys": key_set(), "thumbprints": ["A" * 43]}, "not both"),
        ({"keys": key_set(), "origins": ["https://a.example"]}, "not both"),
    ],
)
def test_what_cannot_be_trusted_is_refused(options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CardTrust(**options)


async def test_the_blocking_client_verifies_too() -> None:
    import asyncio

    async with signing(Signer()) as signer:

        def work() -> str:
            with parley.connect_sync(signer.url, trust=True, auth=False) as agent:
                return str(agent.card_trust)

        assert await asyncio.to_thread(work) == "trusted (key first, ES256)"
        signer.is_signed = False
        with pytest.raises(CardNotTrusted):
            await asyncio.to_thread(work)
