"""Signed tokens: claims that this server puts into an address, and reads back from it.

Anyone can read a token; only the key makes a valid one. Tokens are for URLs, so they have only
letters, digits, ``-``, ``_`` and dots. The addresses of an agent's callbacks carry them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from itsdangerous import BadData, URLSafeSerializer

MAX_TOKEN_LENGTH = 4096
"""The most characters of a token: proxies and clients accept URLs of at least 8,000."""

MIN_KEY_LENGTH = 16


CALLBACKS = "/callbacks"
"""Where callbacks arrive, below the address of an agent."""

AUTHORIZE = f"{CALLBACKS}/authorize"
"""Where credentials for tasks are posted, below the address of an agent."""

REDIRECT = f"{CALLBACKS}/oauth"
"""Where authorization servers send browsers back to."""


class TokenInvalid(Exception):
    """The token was not made with this key for this purpose, or was changed since."""


class TokenExpired(TokenInvalid):
    """The token is genuine, and its time is over."""


class CredentialRefused(ValueError):
    """The posted body is no credential. The message describes a credential, and quotes nothing."""


class NoLongerNeeded(Exception):
    """The task has ended, and takes no credential."""


class TokenSigner:
    """Makes and reads tokens under one key. Each purpose has a key of its own, derived from it.

    So a token that was made for one purpose is invalid for every other. Times are seconds since
    the epoch.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < MIN_KEY_LENGTH:
            raise ValueError(f"a signing key has at least {MIN_KEY_LENGTH} bytes, not {len(key)}")
        self._key = key

    def sign(self, purpose: str, claims: Mapping[str, Any], expires_at: int | None = None) -> str:
        """Return a token with JSON claims, valid until ``expires_at``, or for ever.

        Raises ``ValueError`` if the token would be longer than ``MAX_TOKEN_LENGTH``, and for
        claims that are not JSON.
        """
        try:
            token = self._serializer(purpose).dumps({"c": dict(claims), "e": expires_at})
        except TypeError as error:
            raise ValueError(f"the claims of a token are JSON: {error}") from error
        text = token if isinstance(token, str) else token.decode("ascii")
        if len(text) > MAX_TOKEN_LENGTH:
            raise ValueError(
                f"a token has at most {MAX_TOKEN_LENGTH} characters, and this has {len(text)}"
            )
        return text

    def read(self, purpose: str, token: str, now: float) -> dict[str, Any]:
        """Return the claims of a token.

        Raises ``TokenExpired`` from the second ``expires_at`` on, and ``TokenInvalid``, which says
        nothing about what is wrong.
        """
        if len(token) > MAX_TOKEN_LENGTH or not token.isascii():
            raise TokenInvalid
        serializer = self._serializer(purpose)
        try:
            content = serializer.loads(token)
        except BadData:
            raise TokenInvalid from None
        payload = token.rpartition(".")[0]
        if serializer.make_signer(serializer.salt).sign(payload) != token.encode("ascii"):
            raise TokenInvalid  # the same signature, in another spelling of base64
        if content["e"] is not None and now >= content["e"]:
            raise TokenExpired
        claims: dict[str, Any] = content["c"]
        return claims

    def _serializer(self, purpose: str) -> URLSafeSerializer:
        return URLSafeSerializer(
            self._key,
            salt=f"parley {purpose}",
            serializer_kwargs={"allow_nan": False},
            signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256},
        )
