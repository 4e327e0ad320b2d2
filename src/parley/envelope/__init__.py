"""The envelope protocol, calling: messages over a WebSocket, or by HTTP.

    async with parley.envelope.connect("https://agents.example.com") as agent:
        answer = await agent.request("search", {"query": "refunds"})
        print(answer.results)

docs/envelope/client.md has the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parley.client.bindings.websocket import SocketRefused
    from parley.envelope.binding import EnvelopeBinding
    from parley.envelope.cards import EnvelopeCard
    from parley.envelope.client.answers import EnvelopeAnswer, EnvelopeEvent, EnvelopeFailed
    from parley.envelope.client.client import EnvelopeClient, EnvelopeStream, HeartbeatAnswer
    from parley.envelope.client.connecting import connect
    from parley.envelope.client.identity import EnvelopeTooLarge, IncomingRequest, NotFromAgent
    from parley.envelope.client.settings import LinkSettings
    from parley.envelope.messages import (
        Envelope,
        Priority,
        ResponsePayload,
        RoutingStrategy,
        Status,
        SubType,
        Target,
    )
    from parley.envelope.routing.directory import RoutingLimits
    from parley.envelope.routing.registration import RegistrationSettings
    from parley.envelope.server.directory import MessageContext
    from parley.envelope.server.heartbeats import HeartbeatSettings
    from parley.envelope.server.measured import EnvelopeCounts
    from parley.envelope.signatures import EnvelopeKey

_HOMES = {
    "Envelope": "parley.envelope.messages",
    "EnvelopeAnswer": "parley.envelope.client.answers",
    "EnvelopeCard": "parley.envelope.cards",
    "EnvelopeClient": "parley.envelope.client.client",
    "EnvelopeCounts": "parley.envelope.server.measured",
    "EnvelopeEvent": "parley.envelope.client.answers",
    "EnvelopeFailed": "parley.envelope.client.answers",
    "EnvelopeKey": "parley.envelope.signatures",
    "EnvelopeBinding": "parley.envelope.binding",
    "EnvelopeStream": "parley.envelope.client.client",
    "EnvelopeTooLarge": "parley.envelope.client.identity",
    "HeartbeatAnswer": "parley.envelope.client.client",
    "HeartbeatSettings": "parley.envelope.server.heartbeats",
    "IncomingRequest": "parley.envelope.client.identity",
    "LinkSettings": "parley.envelope.client.settings",
    "MessageContext": "parley.envelope.server.directory",
    "NotFromAgent": "parley.envelope.client.identity",
    "Priority": "parley.envelope.messages",
    "RegistrationSettings": "parley.envelope.routing.registration",
    "ResponsePayload": "parley.envelope.messages",
    "RoutingLimits": "parley.envelope.routing.directory",
    "RoutingStrategy": "parley.envelope.messages",
    "SocketRefused": "parley.client.bindings.websocket",
    "Status": "parley.envelope.messages",
    "SubType": "parley.envelope.messages",
    "Target": "parley.envelope.messages",
    "connect": "parley.envelope.client.connecting",
}

__all__ = [
    "Envelope",
    "EnvelopeAnswer",
    "EnvelopeBinding",
    "EnvelopeCard",
    "EnvelopeClient",
    "EnvelopeCounts",
    "EnvelopeEvent",
    "EnvelopeFailed",
    "EnvelopeKey",
    "EnvelopeStream",
    "EnvelopeTooLarge",
    "HeartbeatAnswer",
    "HeartbeatSettings",
    "IncomingRequest",
    "LinkSettings",
    "MessageContext",
    "NotFromAgent",
    "Priority",
    "RegistrationSettings",
    "ResponsePayload",
    "RoutingLimits",
    "RoutingStrategy",
    "SocketRefused",
    "Status",
    "SubType",
    "Target",
    "connect",
]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: servers import what agents declare, and no client."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'parley.envelope' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
