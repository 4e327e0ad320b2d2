"""The messages of the envelope protocol, version 1 (``docs/envelope/specification.md``).

``wire.envelope`` reads and writes them. Members that a message may leave out have their default
here. Sizes of ids are those of ``model.ids``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec

from parley.model.struct import A2AStruct, NonEmpty, Timestamp

BINDING = "urn:parley:envelope:v1"
"""The name of the binding on A2A cards (A2A specification §12)."""

PATH = "/envelope"
"""Where an agent takes messages, below its address."""


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
"""A number of things or of milliseconds: an integer that every JSON parser keeps."""

VERSION = "1.0"
"""The version that is written. Every ``1.x`` is read."""

SUBPROTOCOL = "parley.envelope.v1"
"""The subprotocol of the WebSocket (RFC 6455 §1.9)."""

OPERATION_PREFIX = "a2a."
"""Begins the actions that are operations of A2A: ``a2a.GetTask``. Others are ids of skills."""


STOP = "stop"
"""The action of an EVENT by which a requester says that it wants no more answers.

Its ``correlation_id`` is the id of the REQUEST, which came over the same connection. A task of that
goes on.
"""


class MessageType(StrEnum):
    """The types of messages that every agent knows. A plug-in may know more."""

    REQUEST = "REQUEST"
    RESPONSE = "RESPONSE"
    EVENT = "EVENT"
    HEARTBEAT = "HEARTBEAT"


class SubType(StrEnum):
    """What the sender of a REQUEST expects.

    ``QUERY``: one RESPONSE, when the result is there. ``COMMAND``: a RESPONSE ``accepted`` as soon
    as the task is durable, then EVENTs until its end. ``NOTIFICATION``: nothing.
    """

    QUERY = "query"
    COMMAND = "command"
    NOTIFICATION = "notification"


class Priority(StrEnum):
    """The order of one caller's own requests that wait. It moves nobody before another caller."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


class RoutingStrategy(StrEnum):
    """Who of the agents that ``target`` describes gets a REQUEST."""

    DIRECT = "direct"
    BROADCAST = "broadcast"
    LOAD_BALANCE = "load-balance"


class Status(StrEnum):
    """The status of a RESPONSE or an EVENT.

    ``SUCCESS`` ends an exchange; so does ``ERROR``. ``ACCEPTED`` answers a command; ``PARTIAL`` is
    an EVENT with more to come. ``INPUT_REQUIRED`` and ``AUTH_REQUIRED`` end the exchange until the
    caller sends a further REQUEST for the task.
    """

    SUCCESS = "success"
    ACCEPTED = "accepted"
    PARTIAL = "partial"
    INPUT_REQUIRED = "input-required"
    AUTH_REQUIRED = "auth-required"
    ERROR = "error"


class MessageSource(A2AStruct, frozen=True, kw_only=True):
    """Who says to have sent a message. A claim: it must match who is authenticated or signs."""

    agent_id: NonEmpty
    agent_type: str = ""
    instance_id: str = ""


class Target(A2AStruct, frozen=True, kw_only=True):
    """For whom a message is. Empty: for the agent at the address."""

    agent_id: str = ""
    agent_type: str = ""
    routing_strategy: str = RoutingStrategy.DIRECT


class MessageInfo(A2AStruct, frozen=True, kw_only=True):
    """The kind of a message. ``correlation_id`` is the ``message_id`` of what it answers."""

    type: NonEmpty
    sub_type: str = SubType.QUERY
    correlation_id: str = ""
    priority: str = Priority.NORMAL


class MessageSecurity(A2AStruct, frozen=True, kw_only=True):
    """A signature over the canonical form of the message, with what makes it good for one use.

    ``key_id`` names the key, ``algorithm`` is ``HMAC-SHA256`` or ``Ed25519``.
    """

    signature: NonEmpty
    timestamp: NonEmpty
    nonce: NonEmpty
    key_id: str = ""
    algorithm: str = ""


class RequestMetadata(A2AStruct, frozen=True, kw_only=True):
    """How a request is to be handled.

    ``timeout`` is in ms from the arrival of the message; ``retry_count`` is how often its sender
    has sent it before, with the same ``message_id``. ``encoding`` is that of ``parameters``.
    ``stream``: EVENTs come before the RESPONSE of a query. ``context_id`` and ``task_id`` go on
    with a conversation or a task, ``after`` with the EVENTs after a number. ``service_parameters``
    are those of A2A (specification §3.2.6), such as ``A2A-Extensions``.
    """

    timeout: Count | None = None
    retry_count: Count = 0
    encoding: str = "utf-8"
    stream: bool = False
    context_id: str = ""
    task_id: str = ""
    after: Count | None = None
    service_parameters: dict[str, str] = {}


class RequestPayload(A2AStruct, frozen=True, kw_only=True):
    """What a REQUEST asks for: a skill's id, or an operation (``a2a.GetTask``)."""

    action: NonEmpty
    parameters: Any = {}
    metadata: RequestMetadata = RequestMetadata()


class WrongMember(A2AStruct, frozen=True, kw_only=True):
    """One member of a message that is wrong: its path, and what would be right."""

    field: str
    description: str = ""


class EnvelopeError(A2AStruct, frozen=True, kw_only=True):
    """Why a request has no result. ``retry_after`` is in ms.

    ``details`` are typed details as the other bindings carry them (specification §3.3.2): an
    ErrorInfo where the error has metadata, and what another agent sent.
    """

    code: NonEmpty
    message: str = ""
    retry_after: Count | None = None
    violations: tuple[WrongMember, ...] = ()
    details: tuple[Any, ...] = ()


class ResponseMetadata(A2AStruct, frozen=True, kw_only=True):
    """Facts about an answer.

    ``processing_time`` is in ms. ``sequence`` is the number of an EVENT in the task's log.
    ``agent_id`` is who answered, where several might have. ``rate_limits`` are the fields
    ``ratelimit`` and ``ratelimit-policy`` of the caller, as HTTP has them.
    """

    processing_time: Count | None = None
    total_results: Count | None = None
    sequence: Count | None = None
    task_id: str = ""
    context_id: str = ""
    state: str = ""
    agent_id: str = ""
    rate_limits: dict[str, str] = {}


class ResponsePayload(A2AStruct, frozen=True, kw_only=True):
    """The answer to a REQUEST, or a part of it."""

    status: NonEmpty
    results: tuple[Any, ...] = ()
    metadata: ResponseMetadata = ResponseMetadata()
    error: EnvelopeError | None = None


class Envelope(A2AStruct, frozen=True, kw_only=True):
    """A message. ``payload`` is read when its type is known.

    ``further`` are members that version 1.0 does not have. They are signed, and otherwise ignored.
    ``received`` are all members of a signed message as its sender wrote them: what the signature
    is over. It is ``None`` for others.
    """

    version: NonEmpty
    message_id: NonEmpty
    timestamp: Timestamp
    source: MessageSource
    message: MessageInfo
    payload: RequestPayload | ResponsePayload | msgspec.Raw
    target: Target = Target()
    security: MessageSecurity | None = None
    further: dict[str, Any] = {}
    received: dict[str, Any] | None = None


# The short names, for modules that have no other class of these names.
Source = MessageSource
Security = MessageSecurity
Violation = WrongMember
