"""Fuzz targets for servers: requests, whole and in pieces, with their headers.

Each target takes any bytes and raises when a promise is broken. The bytes are decoded, or rejected
with an error that names the fault in at most a few thousand bytes. A decoded value can be encoded,
also for the log, and decodes to the same value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec.structs import replace

from parley.engine.service.checks import PageToken, read_token, write_token
from parley.model import struct
from parley.model.errors import (
    A2AError,
    InvalidParamsError,
    InvalidRequestError,
    JSONParseError,
    MethodNotFoundError,
)
from parley.model.operations import (
    OPERATIONS,
    CancelTaskRequest,
    GetTaskRequest,
    Operation,
    SendMessageRequest,
)
from parley.model.struct import A2AStruct
from parley.server.http.callbacks import CallbackRefused, read_content, value_of
from parley.server.http.paths import Paths, segments_of
from parley.store.protocols.tables import event_value
from parley.wire import jsonrpc, versions
from parley.wire.json import protojson
from parley.wire.json.syntax import check_limits
from parley.wire.protobuf.errors import MAX_DETAILS_BYTES, write_status
from tests.faults.malformed import FULL, MALFORMED
from tests.fuzz import inputs
from tests.kit.strategies import MESSAGES
from tests.wire.v0_3.losses import left_of

REFUSALS = (InvalidParamsError, InvalidRequestError, JSONParseError, MethodNotFoundError)
LONGEST_REFUSAL = 12_000
DIALECTS = {version: versions.dialect(version) for version in versions.SUPPORTED_VERSIONS}
Target = Callable[[bytes], None]


def check_refusal(error: A2AError) -> None:
    """Check that every codec can write the error, within the size limit."""
    assert error.message
    for dialect in DIALECTS.values():
        for codec in (dialect.jsonrpc, dialect.http_json):
            written = codec.write_error(error)
            json.loads(written)
            assert len(written) <= LONGEST_REFUSAL, f"a refusal of {len(written)} bytes"
    assert len(write_status(error)) <= MAX_DETAILS_BYTES + 1000


def check_logged(value: A2AStruct) -> None:
    """Check that a value survives the encoding of the log."""
    assert struct.decode(struct.encode(value), type(value)) == value


# -- JSON ----------------------------------------------------------------------------------------


def envelope(data: bytes) -> None:
    """The envelope of JSON-RPC."""
    try:
        request = jsonrpc.parse_request(data)
    except (JSONParseError, InvalidRequestError) as error:
        check_refusal(error)
        answer = jsonrpc.error_response(jsonrpc.request_id(data), b"{}")
        assert json.loads(answer, parse_int=str)["error"] == {}
        return
    id = jsonrpc.request_id(data)
    assert (id or msgspec.Raw()) == request.id
    assert json.loads(jsonrpc.response(id, b"5"), parse_int=str)["result"] == "5"
    params = bytes(request.params) or b"null"
    written = jsonrpc.request(1, request.method, params)
    again = jsonrpc.parse_request(written)
    assert (again.method, again.params) == (request.method, request.params)


def envelope_seeds() -> Iterator[bytes]:
    yield from (body for body, _, _ in MALFORMED.values() if len(body) < 2000)
    for id in (b"1", b"null", b'"a"', b"-5", b"9007199254740993"):
        yield b'{"jsonrpc":"2.0","id":%b,"method":"SendMessage","params":{"a":[1]}}' % id
    for method, params in FULL.items():
        yield jsonrpc.request("x", method, json.dumps(params).encode())


def any_json(data: bytes) -> None:
    """The JSON of any type of the data model, after a line with its name."""
    name, _, body = data.partition(b"\n")
    kind = MESSAGES.get(name.decode("latin-1"))
    if kind is None:
        return
    try:
        value = protojson.decode(body, kind)
    except (JSONParseError, InvalidParamsError) as error:
        check_refusal(error)
        return
    assert protojson.decode(protojson.encode(value), kind) == value
    check_logged(value)


def any_json_seeds() -> Iterator[bytes]:
    for name, kind in MESSAGES.items():
        for value in inputs.values_of(kind):
            yield name.encode() + b"\n" + protojson.encode(value)


def limits(data: bytes) -> None:
    """The limits on depth and parts, checked before a body is decoded."""
    deepest, most = 12, 5
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        with suppress(InvalidParamsError):
            check_limits(data, deepest, most)
        return
    depth = _depth(value)
    parts = _parts(value)
    try:
        check_limits(data, deepest, most)
    except InvalidParamsError as error:
        assert depth > deepest or parts > most, error.message
    else:
        assert depth <= deepest


def _depth(value: Any) -> int:
    deepest = 0
    pending = [(value, 1)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, dict | list):
            deepest = max(deepest, depth)
            inner = value.values() if isinstance(value, dict) else value
            pending += [(item, depth + 1) for item in inner]
    return deepest


def _parts(value: Any) -> int:
    most = 0
    for lease_owner in (value, value.get("params") if isinstance(value, dict) else None):
        message = lease_owner.get("message") if isinstance(lease_owner, dict) else None
        parts = message.get("parts") if isinstance(message, dict) else None
        most = max(most, len(parts) if isinstance(parts, list) else 0)
    return most


def params(version: str) -> Target:
    """Return the target for the parameters of JSON-RPC, after a line with the method."""
    codec = DIALECTS[version].jsonrpc

    def target(data: bytes) -> None:
        method, _, body = data.partition(b"\n")
        operation = codec.methods.get(method.decode("latin-1"))
        if operation is None:
            return
        try:
            check_limits(body)
            request = codec.read_request(operation, body)
        except REFUSALS as error:
            check_refusal(error)
            return
        check_logged(request)
        again = codec.read_request(_plain(operation), codec.write_request(operation, request))
        assert again == _left(request, version, proto=False), (again, request)

    return target


def _plain(operation: Operation) -> Operation:
    """Return an operation under its current name, not an older one."""
    return next(each for each in OPERATIONS if each.name == operation.name)


def params_seeds(version: str) -> Callable[[], Iterator[bytes]]:
    codec = DIALECTS[version].jsonrpc

    def seeds() -> Iterator[bytes]:
        for method, operation in codec.methods.items():
            for request in inputs.requests_of(operation):
                yield method.encode() + b"\n" + codec.write_request(operation, request)
        yield from inputs.OTHERS[version]

    return seeds


def _left(request: Any, version: str, *, proto: bool) -> Any:
    """Return the part of a request that its version can carry."""
    if version == versions.LATEST:
        return request
    request = left_of(request, proto=proto)
    if proto and isinstance(request, CancelTaskRequest):
        request = replace(request, metadata=None)
    return request


# -- HTTP+JSON -----------------------------------------------------------------------------------

PATHS = Paths((version, route) for version, d in DIALECTS.items() for route in d.http_json.routes)
_WORDS = {"tasks", "v1", "message:send", "message:stream", "extendedAgentCard"}
_ACTIONS = (":cancel", ":subscribe")


def http_json(data: bytes) -> None:
    """An HTTP+JSON request: ``VERB path?query`` on a line, then the body."""
    line, _, body = data.partition(b"\n")
    verb, _, address = line.decode("latin-1").partition(" ")
    path, _, query = address.partition("?")
    try:
        version, operation, request = _read_http(verb, path, query, body)
    except REFUSALS as error:
        check_refusal(error)
        return
    check_logged(request)
    if _cannot_be_asked(version, operation, request):
        return
    codec = DIALECTS[version].http_json
    try:
        asked = codec.write_request(operation, request)
    except InvalidParamsError as error:
        assert "cannot be part of a path" in error.message
        return
    again = _read_http(asked.verb, asked.path, asked.query, asked.body or b"")
    assert again[:2] == (version, operation)
    assert again[2] == _left(request, version, proto=True), (again[2], request)


def _read_http(verb: str, path: str, query: str, body: bytes) -> tuple[str, Operation, Any]:
    raw = path.encode("latin-1")
    scope = {"path": unquote(path, errors="replace"), "raw_path": raw}
    with suppress(UnicodeDecodeError):
        scope["path"] = unquote(raw.decode(), errors="strict")
    target, fields = PATHS.find(verb, segments_of(scope))
    version, route = target.version, target.route
    tenant = fields.pop("tenant", "")
    check_limits(body)
    parameters = parse_qsl(query, keep_blank_values=True, max_num_fields=500)
    codec = DIALECTS[version].http_json
    request = codec.read_request(route, fields, parameters, body)
    if tenant and request.tenant not in ("", tenant):
        raise InvalidParamsError("tenant: the path names another")
    request = replace(request, tenant=tenant or request.tenant)
    return version, _plain(route.operation), request


def _cannot_be_asked(version: str, operation: Operation, request: Any) -> bool:
    """Return whether an id or a tenant equals a word that has another meaning in a path."""
    ids = [getattr(request, "id", ""), getattr(request, "task_id", "")]
    if version == versions.LATEST:
        named = request.tenant in _WORDS
        return named or any(id.endswith(_ACTIONS) or id in _WORDS for id in ids)
    return any("/" in id or id.endswith(_ACTIONS) for id in ids)


def http_json_seeds(version: str) -> Callable[[], Iterator[bytes]]:
    codec = DIALECTS[version].http_json

    def seeds() -> Iterator[bytes]:
        called = {route.operation.name for route in codec.routes}
        for operation in (each for each in OPERATIONS if each.name in called):
            for request in inputs.requests_of(operation):
                verb, path, query, body = codec.write_request(operation, request)
                line = f"{verb} {path}?{query}" if query else f"{verb} {path}"
                yield line.encode() + b"\n" + (body or b"")
        yield from inputs.OVER_HTTP[version]

    return seeds


# -- protobuf ------------------------------------------------------------------------------------


def protobuf(version: str) -> Target:
    """Return the target for gRPC messages, after a line with the operation."""
    codec = DIALECTS[version].grpc()

    def target(data: bytes) -> None:
        name, _, body = data.partition(b"\n")
        operation = codec.methods.get(name.decode("latin-1"))
        if operation is None:
            return
        try:
            request = codec.read_request(operation, body, max_depth=40, max_parts=50)
        except (InvalidParamsError, InvalidRequestError) as error:
            check_refusal(error)
            return
        check_logged(request)
        again = codec.read_request(operation, codec.write_request(operation, request))
        assert again == _left_in_protobuf(request, version), (again, request)

    return target


def _left_in_protobuf(request: Any, version: str) -> Any:
    if version == versions.LATEST:
        return request
    request = _left(request, version, proto=True)
    # The proto of 0.3 does not distinguish a limit of 0 from no limit.
    if isinstance(request, GetTaskRequest) and request.history_length == 0:
        return replace(request, history_length=None)
    if isinstance(request, SendMessageRequest) and request.configuration.history_length == 0:
        return replace(request, configuration=replace(request.configuration, history_length=None))
    return request


def protobuf_seeds(version: str) -> Callable[[], Iterator[bytes]]:
    codec = DIALECTS[version].grpc()

    def seeds() -> Iterator[bytes]:
        for method, operation in codec.methods.items():
            for request in inputs.requests_of(operation):
                yield method.encode() + b"\n" + codec.write_request(operation, request)

    return seeds


# -- tokens --------------------------------------------------------------------------------------


def page_tokens(data: bytes) -> None:
    """The token of the next page."""
    try:
        token = read_token(data.decode("utf-8", "replace"), PageToken)
    except InvalidParamsError as error:
        check_refusal(error)
        return
    assert read_token(write_token(token), PageToken) == token


def callbacks(data: bytes) -> None:
    """A body posted to a callback address, below a line with its media type."""
    media_type, _, body = data.partition(b"\n")
    try:
        value = value_of(read_content(media_type, body, max_depth=100))
    except CallbackRefused as refused:
        assert refused.http_status in (400, 413, 415)
        assert 0 < len(refused.message) <= LONGEST_REFUSAL
        return
    assert event_value(json.loads(value)) == value


def callback_seeds() -> Iterator[bytes]:
    for body in (b"", b'{"paid": true, "amount": 12.5}', b'[1, null, [[]], "\\u00e9"]', b"1e5"):
        yield b"application/json\n" + body
    yield b"application/x-www-form-urlencoded\nid=tr_1&n=1&n=2&x=%C3%A9+"


def page_token_seeds() -> Iterator[bytes]:
    for place in (PageToken(0, "t", 1), PageToken(2**53, "é" * 20, -(2**53)), [], [[[]]], "x"):
        yield write_token(place).encode()
