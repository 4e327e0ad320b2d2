"""Other agents of a server, and those that registered: who gets a REQUEST besides the agent at the
address. The host implements ``AgentDirectory``; the binding asks it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any, Protocol

import msgspec

from parley.envelope.messages import Envelope, RequestPayload
from parley.envelope.server.peers import SocketPeer
from parley.model.service import ANONYMOUS, NO_TRACE, Caller, TraceContext

LONGEST = 366 * 86_400.0
"""The longest timeout in seconds."""

ROUTED = "parley.envelope.routed"
"""The key of an ASGI scope that this process made: a message that another agent's binding has
admitted, and passes on. Its value is a ``PassedOnMessage``. Nothing of the network sets it.
"""


class PassedOnMessage(msgspec.Struct, frozen=True):
    """What is known of a message that the binding of another agent passes on.

    ``nonce_is_used``: its signature was verified there, so that its nonce is no replay here.
    ``peer`` is the socket that it came by.
    """

    nonce_is_used: bool = False
    peer: SocketPeer | None = None


class MessageContext(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent a message, and where it arrived.

    ``agent`` is the key of the agent at the address, ``names`` are all its ids, ``tenant``
    is that of the address. ``scope`` is
    the ASGI scope of the upgrade or the POST, ``address`` the IP address of its sender.
    ``deadline`` is a time of the event loop. ``is_signed``: a key of the caller signs the message.
    ``peer`` is the socket, ``None`` for a POST.
    """

    caller: Caller = ANONYMOUS
    agent: str = ""
    names: Collection[str] = ()
    tenant: str = ""
    scope: Any = None
    address: str = ""
    deadline: float | None = None
    trace: TraceContext = NO_TRACE
    is_signed: bool = False
    peer: SocketPeer | None = None

    @property
    def is_routed(self) -> bool:
        """Whether another binding of this process passes the message on."""
        return self.scope is not None and ROUTED in self.scope


def with_deadline(request: Envelope, context: MessageContext) -> MessageContext:
    """Return the context of a message that arrives now: it ends with the timeout of its REQUEST."""
    payload = request.payload
    timeout = payload.metadata.timeout if isinstance(payload, RequestPayload) else None
    if timeout is None:
        return context
    ends = asyncio.get_running_loop().time() + min(timeout / 1000, LONGEST)
    if context.deadline is not None:
        ends = min(ends, context.deadline)
    return msgspec.structs.replace(context, deadline=ends)


class AgentDirectory(Protocol):
    """Knows agents by id, type and skill, and passes REQUESTs on to them."""

    def is_for_others(self, request: Envelope, context: MessageContext) -> bool:
        """Return whether a REQUEST is not simply for the agent at the address.

        Raises ``A2AError`` for a target that makes no sense.
        """
        ...

    def knows(self, agent_id: str) -> bool:
        """Return whether messages may name an agent that is not at their address."""
        ...

    def route(self, request: Envelope, context: MessageContext) -> AsyncIterator[Envelope]:
        """Yield the answers to a REQUEST that was admitted: a RESPONSE, and the EVENTs.

        They have the correlation id of the request, and name who answered
        (``metadata.agentId``). Closing it ends what is under way. Raises ``A2AError``.
        """
        ...
