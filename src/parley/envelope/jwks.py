"""Keys of messages as JWKs (RFC 7517), with the ``owner`` whose messages they sign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.envelope.signatures import ED25519, EnvelopeKey
from parley.model.ids import RIGHT_NAME, may_be_name
from parley.security.signing.keys import decode, encode

_ALGORITHMS = (None, "EdDSA", ED25519)


def owner_of(jwk: Mapping[str, Any]) -> str:
    """Return the owner of a JWK. Raises ``ValueError``."""
    owner = jwk.get("owner")
    if not isinstance(owner, str) or not owner or not may_be_name(owner):
        raise ValueError(
            f'it has no "owner": the agentId of the messages that it signs, with {RIGHT_NAME}'
        )
    return owner


def read_key(jwk: Mapping[str, Any], *, owner: str = "") -> EnvelopeKey:
    """Return the key of a JWK: a shared secret, or the private or public half for Ed25519.

    ``owner`` is for a JWK that names none. Raises ``ValueError`` without anything of the key.
    """
    owner = owner_of(jwk) if "owner" in jwk or not owner else owner
    kid, kty, alg = jwk.get("kid"), jwk.get("kty"), jwk.get("alg")
    if not isinstance(kid, str) or not kid:
        raise ValueError('it has no "kid", which messages name as security.keyId')
    if kty == "oct":
        if alg not in (None, "HS256"):
            raise ValueError('a shared secret signs with HMAC-SHA256: its "alg" is HS256')
        material = _bytes(jwk.get("k"), "k")
        return EnvelopeKey(id=kid, owner=owner, algorithm="HMAC-SHA256", material=material)
    if kty != "OKP" or jwk.get("crv") != "Ed25519" or alg not in _ALGORITHMS:
        raise ValueError(
            'it is neither a shared secret ("kty": "oct") nor a key of Ed25519 '
            '("kty": "OKP", "crv": "Ed25519")'
        )
    if "d" in jwk:
        return EnvelopeKey(id=kid, owner=owner, algorithm="Ed25519", material=_bytes(jwk["d"], "d"))
    material = _bytes(jwk.get("x"), "x")
    return EnvelopeKey(id=kid, owner=owner, algorithm="Ed25519", material=material, is_public=True)


def jwk_of(key: EnvelopeKey) -> dict[str, str]:
    """Return a key as a JWK. A public key has no secret in it, all others do."""
    own = {"owner": key.owner, "kid": key.id}
    if key.algorithm != ED25519:
        return {**own, "kty": "oct", "alg": "HS256", "k": encode(key.material)}
    members = {**own, "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA"}
    members["x"] = encode(key.public.material)
    return members if key.is_public else {**members, "d": encode(key.material)}


def _bytes(value: Any, name: str) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f'it has no text as "{name}"')
    try:
        return decode(value)
    except ValueError as error:
        raise ValueError(f'its "{name}" {error}') from None
