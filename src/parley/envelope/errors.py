"""Errors of A2A as errors of the envelope protocol, and back.

The code is the reason of the A2A error (``TASK_NOT_FOUND``). These are the protocol's own:

    A2AError
    ├── VersionNotSupportedError
    │   └── EnvelopeVersionUnknown     UNSUPPORTED_VERSION
    ├── MethodNotFoundError
    │   ├── UnknownAction              UNKNOWN_ACTION
    │   ├── UnknownMessageType         UNKNOWN_MESSAGE_TYPE
    │   └── TargetNotFound             TARGET_NOT_FOUND
    ├── UnauthenticatedError
    │   ├── SignatureRequired          SIGNATURE_REQUIRED
    │   ├── SignatureInvalid           SIGNATURE_INVALID
    │   ├── MessageOutdated            MESSAGE_OUTDATED
    │   └── MessageReplayed            MESSAGE_REPLAYED
    ├── PermissionDeniedError
    │   └── SourceMismatch             SOURCE_MISMATCH
    ├── InvalidRequestError
    │   └── MessageIdReused            MESSAGE_ID_REUSED
    └── OverloadedError
        ├── UnderMaintenance           MAINTENANCE
        ├── AgentUnavailable           UNAVAILABLE
        └── DeadlineExceeded           DEADLINE_EXCEEDED
"""

from __future__ import annotations

from math import ceil

from parley.envelope.messages import EnvelopeError, Violation
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
from parley.model.tasks import Task, TaskState
from parley.wire.errors import BAD_REQUEST, ERROR_INFO, RETRY_INFO, details_of, error_of


class EnvelopeVersionUnknown(VersionNotSupportedError):
    """The message has a major version that is not read here."""

    reason = "UNSUPPORTED_VERSION"


class UnknownAction(MethodNotFoundError):
    """The agent has no such action."""

    reason = "UNKNOWN_ACTION"


class UnknownMessageType(MethodNotFoundError):
    """The agent takes no messages of this type."""

    reason = "UNKNOWN_MESSAGE_TYPE"


class TargetNotFound(MethodNotFoundError):
    """There is no agent like the target here."""

    reason = "TARGET_NOT_FOUND"


class SignatureRequired(UnauthenticatedError):
    """The agent takes signed messages only."""

    reason = "SIGNATURE_REQUIRED"


class SignatureInvalid(UnauthenticatedError):
    """The signature is not that of the message."""

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
    """The agent takes no new work in a maintenance window."""

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
            Violation(field=v.field, description=v.description) for v in error.violations
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
    """Return why a task has ended without success; ``None`` for one that has not."""
    code = TASK_ERRORS.get(task.state)
    if code is None:
        return None
    said = task.status.message
    return EnvelopeError(code=code, message=said.text if said is not None else "")
