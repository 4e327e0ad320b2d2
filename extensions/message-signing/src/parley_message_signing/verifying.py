"""Signatures, verified with keys that are trusted, or that the agent's card names."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from parley.model.cards import AgentCard
from parley.model.parts import Artifact, Message
from parley.security.egress import Egress
from parley.security.issuers import IssuerClient, KeysUnavailable
from parley.security.key_sets import KeySet, VerificationKey, read_keys
from parley.security.outbound import Fetcher, FetchFailed, checked_url
from parley.security.signing.canonical import read_object
from parley.security.signing.keys import decode
from parley_message_signing.signed import (
    START,
    URI,
    Signature,
    artifact_payload,
    grown,
    message_payload,
)

MAX_JWS = 8192
ALGORITHMS = frozenset({"EdDSA", "ES256", "RS256", "PS256"})


class SignatureInvalid(ValueError):
    """What was not signed, or not by a trusted key. The message says why."""


class Verdict(msgspec.Struct, frozen=True):
    """Who signed: ``kid`` of the key and where it was found, when, and which metadata is signed."""

    kid: str
    jku: str
    signature: Signature


class Keys:
    """Trusted keys: a JWK Set, and key sets at addresses, which are fetched and kept."""

    def __init__(
        self,
        trust: Mapping[str, Any] | None = None,
        addresses: Iterable[str] = (),
        *,
        egress: Egress | None = None,
        named_by: str = "",
    ) -> None:
        self._fixed = KeySet(read_keys(trust)) if trust else KeySet(())
        self._fetcher = Fetcher(egress)
        self._sets = {
            checked_url(url, "a key set"): IssuerClient(
                self._fetcher, time.monotonic, jwks_url=url, named_by=named_by
            )
            for url in addresses
        }

    async def find(self, kid: str, alg: str, jku: str) -> VerificationKey | None:
        """Return a trusted key. Raises ``SignatureInvalid`` if its set cannot be had now."""
        if (known := self._fixed.find(kid, alg)) is not None:
            return known
        if (published := self._sets.get(jku)) is None:
            return None
        try:
            return await published.find(kid, alg)
        except (KeysUnavailable, FetchFailed) as error:
            raise SignatureInvalid(f"the keys at {jku} cannot be had: {error}") from None

    async def close(self) -> None:
        """Close the connections."""
        for each in self._sets.values():
            await each.close()
        await self._fetcher.close()


def signature_of(carrier: Message | Artifact) -> Signature:
    """Return the signature in the metadata. Raises ``SignatureInvalid``."""
    value = (carrier.metadata or {}).get(URI)
    if value is None:
        raise SignatureInvalid("it is not signed")
    try:
        return msgspec.convert(value, Signature)
    except msgspec.ValidationError as error:
        raise SignatureInvalid(f"its signature is none: {error}") from None


async def verified(carrier: Message | Artifact, keys: Keys) -> Verdict:
    """Return who signed a message or an artifact. Raises ``SignatureInvalid``."""
    signature = signature_of(carrier)
    try:
        if len(signature.jws) > MAX_JWS:
            raise ValueError("is too long")
        protected, rest, value = signature.jws.split(".")
        header = read_object(decode(protected), limit=MAX_JWS, what="the protected header")
        mark = decode(value)
    except ValueError as error:
        raise SignatureInvalid(f"its signature is no JWS: {error}") from None
    kid, alg, jku = (header.get(name, "") for name in ("kid", "alg", "jku"))
    if rest or "crit" in header or not all(isinstance(each, str) for each in (kid, alg, jku)):
        raise SignatureInvalid("its signature is no detached JWS with kid and alg as texts")
    if alg not in ALGORITHMS:
        raise SignatureInvalid(f"the algorithm {alg[:40]!r} is not allowed")
    if (key := await keys.find(kid, alg, jku)) is None:
        raise SignatureInvalid(f"the key {kid[:80]!r} is not among the trusted ones")
    try:
        if isinstance(carrier, Message):
            payload = message_payload(carrier, signature)
        else:
            digest = grown(START, carrier.parts)
            payload = artifact_payload(carrier.artifact_id, digest, signature)
    except ValueError as error:
        raise SignatureInvalid(f"it {error}") from None
    from parley.security.signing.keys import encode

    if not key.verifies(alg, f"{protected}.{encode(payload)}".encode("ascii"), mark):
        raise SignatureInvalid("its content is not what was signed")
    return Verdict(kid, jku, signature)


async def verify(
    carrier: Message | Artifact, *, card: AgentCard, egress: Egress | None = None
) -> Verdict:
    """Return who signed what an agent sent, by the keys that its card names.

    These are the keys in the card's params, and those at its ``jku``, which is fetched through the
    egress guard. Trust the card first: it came over TLS, or its own signature was verified.

    Raises ``SignatureInvalid``.
    """
    declared = next((each for each in card.capabilities.extensions if each.uri == URI), None)
    if declared is None:
        raise SignatureInvalid("the card does not declare message signing")
    params = declared.params or {}
    at = card.supported_interfaces[0].url if card.supported_interfaces else ""
    try:
        addresses = [params["jku"]] if params.get("jku") else ()
        keys = Keys(params.get("keys"), addresses, egress=egress, named_by=at)
    except (ValueError, TypeError, AttributeError, FetchFailed) as error:
        raise SignatureInvalid(f"the keys of the card cannot be used: {error}") from None
    try:
        return await verified(carrier, keys)
    finally:
        await keys.close()
