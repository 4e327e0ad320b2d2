"""The errors of A2A, with their code in each binding.

    A2AError
    ├── JSONParseError                       -32700
    ├── InvalidRequestError                  -32600
    ├── MethodNotFoundError                  -32601
    ├── InvalidParamsError                   -32602
    ├── InternalError                        -32603
    ├── UnauthenticatedError                 -32010   credentials missing or rejected
    ├── PermissionDeniedError                -32011   known caller, not allowed
    ├── OverloadedError                      -32012   the server is busy: try again later
    ├── TooManyRequestsError                 -32013   the caller is over its limit: try again later
    ├── TaskNotFoundError                    -32001
    ├── TaskNotCancelableError               -32002
    ├── PushNotificationNotSupportedError    -32003
    ├── UnsupportedOperationError            -32004
    ├── ContentTypeNotSupportedError         -32005
    ├── InvalidAgentResponseError            -32006
    ├── ExtendedAgentCardNotConfiguredError  -32007
    ├── ExtensionSupportRequiredError        -32008
    ├── VersionNotSupportedError             -32009
    └── PeerError                            any      a peer's own code, unknown to A2A

The table is from specification 1.0.1 §5.4. ``google.rpc.ErrorInfo`` carries ``reason``: several
errors share a status, and peers distinguish them by the reason.

``StoreError`` is not an error of A2A: a peer never sees it.

The first paragraph of an error's docstring is its meaning, the second is what to do about it:
``docs/reference/errors.md`` is made from them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

from parley.model.ids import log_incident

_AN = re.compile(r"[aeio]|hour|u(?!ni[^nm]|[rs][a-z]|ui|rl)", re.IGNORECASE)


def an(noun: str) -> str:
    """Return a noun with its indefinite article, chosen by sound: an EVENT, a URL, an hour."""
    return f"{'an' if _AN.match(noun) else 'a'} {noun}"


ERROR_DOMAIN = "a2a-protocol.org"


class FieldViolation(NamedTuple):
    """A wrong field of a request: its path in wire names, and a description of a right value."""

    field: str
    description: str


class A2AError(Exception):
    """An error that is sent to peers.

    ``message`` says what was wrong and what would be right, and never has internals. ``metadata``
    becomes part of the ErrorInfo detail (ids, supported values); ``details`` has further typed
    details of a received error. ``retry_after`` is in seconds. ``challenges`` are values of
    ``WWW-Authenticate`` that name sufficient credentials.
    """

    code: int = -32603
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "INTERNAL_ERROR"
    is_remote = False
    """True if another agent answered with this error, so it is not about the current request."""

    def __init__(
        self,
        message: str = "",
        *,
        metadata: Mapping[str, str] | None = None,
        violations: tuple[FieldViolation, ...] = (),
        details: tuple[Mapping[str, Any], ...] = (),
        retry_after: float | None = None,
        challenges: tuple[str, ...] = (),
    ) -> None:
        self.message = message or (type(self).__doc__ or "").split("\n")[0]
        self.metadata: dict[str, str] = dict(metadata or {})
        self.violations = violations
        self.details = details
        self.retry_after = retry_after
        self.challenges = challenges
        super().__init__(self.message)


class JSONParseError(A2AError):
    """The body is not valid JSON in UTF-8.

    Send JSON in UTF-8; bytes belong into ``raw`` of a part, in base64.
    """

    code = -32700
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    reason = "INVALID_JSON"


class InvalidRequestError(A2AError):
    """The body is JSON but not a valid request.

    Correct what the message names.
    """

    code = -32600
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class MethodNotFoundError(A2AError):
    """The method does not exist.

    Check the name, and ``A2A-Version``: 0.3 and 1.0 name methods differently.
    """

    code = -32601
    http_status = 404
    grpc_status = "UNIMPLEMENTED"
    reason = "METHOD_NOT_FOUND"


class InvalidParamsError(A2AError):
    """A parameter is missing or wrong.

    Correct the fields in ``violations``.
    """

    code = -32602
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    reason = "INVALID_PARAMS"


class InternalError(A2AError):
    """The server failed; its log says why.

    Give the operator the reference in the message: it finds the traceback in the log.
    """

    code = -32603
    http_status = 500
    grpc_status = "INTERNAL"
    reason = "INTERNAL_ERROR"


class UnauthenticatedError(A2AError):
    """Credentials are missing or were rejected.

    Send credentials that the card asks for: ``auth=`` of ``connect``, ``parley auth login``.
    """

    code = -32010
    http_status = 401
    grpc_status = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class PermissionDeniedError(A2AError):
    """The caller is known but may not do this.

    Call as somebody with the right; ``challenges`` name sufficient credentials.
    """

    code = -32011
    http_status = 403
    grpc_status = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class OverloadedError(A2AError):
    """The server is too busy now; try again later.

    Wait for ``retry_after`` seconds; an operator adds replicas if it lasts.
    """

    code = -32012
    http_status = 503
    grpc_status = "UNAVAILABLE"
    reason = "OVERLOADED"


class TooManyRequestsError(A2AError):
    """The caller is over its limit; other callers are not affected.

    Wait for ``retry_after`` seconds.
    """

    code = -32013
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_REQUESTS"


class TaskNotFoundError(A2AError):
    """The task does not exist, or does not belong to the caller.

    Check the id; use the credentials and the tenant of the first message. Ended tasks are removed
    after the agent's retention.
    """

    code = -32001
    http_status = 404
    grpc_status = "NOT_FOUND"
    reason = "TASK_NOT_FOUND"


class TaskNotCancelableError(A2AError):
    """The task has already ended.

    Read the task: its state is final.
    """

    code = -32002
    http_status = 400
    grpc_status = "FAILED_PRECONDITION"
    reason = "TASK_NOT_CANCELABLE"


class PushNotificationNotSupportedError(A2AError):
    """The agent does not send push notifications.

    Stream or poll the task; an author turns on ``CardDetails(push_notifications=True)``.
    """

    code = -32003
    http_status = 400
    grpc_status = "FAILED_PRECONDITION"
    reason = "PUSH_NOTIFICATION_NOT_SUPPORTED"


class UnsupportedOperationError(A2AError):
    """The agent does not support this operation here.

    Read the message, and the capabilities on the card. An ended task takes no message: send it
    without ``task_id``.
    """

    code = -32004
    http_status = 400
    grpc_status = "FAILED_PRECONDITION"
    reason = "UNSUPPORTED_OPERATION"


class ContentTypeNotSupportedError(A2AError):
    """The agent does not accept this media type.

    Send an input mode of the card or the skill.
    """

    code = -32005
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"
    reason = "CONTENT_TYPE_NOT_SUPPORTED"


class InvalidAgentResponseError(A2AError):
    """The agent's answer violates the specification.

    Report it to the agent's author: the message names the wrong part.
    """

    code = -32006
    http_status = 500
    grpc_status = "INTERNAL"
    reason = "INVALID_AGENT_RESPONSE"


class ExtendedAgentCardNotConfiguredError(A2AError):
    """The agent declares an extended card but has none.

    Use the public card; an author sets ``CardDetails(extended_card=...)``.
    """

    code = -32007
    http_status = 400
    grpc_status = "FAILED_PRECONDITION"
    reason = "EXTENDED_AGENT_CARD_NOT_CONFIGURED"


class ExtensionSupportRequiredError(A2AError):
    """The agent requires an extension that the caller did not activate.

    Activate the required extensions of the card: ``extensions=`` of ``connect``, ``--extension``.
    """

    code = -32008
    http_status = 400
    grpc_status = "FAILED_PRECONDITION"
    reason = "EXTENSION_SUPPORT_REQUIRED"


class VersionNotSupportedError(A2AError):
    """The agent does not support this version of the protocol.

    Use a version of the card: ``version=`` of ``connect``, ``--a2a-version``.
    """

    code = -32009
    http_status = 400
    grpc_status = "FAILED_PRECONDITION"
    reason = "VERSION_NOT_SUPPORTED"


def _tree(cls: type[A2AError]) -> list[type[A2AError]]:
    return [cls, *(leaf for child in cls.__subclasses__() for leaf in _tree(child))]


ERRORS: tuple[type[A2AError], ...] = tuple(_tree(A2AError)[1:])
ERRORS_BY_CODE: dict[int, type[A2AError]] = {error.code: error for error in ERRORS}
ERRORS_BY_REASON: dict[str, type[A2AError]] = {error.reason: error for error in ERRORS}


class PeerError(A2AError):
    """A peer answered with a code that A2A does not define; ``code`` has that code.

    Read the message and ``details``, or the peer's documentation.

    The tables above do not contain this class: no code is mapped to it by table.
    """

    http_status = 502
    grpc_status = "UNKNOWN"
    reason = "PEER_ERROR"

    def __init__(
        self, message: str = "", *, code: int, details: tuple[Mapping[str, Any], ...] = ()
    ) -> None:
        super().__init__(message, details=details)
        self.code = code


def shutting_down() -> OverloadedError:
    """Return the error for a caller that another replica, or the next process, can serve."""
    return OverloadedError("the server is shutting down", retry_after=1)


class StoreError(Exception):
    """The store did not execute the request.

    Read the message; try again if the store was out of reach.

    ``StoreUnavailable`` of a database that did not answer in time may leave this unknown; its
    message says so.
    """


@contextmanager
def author_code(
    log: logging.Logger,
    what: str,
    words: str,
    passes: type[Exception] | tuple[type[Exception], ...] = A2AError,
) -> Iterator[None]:
    """Run code of an agent's or extension's author, and contain its errors.

    A failure of ``what`` is logged with its traceback; the caller gets an ``InternalError`` with
    ``words`` and a reference. Errors of the types in ``passes`` are raised unchanged.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, passes):
            raise
        raise InternalError(f"{words} {log_incident(log, what)}") from None
