"""Signatures of messages: HMAC-SHA256 and Ed25519 over the canonical form.

The canonical form is the RFC 8785 form of the whole message, as its sender wrote it, without
``security.signature``. So every member is signed: unknown members too, and the time, the
nonce, the key's id and the algorithm.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from parley.envelope.codec import members_of, outside_strings
from parley.envelope.messages import Envelope, MessageSecurity, SignatureInvalid
from parley.model.ids import RIGHT_NAME, may_be_name
from parley.model.struct import Timestamp
from parley.security.signing.canonical import NotCanonical, canonical
from parley.security.signing.keys import decode, encode
from parley.wire.json.problems import decode_base64

MOST_VALUES = 100_000
"""The most values in a message whose canonical form is slow to compute: anyone can send one."""

_SUPPLEMENTARY = re.compile(rb"[\xf0-\xf4]")
_LARGE = re.compile(rb"[0-9]{16}")
_fast = msgspec.json.Encoder(order="sorted").encode


def canonical_form(value: Any) -> bytes:
    """Return a JSON value as RFC 8785 writes it. Raises ``NotCanonical``."""
    try:
        data = _fast(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotCanonical(f"has no canonical form: {error}") from None
    outside = outside_strings(data)
    # NaN is encoded as null: RFC 8785 rejects NaN.
    words = outside.replace(b"true", b"").replace(b"false", b"")
    if (
        b"." not in words
        and b"e" not in words
        and b"null" not in words
        and (data.isascii() or _SUPPLEMENTARY.search(data) is None)
        and _LARGE.search(words) is None
    ):
        return data
    if words.count(b",") + words.count(b":") > MOST_VALUES:
        raise NotCanonical(
            f"has too many values to be signed: with fractions, null or rare characters among "
            f"them, at most {MOST_VALUES:,}"
        )
    return canonical(value)


HMAC_SHA256 = "HMAC-SHA256"
ED25519 = "Ed25519"

SignatureAlgorithm = Literal["HMAC-SHA256", "Ed25519"]

SHORTEST_SECRET = 32
"""In bytes: as many as the hash has (RFC 2104 §3)."""


class EnvelopeKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that signs or verifies messages of its ``owner``, the ``agentId`` of their source.

    ``material`` is the shared secret of HMAC-SHA256, of at least 32 bytes; of Ed25519 it is the
    private key, or with ``is_public`` the public one, 32 bytes each (RFC 8032 §5.1.5). It is never
    shown. Raises ``ValueError`` for a key that cannot be used.
    """

    id: str
    owner: str
    algorithm: SignatureAlgorithm
    material: bytes
    is_public: bool = False

    def __post_init__(self) -> None:
        for name in ("id", "owner"):
            if not getattr(self, name) or not may_be_name(getattr(self, name)):
                raise ValueError(f"the {name} of a key is a name of 1 to 512 bytes")
        if self.algorithm not in (HMAC_SHA256, ED25519):
            raise ValueError(
                f"a key is for {HMAC_SHA256} or {ED25519}, not for {self.algorithm[:40]!r}"
            )
        size = len(self.material)
        if self.algorithm == HMAC_SHA256 and self.is_public:
            raise ValueError(f"a key for {HMAC_SHA256} is a secret, and has no public half")
        if self.algorithm == HMAC_SHA256 and size < SHORTEST_SECRET:
            raise ValueError(
                f"the secret of the key {self.id!r} has {size} bytes; "
                f"{HMAC_SHA256} needs at least {SHORTEST_SECRET} random ones"
            )
        if self.algorithm == ED25519 and size != 32:
            raise ValueError(f"the key {self.id!r} has {size} bytes; one for {ED25519} has 32")

    def __repr__(self) -> str:
        return f"EnvelopeKey({self.id!r} of {self.owner!r}, {self.algorithm})"

    @property
    def public(self) -> EnvelopeKey:
        """The half that only verifies. Raises ``ValueError`` for a shared secret."""
        if self.algorithm != ED25519:
            raise ValueError(f"a key for {self.algorithm} is a secret, and has no public half")
        if self.is_public:
            return self
        return replace(
            self, material=_private(self).public_key().public_bytes_raw(), is_public=True
        )


def sign_message(
    message: Envelope, key: EnvelopeKey, *, now: Timestamp | None = None, nonce: str = ""
) -> Envelope:
    """Return a message of our own with a signature of ``now`` and a fresh nonce.

    Raises ``ValueError`` for a public key, and for a message without a canonical form (a number
    that not every JSON parser keeps).
    """
    if key.is_public:
        raise ValueError(f"the key {key.id!r} is a public one: it verifies, and signs nothing")
    return signed_with(
        message, key.id, key.algorithm, lambda data: _sign(key, data), now=now, nonce=nonce
    )


def signed_with(
    message: Envelope,
    key_id: str,
    algorithm: str,
    sign: Callable[[bytes], bytes],
    *,
    now: Timestamp | None = None,
    nonce: str = "",
) -> Envelope:
    """Return a message with the signature that ``sign`` makes of its canonical form."""
    security = MessageSecurity(
        signature="-",
        timestamp=now or Timestamp.now(),
        nonce=nonce or secrets.token_urlsafe(16),
        key_id=key_id,
        algorithm=algorithm,
    )
    unsigned = replace(message, security=security, received=None)
    signature = encode(sign(signed_form(members_of(unsigned))))
    return replace(unsigned, security=replace(security, signature=signature))


def verify_signature(message: Envelope, key: EnvelopeKey) -> None:
    """Check that a key signed a message, as received. Raises ``SignatureInvalid``.

    The algorithm is the key's algorithm: a message that names another is rejected. The caller must
    check the time, the nonce, and that the owner of the key is the source.
    """
    security = message.security
    if security is None:
        raise SignatureInvalid("the message has no signature: send security.signature")
    if security.key_id not in ("", key.id):
        raise SignatureInvalid(f"security.keyId is not {key.id!r}, the key that verifies this")
    if security.algorithm not in ("", key.algorithm):
        raise SignatureInvalid(
            f"security.algorithm is not {key.algorithm}, the algorithm of the key {key.id!r}"
        )
    members = message.received if message.received is not None else members_of(message)
    try:
        data = signed_form(members)
        signature = decode_base64(security.signature)
    except NotCanonical as error:
        raise SignatureInvalid(f"the message {error}") from None
    except ValueError:
        raise SignatureInvalid("security.signature is not base64url") from None
    if not _is_good(key, signature, data):
        raise SignatureInvalid(
            f"security.signature is not the key {key.id!r}'s signature of this message: sign the "
            "canonical form (RFC 8785) of the whole message without security.signature"
        )


def signed_form(members: dict[str, Any]) -> bytes:
    """Return the bytes that the signature of a message covers. Raises ``NotCanonical``."""
    security = members.get("security")
    if isinstance(security, dict):
        kept = {name: value for name, value in security.items() if name != "signature"}
        members = {**members, "security": kept}
    return canonical_form(members)


def _sign(key: EnvelopeKey, data: bytes) -> bytes:
    if key.algorithm == HMAC_SHA256:
        return hmac.digest(key.material, data, hashlib.sha256)
    signature: bytes = _private(key).sign(data)
    return signature


def _is_good(key: EnvelopeKey, signature: bytes, data: bytes) -> bool:
    """Return whether a signature is right, in a time that does not depend on how wrong it is."""
    if key.algorithm == HMAC_SHA256:
        return hmac.compare_digest(signature, hmac.digest(key.material, data, hashlib.sha256))
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key.public.material).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def _private(key: EnvelopeKey) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(key.material)


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

    ``owner`` is for a JWK without an owner. Raises ``ValueError``, which never quotes the key.
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
