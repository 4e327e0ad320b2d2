"""A site with a signed card and its public keys, for tests of trust."""

from __future__ import annotations

import json
from typing import Any

from parley.security.signing.cards import sign_card
from parley.security.signing.keys import SigningKeys
from tests.kit.scripted_server import Exchange
from tests.security.signing.cards import LATEST
from tests.security.signing.key_sets import key_set, private_jwk

WELL_KNOWN = "/.well-known/agent-card.json"
JWKS = "/.well-known/jwks.json"


def new_keys(kid: str, alg: str = "ES256") -> SigningKeys:
    return SigningKeys.parse(key_set(private_jwk(alg, kid=kid)))


class Signer:
    """Serves ``card`` and the ``published`` keys; counts the fetches by path.

    ``jku`` is the key address in the signatures, by default its own key set. ``change`` alters the
    card's JSON, as a proxy would.
    """

    def __init__(self, *, card: bytes = LATEST, jku: str | None = None) -> None:
        self.keys = new_keys("first")
        self.published: Any = self.keys.published
        self.card = card
        self.jku = jku
        self.url = ""
        self.is_signed = True
        self.change = lambda card: card
        self.caching: dict[str, str] = {}
        self.status = 200
        self.location = ""
        self.fetches: list[str] = []
        self.headers: list[dict[str, str]] = []

    def written(self) -> bytes:
        """Return the card as served."""
        jku = self.url + JWKS if self.jku is None else self.jku
        card = self.card.replace(b"https://a.example/", f"{self.url}/".encode())
        if self.is_signed:
            card = sign_card(card, self.keys.signers, jku=jku)
        return self.change(card)

    def rotate(self, kid: str, *, overlap: bool = True) -> None:
        """Sign with a new key from now on; with ``overlap`` the old key stays published."""
        before = self.published["keys"] if overlap else []
        self.keys = new_keys(kid)
        self.published = {"keys": [*self.keys.published["keys"], *before]}

    async def __call__(self, exchange: Exchange) -> None:
        self.fetches.append(exchange.path)
        self.headers.append(exchange.headers)
        if exchange.path == WELL_KNOWN:
            await exchange.json(self.written(), **self.caching)
        elif exchange.path == JWKS and self.location:
            await exchange.body_of(b"", 302, location=self.location)
        elif exchange.path == JWKS and self.status == 200:
            published = self.published
            body = published if isinstance(published, bytes) else json.dumps(published).encode()
            await exchange.json(body)
        elif exchange.path == JWKS:
            await exchange.body_of(b"", self.status)
        else:
            await exchange.body_of(b"nothing here", 404, content_type="text/plain")
