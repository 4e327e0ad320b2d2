"""Who signed a card or a manifest counts, and what changes under a key is held."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from parley.registry.ingest.signatures import misaligned
from parley.registry.records import EntryStanding, Trust
from parley.security.signing.canonical import canonical
from parley.security.signing.cards import sign_card
from parley.security.signing.keys import SigningKey, SigningKeys, encode
from tests.client.card.signer import new_keys
from tests.kit.scripted_server import card
from tests.registry.ingest.sites import (
    CATALOG,
    HERE,
    Reader,
    WebSite,
    entry,
    old_card,
    reader,
    site,
    urn,
)

pytestmark = pytest.mark.anyio

JWKS = "/.well-known/jwks.json"


class Publisher:
    """Serves a catalog with one agent, whose card it signs, and its keys."""

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


@pytest.mark.parametrize("made", [card, old_card])
async def test_a_card_that_its_publisher_signed_is_verified_and_pinned(
    publisher: Publisher, made: Callable[[str], dict[str, Any]]
) -> None:
    publisher.made = made(publisher.web.url)
    found = await publisher.visit(publisher.signed())
    assert (found.standing, found.trust) == (EntryStanding.LISTED, Trust.VERIFIED)
    assert found.fields["card.signedBy"] == (thumbprint(publisher.keys),)
    assert "signed by its publisher" in found.trust_reason


async def test_without_an_address_of_keys_they_are_at_the_publishers_well_known_place(
    publisher: Publisher,
) -> None:
    publisher.jku = None
    assert (await publisher.visit(publisher.signed())).trust is Trust.VERIFIED


async def test_an_unsigned_card_is_unproved_and_listed(publisher: Publisher) -> None:
    found = await publisher.visit(msgspec.json.encode(publisher.made))
    assert (found.standing, found.trust) == (EntryStanding.LISTED, Trust.UNPROVED)
    assert "card.signedBy" not in found.fields
    assert found.trust_reason == "its card is not signed"


async def test_a_signature_that_does_not_hold_is_never_listed(publisher: Publisher) -> None:
    changed = publisher.signed().replace(b"Scripted agent", b"Scripted thief")
    found = await publisher.visit(changed)
    assert (found.standing, found.trust) == (EntryStanding.REJECTED, Trust.FAILED)
    assert "the card was changed" in found.reason


async def test_a_key_that_the_publisher_does_not_have_fails(publisher: Publisher) -> None:
    found = await publisher.visit(publisher.signed(new_keys("other")))
    assert (found.standing, found.trust) == (EntryStanding.REJECTED, Trust.FAILED)
    assert "not among the trusted ones" in found.reason


async def test_keys_that_cannot_be_had_prove_nothing_and_break_nothing(
    publisher: Publisher,
) -> None:
    publisher.web.pages[JWKS] = 503
    found = await publisher.visit(publisher.signed())
    assert (found.standing, found.trust) == (EntryStanding.LISTED, Trust.UNPROVED)
    assert "cannot be checked" in found.trust_reason


async def test_a_redirect_does_not_lead_to_the_keys_of_somebody_else(publisher: Publisher) -> None:
    """Whoever finds an open redirect at a publisher has no keys there."""
    async with site() as evil:
        other = new_keys("evil")
        evil.pages["/jwks.json"] = other.published
        publisher.web.pages["/redirect?to=evil"] = 302
        publisher.web.headers["/redirect?to=evil"] = {"location": f"{evil.url}/jwks.json"}
        publisher.jku = f"{publisher.web.url}/redirect?to=evil"
        found = await publisher.visit(publisher.signed(other))
    assert found.trust is Trust.UNPROVED
    assert "redirects are not followed" in found.trust_reason


async def test_one_key_set_is_asked_for_once(publisher: Publisher) -> None:
    """Its server wants it kept for a while."""
    publisher.web.headers[JWKS] = {"cache-control": "max-age=600"}
    publisher.serve(publisher.signed())
    names = [f"n{n}" for n in range(20)]
    publisher.web.serve(*(entry(name, f"{publisher.web.url}/one.json") for name in names))
    await publisher.reads.visit(publisher.web.url + CATALOG)
    assert publisher.web.asked.count(JWKS) == 1
    assert len(publisher.reads.index.listed) == 20


async def test_keys_elsewhere_do_not_count(publisher: Publisher) -> None:
    """Whoever serves a card must not choose whose keys are asked."""
    publisher.jku = "https://evil.example/jwks.json"
    found = await publisher.visit(publisher.signed())
    assert found.trust is Trust.UNPROVED
    assert "neither at agent.localhost nor at the card's host" in found.trust_reason


async def test_keys_of_the_host_of_a_card_are_not_those_of_its_publisher(
    publisher: Publisher,
) -> None:
    """An operator lists the card of somebody else as one of example.com."""
    publisher.serve(publisher.signed())
    publisher.web.serve(entry("two", f"{publisher.web.url}/one.json", "example.com"))
    await publisher.reads.visit(publisher.web.url + CATALOG, settings={"authority": "operator"})
    found = publisher.reads.index.one(urn("two", "example.com"))
    assert found.trust is Trust.UNPROVED
    assert "signed by keys of localhost, not of its publisher example.com" in found.trust_reason


async def test_of_a_signed_card_only_what_is_signed_is_indexed(publisher: Publisher) -> None:
    publisher.made["supportedInterfaces"][0]["protocolBinding"] = "JSONRPC"
    members = msgspec.json.decode(
        sign_card(
            msgspec.json.encode(publisher.made), publisher.keys.signers, jku=publisher.jku or ""
        )
    )
    # Only the first form, of the members of 1.0, holds once a member is added.
    members["x-added"] = "by a proxy"
    found = await publisher.visit(msgspec.json.encode(members))
    assert found.trust is Trust.VERIFIED
    assert found.fields["card.skills.id"] == ("s",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("other key", "and now by another key"),
        ("unsigned", "no longer is"),
        ("broken", "the card was changed"),
        ("hidden keys", "cannot be checked"),
    ],
)
async def test_a_card_that_changes_under_a_pinned_key_is_held(
    publisher: Publisher, change: str, words: str
) -> None:
    await publisher.visit(publisher.signed())
    changed = {**publisher.made, "name": "Another agent"}
    body = publisher.signed(made=changed)
    if change == "other key":
        other = new_keys("second")
        publisher.publish(publisher.keys, other)
        body = publisher.signed(other, made=changed)
    elif change == "unsigned":
        body = msgspec.json.encode(changed)
    elif change == "broken":
        body = publisher.signed().replace(b"Scripted agent", b"Scripted thief")
    else:
        # The registry forgot the keys, as after a restart, and they are not there now.
        publisher.web.pages[JWKS] = 404
        async with reader(index=publisher.reads.index) as again:
            publisher.reads = again
            found = await publisher.visit(body)
            assert found.standing is EntryStanding.HELD
            publisher.publish(publisher.keys)
            async with reader(index=again.index) as later:
                publisher.reads = later
                assert (await publisher.visit()).standing is EntryStanding.LISTED
        return
    found = await publisher.visit(body)
    assert found.standing is EntryStanding.HELD
    assert words in found.reason
    assert found.fields["card.signedBy"] == (thumbprint(publisher.keys),)
    # It does not become better by waiting, or by being away in between.
    assert (await publisher.visit()).standing is EntryStanding.HELD
    publisher.web.pages["/one.json"] = 404
    assert (await publisher.visit()).standing is EntryStanding.REJECTED
    assert (await publisher.visit(body)).standing is EntryStanding.HELD
    # The card that was pinned is welcome.
    assert (await publisher.visit(publisher.signed())).standing is EntryStanding.LISTED


async def test_a_newer_card_by_the_pinned_key_is_listed(publisher: Publisher) -> None:
    await publisher.visit(publisher.signed())
    found = await publisher.visit(publisher.signed(made={**publisher.made, "version": "2"}))
    assert (found.standing, found.trust) == (EntryStanding.LISTED, Trust.VERIFIED)


async def test_keys_are_rotated_by_signing_with_both(publisher: Publisher) -> None:
    await publisher.visit(publisher.signed())
    second = new_keys("second")
    publisher.publish(publisher.keys, second)
    found = await publisher.visit(publisher.signed(publisher.keys, second))
    assert set(found.fields["card.signedBy"]) == {thumbprint(publisher.keys), thumbprint(second)}
    publisher.publish(second)
    found = await publisher.visit(publisher.signed(second))
    assert (found.standing, found.trust) == (EntryStanding.LISTED, Trust.VERIFIED)
    assert found.fields["card.signedBy"] == (thumbprint(second),)


async def test_a_card_that_cannot_be_had_for_a_while_keeps_what_was_proved(
    publisher: Publisher,
) -> None:
    """Its keys may be others meanwhile; what was held stays held."""
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


async def test_what_an_operator_accepts_is_listed_with_its_new_key(publisher: Publisher) -> None:
    await publisher.visit(publisher.signed())
    second = new_keys("second")
    publisher.publish(second)
    held = await publisher.visit(publisher.signed(second))
    assert held.standing is EntryStanding.HELD
    await publisher.reads.index.decide(held.key, EntryStanding.LISTED, "", "operator")
    found = await publisher.visit()
    assert found.standing is EntryStanding.LISTED
    assert found.fields["card.signedBy"] == (thumbprint(second),)
    # From now on the old key is the other one.
    publisher.publish(publisher.keys)
    assert (await publisher.visit(publisher.signed())).standing is EntryStanding.HELD


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


async def test_a_manifest_that_its_publisher_signed_makes_an_entry_verified(
    publisher: Publisher,
) -> None:
    """Members that are not known, at any depth, are signed too."""
    publisher.serve(msgspec.json.encode(publisher.made))
    made = manifest()
    [key] = publisher.keys.signers
    publisher.entry["trustManifest"] = {**made, "signature": signature_of(made, key)}
    found = await publisher.visit()
    assert (found.standing, found.trust) == (EntryStanding.LISTED, Trust.VERIFIED)
    assert found.fields["trustManifest.attestations.type"] == ("SOC2-Type2",)
    assert found.fields["trustManifest.signedBy"] == (thumbprint(publisher.keys),)
    assert found.entry["trustManifest"] == publisher.entry["trustManifest"]


async def test_a_payload_that_is_not_encoded_verifies_too(publisher: Publisher) -> None:
    publisher.serve(msgspec.json.encode(publisher.made))
    made = manifest()
    [key] = publisher.keys.signers
    header = {"alg": key.alg, "kid": key.kid, "b64": False, "crit": ["b64"]}
    protected = encode(msgspec.json.encode(header))
    signature = encode(key.sign(protected.encode() + b"." + canonical(made)))
    publisher.entry["trustManifest"] = {**made, "signature": f"{protected}..{signature}"}
    assert (await publisher.visit()).trust is Trust.VERIFIED


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


@pytest.mark.parametrize("alg", ["none", "HS256", "RS257"])
async def test_an_algorithm_that_proves_nothing_fails(publisher: Publisher, alg: str) -> None:
    publisher.serve(msgspec.json.encode(publisher.made))
    protected = encode(msgspec.json.encode({"alg": alg, "kid": "first"}))
    publisher.entry["trustManifest"] = manifest(signature=f"{protected}..{encode(b'x')}")
    found = await publisher.visit()
    assert (found.standing, found.trust) == (EntryStanding.REJECTED, Trust.FAILED)
    assert "its algorithm is" in found.reason


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


@pytest.mark.parametrize(
    "identity",
    [
        "urn:air:ai.acme.com:x:y",
        "did:web:ai.acme.com",
        "did:web:ai.acme.com%3A8443:agents:one",
        "https://ai.acme.com/.well-known/jwks.json",
        "https://deep.ai.acme.com/",
        "spiffe://acme.com/finance",
        "dns:ai.acme.com",
        "ai.acme.com",
    ],
)
def test_identities_that_are_of_a_publisher(identity: str) -> None:
    assert misaligned(identity, "urn:air:ai.acme.com:x:y", "ai.acme.com") == ""


async def test_a_manifest_that_was_moved_to_another_entry_is_found_out(
    publisher: Publisher,
) -> None:
    publisher.serve(msgspec.json.encode(publisher.made))
    made = manifest(provenance=[{"relation": "publishedFrom", "sourceId": urn("other")}])
    [key] = publisher.keys.signers
    publisher.entry["trustManifest"] = {**made, "signature": signature_of(made, key)}
    found = await publisher.visit()
    assert found.standing is EntryStanding.REJECTED
    assert "belongs to another entry" in found.reason


async def test_provenance_names_the_digest_of_the_card(publisher: Publisher) -> None:
    body = msgspec.json.encode(publisher.made)
    link = {
        "relation": "publishedFrom",
        "sourceId": publisher.entry["url"],
        "sourceDigest": f"sha256:{hashlib.sha256(body).hexdigest()}",
    }
    publisher.entry["trustManifest"] = manifest(provenance=[link])
    assert (await publisher.visit(body)).standing is EntryStanding.LISTED
    found = await publisher.visit(body.replace(b"Scripted", b"Swapped!"))
    assert (found.standing, found.trust) == (EntryStanding.REJECTED, Trust.FAILED)
    assert "another digest" in found.reason
    link["sourceDigest"] = "md5:" + "0" * 32
    assert "not of the form" in (await publisher.visit(body)).reason


async def test_keys_of_a_did_document_verify(publisher: Publisher) -> None:
    """The identity is a domain that acme's DID document is at; here it is asked directly."""
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
