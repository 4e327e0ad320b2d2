"""Hashes of passwords: scrypt (RFC 7914), with its parameters and salt in the text."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import unicodedata
from typing import NamedTuple

COST, BLOCK_SIZE, PARALLELISM = 2**14, 8, 5
SALT_BYTES = 16
HASH_BYTES = 32

MAX_MEMORY = 256 * 1024 * 1024
MAX_PASSWORD = 1024


class PasswordHash(NamedTuple):
    """The hash of a password, as ``scrypt$<cost>$<block>$<parallel>$<salt>$<hash>`` in text."""

    cost: int
    block_size: int
    parallelism: int
    salt: bytes
    digest: bytes

    @classmethod
    def of(cls, text: str) -> PasswordHash:
        """Return the hash in a text. Raises ``ValueError``, which does not show it."""
        try:
            kind, cost, block_size, parallelism, salt, digest = text.split("$")
            found = cls(
                int(cost),
                int(block_size),
                int(parallelism),
                base64.b64decode(salt, validate=True),
                base64.b64decode(digest, validate=True),
            )
        except (AttributeError, ValueError, binascii.Error):
            raise ValueError(RIGHT_HASH) from None
        n, r, p = found[:3]
        is_cost = n > 1 and n & (n - 1) == 0
        is_bounded = 0 < r <= 32 and 0 < p <= 16 and 128 * n * r <= MAX_MEMORY // 2
        if kind != "scrypt" or not is_cost or not is_bounded:
            raise ValueError(RIGHT_HASH)
        if len(found.salt) < 8 or not 16 <= len(found.digest) <= 64:
            raise ValueError(RIGHT_HASH)
        return found

    def __str__(self) -> str:
        salt, digest = (base64.b64encode(part).decode() for part in (self.salt, self.digest))
        return f"scrypt${self.cost}${self.block_size}${self.parallelism}${salt}${digest}"

    def __repr__(self) -> str:
        return "PasswordHash(...)"

    def matches(self, password: str) -> bool:
        """Return whether this is the hash of a password. It takes long: call it in a thread."""
        return hmac.compare_digest(self.digest, _scrypt(password, self, len(self.digest)))


RIGHT_HASH = (
    "a password hash is what `parley keys hash-password` or Basic.hash(password) returns: "
    "scrypt$<cost>$<block size>$<parallelism>$<salt>$<hash>"
)


def hash_password(password: str) -> str:
    """Return the hash of a password. Raises ``ValueError`` for an empty or very long one."""
    if not password or len(password) > MAX_PASSWORD:
        raise ValueError(f"a password has 1 to {MAX_PASSWORD} characters")
    made = PasswordHash(COST, BLOCK_SIZE, PARALLELISM, os.urandom(SALT_BYTES), b"")
    return str(made._replace(digest=_scrypt(password, made, HASH_BYTES)))


def normal(text: str) -> str:
    """Return a text in the form in which passwords and users are compared (RFC 8265)."""
    return unicodedata.normalize("NFC", text)


def _scrypt(password: str, parameters: PasswordHash, length: int) -> bytes:
    return hashlib.scrypt(
        normal(password).encode(),
        salt=parameters.salt,
        n=parameters.cost,
        r=parameters.block_size,
        p=parameters.parallelism,
        maxmem=MAX_MEMORY,
        dklen=length,
    )
