"""The envelope protocol, calling: messages over a WebSocket, or by HTTP.

    async with parley.envelope.connect("https://agents.example.com") as agent:
        answer = await agent.request("search", {"query": "refunds"})
        print(answer.results)

docs/guides/envelope/client.md has the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.model.distribution import loaded_when_used

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
    "parley.client.bindings.websocket": "SocketRefused",
    "parley.envelope.binding": "EnvelopeBinding",
    "parley.envelope.cards": "EnvelopeCard",
    "parley.envelope.client.client": "EnvelopeClient EnvelopeStream HeartbeatAnswer connect",
    "parley.envelope.client.session": (
        "EnvelopeAnswer EnvelopeEvent EnvelopeFailed EnvelopeTooLarge IncomingRequest "
        "LinkSettings NotFromAgent"
    ),
    "parley.envelope.messages": (
        "Envelope Priority ResponsePayload RoutingStrategy Status SubType Target"
    ),
    "parley.envelope.registration": "RegistrationSettings",
    "parley.envelope.routing": "RoutingLimits",
    "parley.envelope.server.services": "EnvelopeCounts HeartbeatSettings MessageContext",
    "parley.envelope.signatures": "EnvelopeKey",
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

__getattr__, __dir__ = loaded_when_used(__name__, _HOMES)
