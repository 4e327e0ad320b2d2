"""Signs agent cards (specification §8.4): with each key, in each form that verifiers use."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from parley.security.signing.canonical import (
    SIGNATURES,
    canonical,
    exact,
    has_latest_form,
    received,
    stripped,
)
from parley.security.signing.keys import SigningKey, SigningKeys
from parley.security.signing.strict_json import read_object

JWKS_PATH = "/.well-known/jwks.json"
"""Where a server publishes its keys, below its address."""

MAX_CARD_BYTES = 16 * 1024 * 1024

_MAX_CACHED = 64


def payloads_of(*written: Mapping[str, Any]) -> list[bytes]:
    """Return the payloads to sign for a card, which is written in one way or in several.

    The form of the specification is first, then the card as it is written, then the form of SDKs
    that leave out what is empty. Those that are equal are signed once.
    """
    found: dict[bytes, None] = {}
    for members in written:
        forms = (exact, received, stripped) if has_latest_form(members) else (received,)
        for form in forms:
            found[canonical(form(members))] = None
    return list(found)


def signatures_over(
    payloads: Iterable[bytes], signers: Iterable[SigningKey], jku: str = ""
) -> list[dict[str, str]]:
    """Return the signatures of payloads, as a card has them."""
    signers = tuple(signers)
    header = {"typ": "JOSE", **({"jku": jku} if jku else {})}
    found = []
    for payload in payloads:
        for key in signers:
            protected, signature = key.sign_payload(header, payload)
            found.append({"protected": protected, "signature": signature})
    return found


def sign_card(
    card: bytes, signers: Iterable[SigningKey], *, jku: str = "", replace: bool = False
) -> bytes:
    """Return a card in JSON with signatures, after those that it has, or in their place.

    Nothing else in the text changes. Raises ``ValueError`` for what is no card with one reading.
    """
    members = read_object(card, limit=MAX_CARD_BYTES, what="the card")
    added = signatures_over(payloads_of(members), signers, jku)
    if replace:
        members[SIGNATURES] = None
    return with_signatures(card, members, added)


def with_signatures(
    card: bytes, members: Mapping[str, Any], added: Iterable[Mapping[str, str]]
) -> bytes:
    """Return a card, whose members were read from its JSON, with more signatures."""
    before = members.get(SIGNATURES)
    if before is not None and not isinstance(before, list):
        raise ValueError("the signatures of the card are no list")
    signatures = msgspec.json.encode([*(before or ()), *added])
    if SIGNATURES in members:
        rest = received(members)
        card = msgspec.json.encode(rest)
    text = card.rstrip()
    separator = b"" if text[:-1].rstrip().endswith(b"{") else b","
    return text[:-1] + separator + b'"signatures":' + signatures + b"}"


class CardSigner:
    """Signs what a server writes, with its current keys; the last results are kept.

    ``url`` is the public address of the server, that the operator named. ``revision`` changes when
    the keys do.
    """

    def __init__(self, keys: SigningKeys, url: str) -> None:
        self._keys = keys
        self.jku = url.rstrip("/") + JWKS_PATH
        self._cached: dict[tuple[int, bytes], Any] = {}
        self._lock = threading.Lock()

    @property
    def revision(self) -> int:
        """A number that changes with the keys."""
        return self._keys.revision

    def sign(self, card: bytes) -> bytes:
        """Return a written card with signatures."""

        def signed() -> bytes:
            return sign_card(card, self._keys.signers, jku=self.jku)

        found: bytes = self._cache(card, signed)
        return found

    def signatures(self, *written: bytes) -> list[dict[str, str]]:
        """Return the signatures of a card that is written in several ways, for any of them."""

        def signed() -> list[dict[str, str]]:
            read = [read_object(each, limit=MAX_CARD_BYTES, what="the card") for each in written]
            return signatures_over(payloads_of(*read), self._keys.signers, self.jku)

        found: list[dict[str, str]] = self._cache(b"\0".join(written), signed)
        return found

    def _cache(self, content: bytes, make: Any) -> Any:
        key = (self.revision, hashlib.sha256(content).digest())
        with self._lock:
            found = self._cached.pop(key, None)
            if found is None:
                found = make()
            self._cached[key] = found
            if len(self._cached) > _MAX_CACHED:
                del self._cached[next(iter(self._cached))]
        return found
