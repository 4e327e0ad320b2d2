"""Verifies the trust manifest of an entry: its identity, its signature, its attestations."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from parley.model.catalog.entries import Attestation, CatalogEntry, TrustManifest
from parley.model.catalog.urn import AirUrn, InvalidUrn, domain
from parley.registry.ingest.addresses import UnfitAddress, checked_address
from parley.registry.ingest.authority import THIS_MACHINE, speaks_for
from parley.registry.ingest.fetching import PageUnavailable, WebFetcher
from parley.registry.ingest.key_sets import DID_WEB, KeyPlaces, PublishedKeySets, did_document_url
from parley.registry.ingest.signatures import Signing
from parley.registry.records import Trust
from parley.security.signing.canonical import NotCanonical, canonical
from parley.security.signing.keys import decode
from parley.security.signing.strict_json import AmbiguousJson, read_object

MAX_SIGNATURE = 16 * 1024
MAX_ATTESTATIONS = 8
"""How many attestations of an entry are fetched for the sake of their digests."""

MAX_LINKS = 64

_MAX_HEADER = 8 * 1024
_DIGEST_FORM = "not of the form sha256:<hex>, nor of sha384 or sha512"
_DIGESTS = {"sha256": hashlib.sha256, "sha384": hashlib.sha384, "sha512": hashlib.sha512}


class _Broken(Exception):
    """A signature does not hold. The message says why."""


class ManifestVerifier:
    """Verifies trust manifests. With ``attestations``, documents that have a digest are fetched."""

    def __init__(
        self, fetcher: WebFetcher, keys: PublishedKeySets, *, attestations: bool = False
    ) -> None:
        self._fetcher = fetcher
        self._keys = keys
        self._attestations = attestations

    async def check(self, entry: CatalogEntry, publisher: str, near: str) -> Signing:
        """Return what the manifest of an entry proves for a publisher.

        ``near`` is the address of its catalog. Without a manifest nothing is proved.
        """
        manifest = entry.trust_manifest
        if manifest is None:
            return Signing()
        wrong = misaligned(manifest.identity, entry.identifier, publisher)
        wrong = wrong or _of_another(manifest, entry.identifier)
        if wrong:
            return Signing(trust=Trust.FAILED, reason=wrong)
        signing = Signing(reason="its trust manifest is not signed")
        if manifest.signature:
            try:
                signing = await self._signature(entry, publisher, near)
            except _Broken as error:
                words = f"the signature of its trust manifest does not hold: {error}"
                return Signing(trust=Trust.FAILED, reason=words, is_signed=True)
        if self._attestations and signing.trust is not Trust.FAILED:
            wrong = await self._wrong_attestation(manifest.attestations)
            if wrong:
                return Signing(trust=Trust.FAILED, reason=wrong, is_signed=signing.is_signed)
        return signing

    async def _signature(self, entry: CatalogEntry, publisher: str, near: str) -> Signing:
        """Return what the signature proves. Raises ``_Broken``."""
        from parley.security.issuers.jwks import ASYMMETRIC

        manifest = entry.trust_manifest
        assert manifest is not None
        header, encoded, payload, signature = _parsed(manifest.signature)
        alg, kid = header.get("alg"), header.get("kid", "")
        if alg not in ASYMMETRIC:
            raise _Broken(f"its algorithm is {alg!r:.40}, and not one of {', '.join(ASYMMETRIC)}")
        if not isinstance(kid, str) or len(kid) > 2048:
            raise _Broken("its key id (kid) is no text")
        try:
            content = canonical(_unsigned(entry))
        except NotCanonical as error:
            raise _Broken(f"the manifest {error}") from None
        if payload and payload != content:
            raise _Broken("it is of another manifest")
        places, problem = self._places(header, manifest.identity, publisher, near)
        keys, reason = await self._keys.find(places, kid)
        if keys is None:
            words = f"the signature of its trust manifest cannot be checked: {reason}"
            return Signing(reason=words, is_signed=True, is_open=True)
        key = keys.find(kid or None, alg)
        if key is None:
            raise _Broken(
                f"the key {kid[:80]!r} is not among those of {publisher}"
                + (f" ({problem})" if problem else "")
            )
        if not key.verifies(alg, encoded + b"." + _payload(header, content), signature):
            raise _Broken("the manifest was changed, or another one was signed")
        thumbprint = str(key.key.thumbprint())
        return Signing(trust=Trust.VERIFIED, signers=(thumbprint,), is_signed=True)

    def _places(
        self, header: Mapping[str, Any], identity: str, publisher: str, near: str
    ) -> tuple[KeyPlaces, str]:
        """Return where the keys may be, and what is wrong with the place that the header names."""
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

    async def _wrong_attestation(self, attestations: tuple[Attestation, ...]) -> str:
        """Return what is wrong with an attestation; empty if none is wrong or can be had."""
        with_digest = [each for each in attestations if each.digest]
        for each in with_digest[:MAX_ATTESTATIONS]:
            made, expected = _digest(each.digest)
            if made is None:
                return f"the digest of its attestation {each.type[:60]!r} is {_DIGEST_FORM}"
            try:
                url = checked_address(each.uri, plain=self._fetcher.plain)
                limit = self._fetcher.limits.attestation_bytes
                answer = await self._fetcher.get(url, accept="*/*", limit=limit)
            except (PageUnavailable, UnfitAddress):
                continue
            if answer.status == 200 and made(answer.body).hexdigest() != expected:
                return f"its attestation {each.type[:60]!r} has another digest than {each.digest}"
        return ""


def misaligned(identity: str, identifier: str, publisher: str) -> str:
    """Return why an identity is not of a publisher, empty if it is.

    It is the identifier of the entry (AI Catalog), or of the publisher's domain (ARD §5.1).
    """
    if identity == identifier:
        return ""
    found = identity_domain(identity)
    if not found:
        return (
            f"the identity of its trust manifest, {identity[:100]!r}, names no domain: it is a "
            "did:web, an https address, a SPIFFE ID, or the identifier of the entry"
        )
    if speaks_for(found, publisher) or speaks_for(publisher, found):
        return ""
    return f"the identity of its trust manifest is of {found}, and its publisher is {publisher}"


def wrong_digest(entry: CatalogEntry, artifact: bytes) -> str:
    """Return why an artifact is not the one that the provenance of its entry names.

    Empty if it is, or if nothing is said of its digest.
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
    """Return whether a manifest says that it is of another entry: somebody may have moved it."""
    named = [
        link.source_id
        for link in manifest.provenance[:MAX_LINKS]
        if link.relation == "publishedFrom" and link.source_id.lower().startswith("urn:air:")
    ]
    if not named or identifier.lower() in map(str.lower, named):
        return ""
    return f"its trust manifest is of another entry, {named[0][:200]!r}"


def _digest(text: str) -> tuple[Any, str]:
    """Return what makes a digest, ``None`` for an unknown or short one, and its value."""
    name, _, value = text.partition(":")
    made = _DIGESTS.get(name.lower().replace("-", ""))
    return (made if re.fullmatch(r"[0-9a-fA-F]+", value) else None), value.lower()


def identity_domain(identity: str) -> str:
    """Return the domain in an identity, empty for none."""
    text = identity.strip()
    if text.startswith(DID_WEB):
        host = unquote(text.removeprefix(DID_WEB).partition("#")[0].split(":")[0])
        host = host.partition(":")[0]
    elif text.lower().startswith("urn:air:"):
        try:
            return AirUrn.parse(text).publisher
        except InvalidUrn:
            return ""
    elif text.startswith("dns:"):
        host = text.removeprefix("dns:").strip("/")
    elif "://" in text:
        try:
            parts = urlsplit(text)
            host = parts.hostname or "" if parts.scheme in ("https", "http", "spiffe") else ""
        except ValueError:
            return ""
    else:
        host = text
    if host.lower() == THIS_MACHINE:
        return THIS_MACHINE
    try:
        return domain(host)
    except InvalidUrn:
        return ""


def _unsigned(entry: CatalogEntry) -> dict[str, Any]:
    """Return the manifest as it was read, without its signature."""
    members = dict(entry.trust_document) or msgspec.to_builtins(entry.trust_manifest)
    return {name: value for name, value in members.items() if name != "signature"}


def _parsed(text: str) -> tuple[dict[str, Any], bytes, bytes, bytes]:
    """Return the header of a compact JWS, as it is written too, its payload and its signature.

    A detached one has no payload. Raises ``_Broken``.
    """
    if len(text) > MAX_SIGNATURE:
        raise _Broken("it is too long")
    parts = text.strip().split(".")
    if len(parts) != 3 or not parts[0] or not parts[2]:
        raise _Broken("it is no compact JWS with a detached payload: <header>..<signature>")
    try:
        header = read_object(decode(parts[0]), limit=_MAX_HEADER, what="its header")
        payload, signature = decode(parts[1]) if parts[1] else b"", decode(parts[2])
    except AmbiguousJson as error:
        raise _Broken(str(error)) from None
    except ValueError as error:
        raise _Broken(f"it {error}") from None
    critical = header.get("crit", [])
    if critical not in ([], ["b64"]):
        raise _Broken("its header has critical members that are not understood")
    return header, parts[0].encode("ascii"), payload, signature


def _payload(header: Mapping[str, Any], content: bytes) -> bytes:
    """Return the payload as it is signed: in base64url, or as it is (RFC 7797)."""
    from parley.security.signing.keys import encode

    if header.get("b64", True) is False and "b64" in header.get("crit", []):
        return content
    return encode(content).encode("ascii")
