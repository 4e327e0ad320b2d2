"""Guards on real stores, and messages to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from parley.envelope import answers
from parley.envelope.codec import read_message, write_message
from parley.envelope.declared import EnvelopeSettings
from parley.envelope.messages import Envelope, MessageSecurity, MessageType, Source, Target
from parley.envelope.messages import RequestPayload as Payload
from parley.envelope.server.guard import (
    EnvelopeGuard,
    EnvelopeKeys,
    KnownCallers,
    Nonces,
    SignedMessages,
)
from parley.envelope.signatures import EnvelopeKey, sign_message
from parley.model.service import Caller
from parley.model.struct import Timestamp
from parley.security.authorization import Authorization

ADA = Caller(id="ada", authenticated=True, issuer="apiKey", client="ada-app")
SHARED = EnvelopeKey(id="k1", owner="shop", algorithm="HMAC-SHA256", material=b"s" * 32)
OTHERS = EnvelopeKey(id="k1", owner="bank", algorithm="HMAC-SHA256", material=b"b" * 32)
PRIVATE = EnvelopeKey(id="k2", owner="press", algorithm="Ed25519", material=b"p" * 32)
KEYS = (SHARED, OTHERS, PRIVATE)


class Clock:
    """A store's clock, in ms."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.ms


def guard_of(
    store: Any,
    settings: EnvelopeSettings | None = None,
    *,
    keys: Sequence[EnvelopeKey] | None = KEYS,
    authorization: Authorization | None = None,
    known: KnownCallers | None = None,
    **options: Any,
) -> EnvelopeGuard:
    """Return the guard of the agent ``clock``, on one replica."""
    settings = settings or EnvelopeSettings()
    signed = SignedMessages(
        None if keys is None else EnvelopeKeys(keys),
        Nonces(store),
        window=round(settings.signature_window * 1000),
        now=store.now,
    )
    return EnvelopeGuard(
        settings,
        names=("clock", "https://clock.example.com"),
        signed=signed,
        authorization=authorization,
        known=known,
        **options,
    )


def message(source: str, *, target: str = "clock", **changes: Any) -> Envelope:
    """Return a REQUEST."""
    made = answers.message(
        MessageType.REQUEST,
        Payload(action="now", parameters={"zone": "UTC"}),
        source=Source(agent_id=source),
        target=Target(agent_id=target),
    )
    return replace(made, **changes)


def signed(
    store: Any, key: EnvelopeKey, sent: Envelope | None = None, *, late: float = 0
) -> Envelope:
    """Return a signed message as a server reads it, signed ``late`` seconds ago."""
    at = Timestamp.from_milliseconds(store.now() - round(late * 1000))
    made = sign_message(sent or message(key.owner), key, now=at, nonce=os.urandom(12).hex())
    return received(made)


def received(sent: Envelope, **changes: Any) -> Envelope:
    """Return a message as a server reads it, with changed JSON members."""
    import json

    members = json.loads(write_message(sent))
    members.update(changes)
    return read_message(json.dumps(members))


def security_of(sent: Envelope) -> MessageSecurity:
    """Return the security of a signed message."""
    assert sent.security is not None
    return sent.security
