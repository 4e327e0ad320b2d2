"""Encryption of a text with a passphrase: scrypt (RFC 7914) and AES-256-GCM."""

from __future__ import annotations

import base64
import os
from typing import Any

# About 100 ms and 32 MiB a guess.
_N, _R, _P = 2**15, 8, 1
_MAX_N = 2**20


class BadPassphrase(Exception):
    """The passphrase is another one, or the text was changed."""


def seal(text: str, passphrase: str, label: str) -> dict[str, Any]:
    """Return a text, encrypted for whoever knows the passphrase, and bound to a label."""
    salt, nonce = os.urandom(16), os.urandom(12)
    key = _key(passphrase, salt, _N)
    data = _aes(key).encrypt(nonce, text.encode(), label.encode())
    return {
        "kdf": "scrypt",
        "n": _N,
        "salt": _text(salt),
        "nonce": _text(nonce),
        "data": _text(data),
    }


def unseal(sealed: Any, passphrase: str, label: str) -> str:
    """Return the text. Raises ``BadPassphrase``."""
    from cryptography.exceptions import InvalidTag

    try:
        n = sealed["n"]
        if sealed["kdf"] != "scrypt" or not isinstance(n, int) or not 2**14 <= n <= _MAX_N:
            raise BadPassphrase
        salt, nonce, data = (base64.b64decode(sealed[name]) for name in ("salt", "nonce", "data"))
        return str(_aes(_key(passphrase, salt, n)).decrypt(nonce, data, label.encode()), "utf-8")
    except (InvalidTag, KeyError, TypeError, ValueError):
        raise BadPassphrase from None


def _key(passphrase: str, salt: bytes, n: int) -> bytes:
    import hashlib

    return hashlib.scrypt(
        passphrase.encode(), salt=salt, n=n, r=_R, p=_P, maxmem=256 * _R * n, dklen=32
    )


def _aes(key: bytes) -> Any:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
