"""The signer of a card or manifest counts; changes under a pinned key are held."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from parley.registry.records import EntryStanding, Trust
from parley.security.signing.canonical import canonical
from parley.security.signing.cards import sign_card
from parley.security.signing.keys import SigningKey, SigningKeys
from tests.client.card.signer import new_keys
from tests.kit.scripted_server import card
from tests.registry.ingest.sites import CATALOG, HERE, Reader, WebSite, entry, reader, site, urn

pytestmark = pytest.mark.anyio

JWKS = "/.well-known/jwks.json"


class Publisher:
    """Serves a catalog with one agent, its signed card, and the keys."""

    def __init__(self, web: WebSite, reads: Reader) -> None:
        self.web = web
        self.reads = reads
        self.keys = new_keys("first")
        self.made: dict[str, Any] = card(web.url)
        self.entry: dict[str, Any] = entry("one", f"{web.url}/one.json")
        self.jku: str | None = web.url + JWKS
        self.publish(self.keys)

    def publish(self, *keys: SigningKeys) -> None:
        self.web.pages[JWKS] = {"keys": [key for each in keys for key in each.published["keys"]]}
        self.web.headers[JWKS] = {"cache-control": "no-cache"}

    def serve(self, body: bytes) -> None:
        self.web.pages["/one.json"] = body

    def signed(self, *keys: SigningKeys, made: dict[str, Any] | None = None) -> bytes:
        found = msgspec.json.encode(self.made if made is None else made)
        for each in keys or (self.keys,):
            found = sign_card(found, each.signers, jku=self.jku or "")
        return found

    async def visit(self, body: bytes | None = None) -> Any:
        if body is not None:
            self.serve(body)
        self.web.serve(self.entry)
        await self.reads.visit(self.web.url + CATALOG)
        return self.reads.index.one(urn("one"))


@pytest.fixture
async def publisher(anyio_backend: object) -> Any:
    async with site() as web, reader() as reads:
        yield Publisher(web, reads)


def thumbprint(keys: SigningKeys) -> str:
    from joserfc.jwk import import_key

    return str(import_key(keys.published["keys"][0]).thumbprint())


async def test_a_signature_that_does_not_hold_is_never_listed(publisher: Publisher) -> None:
    changed = publisher.signed().replace(b"Scripted agent", b"Scripted thief")
    found = await publisher.visit(changed)
    assert (found.standing, found.trust) == (EntryStanding.REJECTED, Trust.FAILED)
    assert "the card was changed" in found.reason


async def test_keys_that_cannot_be_had_prove_nothing_and_break_nothing(
    publisher: Publisher,
) -> None:
    publisher.web.pages[JWKS] = 503
    found = await publisher.visit(publisher.signed())
    assert (found.standing, found.trust) == (EntryStanding.LISTED, Trust.UNPROVED)
    assert "cannot be checked" in found.trust_reason


async def test_a_redirect_does_not_lead_to_the_keys_of_somebody_else(publisher: Publisher) -> None:
    """An attacker who finds an open redirect at a publisher has no keys there."""
    async with site() as evil:
        other = new_keys("evil")
        evil.pages["/jwks.json"] = other.published
        publisher.web.pages["/redirect?to=evil"] = 302
        publisher.web.headers["/redirect?to=evil"] = {"location": f"{evil.url}/jwks.json"}
        publisher.jku = f"{publisher.web.url}/redirect?to=evil"
        found = await publisher.visit(publisher.signed(other))
    assert found.trust is Trust.UNPROVED
    assert "redirects are not followed" in found.trust_reason


async def test_keys_elsewhere_do_not_count(publisher: Publisher) -> None:
    """The server of a card must not choose the key set."""
    publisher.jku = "https://evil.example/jwks.json"
    found = await publisher.visit(publisher.signed())
    assert found.trust is Trust.UNPROVED
    assert "neither at agent.localhost nor at the card's host" in found.trust_reason


async def test_a_card_that_cannot_be_had_for_a_while_keeps_what_was_proved(
    publisher: Publisher,
) -> None:
    """The keys may change meanwhile; a held change stays held."""
    await publisher.visit(publisher.signed())
    publisher.publish(new_keys("second"))
    publisher.web.pages["/one.json"] = 503
    publisher.web.serve(publisher.entry)
    for _ in range(2):
        await publisher.reads.visit(publisher.web.url + CATALOG)
        found = publisher.reads.index.one(urn("one"))
        assert (found.standing, found.trust) == (EntryStanding.LISTED, Trust.VERIFIED)
        assert found.fields["card.signedBy"] == (thumbprint(publisher.keys),)
    held = await publisher.visit(msgspec.json.encode({**publisher.made, "name": "Other"}))
    assert held.standing is EntryStanding.HELD
    publisher.web.pages["/one.json"] = 503
    await publisher.reads.visit(publisher.web.url + CATALOG)
    found = publisher.reads.index.one(urn("one"))
    assert (found.standing, found.reason) == (EntryStanding.HELD, held.reason)


async def test_a_pin_survives_a_catalog_that_is_wrong_for_a_while(publisher: Publisher) -> None:
    await publisher.visit(publisher.signed())
    right = publisher.entry
    for wrong in (
        {"url": "http://example.com/card.json"},
        {"data": {}},
        {"displayName": ""},
        {"trustManifest": {"identity": "did:web:google.com"}},
        {"metadata": {"x": "y" * 100_000}},
    ):
        publisher.entry = {**right, **wrong}
        assert (await publisher.visit()).standing is EntryStanding.REJECTED
    publisher.web.serve()
    await publisher.reads.visit(publisher.web.url + CATALOG)
    assert publisher.reads.index.one(urn("one")).standing is EntryStanding.WITHDRAWN
    publisher.entry = right
    body = msgspec.json.encode({**publisher.made, "name": "Another agent"})
    assert (await publisher.visit(body)).standing is EntryStanding.HELD


async def test_an_entry_cannot_say_itself_who_signed_it(publisher: Publisher) -> None:
    publisher.entry["card"] = {"signedBy": "me", "skills": {"id": ["anything"]}}
    publisher.entry["source"] = "https://google.com/"
    publisher.entry["trustManifest"] = {"identity": f"did:web:{HERE}", "signedBy": ["me"]}
    found = await publisher.visit(msgspec.json.encode(publisher.made))
    assert found.standing is EntryStanding.LISTED
    assert "card.signedBy" not in found.fields
    assert "trustManifest.signedBy" not in found.fields
    assert found.fields["card.skills.id"] == ("s",)
    assert found.fields["source"] == (publisher.web.url + CATALOG,)


# Trust manifests.


def manifest(**more: Any) -> dict[str, Any]:
    return {
        "identity": f"spiffe://{HERE}/test/one",
        "identityType": "spiffe",
        "attestations": [{"type": "SOC2-Type2", "uri": "https://x.test/soc2.pdf", "size": 5}],
        "privacyPolicyUrl": "https://x.test/privacy",
        **more,
    }


def signature_of(made: dict[str, Any], key: SigningKey, **header: Any) -> str:
    return key.jws({"typ": "JOSE", **header}, canonical(made), detached=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacyPolicyUrl": "https://evil.test/"}, "was changed"),
        ({"signature": "a.b"}, "not a compact JWS"),
        ({"signature": "....."}, "not a compact JWS"),
        ({"signature": "!!..??"}, "base64url"),
        ({"signature": "x" * 20_000 + "..x"}, "too long"),
    ],
)
async def test_a_manifest_whose_signature_does_not_hold_is_never_listed(
    publisher: Publisher, change: dict[str, Any], words: str
) -> None:
    publisher.serve(msgspec.json.encode(publisher.made))
    made = manifest()
    [key] = publisher.keys.signers
    publisher.entry["trustManifest"] = {**made, "signature": signature_of(made, key), **change}
    found = await publisher.visit()
    assert (found.standing, found.trust) == (EntryStanding.REJECTED, Trust.FAILED)
    assert words in found.reason


async def test_a_signed_manifest_is_pinned_too(publisher: Publisher) -> None:
    publisher.serve(msgspec.json.encode(publisher.made))
    made = manifest()
    [key] = publisher.keys.signers
    publisher.entry["trustManifest"] = {**made, "signature": signature_of(made, key)}
    await publisher.visit()
    publisher.entry["trustManifest"] = made
    found = await publisher.visit()
    assert found.standing is EntryStanding.HELD
    assert "trust manifest was signed" in found.reason
    del publisher.entry["trustManifest"]
    assert (await publisher.visit()).standing is EntryStanding.HELD


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ("spiffe://evil.test/one", "is of evil.test"),
        ("did:web:google.com", "is of google.com"),
        ("https://agent.localhost.evil.test/", "is of agent.localhost.evil.test"),
        ("urn:air:google.com:one", "is of google.com"),
        ("did:key:z6Mk", "names no domain"),
        ("", "names no domain"),
    ],
)
async def test_the_identity_of_a_manifest_is_of_the_publisher(
    publisher: Publisher, identity: str, words: str
) -> None:
    publisher.entry["trustManifest"] = {"identity": identity}
    found = await publisher.visit(msgspec.json.encode(publisher.made))
    assert (found.standing, found.trust) == (EntryStanding.REJECTED, Trust.FAILED)
    assert words in found.reason


async def test_keys_of_a_did_document_verify(publisher: Publisher) -> None:
    """The identity is the domain of acme's DID document; here the document is fetched directly."""
    from parley.registry.ingest.signatures import PublishedKeySets, did_document_url

    assert did_document_url("did:web:acme.com") == "https://acme.com/.well-known/did.json"
    assert did_document_url("did:web:acme.com:a:b#key") == "https://acme.com/a/b/did.json"
    assert (
        did_document_url("did:web:acme.com%3A8443") == "https://acme.com:8443/.well-known/did.json"
    )
    [jwk] = publisher.keys.published["keys"]
    publisher.web.pages["/did.json"] = {
        "id": f"did:web:{HERE}",
        "verificationMethod": [
            {"id": f"did:web:{HERE}#k1", "type": "JsonWebKey2020", "publicKeyJwk": jwk},
            {"id": "#broken", "publicKeyJwk": "no key"},
            "nothing",
        ],
    }
    sets = PublishedKeySets(publisher.reads.fetcher)
    for kid in (f"did:web:{HERE}#k1", "#k1", "k1", "first"):
        found, problem = await sets.find([f"{publisher.web.url}/did.json"], kid)
        assert problem == ""
        assert found is not None
        assert found.has(kid)


async def test_what_documents_say_is_bounded_and_on_one_line(publisher: Publisher) -> None:
    publisher.made["provider"] = {
        "organization": "x\n" * 1000,
        "url": "https://elsewhere.test/\u202e",
    }
    publisher.made["supportedInterfaces"] = [
        {"url": f"https://h{n}.test/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        for n in range(500)
    ]
    publisher.entry["tags"] = ["t" * 10_000] * 5
    publisher.entry["metadata"] = {f"m{n}": "v" * 270 for n in range(140)}
    found = await publisher.visit(msgspec.json.encode(publisher.made))
    assert found.standing is EntryStanding.LISTED
    assert "outside of agent.localhost" in found.reason
    assert found.reason.isprintable()
    assert len(found.reason) <= 1000
    assert len(found.fields) <= 128
    assert all(len(v) <= 256 for values in found.fields.values() for v in values)
    assert all(len(values) <= 128 for values in found.fields.values())
