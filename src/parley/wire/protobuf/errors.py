"""Errors over gRPC: a status, and its details as ``google.rpc.Status`` (specification §10.6)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError

from parley.model.errors import (
    ERROR_DOMAIN,
    ERRORS,
    A2AError,
    InternalError,
    InvalidParamsError,
    OverloadedError,
    PermissionDeniedError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.wire.errors import ERROR_INFO, STRUCT, details_of, error_of
from parley.wire.json.problems import InvalidValue
from parley.wire.protobuf.messages import POOL, Message, Messages

STATUS_KEY = "grpc-status-details-bin"
"""The trailing metadata that holds the details."""

MAX_DETAILS_BYTES = 4000
"""The size that details are cut to: peers accept 8 KiB of metadata, encoded in base64."""

_MESSAGES = Messages("google.rpc")
_TYPES = "type.googleapis.com/"

_STATUSES = """
OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED
RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE
DATA_LOSS UNAUTHENTICATED
"""
CODES = {name: number for number, name in enumerate(_STATUSES.split())}
"""The statuses of gRPC and their numbers."""

# The errors for statuses of peers that give no reason.
_ERRORS_BY_STATUS: dict[str, type[A2AError]] = {
    "INVALID_ARGUMENT": InvalidParamsError,
    "NOT_FOUND": TaskNotFoundError,
    "FAILED_PRECONDITION": UnsupportedOperationError,
    "UNIMPLEMENTED": UnsupportedOperationError,
    "UNAUTHENTICATED": UnauthenticatedError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "UNAVAILABLE": OverloadedError,
    "INTERNAL": InternalError,
    "UNKNOWN": InternalError,  # libraries send it for an exception
}
_BY_NAME = {error.__name__: error for error in ERRORS}


def write_status(error: A2AError) -> bytes:
    """Return an error as a ``google.rpc.Status``.

    If it is too long, its last details are left out, but never the ErrorInfo.
    """
    status = _MESSAGES["Status"](code=CODES[error.grpc_status], message=error.message[:1000])
    info, *others = details_of(error)
    cut = {key: value[:500] for key, value in info["metadata"].items()}
    for detail in ({**info, "metadata": cut}, *others):
        if not (_is_packed(status.details.add(), detail) or _is_packed_as_struct(status, detail)):
            del status.details[-1]
    while len(status.details) > 1 and status.ByteSize() > MAX_DETAILS_BYTES:
        _shorten(status)
    return status.SerializeToString()  # type: ignore[no-any-return]


_UNFIT = (ParseError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


def _is_packed(packed: Message, detail: Mapping[str, Any]) -> bool:
    try:
        ParseDict(detail, packed, descriptor_pool=POOL)
    except _UNFIT:  # an unknown type, or a value that does not fit its type
        packed.Clear()
        return False
    return True


def _is_packed_as_struct(status: Any, detail: Mapping[str, Any]) -> bool:
    return _is_packed(status.details[-1], {"@type": STRUCT, "value": detail})


def _shorten(status: Message) -> None:
    """Remove half of the last detail's violations, or the whole detail."""
    last = status.details[-1]
    if last.type_url.endswith("BadRequest"):
        given = _MESSAGES["BadRequest"]()
        last.Unpack(given)
        if len(given.field_violations) > 1:
            del given.field_violations[len(given.field_violations) // 2 :]
            last.Pack(given)
            return
    del status.details[-1]


def read_status(status: str, message: str, details: bytes | None) -> A2AError:
    """Read an error from a status, its message and its details, if any.

    The reason in the details takes precedence, then an error's name at the start of the message (as
    servers of 0.3 write it), then the status. No input of a peer makes this function fail.
    """
    unpacked = [_unpack(each) for each in _details(details)]
    if not any(_is_reason(detail) for detail in unpacked):
        name, colon, rest = message.partition(":")
        kind = _BY_NAME.get(name.strip()) if colon else None
        if kind is not None:
            message = rest.strip()
        kind = kind or _ERRORS_BY_STATUS.get(status)
        return error_of(kind.code if kind else None, message, unpacked)
    return error_of(None, message, unpacked)


def unencodable_answer(wrong: InvalidValue) -> InternalError:
    """Return the error of a call whose answer cannot be encoded."""
    field, description = wrong.problems[0]
    return InternalError(f"the answer cannot be sent over gRPC: {field}: {description}")


def has_reason(details: bytes | None) -> bool:
    """Return whether the details of a status name an error of A2A."""
    return any(_is_reason(_unpack(each)) for each in _details(details))


def _is_reason(detail: Mapping[str, Any]) -> bool:
    return detail.get("@type") == ERROR_INFO and detail.get("domain") in (ERROR_DOMAIN, "", None)


def _details(details: bytes | None) -> Any:
    status = _MESSAGES["Status"]()
    if details:
        try:
            status.ParseFromString(details)
        except DecodeError:
            return ()
    return status.details


def _unpack(packed: Message) -> dict[str, Any]:
    try:
        detail: dict[str, Any] = MessageToDict(packed, descriptor_pool=POOL)
    except (TypeError, ValueError, DecodeError):  # of an unknown type
        value = base64.b64encode(packed.value).decode()
        detail = {"@type": packed.type_url or f"{_TYPES}google.protobuf.Any", "value": value}
    return detail
