"""HTTP+JSON in version 1.0 (specification §11)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec
from msgspec import inspect

from parley.model.errors import (
    A2AError,
    FieldViolation,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
)
from parley.model.operations import OPERATIONS, Operation, SubscribeToTaskRequest
from parley.model.struct import A2AStruct, Timestamp, encode, to_wire
from parley.model.tasks import Event
from parley.wire.errors import ERRORS_BY_STATUS, error_of, status_of
from parley.wire.json import legacy, protojson
from parley.wire.json.syntax import Bytes, is_null
from parley.wire.v1_0.json import Json, normalize_params, read_params
from parley.wire.versions import HttpRequest, Route, path_segment

OTHER_NAMES = {"lastUpdatedAfter": "statusTimestampAfter"}
"""Other names of list parameters, as in the Go SDK (2.4), which follows drafts of 1.0."""

_BOOLEANS = {"true": True, "false": False}


class _Parameter(NamedTuple):
    """``read`` converts a parameter's text to a JSON value; it is ``None`` for an object."""

    wire: str
    read: Callable[[str], Any] | None
    repeated: bool


def read_query(
    kind: type[A2AStruct], query: Sequence[tuple[str, str]]
) -> tuple[dict[str, Any], list[FieldViolation]]:
    """Return the JSON members of a request in a query, and the problems in it.

    Names may have both spellings of ProtoJSON; unknown names are ignored. A list repeats its name,
    or uses commas. A parameter has one problem, however often it is given.
    """
    parameters = _parameters(kind)
    members: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, text in query:
        known = parameters.get(name)
        if known is None:
            continue
        wire, read, repeated = known
        if read is None:
            wrong[wire] = "a query cannot carry an object"
        elif repeated:
            members.setdefault(wire, []).extend(map(read, text.split(",")))
        elif wire in members:
            wrong[wire] = "given more than once"
        else:
            members[wire] = read(text)
    return members, [FieldViolation(*problem) for problem in wrong.items()]


def write_query(members: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the query parameters for the JSON members of a request."""
    return [
        (name, _text(item))
        for name, value in members.items()
        for item in (value if isinstance(value, list) else [value])
    ]


def members_of(request: A2AStruct) -> dict[str, Any]:
    """Return the members of the JSON of ``request``."""
    members: dict[str, Any] = msgspec.to_builtins(request, enc_hook=to_wire)
    return members


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


@cache
def _parameters(kind: type[A2AStruct]) -> dict[str, _Parameter]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    parameters = {}
    for field in info.fields:
        parameter = _parameter(field)
        parameters[field.encode_name] = parameters[field.name] = parameter
    return parameters | {
        other: parameters[name] for other, name in OTHER_NAMES.items() if name in parameters
    }


def _parameter(field: inspect.Field) -> _Parameter:
    info, repeated = field.type, False
    if isinstance(info, inspect.UnionType):
        info = next(case for case in info.types if not isinstance(case, inspect.NoneType))
    if isinstance(info, inspect.VarTupleType):
        info, repeated = info.item_type, True
    return _Parameter(field.encode_name, _reader(info), repeated)


def _reader(info: inspect.Type) -> Callable[[str], Any] | None:
    match info:
        case inspect.StructType() | inspect.DictType():
            return None
        case inspect.BoolType():
            return lambda text: _BOOLEANS.get(text, text)
        case inspect.CustomType(cls=cls) if cls is Timestamp:
            # An unquoted plus has become a space, which no timestamp contains.
            return lambda text: text.replace(" ", "+")
    return str


MEDIA_TYPE = "application/a2a+json"

# A tenant with such a name would change the meaning of the path, so it is sent as a field.
_NOT_IN_PATHS = frozenset({"tasks", "v1"})
_FIELD = re.compile(r"\{(\w+)\}")


class _Status(msgspec.Struct):
    """A google.rpc.Status, as HTTP APIs write it."""

    message: str = ""
    code: int = 0
    status: str = ""
    details: list[Any] = []


class _ErrorBody(msgspec.Struct):
    error: _Status


_error_body = msgspec.json.Decoder(_ErrorBody).decode


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
    versionless_routes: Sequence[Route] = ()

    def for_peer(self, peer: str) -> HttpJson:
        """Return this codec: all peers read the same."""
        return self

    def read_request(
        self, route: Route, path: Mapping[str, str], query: Sequence[tuple[str, str]], body: Bytes
    ) -> Any:
        """Read a request from a path's fields, query parameters and a body.

        The fields of a POST are in the body (§11.5), which is empty or null if the path has all of
        them.
        """
        kind = route.operation.request
        wrong: list[FieldViolation] = []
        if route.verb != "POST":
            members, wrong = read_query(kind, query)
        elif not path:
            return read_params(route.operation, b"{}" if is_null(body) else body)
        else:
            members = {} if is_null(body) else protojson.parse(body)
            if not isinstance(members, dict):
                raise InvalidParamsError("the body must be a JSON object")
        for name, wire in _names(kind).items():
            if name in path:
                others = [members.pop(each) for each in {name, wire} if each in members]
                if any(value not in (None, "", path[name]) for value in others):
                    words = f"the path has {path[name][:100]!r}, and the request another value"
                    wrong.append(FieldViolation(wire, words))
                members[wire] = path[name]
        return legacy.read_with_fallback(
            members,
            lambda members: normalize_params(route.operation, members),
            lambda members: protojson.read(members, kind, wrong),
        )

    def write_request(self, operation: Operation, request: A2AStruct) -> HttpRequest:
        """Write the request for an operation.

        Raises ``InvalidParamsError`` for an id that a path cannot carry.
        """
        path = operation.path
        members = members_of(request) if operation.verb != "POST" or _FIELD.search(path) else None
        names = _names(type(request))
        for name in _FIELD.findall(path):
            value = getattr(request, name)
            path = path.replace(f"{{{name}}}", path_segment(names[name], value))
            if members is not None:
                members.pop(names[name], None)
        tenant: str = getattr(request, "tenant", "")
        if tenant and tenant not in _NOT_IN_PATHS:
            path = f"/{path_segment('tenant', tenant)}{path}"
            if members is None:
                request = msgspec.structs.replace(request, tenant="")
            else:
                members.pop("tenant", None)
        if operation.verb == "POST":
            body = encode(request if members is None else members)
            return HttpRequest("POST", path, "", body)
        return HttpRequest(operation.verb, path, urlencode(write_query(members or {})), None)

    def write_error(self, error: A2AError) -> bytes:
        """Write the body of an error: a google.rpc.Status (§11.6)."""
        return encode({"error": status_of(error)})

    def read_error(self, status: int, body: Bytes) -> A2AError:
        """Read the body of an error: by its reason, else by its status.

        Raises ``InvalidAgentResponseError`` for a body that is not an agent's error.
        """
        try:
            given = _error_body(body).error
        except (ValueError, RecursionError) as problem:
            raise InvalidAgentResponseError(
                f"the answer is not an error object: {problem}"
            ) from None
        code = given.code or status
        # The tables of servers differ, since §5.4 was changed.
        kind = InvalidRequestError if code == 413 else ERRORS_BY_STATUS.get(code)
        if kind is InvalidParamsError and given.status == "FAILED_PRECONDITION":
            kind = UnsupportedOperationError
        return error_of(kind.code if kind else None, given.message, given.details)

    def read_event(self, data: Bytes) -> Event:
        """Read one event of a stream. Raises an error that is sent instead."""
        try:
            return super().read_event(data)
        except InvalidAgentResponseError:
            try:
                _error_body(data)
            except (ValueError, RecursionError):
                pass
            else:
                raise self.read_error(500, data) from None
            raise


@cache
def _names(kind: type[A2AStruct]) -> dict[str, str]:
    """Return the names of a request's fields in JSON, by their names in Python."""
    return {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
