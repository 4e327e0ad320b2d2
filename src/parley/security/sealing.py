"""Sealed secrets and signed tokens, under a key of the server.

A sealed text (AES-256-GCM) is bound to its purpose and to a context; it cannot be opened for
another. A token carries claims that this server puts into an address and reads back from it: anyone
can read it, but only the key can make a valid one. Addresses for callbacks and for posted
credentials contain a token.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from typing import Any

from itsdangerous import BadData, URLSafeSerializer

from parley.security.signing.keys import decode, encode

MIN_KEY_LENGTH = 32
"""The minimum length of an operator's key in characters."""

MAX_SEALED_LENGTH = 256 * 1024

_NONCE = 12


class SealBroken(Exception):
    """The text was not sealed with this key for this purpose and context, or was changed."""


class Sealer:
    """Encrypts and decrypts bytes under one key. Each purpose has its own key (HKDF, RFC 5869)."""

    def __init__(self, key: bytes) -> None:
        if len(key) < MIN_KEY_LENGTH:
            raise ValueError(
                f"an encryption key has at least {MIN_KEY_LENGTH} bytes, not {len(key)}"
            )
        self._root = hmac.digest(b"parley sealing", key, hashlib.sha256)
        self._ciphers: dict[str, Any] = {}

    def __repr__(self) -> str:
        return "Sealer(...)"

    def seal(self, purpose: str, content: bytes, context: str) -> str:
        """Return the encrypted content: letters, digits, ``-`` and ``_``."""
        return self._sealed(purpose, os.urandom(_NONCE), content, context)

    def seal_equally(self, purpose: str, content: bytes, context: str) -> str:
        """Return the encrypted content; equal arguments give an equal text.

        The nonce is a MAC of content and context, so the text reveals equality and nothing else.
        """
        place = context.encode()
        framed = len(place).to_bytes(8, "big") + place + content
        nonce = hmac.digest(self._key(f"{purpose}, nonce"), framed, hashlib.sha256)[:_NONCE]
        return self._sealed(purpose, nonce, content, context)

    def _sealed(self, purpose: str, nonce: bytes, content: bytes, context: str) -> str:
        data = self._cipher(purpose).encrypt(nonce, content, context.encode())
        return encode(nonce + data)

    def open(self, purpose: str, sealed: str, context: str) -> bytes:
        """Return the content of a sealed text. Raises ``SealBroken`` without a reason."""
        from cryptography.exceptions import InvalidTag

        if len(sealed) > MAX_SEALED_LENGTH or not sealed.isascii():
            raise SealBroken
        try:
            raw = decode(sealed)  # rejects another base64 spelling of the same bytes
            content: bytes = self._cipher(purpose).decrypt(
                raw[:_NONCE], raw[_NONCE:], context.encode()
            )
        except (InvalidTag, ValueError):
            raise SealBroken from None
        return content

    def derive(self, purpose: str, name: str) -> bytes:
        """Return 32 secret bytes for a name, the same for every call."""
        return hmac.digest(self._key(purpose), name.encode(), hashlib.sha256)

    def _key(self, purpose: str) -> bytes:
        """Return the key of a purpose: one block of HKDF-Expand."""
        return hmac.digest(self._root, purpose.encode() + b"\x01", hashlib.sha256)

    def _cipher(self, purpose: str) -> Any:
        found = self._ciphers.get(purpose)
        if found is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            found = self._ciphers[purpose] = AESGCM(self._key(purpose))
        return found


def operator_key(text: str) -> bytes:
    """Return an operator's key from its text. Raises ``ValueError`` for a short one."""
    if len(text) < MIN_KEY_LENGTH:
        raise ValueError(
            f"a secret key has {MIN_KEY_LENGTH} characters or more, and this one has {len(text)}; "
            "make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return text.encode()


# -- signed tokens ----------------------------------------------------------------------------

MAX_TOKEN_LENGTH = 4096
"""The maximum length of a token: proxies and clients accept URLs of at least 8,000 characters."""

MIN_SIGNING_KEY = 16


CALLBACKS = "/callbacks"
"""The path of callbacks, below the address of an agent."""

AUTHORIZE = f"{CALLBACKS}/authorize"
"""The path of posted credentials for tasks, below the address of an agent."""

REDIRECT = f"{CALLBACKS}/oauth"
"""The path to which authorization servers redirect browsers."""


class TokenInvalid(Exception):
    """The token was not made with this key for this purpose, or was changed."""


class TokenExpired(TokenInvalid):
    """The token is genuine but has expired."""


class CredentialRefused(ValueError):
    """The posted body is not a credential. The message describes the right form, and quotes
    nothing."""


class NoLongerNeeded(Exception):
    """The task has ended, and accepts no credentials."""


class TokenSigner:
    """Makes and reads tokens under one key. Each purpose has its own derived key.

    So a token for one purpose is invalid for every other. Times are seconds since the epoch.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < MIN_SIGNING_KEY:
            raise ValueError(f"a signing key has at least {MIN_SIGNING_KEY} bytes, not {len(key)}")
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

        Raises ``TokenExpired`` from the second ``expires_at`` on, and ``TokenInvalid`` without a
        reason.
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
            raise TokenInvalid  # another base64 spelling of the same signature
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
