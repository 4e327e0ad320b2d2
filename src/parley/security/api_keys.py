"""API keys: their form, and their records in the store.

A key is ``parley_<id>_<secret><checksum>``. The secret has 256 random bits, so the store keeps only
a fast hash of the whole key. The checksum (CRC-32) detects typing errors and text that only looks
like a key, for the server and for scanners that search for leaked keys. The id ends with a tag that
is computed with a secret of the store: an id that was never issued is rejected without a query.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from collections.abc import Iterable
from typing import Any

import msgspec

from parley.model.ids import RIGHT_NAME, may_be_name

STORE_SECRET = "api keys"
"""The name of the store's secret for the tags of ids."""

MAX_LABEL = 200
MAX_SCOPES = 100

_SECRET_BYTES = 32
_SECRET_LENGTH = 43  # 62**43 > 2**256
_CHECKSUM_LENGTH = 6  # 62**6 > 2**32
_NUMBER_LENGTH = 9
_TAG_LENGTH = 7
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_KEY = re.compile(
    rf"(parley_([0-9a-z]{{{_NUMBER_LENGTH + _TAG_LENGTH}}})_[0-9A-Za-z]{{{_SECRET_LENGTH}}})"
    rf"([0-9A-Za-z]{{{_CHECKSUM_LENGTH}}})"
)
_SCOPE = re.compile(r"[!#-\[\]-~]{1,200}")  # RFC 6749, section 3.3


class ApiKeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a key. It has the hash of the key, and never the key.

    ``owner`` is the caller id of whoever presents the key. Times are in ms; ``None`` is never.
    """

    id: str
    digest: str
    owner: str
    label: str = ""
    scopes: tuple[str, ...] = ()
    created_at: int = 0
    expires_at: int | None = None
    revoked_at: int | None = None

    def ended_at(self) -> int | None:
        """Return when the key becomes or became invalid."""
        ends = [at for at in (self.expires_at, self.revoked_at) if at is not None]
        return min(ends, default=None)


def new_key(
    secret: bytes,
    *,
    owner: str,
    scopes: Iterable[str] = (),
    label: str = "",
    now: int,
    expires_at: int | None = None,
) -> tuple[str, ApiKeyRecord]:
    """Return a new key, and its record.

    ``secret`` is the store's secret ``STORE_SECRET``. Times are in ms. Raises ``ValueError``.
    """
    number = _written(secrets.randbelow(36**_NUMBER_LENGTH), 36, _NUMBER_LENGTH)
    id = number + _tag(secret, number)
    random = int.from_bytes(secrets.token_bytes(_SECRET_BYTES))
    text = f"parley_{id}_{_written(random, 62, _SECRET_LENGTH)}"
    key = text + _checksum(text)
    record = ApiKeyRecord(
        id=id,
        digest=digest_of(key),
        owner=owner,
        label=label,
        scopes=tuple(dict.fromkeys(scopes)),
        created_at=now,
        expires_at=expires_at,
    )
    return key, checked(record)


def checked(record: ApiKeyRecord) -> ApiKeyRecord:
    """Return the record of a key. Raises ``ValueError`` with the right form."""
    if not may_be_name(record.owner) or not record.owner:
        raise ValueError(f"the owner of a key is the id of a caller: it has {RIGHT_NAME}")
    if len(record.label) > MAX_LABEL or not record.label.isprintable():
        raise ValueError(f"a label has up to {MAX_LABEL} printable characters")
    if len(record.scopes) > MAX_SCOPES:
        raise ValueError(f"a key has up to {MAX_SCOPES} scopes")
    for scope in record.scopes:
        if not _SCOPE.fullmatch(scope):
            raise ValueError(
                f"a scope has 1 to 200 characters without spaces, quotes and backslashes: {scope!r}"
            )
    if record.expires_at is not None and record.expires_at <= record.created_at:
        raise ValueError("a key expires after it was created")
    return record


def id_in(key: str) -> str:
    """Return the id in a text of the form of a key, else an empty text. Ignores the checksum."""
    match = _KEY.fullmatch(key)
    return match[2] if match else ""


def is_issued(key: str, secret: bytes) -> bool:
    """Return whether a key has the right checksum and an id issued with this secret of a store."""
    match = _KEY.fullmatch(key)
    if match is None:
        return False
    text, id, checksum = match.groups()
    number, tag = id[:_NUMBER_LENGTH], id[_NUMBER_LENGTH:]
    return checksum == _checksum(text) and hmac.compare_digest(tag, _tag(secret, number))


def digest_of(key: str) -> str:
    """Return the SHA-256 of a key, in hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def is_digest(value: Any) -> bool:
    """Return whether a value is a SHA-256 in lower-case hexadecimal digits."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _tag(secret: bytes, number: str) -> str:
    mac = hmac.digest(secret, b"api key " + number.encode(), "sha256")
    return _written(int.from_bytes(mac) % 36**_TAG_LENGTH, 36, _TAG_LENGTH)


def _checksum(text: str) -> str:
    return _written(zlib.crc32(text.encode("ascii")), 62, _CHECKSUM_LENGTH)


def _written(number: int, base: int, length: int) -> str:
    """Return a number in digits of a base, with leading zeros."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, base)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
