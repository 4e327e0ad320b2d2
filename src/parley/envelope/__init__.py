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
    from parley.envelope.client.client import (
        EnvelopeClient,
        EnvelopeStream,
        HeartbeatAnswer,
        connect,
    )
    from parley.envelope.client.session import (
        EnvelopeAnswer,
        EnvelopeEvent,
        EnvelopeFailed,
        EnvelopeTooLarge,
        IncomingRequest,
        LinkSettings,
        NotFromAgent,
    )
    from parley.envelope.messages import (
        Envelope,
        Priority,
        ResponsePayload,
        RoutingStrategy,
        Status,
        SubType,
        Target,
    )
    from parley.envelope.registration import RegistrationSettings
    from parley.envelope.routing import RoutingLimits
    from parley.envelope.server.services import EnvelopeCounts, HeartbeatSettings, MessageContext
    from parley.envelope.signatures import EnvelopeKey

_HOMES = {
    "Envelope": "parley.envelope.messages",
    "EnvelopeAnswer": "parley.envelope.client.session",
    "EnvelopeCard": "parley.envelope.cards",
    "EnvelopeClient": "parley.envelope.client.client",
    "EnvelopeCounts": "parley.envelope.server.services",
    "EnvelopeEvent": "parley.envelope.client.session",
    "EnvelopeFailed": "parley.envelope.client.session",
    "EnvelopeKey": "parley.envelope.signatures",
    "EnvelopeBinding": "parley.envelope.binding",
    "EnvelopeStream": "parley.envelope.client.client",
    "EnvelopeTooLarge": "parley.envelope.client.session",
    "HeartbeatAnswer": "parley.envelope.client.client",
    "HeartbeatSettings": "parley.envelope.server.services",
    "IncomingRequest": "parley.envelope.client.session",
    "LinkSettings": "parley.envelope.client.session",
    "MessageContext": "parley.envelope.server.services",
    "NotFromAgent": "parley.envelope.client.session",
    "Priority": "parley.envelope.messages",
    "RegistrationSettings": "parley.envelope.registration",
    "ResponsePayload": "parley.envelope.messages",
    "RoutingLimits": "parley.envelope.routing",
    "RoutingStrategy": "parley.envelope.messages",
    "SocketRefused": "parley.client.bindings.websocket",
    "Status": "parley.envelope.messages",
    "SubType": "parley.envelope.messages",
    "Target": "parley.envelope.messages",
    "connect": "parley.envelope.client.client",
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
