"""Messages and cards of the envelope protocol, as anybody can send them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from parley.envelope.cards import agent_card_of, envelope_card_of, read_card, write_card
from parley.envelope.codec import UnreadableEnvelope, read_message, write_message
from parley.envelope.messages import Envelope, SignatureInvalid
from parley.envelope.server.card import vectors
from parley.envelope.signatures import EnvelopeKey, signed_form, verify_signature
from parley.model.errors import A2AError

_VECTORS = json.loads(vectors())
_KEY = EnvelopeKey(
    id="key-1",
    owner="customer-service-001",
    algorithm="HMAC-SHA256",
    material=bytes.fromhex(_VECTORS["keys"]["key-1"]["secret"]),
)
_SIGNED = {each["canonical"].encode() for each in _VECTORS["good"] if each["key"] == "key-1"}
_MOST = 100_000


def messages(data: bytes) -> None:
    """A message is refused with what is wrong, or means the same after it was written.

    Only what was signed is believed.
    """
    try:
        message = read_message(data, max_bytes=_MOST)
    except UnreadableEnvelope as refused:
        assert refused.error.reason in ("INVALID_JSON", "INVALID_REQUEST", "UNSUPPORTED_VERSION")
        assert str(refused)
        return
    written = write_message(message)
    assert _meaning(read_message(written)) == _meaning(message)
    try:
        verify_signature(message, _KEY)
    except SignatureInvalid as error:
        assert error.message
    else:
        assert message.received is not None
        assert signed_form(message.received) in _SIGNED


def _meaning(message: Envelope) -> Envelope:
    payload = message.payload
    if isinstance(payload, msgspec.Raw):
        payload = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(payload)))
    return replace(message, payload=payload, received=None)


def message_seeds() -> Iterator[bytes]:
    for each in (*_VECTORS["good"], *_VECTORS["bad"]):
        yield each["message"].encode()


def cards(data: bytes) -> None:
    """A card is refused with what is wrong, or stays the same, also as an A2A card."""
    try:
        card = read_card(data)
    except A2AError as error:
        assert error.message
        return
    assert read_card(write_card(card)) == card
    back = envelope_card_of(agent_card_of(card))
    assert back.agent_info.id == card.agent_info.id
    assert [each.name for each in back.capabilities] == [each.name for each in card.capabilities]


def card_seeds() -> Iterator[bytes]:
    yield b'{"agentInfo":{"id":"a"}}'
    yield json.dumps(
        {
            "agentInfo": {"id": "kb", "name": "KB", "type": "kb", "version": "1", "vendor": "V"},
            "capabilities": [
                {
                    "name": "search",
                    "inputSchema": {"type": "object"},
                    "performance": {"averageResponseTime": 200, "reliability": 0.5},
                }
            ],
            "endpoints": {"primary": "wss://a.example/e", "healthCheck": "https://a.example/h"},
            "security": {"authMethods": ["bearer-token"], "requiredPermissions": ["read"]},
            "constraints": {
                "rateLimits": {"requestsPerMinute": 10},
                "availability": {"maintenanceWindows": [{"start": "02:00", "end": "04:00"}]},
            },
            "metadata": {"createdAt": "2026-01-15T10:00:00Z", "tags": ["a"]},
        }
    ).encode()
