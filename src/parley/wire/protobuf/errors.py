"""Errors over gRPC: a status, and its details as ``google.rpc.Status`` (specification §10.6)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
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
from parley.wire.protobuf.messages import Message, Messages, Schema

STATUS_KEY = "grpc-status-details-bin"
"""The trailing metadata that holds the details."""

MOST_BYTES = 4000
"""Details are cut to fit: peers take no more than 8 KiB of metadata, encoded in base64."""

_SCHEMA = Schema(
    package="google.rpc",
    messages={
        "Status": "1 code int32, 2 message string, 3 details Any[]",
        "ErrorInfo": "1 reason string, 2 domain string, 3 metadata string{}",
        "BadRequest": "1 field_violations FieldViolation[]",
        "FieldViolation": "1 field string, 2 description string",
        "RetryInfo": "1 retry_delay Duration",
    },
)
_TYPES = "type.googleapis.com/"

_STATUSES = """
OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED
RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE
DATA_LOSS UNAUTHENTICATED
"""
CODES = {name: number for number, name in enumerate(_STATUSES.split())}
"""The statuses of gRPC and their numbers."""

# What a status means from a peer that gives no reason with it.
_MEANINGS: dict[str, type[A2AError]] = {
    "INVALID_ARGUMENT": InvalidParamsError,
    "NOT_FOUND": TaskNotFoundError,
    "FAILED_PRECONDITION": UnsupportedOperationError,
    "UNIMPLEMENTED": UnsupportedOperationError,
    "UNAUTHENTICATED": UnauthenticatedError,
    "PERMISSION_DENIED": PermissionDeniedError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "UNAVAILABLE": OverloadedError,
    "INTERNAL": InternalError,
    "UNKNOWN": InternalError,  # what libraries make of an exception
}
_BY_NAME = {error.__name__: error for error in ERRORS}


@cache
def _messages() -> Messages:
    return Messages(_SCHEMA)


def write_status(error: A2AError) -> bytes:
    """Return an error as a ``google.rpc.Status``.

    Where it would be too long, the last of its details are left out; the ErrorInfo never is.
    """
    status = _messages()["Status"](code=CODES[error.grpc_status], message=error.message[:1000])
    info, *others = details_of(error)
    cut = {key: value[:500] for key, value in info["metadata"].items()}
    for detail in ({**info, "metadata": cut}, *others):
        if not (_is_packed(status.details.add(), detail) or _is_packed_as_it_is(status, detail)):
            del status.details[-1]
    while len(status.details) > 1 and status.ByteSize() > MOST_BYTES:
        _shorten(status)
    return status.SerializeToString()  # type: ignore[no-any-return]


_UNFIT = (ParseError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


def _is_packed(packed: Message, detail: Mapping[str, Any]) -> bool:
    try:
        ParseDict(detail, packed, descriptor_pool=_messages().pool)
    except _UNFIT:  # of a type that we have no descriptor of, or not what a peer says that it is
        packed.Clear()
        return False
    return True


def _is_packed_as_it_is(status: Any, detail: Mapping[str, Any]) -> bool:
    return _is_packed(status.details[-1], {"@type": STRUCT, "value": detail})


def _shorten(status: Message) -> None:
    """Take the last half of the last detail's violations away, or all of it."""
    last = status.details[-1]
    if last.type_url.endswith("BadRequest"):
        given = _messages()["BadRequest"]()
        last.Unpack(given)
        if len(given.field_violations) > 1:
            del given.field_violations[len(given.field_violations) // 2 :]
            last.Pack(given)
            return
    del status.details[-1]


def read_status(status: str, message: str, details: bytes | None) -> A2AError:
    """Return the error that a peer means by a status, its message and its details, if any.

    The reason in the details decides, then an error's name at the head of the message (as servers
    of version 0.3 write it), then the status. Nothing that a peer sends makes this fail.
    """
    unpacked = [_unpack(each) for each in _details(details)]
    if not any(_is_reason(detail) for detail in unpacked):
        name, colon, rest = message.partition(":")
        kind = _BY_NAME.get(name.strip()) if colon else None
        if kind is not None:
            message = rest.strip()
        kind = kind or _MEANINGS.get(status)
        return error_of(kind.code if kind else None, message, unpacked)
    return error_of(None, message, unpacked)


def has_reason(details: bytes | None) -> bool:
    """Whether a status has details that say which error of A2A it is."""
    return any(_is_reason(_unpack(each)) for each in _details(details))


def _is_reason(detail: Mapping[str, Any]) -> bool:
    return detail.get("@type") == ERROR_INFO and detail.get("domain") in (ERROR_DOMAIN, "", None)


def _details(details: bytes | None) -> Any:
    status = _messages()["Status"]()
    if details:
        try:
            status.ParseFromString(details)
        except DecodeError:
            return ()
    return status.details


def _unpack(packed: Message) -> dict[str, Any]:
    try:
        detail: dict[str, Any] = MessageToDict(packed, descriptor_pool=_messages().pool)
    except (TypeError, ValueError, DecodeError):  # of a type that we have no descriptor of
        value = base64.b64encode(packed.value).decode()
        detail = {"@type": packed.type_url or f"{_TYPES}google.protobuf.Any", "value": value}
    return detail
