"""Sealing: encryption of short secrets with a key that only the server has (AES-256-GCM).

A sealed text is bound to its purpose and to a context: opened for another one, it is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from typing import Any

MIN_KEY_LENGTH = 32
"""The characters of a key that an operator gives."""

MAX_SEALED_LENGTH = 256 * 1024

_NONCE = 12


class SealBroken(Exception):
    """The text was not sealed with this key for this purpose and context, or was changed since."""


class Sealer:
    """Seals and opens bytes under one key. Each purpose has a key of its own (HKDF, RFC 5869)."""

    def __init__(self, key: bytes) -> None:
        if len(key) < MIN_KEY_LENGTH:
            raise ValueError(
                f"a key to seal with has at least {MIN_KEY_LENGTH} bytes, not {len(key)}"
            )
        self._root = hmac.digest(b"parley sealing", key, hashlib.sha256)
        self._ciphers: dict[str, Any] = {}

    def __repr__(self) -> str:
        return "Sealer(...)"

    def seal(self, purpose: str, content: bytes, context: str) -> str:
        """Return the content, encrypted: letters, digits, ``-`` and ``_``."""
        return self._sealed(purpose, os.urandom(_NONCE), content, context)

    def seal_equally(self, purpose: str, content: bytes, context: str) -> str:
        """Return the content, encrypted, which is the same text at every call.

        The nonce is a MAC of content and context. So one sees that two texts are equal, and
        nothing else.
        """
        place = context.encode()
        framed = len(place).to_bytes(8, "big") + place + content
        nonce = hmac.digest(self._key(f"{purpose}, nonce"), framed, hashlib.sha256)[:_NONCE]
        return self._sealed(purpose, nonce, content, context)

    def _sealed(self, purpose: str, nonce: bytes, content: bytes, context: str) -> str:
        data = self._cipher(purpose).encrypt(nonce, content, context.encode())
        return base64.urlsafe_b64encode(nonce + data).rstrip(b"=").decode("ascii")

    def open(self, purpose: str, sealed: str, context: str) -> bytes:
        """Return the content of a sealed text. Raises ``SealBroken``, which does not say why."""
        from cryptography.exceptions import InvalidTag

        if len(sealed) > MAX_SEALED_LENGTH or not sealed.isascii():
            raise SealBroken
        try:
            raw = base64.b64decode(sealed + "=" * (-len(sealed) % 4), b"-_", validate=True)
        except (ValueError, binascii.Error):
            raise SealBroken from None
        if base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii") != sealed:
            raise SealBroken  # the same bytes, in another spelling of base64
        try:
            content: bytes = self._cipher(purpose).decrypt(
                raw[:_NONCE], raw[_NONCE:], context.encode()
            )
        except (InvalidTag, ValueError):
            raise SealBroken from None
        return content

    def derive(self, purpose: str, name: str) -> bytes:
        """Return 32 secret bytes that belong to a name: the same at every call."""
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
    """Return the key that an operator gave as text. Raises ``ValueError`` for a short one."""
    if len(text) < MIN_KEY_LENGTH:
        raise ValueError(
            f"a secret key has {MIN_KEY_LENGTH} characters or more, and this one has {len(text)}; "
            "make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return text.encode()
