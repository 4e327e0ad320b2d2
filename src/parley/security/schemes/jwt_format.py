"""The form of a JWT (RFC 7515, RFC 7519), read strictly.

What two readers may read differently is refused.
"""

from __future__ import annotations

import binascii
import json
import re
from typing import Any, NoReturn

import msgspec

from parley.security.schemes.scheme import CredentialsRefused

MAX_TOKEN = 16 * 1024
MAX_HEADER = 4 * 1024
"""The characters of a token, and of its header."""

_PART = re.compile(r"[A-Za-z0-9_-]+")
_MALFORMED = "the token is malformed"


class SignedJwt(msgspec.Struct, frozen=True):
    """A JWT in its parts; nothing of it is verified."""

    alg: str
    kid: str | None
    typ: str
    claims: dict[str, Any]
    signing_input: bytes
    signature: bytes


def read_jwt(token: str) -> SignedJwt:
    """Return the parts of a token. Raises ``CredentialsRefused``."""
    if len(token) > MAX_TOKEN:
        raise _refused("a token that is too long")
    parts = token.split(".")
    if len(parts) != 3 or len(parts[0]) > MAX_HEADER:
        raise _refused("something else than a signed JWT")
    header = _object(parts[0])
    claims = _object(parts[1])
    alg, kid, typ = header.get("alg"), header.get("kid"), header.get("typ", "")
    if not isinstance(alg, str) or not isinstance(typ, str):
        raise _refused("a malformed header of a JWT")
    if kid is not None and not isinstance(kid, str):
        raise _refused("a malformed key id")
    if "crit" in header or "b64" in header:
        raise _refused("a JWT with critical headers")
    signature = _decoded(parts[2]) if parts[2] else b""
    return SignedJwt(alg, kid, typ, claims, f"{parts[0]}.{parts[1]}".encode(), signature)


def _object(part: str) -> dict[str, Any]:
    try:
        text = _decoded(part).decode("utf-8")
        value = json.loads(text, object_pairs_hook=_members, parse_constant=_no_constant)
        msgspec.json.encode(value)  # half a surrogate pair cannot be written
    except (ValueError, RecursionError, TypeError):
        raise _refused("a JWT whose parts are not JSON, or have a member twice") from None
    if not isinstance(value, dict):
        raise _refused("a JWT whose parts are not JSON objects")
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is there twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _decoded(part: str) -> bytes:
    """Return what base64url stands for; each value has one spelling only."""
    if not _PART.fullmatch(part):
        raise _refused("a JWT whose parts are not base64url")
    padded = part.replace("-", "+").replace("_", "/") + "=" * (-len(part) % 4)
    try:
        value = binascii.a2b_base64(padded)
    except binascii.Error:
        raise _refused("a JWT whose parts are not base64url") from None
    if binascii.b2a_base64(value, newline=False).decode() != padded:
        raise _refused("a JWT whose parts are not base64url")
    return value


def _refused(reason: str) -> CredentialsRefused:
    return CredentialsRefused(reason, _MALFORMED)
