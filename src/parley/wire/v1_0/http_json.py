"""HTTP+JSON in version 1.0 (specification §11)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from parley.model.encoding import encode
from parley.model.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    FieldViolation,
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.model.operations import OPERATIONS, Operation
from parley.model.requests import SubscribeToTaskRequest
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire.dialect import HttpRequest, Route
from parley.wire.errors import error_of, status_of
from parley.wire.json import legacy_requests, protojson
from parley.wire.json.syntax import Bytes
from parley.wire.v1_0.json import Json, meant_params, read_params
from parley.wire.v1_0.query import members_of, read_query, write_query

MEDIA_TYPE = "application/a2a+json"

# What a status means where no ErrorInfo says it. The tables of servers differ (§5.4 was changed).
_BY_STATUS: dict[int, type[A2AError]] = {
    400: InvalidParamsError,
    401: UnauthenticatedError,
    403: PermissionDeniedError,
    404: TaskNotFoundError,
    405: MethodNotFoundError,
    409: TaskNotCancelableError,
    413: InvalidRequestError,
    415: ContentTypeNotSupportedError,
    429: OverloadedError,
    500: InternalError,
    501: UnsupportedOperationError,
    502: InvalidAgentResponseError,
    503: OverloadedError,
}
# A tenant of such a name would make its path into another's: it goes where other fields go.
_NOT_IN_PATHS = frozenset({"tasks", "v1"})
_FIELD = re.compile(r"\{(\w+)\}")


class _Status(msgspec.Struct):
    """A google.rpc.Status, as HTTP APIs write it."""

    message: str = ""
    code: int = 0
    status: str = ""
    details: list[Any] = []


class _Refusal(msgspec.Struct):
    error: _Status


_refusal = msgspec.json.Decoder(_Refusal).decode


def _routes() -> tuple[Route, ...]:
    routes = []
    for operation in OPERATIONS:
        routes.append(Route(operation.verb, operation.path, operation))
        if operation.request is SubscribeToTaskRequest:
            # The text of the specification says POST, its proto GET.
            routes.append(Route("GET", operation.path, operation, alias=True))
    return tuple(routes)


class HttpJson(Json):
    """Bodies, paths and query parameters of HTTP+JSON (``HttpJsonCodec``)."""

    media_type: str = MEDIA_TYPE
    routes: Sequence[Route] = _routes()
    unnamed: Sequence[Route] = ()

    def for_peer(self, peer: str) -> HttpJson:
        """Return what speaks to any caller: this."""
        return self

    def read_request(
        self,
        route: Route,
        path: Mapping[str, str],
        query: Sequence[tuple[str, str]],
        body: Bytes,
    ) -> Any:
        """Return what is asked for by a path's fields, query parameters and a body.

        What comes with a body is in the body (§11.5); a body is empty, or null, where there is
        nothing to say that is not in the path.
        """
        kind = route.operation.request
        wrong: list[FieldViolation] = []
        if route.verb != "POST":
            members, wrong = read_query(kind, query)
        elif not path:
            return read_params(route.operation, body if _says_something(body) else b"{}")
        else:
            members = protojson.parse(body) if _says_something(body) else {}
            if not isinstance(members, dict):
                raise InvalidParamsError("the body must be a JSON object")
        for name, wire in _names(kind).items():
            if name in path:
                said = [members.pop(each) for each in {name, wire} if each in members]
                if any(value not in (None, "", path[name]) for value in said):
                    words = f"the path says {path[name][:100]!r}, and the request something else"
                    wrong.append(FieldViolation(wire, words))
                members[wire] = path[name]
        return legacy_requests.read(
            members,
            lambda members: meant_params(route.operation, members),
            lambda members: protojson.read(members, kind, wrong),
        )

    def write_request(self, operation: Operation, request: A2AStruct) -> HttpRequest:
        """Return the request that asks for an operation.

        Raises ``InvalidParamsError`` for an id that a path cannot carry.
        """
        path = operation.path
        members = members_of(request) if operation.verb != "POST" or _FIELD.search(path) else None
        names = _names(type(request))
        for name in _FIELD.findall(path):
            value = getattr(request, name)
            path = path.replace(f"{{{name}}}", _segment(names[name], value))
            if members is not None:
                members.pop(names[name], None)
        tenant: str = getattr(request, "tenant", "")
        if tenant and tenant not in _NOT_IN_PATHS:
            path = f"/{_segment('tenant', tenant)}{path}"
            if members is None:
                request = msgspec.structs.replace(request, tenant="")
            else:
                members.pop("tenant", None)
        if operation.verb == "POST":
            body = encode(request if members is None else members)
            return HttpRequest("POST", path, "", body)
        return HttpRequest(operation.verb, path, urlencode(write_query(members or {})), None)

    def write_error(self, error: A2AError) -> bytes:
        """Return the body of a refusal: a google.rpc.Status (§11.6)."""
        return encode({"error": status_of(error)})

    def read_error(self, status: int, body: Bytes) -> A2AError:
        """Return the error that a refusal means: by its reason, else by its status.

        Raises ``InvalidAgentResponseError`` when it is not in the form of an agent's.
        """
        try:
            given = _refusal(body).error
        except (ValueError, RecursionError) as problem:
            raise InvalidAgentResponseError(f"the answer is not a refusal: {problem}") from None
        kind = _BY_STATUS.get(given.code or status)
        if kind is InvalidParamsError and given.status == "FAILED_PRECONDITION":
            kind = UnsupportedOperationError
        return error_of(kind.code if kind else None, given.message, given.details)

    def read_event(self, data: Bytes) -> Event:
        """Return what an event of a stream says. Raises the error that it holds instead."""
        try:
            return super().read_event(data)
        except InvalidAgentResponseError:
            try:
                _refusal(data)
            except (ValueError, RecursionError):
                pass
            else:
                raise self.read_error(500, data) from None
            raise


def _says_something(body: Bytes) -> bool:
    return len(body) > 64 or bytes(body).strip() not in (b"", b"null")


@cache
def _names(kind: type[A2AStruct]) -> dict[str, str]:
    """Return the names of a request's fields, and those that they have in JSON."""
    return {field.name: field.encode_name for field in msgspec.structs.fields(kind)}


def _segment(field: str, value: str) -> str:
    if value in ("", ".", ".."):
        words = f"{value!r} cannot be part of a path"
        raise InvalidParamsError(f"{field}: {words}", violations=(FieldViolation(field, words),))
    return quote(value, safe="")
