"""Signatures of messages: HMAC-SHA256 and Ed25519 over the canonical form.

The canonical form is that of RFC 8785 of the whole message, as its sender wrote it, without
``security.signature``. So every member is signed: those that nobody here knows, and the time, the
nonce, the key's id and the algorithm.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from parley.envelope.canonical_form import canonical_form
from parley.envelope.codec import members_of
from parley.envelope.errors import SignatureInvalid
from parley.envelope.messages import Envelope, MessageSecurity
from parley.model.ids import may_be_name
from parley.model.struct import Timestamp
from parley.security.signing.canonical import NotCanonical
from parley.wire.json.tolerance import decode_base64

HMAC_SHA256 = "HMAC-SHA256"
ED25519 = "Ed25519"

SignatureAlgorithm = Literal["HMAC-SHA256", "Ed25519"]

SHORTEST_SECRET = 32
"""In bytes: those of the hash (RFC 2104 §3)."""


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
    security = MessageSecurity(
        signature="-",
        timestamp=str(now or Timestamp.now()),
        nonce=nonce or secrets.token_urlsafe(16),
        key_id=key.id,
        algorithm=key.algorithm,
    )
    unsigned = replace(message, security=security, received=None)
    signature = _sign(key, signed_form(members_of(unsigned)))
    text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode("ascii")
    return replace(unsigned, security=replace(security, signature=text))


def verify_signature(message: Envelope, key: EnvelopeKey) -> None:
    """Check that a key signed a message, as it was received. Raises ``SignatureInvalid``.

    The algorithm is the key's: a message that names another one is refused. Whether the time and
    the nonce are good, and whether the owner of the key is the source, is for others to check.
    """
    security = message.security
    if security is None:
        raise SignatureInvalid("the message has no signature: send security.signature")
    if security.key_id not in ("", key.id):
        raise SignatureInvalid(f"security.keyId is not {key.id!r}, the key that verifies this")
    if security.algorithm not in ("", key.algorithm):
        raise SignatureInvalid(
            f"security.algorithm is not {key.algorithm}, which is that of the key {key.id!r}"
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
            f"security.signature is not that of this message by the key {key.id!r}: sign the "
            "canonical form (RFC 8785) of the whole message without security.signature"
        )


def signed_form(members: dict[str, Any]) -> bytes:
    """Return what the signature of a message is over. Raises ``NotCanonical``."""
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
