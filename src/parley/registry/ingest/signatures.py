"""Verifies the signatures of a card, or of the trust manifest of an entry.

A signature by keys of its publisher makes an entry verified; other signers are noted. Keys come
from JWK Sets and DID documents, fetched within limits and cached.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from parley.model.concurrency import KeyedLocks
from parley.registry.catalog.entries import CatalogEntry, TrustManifest
from parley.registry.catalog.reading import identity_domain
from parley.registry.ingest.addresses import UnfitAddress, checked_address, domain_of, speaks_for
from parley.registry.ingest.fetching import PageUnavailable, WebFetcher, freshness
from parley.registry.records import Trust
from parley.security.key_sets import (
    ASYMMETRIC,
    SYMMETRIC,
    KeySet,
    KeySetCache,
    VerificationKey,
    read_keys,
)
from parley.security.outbound import FetchFailed
from parley.security.signing.canonical import AmbiguousJson, NotCanonical, canonical, read_object
from parley.security.signing.cards import JWKS_PATH
from parley.security.signing.keys import decode

if TYPE_CHECKING:
    from parley.security.signing.cards import CardSignature, SignatureVerdict

# The keys of publishers: JWK Sets and DID documents, fetched within limits and cached.

DID_WEB = "did:web:"
MAX_PLACES = 4
"""The number of addresses tried for one key."""

_KEY_TYPES = "application/jwk-set+json, application/did+json, application/json, */*;q=0.1"


class KeyPlaces:
    """The possible addresses of a publisher's keys, the likeliest first. Other addresses prove
    nothing.
    """

    def __init__(self, publisher: str, fetcher: WebFetcher) -> None:
        self.publisher = publisher
        self._fetcher = fetcher
        self._urls: dict[str, None] = {}

    def add(self, url: str) -> str:
        """Add an address if it belongs to the publisher; return the reason otherwise, else an empty
        string.
        """
        try:
            checked = checked_address(url, plain=self._fetcher.plain)
        except UnfitAddress as error:
            return str(error)
        if not speaks_for(domain_of(checked), self.publisher):
            return f"{checked} is not at {self.publisher}"
        self._urls[checked] = None
        return ""

    def add_origin(self, url: str) -> None:
        """Add the well-known key set at the origin of an address of the publisher."""
        try:
            self.add(checked_address(JWKS_PATH, near=url, plain=self._fetcher.plain))
        except UnfitAddress:
            return

    def add_publisher(self) -> None:
        """Add the well-known key set of the publisher."""
        self.add(f"https://{self.publisher}{JWKS_PATH}")

    def __iter__(self) -> Any:
        return iter(list(self._urls)[:MAX_PLACES])


class PublishedKeySets:
    """Fetches key sets through a ``WebFetcher``, and caches them for their lifetime."""

    def __init__(self, fetcher: WebFetcher) -> None:
        self._fetcher = fetcher
        self._kept = KeySetCache()
        self._turns = (
            KeyedLocks()
        )  # one look-up at a time fetches: the others use its cached result

    async def find(self, places: Iterable[str], kid: str) -> tuple[KeySet | None, str]:
        """Return the first set with a key, or all keys found, or the reason why there are none.

        Without a ``kid`` it is the first set.
        """
        found: list[VerificationKey] = []
        problems: list[str] = []
        for url in places:
            try:
                async with self._turns.of(url):
                    keys = await self._kept.find(url, kid, partial(self._fetch, url))
            except FetchFailed as error:
                problems.append(str(error))
                continue
            if not kid or keys.has(kid):
                return keys, ""
            found += keys.keys
        if found:
            return KeySet(found), ""
        return None, "; ".join(problems) or "its publisher names no address of keys"

    async def _fetch(self, url: str) -> tuple[KeySet, float | None]:
        """Return a key set, and its cache lifetime in seconds. Raises ``FetchFailed``."""
        try:
            answer = await self._fetcher.get(
                url, accept=_KEY_TYPES, limit=self._fetcher.limits.key_bytes
            )
        except PageUnavailable as error:
            raise FetchFailed(f"the keys cannot be fetched: {error}") from None
        if answer.url != url:
            # An attacker could use an open redirect of a publisher to substitute keys.
            words = f"the keys cannot be fetched: {url} redirects, and redirects are not followed"
            raise FetchFailed(words)
        if answer.status != 200:
            raise FetchFailed(f"the keys cannot be fetched: {url} answered {answer.status}")
        try:
            content = msgspec.json.decode(answer.body)
            if not isinstance(content, dict):
                raise FetchFailed("it is not a JSON object")
            keys = read_keys(content if "keys" in content else _of_did(content))
        except (ValueError, RecursionError, FetchFailed) as error:
            said = str(error) if isinstance(error, FetchFailed) else "it is not JSON"
            raise FetchFailed(f"{url} is not a key set: {said}") from None
        return KeySet(keys), freshness(answer.headers)


def did_document_url(did: str) -> str:
    """Return the address of the document of a ``did:web`` identity, empty for another identity."""
    if not did.startswith(DID_WEB):
        return ""
    host, *path = did.removeprefix(DID_WEB).partition("#")[0].split(":")
    where = "/".join([*map(unquote, path), "did.json"]) if path else ".well-known/did.json"
    return f"https://{unquote(host)}/{where}"


def _of_did(document: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a DID document as a JWK Set, under their full and short ids."""
    methods = document.get("verificationMethod")
    keys: list[Any] = []
    for each in methods if isinstance(methods, list) else ():
        if not isinstance(each, dict) or not isinstance(each.get("publicKeyJwk"), dict):
            continue
        name, jwk = each.get("id"), each["publicKeyJwk"]
        if not isinstance(name, str) or not name:
            keys.append(jwk)
            continue
        short = name.partition("#")[2]
        names = {name, short and f"#{short}", short, jwk.get("kid")}
        keys += [{**jwk, "kid": kid} for kid in names if isinstance(kid, str) and kid]
    return {"keys": keys}


# Verifies the trust manifest of an entry: its identity, and its signature.

MAX_SIGNATURE = 16 * 1024
MAX_LINKS = 64

_MAX_HEADER = 8 * 1024
_DIGEST_FORM = "not of the form sha256:<hex>, nor of sha384 or sha512"
_DIGESTS = {"sha256": hashlib.sha256, "sha384": hashlib.sha384, "sha512": hashlib.sha512}


class _Broken(Exception):
    """A signature is invalid. The message gives the reason."""


class ManifestVerifier:
    """Verifies trust manifests."""

    def __init__(self, fetcher: WebFetcher, keys: PublishedKeySets) -> None:
        self._fetcher = fetcher
        self._keys = keys

    async def check(self, entry: CatalogEntry, publisher: str, near: str) -> Signing:
        """Return the result of verifying an entry's manifest for a publisher.

        ``near`` is the address of its catalog. Without a manifest nothing is proved.
        """
        manifest = entry.trust_manifest
        if manifest is None:
            return Signing()
        wrong = misaligned(manifest.identity, entry.identifier, publisher)
        wrong = wrong or _of_another(manifest, entry.identifier)
        if wrong:
            return Signing(trust=Trust.FAILED, reason=wrong)
        if not manifest.signature:
            return Signing(reason="its trust manifest is not signed")
        try:
            return await self._signature(entry, publisher, near)
        except _Broken as error:
            words = f"the signature of its trust manifest is invalid: {error}"
            return Signing(trust=Trust.FAILED, reason=words, is_signed=True)

    async def _signature(self, entry: CatalogEntry, publisher: str, near: str) -> Signing:
        """Return the result of verifying the signature. Raises ``_Broken``."""
        manifest = entry.trust_manifest
        assert manifest is not None
        header, encoded, payload, signature = _parsed(manifest.signature)
        alg, kid = header.get("alg"), header.get("kid", "")
        if alg not in ASYMMETRIC:
            raise _Broken(f"its algorithm is {alg!r:.40}, not one of {', '.join(ASYMMETRIC)}")
        if not isinstance(kid, str) or len(kid) > 2048:
            raise _Broken("its key id (kid) is not a string")
        try:
            content = canonical(_unsigned(entry))
        except NotCanonical as error:
            raise _Broken(f"the manifest {error}") from None
        if payload and payload != content:
            raise _Broken("it signs another manifest")
        places, problem = self._places(header, manifest.identity, publisher, near)
        keys, reason = await self._keys.find(places, kid)
        if keys is None:
            words = f"the signature of its trust manifest cannot be checked: {reason}"
            return Signing(reason=words, is_signed=True, is_open=True)
        key = keys.find(kid or None, alg)
        if key is None:
            raise _Broken(
                f"the key {kid[:80]!r} is not among the keys of {publisher}"
                + (f" ({problem})" if problem else "")
            )
        if not key.verifies(alg, encoded + b"." + _payload(header, content), signature):
            raise _Broken("the manifest was changed, or another manifest was signed")
        thumbprint = str(key.key.thumbprint())
        return Signing(trust=Trust.VERIFIED, signers=(thumbprint,), is_signed=True)

    def _places(
        self, header: Mapping[str, Any], identity: str, publisher: str, near: str
    ) -> tuple[KeyPlaces, str]:
        """Return the possible addresses of the keys, and the fault of the address in the header."""
        places, problem = KeyPlaces(publisher, self._fetcher), ""
        if isinstance(header.get("jku"), str):
            problem = places.add(header["jku"])
        if identity.startswith(("https:", "http:")):
            if urlsplit(identity).path.strip("/"):
                places.add(identity)
        elif document := did_document_url(identity):
            places.add(document)
        places.add_origin(near)
        places.add_publisher()
        return places, problem


def misaligned(identity: str, identifier: str, publisher: str) -> str:
    """Return why an identity does not belong to a publisher; empty if it does.

    It must equal the entry's identifier (AI Catalog), or be in the publisher's domain (ARD §4.5.1).
    """
    if identity == identifier:
        return ""
    found = identity_domain(identity)
    if not found:
        return (
            f"the identity of its trust manifest, {identity[:100]!r}, names no domain: it must be "
            "a "
            "did:web, an https address, a SPIFFE ID, or the identifier of the entry"
        )
    if speaks_for(found, publisher) or speaks_for(publisher, found):
        return ""
    return f"the identity of its trust manifest is of {found}, but its publisher is {publisher}"


def wrong_digest(entry: CatalogEntry, artifact: bytes) -> str:
    """Return why an artifact differs from the provenance of its entry.

    Empty if it matches, or if the provenance has no digest.
    """
    links = entry.trust_manifest.provenance if entry.trust_manifest is not None else ()
    for link in links[:MAX_LINKS]:
        if not link.source_digest or not entry.url or link.source_id != entry.url:
            continue
        made, expected = _digest(link.source_digest)
        if made is None:
            return f"the digest of its provenance {link.source_digest[:80]!r} is {_DIGEST_FORM}"
        if made(artifact).hexdigest() != expected:
            return f"its artifact has another digest than {link.source_digest[:80]}"
    return ""


def _of_another(manifest: TrustManifest, identifier: str) -> str:
    """Return the reason if a manifest names another entry: it may have been copied."""
    named = [
        link.source_id
        for link in manifest.provenance[:MAX_LINKS]
        if link.relation == "publishedFrom" and link.source_id.lower().startswith("urn:air:")
    ]
    if not named or identifier.lower() in map(str.lower, named):
        return ""
    return f"its trust manifest belongs to another entry, {named[0][:200]!r}"


def _digest(text: str) -> tuple[Any, str]:
    """Return the hash function of a digest, ``None`` for an unknown or short one, and its value."""
    name, _, value = text.partition(":")
    made = _DIGESTS.get(name.lower().replace("-", ""))
    return (made if re.fullmatch(r"[0-9a-fA-F]+", value) else None), value.lower()


def _unsigned(entry: CatalogEntry) -> dict[str, Any]:
    """Return the received manifest without its signature."""
    members = dict(entry.trust_document) or msgspec.to_builtins(entry.trust_manifest)
    return {name: value for name, value in members.items() if name != "signature"}


def _parsed(text: str) -> tuple[dict[str, Any], bytes, bytes, bytes]:
    """Return the parsed header, the encoded header, the payload and the signature of a compact JWS.

    The payload of a detached JWS is empty. Raises ``_Broken``.
    """
    if len(text) > MAX_SIGNATURE:
        raise _Broken("it is too long")
    parts = text.strip().split(".")
    if len(parts) != 3 or not parts[0] or not parts[2]:
        raise _Broken("it is not a compact JWS with a detached payload: <header>..<signature>")
    try:
        header = read_object(decode(parts[0]), limit=_MAX_HEADER, what="its header")
        payload, signature = decode(parts[1]) if parts[1] else b"", decode(parts[2])
    except AmbiguousJson as error:
        raise _Broken(str(error)) from None
    except ValueError as error:
        raise _Broken(f"it {error}") from None
    critical = header.get("crit", [])
    if critical not in ([], ["b64"]):
        raise _Broken("its header has unsupported critical members")
    return header, parts[0].encode("ascii"), payload, signature


def _payload(header: Mapping[str, Any], content: bytes) -> bytes:
    """Return the payload in its signed form: in base64url, or unencoded (RFC 7797)."""
    from parley.security.signing.keys import encode

    if header.get("b64", True) is False and "b64" in header.get("crit", []):
        return content
    return encode(content).encode("ascii")


MAX_CHECKED = 8
"""The number of signatures of a card checked; further signatures are ignored."""

_LARGE = 64 * 1024
_MAX_WORDS = 1000


class Signing(msgspec.Struct, frozen=True, kw_only=True):
    """The result of verifying a document's signatures.

    ``signers`` are the thumbprints (RFC 7638) of the publisher's keys that verify it, ``members``
    the signed members of a card. ``is_open``: undecided now, because keys could not be fetched.
    """

    trust: Trust = Trust.UNPROVED
    reason: str = ""
    signers: tuple[str, ...] = ()
    is_signed: bool = False
    is_open: bool = False
    members: dict[str, object] | None = None


class CardSignatures:
    """Verifies the signatures of cards with their publishers' keys."""

    def __init__(self, fetcher: WebFetcher, keys: PublishedKeySets) -> None:
        self._fetcher = fetcher
        self._keys = keys

    async def check(self, raw: bytes, url: str, publisher: str, near: str) -> Signing:
        """Return the result of verifying the signatures of a card for a publisher.

        ``url`` is the address of the card, ``near`` the address of its catalog.
        """
        from parley.security.signing.cards import CardUnverifiable, signatures_of, verify

        try:
            signatures = signatures_of(raw, ASYMMETRIC)[:MAX_CHECKED]
        except CardUnverifiable as error:
            return Signing(trust=Trust.FAILED, reason=str(error), is_signed=True)
        if not signatures:
            return Signing(reason="its card is not signed")
        found = {
            each.number: await self._keys_for(each, url, publisher, near) for each in signatures
        }
        work = partial(verify, raw, lambda each: _keys_in(found, each.number), ASYMMETRIC)
        try:
            verdict = await asyncio.to_thread(work) if len(raw) > _LARGE else work()
        except CardUnverifiable as error:
            return Signing(trust=Trust.FAILED, reason=str(error), is_signed=True)
        ours = [each for each in verdict.verified if not found[each.number].foreign]
        if ours:
            forms = ("received", "exact", "stripped")
            best = min(ours, key=lambda each: forms.index(each.form or "stripped"))
            signers = tuple(sorted({_thumbprint(found[each.number], each) for each in ours}))
            return Signing(
                trust=Trust.VERIFIED, signers=signers, is_signed=True, members=best.members
            )
        if verdict.verified:
            names = ", ".join(sorted({found[each.number].foreign for each in verdict.verified}))
            words = f"its card is signed by keys of {names}, not of its publisher {publisher}"
            return Signing(reason=words, is_signed=True)
        checked = [each for each in verdict.signatures if each.number in found]
        bad = [each for each in checked if not found[each.number].is_open]
        words = "; ".join(map(str, bad or checked))[:_MAX_WORDS]
        if bad:
            words = f"no signature of its card is valid: {words}"
            return Signing(trust=Trust.FAILED, reason=words, is_signed=True)
        return Signing(
            reason=f"the signatures of its card cannot be checked: {words}",
            is_signed=True,
            is_open=True,
        )

    async def _keys_for(
        self, signature: CardSignature, url: str, publisher: str, near: str
    ) -> _Found:
        """Return the keys for a signature: of the publisher, else at the card's address."""
        if signature.problem:
            return _Found(problem=signature.problem, is_open=_is_of_other_kind(signature))
        places = KeyPlaces(publisher, self._fetcher)
        if not signature.jku:
            for each in (url, near):
                places.add_origin(each)
            places.add_publisher()
        elif places.add(signature.jku):
            return await self._foreign(signature, url, publisher)
        found, reason = await self._keys.find(places, signature.kid)
        return _Found(keys=found, problem=reason, is_open=found is None)

    async def _foreign(self, signature: CardSignature, url: str, publisher: str) -> _Found:
        """Return keys of another party: only keys at the card's own address."""
        try:
            jku = checked_address(signature.jku, plain=self._fetcher.plain)
        except UnfitAddress as error:
            return _Found(problem=f"the address of its key set is invalid: {error}")
        domain = domain_of(jku)
        if not url or domain != domain_of(url):
            words = f"its key set {jku} is neither at {publisher} nor at the card's host"
            return _Found(problem=words, is_open=True)
        found, reason = await self._keys.find((jku,), signature.kid)
        return _Found(keys=found, problem=reason, foreign=domain, is_open=found is None)


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """The keys for a signature, or the reason why there are none.

    ``foreign`` names their owner, if it is not the publisher. ``is_open``: without keys, the
    signature is neither valid nor invalid.
    """

    keys: KeySet | None = None
    problem: str = ""
    foreign: str = ""
    is_open: bool = False


def _keys_in(found: Mapping[int, _Found], number: int) -> KeySet | str:
    each = found.get(number)
    if each is None:
        return "more signatures than the limit"
    return each.problem if each.keys is None else each.keys


def _thumbprint(found: _Found, verdict: SignatureVerdict) -> str:
    key = None if found.keys is None else found.keys.find(verdict.kid, verdict.alg)
    return "" if key is None else str(key.key.thumbprint())


def _is_of_other_kind(signature: CardSignature) -> bool:
    """Return whether a signature uses an algorithm that cannot be verified here.

    An algorithm without a key, or with a shared secret, is invalid instead.
    """
    alg = signature.alg
    return bool(alg) and alg.lower() != "none" and alg not in (*ASYMMETRIC, *SYMMETRIC)
