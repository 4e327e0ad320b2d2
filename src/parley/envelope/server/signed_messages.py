"""Signatures of messages: by a key of their source, in time, and for the first time."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from msgspec.structs import replace

from parley.envelope.codec import members_of
from parley.envelope.errors import MessageOutdated, SignatureInvalid
from parley.envelope.messages import Envelope, MessageSecurity
from parley.envelope.server.keys import EnvelopeKeys
from parley.envelope.server.nonces import Nonces
from parley.envelope.signatures import ED25519, signed_form, verify_signature
from parley.model.ids import LONGEST_ID
from parley.model.struct import Timestamp
from parley.security.signing.keys import SigningKey, SigningKeys, encode

SHORTEST_NONCE = 8

UNKNOWN_KEY = "security.keyId names no key that the operator of this server has for source.agentId"


class SignedMessages:
    """Verifies messages. ``window`` is how many ms their time may differ from ``now`` (ms)."""

    def __init__(
        self, keys: EnvelopeKeys | None, nonces: Nonces, *, window: int, now: Callable[[], int]
    ) -> None:
        self._keys = keys
        self._nonces = nonces
        self._window = window
        self._now = now

    @property
    def has_keys(self) -> bool:
        """Whether there is anything to verify with."""
        return self._keys is not None

    def owns(self, id: str) -> bool:
        """Return whether somebody with this id has keys."""
        return self._keys is not None and self._keys.owns(id)

    async def verify(self, message: Envelope, security: MessageSecurity) -> int:
        """Check the time and the signature of a message; return until when (ms) it is in time.

        The key is one of ``source.agentId``, so nobody signs for another. Raises
        ``SignatureInvalid``, ``MessageOutdated``, and ``OverloadedError``.
        """
        if self._keys is None:
            raise SignatureInvalid(
                "this server has no keys of senders, so it can verify no signature: send the "
                "message without security"
            )
        if not SHORTEST_NONCE <= len(security.nonce) <= LONGEST_ID:
            raise SignatureInvalid(
                f"security.nonce has {SHORTEST_NONCE} to {LONGEST_ID} characters, fresh for each "
                "message"
            )
        key = await self._keys.find(message.source.agent_id, security.key_id)
        if key is None:
            raise SignatureInvalid(UNKNOWN_KEY)
        verify_signature(message, key)
        return self._in_time(security)

    def _in_time(self, security: MessageSecurity) -> int:
        try:
            signed_at = Timestamp.parse(security.timestamp).milliseconds
        except ValueError as error:
            raise SignatureInvalid(f"security.timestamp: {error}") from None
        now = self._now()
        if abs(now - signed_at) > self._window:
            raise MessageOutdated(
                f"security.timestamp is {abs(now - signed_at) // 1000} seconds "
                f"{'behind' if signed_at < now else 'ahead of'} the clock of this server, which is "
                f"{Timestamp.from_milliseconds(now)}: it may differ by {self._window // 1000}",
                metadata={"now": str(Timestamp.from_milliseconds(now))},
            )
        return signed_at + self._window

    async def use(self, message: Envelope, security: MessageSecurity, until: int) -> None:
        """Take the nonce of a verified message. Raises ``MessageReplayed``, ``OverloadedError``."""
        await self._nonces.take(message.source.agent_id, security.nonce, until)


def answer_key(keys: SigningKeys | None) -> SigningKey | None:
    """Return the key that signs answers: the first of Ed25519 that signs now, if there is one."""
    if keys is None:
        return None
    return next((key for key in keys.signers if key.alg == "EdDSA"), None)


def sign_answer(answer: Envelope, key: SigningKey) -> Envelope:
    """Return an answer with a signature by a key of the server, which it publishes."""
    security = MessageSecurity(
        signature="-",
        timestamp=str(Timestamp.now()),
        nonce=secrets.token_urlsafe(16),
        key_id=key.kid,
        algorithm=ED25519,
    )
    unsigned = replace(answer, security=security, received=None)
    signature = key.sign(signed_form(members_of(unsigned)))
    return replace(unsigned, security=replace(security, signature=encode(signature)))
