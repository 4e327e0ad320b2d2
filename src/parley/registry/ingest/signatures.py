"""Verifies who signed a card: the keys of its publisher make it verified, others are noted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from parley.registry.ingest.addresses import UnfitAddress, checked_address
from parley.registry.ingest.authority import domain_of
from parley.registry.ingest.fetching import WebFetcher
from parley.registry.ingest.key_sets import KeyPlaces, PublishedKeySets
from parley.registry.records import Trust
from parley.security.issuers.jwks import KeySet

if TYPE_CHECKING:
    from parley.security.signing.card_verification import CardSignature, SignatureVerdict

MAX_CHECKED = 8
"""How many signatures of a card are checked; more are ignored."""

_LARGE = 64 * 1024
_MAX_WORDS = 1000


class Signing(msgspec.Struct, frozen=True, kw_only=True):
    """What the signatures of a document prove.

    ``signers`` are the thumbprints (RFC 7638) of keys of the publisher that verify it, ``members``
    what they sign of a card. ``is_open``: it could not be said now, because keys could not be had.
    """

    trust: Trust = Trust.UNPROVED
    reason: str = ""
    signers: tuple[str, ...] = ()
    is_signed: bool = False
    is_open: bool = False
    members: dict[str, object] | None = None


class CardSignatures:
    """Verifies the signatures of cards, with keys that their publishers publish."""

    def __init__(self, fetcher: WebFetcher, keys: PublishedKeySets) -> None:
        self._fetcher = fetcher
        self._keys = keys

    async def check(self, raw: bytes, url: str, publisher: str, near: str) -> Signing:
        """Return what the signatures of a card prove for a publisher.

        ``url`` is where the card is, ``near`` the address of its catalog.
        """
        from parley.security.issuers.jwks import ASYMMETRIC
        from parley.security.signing.card_verification import (
            CardUnverifiable,
            signatures_of,
            verify,
        )

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
            words = f"no signature of its card holds: {words}"
            return Signing(trust=Trust.FAILED, reason=words, is_signed=True)
        return Signing(
            reason=f"the signatures of its card cannot be checked: {words}",
            is_signed=True,
            is_open=True,
        )

    async def _keys_for(
        self, signature: CardSignature, url: str, publisher: str, near: str
    ) -> _Found:
        """Return the keys for a signature: of the publisher, else of where the card is."""
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
        """Return keys that are not the publisher's: those where the card is, no others."""
        try:
            jku = checked_address(signature.jku, plain=self._fetcher.plain)
        except UnfitAddress as error:
            return _Found(problem=f"the address of its key set is wrong: {error}")
        domain = domain_of(jku)
        if not url or domain != domain_of(url):
            words = f"its key set {jku} is neither at {publisher} nor where the card is"
            return _Found(problem=words, is_open=True)
        found, reason = await self._keys.find((jku,), signature.kid)
        return _Found(keys=found, problem=reason, foreign=domain, is_open=found is None)


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """The keys for a signature, or why there are none.

    ``foreign`` is whose they are, if not its publisher's. ``is_open``: without keys, the signature
    is neither good nor bad.
    """

    keys: KeySet | None = None
    problem: str = ""
    foreign: str = ""
    is_open: bool = False


def _keys_in(found: Mapping[int, _Found], number: int) -> KeySet | str:
    each = found.get(number)
    if each is None:
        return "more signatures than are checked"
    return each.problem if each.keys is None else each.keys


def _thumbprint(found: _Found, verdict: SignatureVerdict) -> str:
    key = None if found.keys is None else found.keys.find(verdict.kid, verdict.alg)
    return "" if key is None else str(key.key.thumbprint())


def _is_of_other_kind(signature: CardSignature) -> bool:
    """Return whether a signature is by an algorithm that nobody here can verify.

    One that says that no key is needed, or that has a secret for one, is bad.
    """
    from parley.security.issuers.jwks import ASYMMETRIC, SYMMETRIC

    alg = signature.alg
    return bool(alg) and alg.lower() != "none" and alg not in (*ASYMMETRIC, *SYMMETRIC)
