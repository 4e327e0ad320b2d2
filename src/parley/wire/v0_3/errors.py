"""Errors in version 0.3: with fields as it names them, and as HTTP+JSON carries them.

0.3 leaves the form over HTTP+JSON open, and official clients look for different ones: a body has
them all, side by side.
"""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model.encoding import encode
from parley.model.errors import (
    ERRORS_BY_CODE,
    A2AError,
    ContentTypeNotSupportedError,
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
)
from parley.wire.errors import details_of, error_of, status_of
from parley.wire.json.syntax import Bytes
from parley.wire.v0_3.operations import NAMES, PROTO_NAMES

# What a status means where a refusal has no code: agents on the official Python SDK send none.
_BY_STATUS: dict[int, type[A2AError]] = {
    400: InvalidParamsError,
    401: UnauthenticatedError,
    403: PermissionDeniedError,
    404: TaskNotFoundError,
    405: MethodNotFoundError,
    409: TaskNotCancelableError,
    415: ContentTypeNotSupportedError,
    422: InvalidParamsError,
    429: OverloadedError,
    500: InternalError,
    501: UnsupportedOperationError,
    502: InvalidAgentResponseError,
    503: OverloadedError,
}


# Fields that an agent may find wrong in what was read, by their names in 1.0 and in 0.3.
_IN_JSON = {
    "configuration.taskPushNotificationConfig": "configuration.pushNotificationConfig",
    "configuration.returnImmediately": "configuration.blocking",
}
_IN_PROTO = {
    "configuration.taskPushNotificationConfig": "configuration.pushNotification",
    "configuration.returnImmediately": "configuration.blocking",
    "message.parts": "message.content",
}


_EXTENDED_CARD = "supportsAuthenticatedExtendedCard"


def in_these_names(error: A2AError, *, proto: bool = False) -> A2AError:
    """Return an error with fields and operations as a caller of 0.3 names them."""
    names = _IN_PROTO if proto else _IN_JSON
    metadata = error.metadata
    operation = metadata.get("operation", "")
    operations = PROTO_NAMES if proto else NAMES
    if operation in operations:
        # What needs a capability: it is named, and so is the field of the card.
        names = {"capabilities.extendedAgentCard": _EXTENDED_CARD, operation: operations[operation]}
        metadata = {**metadata, "operation": operations[operation]}
        if metadata.get("capability") == "extendedAgentCard":
            metadata["capability"] = _EXTENDED_CARD
    said = (error.message, *(violation.field for violation in error.violations))
    if isinstance(error, PeerError) or not any(name in text for name in names for text in said):
        return error

    def named(text: str) -> str:
        for name, ours in names.items():
            text = text.replace(name, ours)
        return text

    return type(error)(
        named(error.message),
        metadata=metadata,
        violations=tuple([each._replace(field=named(each.field)) for each in error.violations]),
        details=error.details,
        retry_after=error.retry_after,
    )


class _Refusal(msgspec.Struct):
    message: str
    code: int | None = None
    data: Any = None
    details: Any = None
    type: Any = None
    error: Any = None

    @property
    def typed(self) -> list[Any]:
        """The typed details, under either name."""
        given = self.details if self.data is None else self.data
        return given if isinstance(given, list) else [given] * (given is not None)

    @property
    def named(self) -> type[A2AError] | None:
        """The error that is named: as it is (Python), or with a package around it (Java)."""
        name = self.type if isinstance(self.type, str) else self.error
        if not isinstance(name, str):
            return None
        return _BY_NAME.get(name.rpartition(".")[2].removesuffix("_v0_3"))


_BY_NAME = {error.__name__: error for error in ERRORS_BY_CODE.values()}


_refusal = msgspec.json.Decoder(_Refusal).decode
_wrapped = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def write_error(error: A2AError) -> bytes:
    """Return the body of a refusal, in which each official client finds the form that it reads.

    ``code``, ``message`` and ``data`` are the error of JSON-RPC without its envelope (JavaScript).
    ``type`` is the name of the error (Python), ``error`` the form that 1.0 has (Go).
    """
    error = in_these_names(error, proto=True)
    kind = ERRORS_BY_CODE.get(error.code, InternalError)
    return encode(
        {
            "code": error.code,
            "message": error.message,
            "data": details_of(error),
            "type": kind.__name__,
            "error": status_of(error),
        }
    )


def read_error(status: int, body: Bytes) -> A2AError:
    """Return the error that a refusal means: by its details, code or name, else by its status.

    Raises ``InvalidAgentResponseError`` when it is not in the form of an agent's.
    """
    try:
        try:
            given = _refusal(body)
        except msgspec.ValidationError:
            given = _refusal(_wrapped(body)["error"])
    except (ValueError, RecursionError, KeyError) as problem:
        raise InvalidAgentResponseError(f"the answer is not a refusal: {problem}") from None
    code = given.code
    if code is None or code >= 0:
        kind = given.named or _BY_STATUS.get(status)
        code = kind.code if kind else None
    return error_of(code, given.message, given.typed)
