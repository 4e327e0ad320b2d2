"""Errors as typed details, the form in which every binding sends them (specification §3.3.2).

The details are a list of objects, each with its ``@type``: first an ErrorInfo, whose reason
identifies the error; a BadRequest when fields are wrong; a RetryInfo when a later attempt may
succeed; then any further details from a peer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from parley.model.errors import (
    ERROR_DOMAIN,
    ERRORS_BY_CODE,
    ERRORS_BY_REASON,
    A2AError,
    ContentTypeNotSupportedError,
    FieldViolation,
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
    MethodNotFoundError,
    OverloadedError,
    PeerError,
    PermissionDeniedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
    an,
)

_TYPES = "type.googleapis.com/google.rpc."
ERROR_INFO = _TYPES + "ErrorInfo"
BAD_REQUEST = _TYPES + "BadRequest"
RETRY_INFO = _TYPES + "RetryInfo"
STRUCT = "type.googleapis.com/google.protobuf.Struct"

ERRORS_BY_STATUS: Mapping[int, type[A2AError]] = {
    400: InvalidParamsError,
    401: UnauthenticatedError,
    403: PermissionDeniedError,
    404: TaskNotFoundError,
    405: MethodNotFoundError,
    409: TaskNotCancelableError,
    415: ContentTypeNotSupportedError,
    429: OverloadedError,
    500: InternalError,
    501: UnsupportedOperationError,
    502: InvalidAgentResponseError,
    503: OverloadedError,
}
"""The errors for HTTP statuses of peers that give no other information."""

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)s")


def details_of(error: A2AError) -> list[dict[str, Any]]:
    """Return the typed details of ``error``."""
    details: list[dict[str, Any]] = [
        {
            "@type": ERROR_INFO,
            "reason": error.reason,
            "domain": ERROR_DOMAIN,
            "metadata": error.metadata,
        }
    ]
    if error.violations:
        violations = [{"field": v.field, "description": v.description} for v in error.violations]
        details.append({"@type": BAD_REQUEST, "fieldViolations": violations})
    if error.retry_after is not None:
        details.append({"@type": RETRY_INFO, "retryDelay": _duration(error.retry_after)})
    details.extend(
        dict(detail) if "@type" in detail else {"@type": STRUCT, "value": dict(detail)}
        for detail in error.details
    )
    return details


def status_of(error: A2AError) -> dict[str, Any]:
    """Return ``error`` as a google.rpc.Status, as HTTP carries it (AIP-193)."""
    return {
        "code": error.http_status,
        "status": error.grpc_status,
        "message": error.message,
        "details": details_of(error),
    }


def error_of(code: int | None, message: str, details: Iterable[object]) -> A2AError:
    """Return the error for a code, a message and typed details of a peer.

    The reason takes precedence, because several errors share a code or a status in some bindings;
    then the code. A code or reason outside of A2A becomes a ``PeerError``. Unknown details are kept
    in ``error.details``. No input of a peer makes this function fail.
    """
    kind: type[A2AError] | None = None
    metadata: dict[str, str] = {}
    violations: list[FieldViolation] = []
    retry_after: float | None = None
    others: list[Mapping[str, Any]] = []
    for detail in details:
        if not isinstance(detail, dict):
            others.append({"@type": STRUCT, "value": {"data": detail}})
            continue
        match _short_name(detail):
            case "ErrorInfo" if kind is None and detail.get("domain") in (ERROR_DOMAIN, "", None):
                kind = ERRORS_BY_REASON.get(str(detail.get("reason")))
                metadata = _metadata(detail.get("metadata"))
                others += [detail] * (kind is None)
            case "BadRequest":
                violations += _violations(detail.get("fieldViolations"))
            case "RetryInfo" if given := _DURATION.fullmatch(str(detail.get("retryDelay"))):
                retry_after = float(given[1])
            case _:
                others.append(detail)
    if kind is None and code is not None:
        kind = ERRORS_BY_CODE.get(code)
    error = kind(message) if kind else PeerError(message, code=-32603 if code is None else code)
    error.metadata = metadata
    error.violations = tuple(violations)
    error.retry_after = retry_after
    error.details = tuple(others)
    return error


def invalid_answer(what: str, kind: str, error: Exception) -> InvalidAgentResponseError:
    """Return the error for an agent's ``what`` that is not a ``kind``."""
    words = error.message if isinstance(error, A2AError) else str(error)
    violations = error.violations if isinstance(error, A2AError) else ()
    return InvalidAgentResponseError(f"{what} is not {an(kind)}: {words}", violations=violations)


def _short_name(detail: dict[Any, Any]) -> str:
    name = detail.get("@type")
    return name.removeprefix(_TYPES) if isinstance(name, str) else ""


def _duration(seconds: float) -> str:
    whole = f"{max(seconds, 0):.3f}".rstrip("0").rstrip(".")
    return f"{whole}s"


def _metadata(given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        return {}
    return {
        str(key): value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in given.items()
    }


def _violations(given: object) -> list[FieldViolation]:
    return [
        FieldViolation(str(item.get("field", "")), str(item.get("description", "")))
        for item in (given if isinstance(given, list) else [])
        if isinstance(item, dict)
    ]
