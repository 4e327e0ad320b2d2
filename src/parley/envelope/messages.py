"""The messages of the envelope protocol, version 1 (``docs/reference/envelope-specification.md``).

``wire.envelope`` reads and writes them. Members that a message may leave out have their default
here. ``model.ids`` bounds the sizes of ids.
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil
from typing import Annotated, Any

import msgspec

from parley.model.errors import (
    ERRORS_BY_REASON,
    A2AError,
    FieldViolation,
    InvalidRequestError,
    MethodNotFoundError,
    OverloadedError,
    PeerError,
    PermissionDeniedError,
    UnauthenticatedError,
    VersionNotSupportedError,
)
from parley.model.struct import A2AStruct, NonEmpty, Timestamp
from parley.model.tasks import Task, TaskState
from parley.wire.errors import BAD_REQUEST, ERROR_INFO, RETRY_INFO, details_of, error_of

BINDING = "urn:parley:envelope:v1"
"""The name of the binding on A2A cards (A2A specification §12)."""

PATH = "/envelope"
"""The path for messages, below an agent's address."""


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
"""A number of things or of milliseconds: an integer that every JSON parser keeps."""

# What matches is right at once; ``codec`` looks at other texts more closely.
NAME, ID = r"^[ -~]{0,512}\Z", r"^[\x01-\x7f]{0,512}\Z"

Name = Annotated[str, msgspec.Meta(pattern=NAME)]
NonEmptyName = Annotated[str, msgspec.Meta(pattern=NAME, min_length=1)]
Id = Annotated[str, msgspec.Meta(pattern=ID)]
NonEmptyId = Annotated[str, msgspec.Meta(pattern=ID, min_length=1)]

VERSION = "1.0"
"""The version that is written. Every ``1.x`` is read."""

SUBPROTOCOL = "parley.envelope.v1"
"""The subprotocol of the WebSocket (RFC 6455 §1.9)."""

OPERATION_PREFIX = "a2a."
"""Begins the actions that are operations of A2A: ``a2a.GetTask``. Others are ids of skills."""


STOP = "stop"
"""The action of an EVENT with which a requester ends the answers to a REQUEST.

Its ``correlation_id`` is the id of the REQUEST, which came over the same connection. The REQUEST's
task continues.
"""


class MessageType(StrEnum):
    """The types of messages that every agent knows. An operator's handler may know more."""

    REQUEST = "REQUEST"
    RESPONSE = "RESPONSE"
    EVENT = "EVENT"
    HEARTBEAT = "HEARTBEAT"


class SubType(StrEnum):
    """The answers that the sender of a REQUEST expects.

    ``QUERY``: one RESPONSE, when the result is there. ``COMMAND``: a RESPONSE ``accepted`` as soon
    as the task is durable, then EVENTs until its end. ``NOTIFICATION``: nothing.
    """

    QUERY = "query"
    COMMAND = "command"
    NOTIFICATION = "notification"


class Priority(StrEnum):
    """The order of one caller's own requests that wait. It moves no caller before another."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


class RoutingStrategy(StrEnum):
    """The choice among the agents that ``target`` describes for a REQUEST."""

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
    """The claimed sender of a message: it must match the authenticated caller or the signer."""

    agent_id: NonEmptyName
    agent_type: Name = ""
    instance_id: Name = ""


class Target(A2AStruct, frozen=True, kw_only=True):
    """For whom a message is. Empty: for the agent at the address."""

    agent_id: Name = ""
    agent_type: Name = ""
    routing_strategy: Name = RoutingStrategy.DIRECT


class MessageInfo(A2AStruct, frozen=True, kw_only=True):
    """The kind of a message. ``correlation_id`` is the ``message_id`` of its question."""

    type: NonEmptyName
    sub_type: Name = SubType.QUERY
    correlation_id: Id = ""
    priority: Name = Priority.NORMAL


class MessageSecurity(A2AStruct, frozen=True, kw_only=True):
    """A signature over the canonical form of the message, with what makes it good for one use.

    ``key_id`` names the key, ``algorithm`` is ``HMAC-SHA256`` or ``Ed25519``.
    """

    signature: NonEmptyName
    timestamp: Timestamp
    nonce: NonEmptyName
    key_id: Name = ""
    algorithm: Name = ""


class RequestMetadata(A2AStruct, frozen=True, kw_only=True):
    """The options of a request.

    ``timeout`` is in ms from the arrival of the message; ``retry_count`` is how often its sender
    has sent it before, with the same ``message_id``. ``encoding`` is ``utf-8``. ``stream``: EVENTs
    come before the RESPONSE of a query. ``context_id`` and ``task_id`` continue a conversation or a
    task, ``after`` the EVENTs after a number. ``service_parameters`` are A2A's (specification
    §3.2.6), such as ``A2A-Extensions``.
    """

    timeout: Count | None = None
    retry_count: Count = 0
    encoding: str = "utf-8"
    stream: bool = False
    context_id: Id = ""
    task_id: Id = ""
    after: Count | None = None
    service_parameters: dict[str, str] = {}


class RequestPayload(A2AStruct, frozen=True, kw_only=True):
    """The action of a REQUEST: a skill's id, or an operation (``a2a.GetTask``)."""

    action: NonEmptyName
    parameters: Any = {}
    metadata: RequestMetadata = RequestMetadata()


class WrongMember(A2AStruct, frozen=True, kw_only=True):
    """An invalid member of a message: its path, and the valid form."""

    field: str
    description: str = ""


class EnvelopeError(A2AStruct, frozen=True, kw_only=True):
    """The reason why a request has no result. ``retry_after`` is in ms.

    ``details`` are typed details as in the other bindings (specification §3.3.2): an ErrorInfo for
    an error with metadata, and the details of another agent.
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


class EnvelopeHead(A2AStruct, frozen=True, kw_only=True):
    """The members that messages of all types have, but for the payload."""

    version: NonEmpty
    message_id: NonEmptyId
    timestamp: Timestamp
    source: MessageSource
    message: MessageInfo
    target: Target = Target()
    security: MessageSecurity | None = None


class Envelope(EnvelopeHead, frozen=True, kw_only=True):
    """A message. ``payload`` is read when its type is known.

    ``further`` are members that version 1.0 does not have. They are signed, and otherwise ignored.
    ``received`` are all members of a signed message in their original form, which the signature
    covers. It is ``None`` for unsigned messages.
    """

    payload: RequestPayload | ResponsePayload | msgspec.Raw
    further: dict[str, Any] = {}
    received: dict[str, Any] | None = None


# The short name, for modules that have no other class of this name.
Source = MessageSource


class EnvelopeVersionUnknown(VersionNotSupportedError):
    """The message has a major version that is not read here."""

    reason = "UNSUPPORTED_VERSION"


class UnknownAction(MethodNotFoundError):
    """The agent has no such action."""

    reason = "UNKNOWN_ACTION"


class UnknownMessageType(MethodNotFoundError):
    """The agent does not accept messages of this type."""

    reason = "UNKNOWN_MESSAGE_TYPE"


class TargetNotFound(MethodNotFoundError):
    """No agent here matches the target."""

    reason = "TARGET_NOT_FOUND"


class SignatureRequired(UnauthenticatedError):
    """The agent accepts signed messages only."""

    reason = "SIGNATURE_REQUIRED"


class SignatureInvalid(UnauthenticatedError):
    """The signature does not fit the message."""

    reason = "SIGNATURE_INVALID"


class MessageOutdated(UnauthenticatedError):
    """The message was signed too long ago, or in the future."""

    reason = "MESSAGE_OUTDATED"


class MessageReplayed(UnauthenticatedError):
    """A message with this nonce was here before."""

    reason = "MESSAGE_REPLAYED"


class SourceMismatch(PermissionDeniedError):
    """The source is not who is authenticated, or who signed."""

    reason = "SOURCE_MISMATCH"


class MessageIdReused(InvalidRequestError):
    """Another message had this id."""

    reason = "MESSAGE_ID_REUSED"


class UnderMaintenance(OverloadedError):
    """The agent accepts no new work in a maintenance window."""

    reason = "MAINTENANCE"


class AgentUnavailable(OverloadedError):
    """The agent that the message was passed on to cannot be reached, or has gone."""

    reason = "UNAVAILABLE"


class DeadlineExceeded(OverloadedError):
    """The timeout of the request is over."""

    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


ENVELOPE_ERRORS: dict[str, type[A2AError]] = {
    error.reason: error
    for error in (
        EnvelopeVersionUnknown,
        UnknownAction,
        UnknownMessageType,
        TargetNotFound,
        SignatureRequired,
        SignatureInvalid,
        MessageOutdated,
        MessageReplayed,
        SourceMismatch,
        MessageIdReused,
        UnderMaintenance,
        AgentUnavailable,
        DeadlineExceeded,
    )
}
"""The errors that only this protocol has, by their code."""

TASK_ERRORS = {
    TaskState.FAILED: "TASK_FAILED",
    TaskState.REJECTED: "TASK_REJECTED",
    TaskState.CANCELED: "TASK_CANCELED",
}
"""The codes of tasks that ended without success, by their state."""


def envelope_error(error: A2AError) -> EnvelopeError:
    """Return an error of A2A as a message carries it."""
    has_own_member = (
        {BAD_REQUEST, RETRY_INFO} if error.metadata else {BAD_REQUEST, RETRY_INFO, ERROR_INFO}
    )
    details = [each for each in details_of(error) if each["@type"] not in has_own_member]
    return EnvelopeError(
        code=error.reason,
        message=error.message,
        retry_after=None if error.retry_after is None else max(0, ceil(error.retry_after * 1000)),
        violations=tuple(
            WrongMember(field=v.field, description=v.description) for v in error.violations
        ),
        details=tuple(details),
    )


def a2a_error(error: EnvelopeError) -> A2AError:
    """Return the error of A2A that a message carries.

    A code that is neither A2A's nor this protocol's is a ``PeerError`` whose metadata has it as
    ``code``.
    """
    made = error_of(None, error.message, error.details)
    kind = ENVELOPE_ERRORS.get(error.code) or ERRORS_BY_REASON.get(error.code)
    found = kind(error.message) if kind is not None else PeerError(error.message, code=-32603)
    found.metadata = {**made.metadata, **({} if kind is not None else {"code": error.code})}
    found.violations = tuple(FieldViolation(v.field, v.description) for v in error.violations)
    found.retry_after = None if error.retry_after is None else error.retry_after / 1000
    found.details = tuple(each for each in made.details if each.get("reason") != error.code)
    return found


def task_error(task: Task) -> EnvelopeError | None:
    """Return why a task has ended without success, else ``None``."""
    code = TASK_ERRORS.get(task.state)
    if code is None:
        return None
    said = task.status.message
    return EnvelopeError(code=code, message=said.text if said is not None else "")
