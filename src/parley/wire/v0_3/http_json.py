"""HTTP+JSON in version 0.3 (0.3 §3.2.3, §3.5.3).

Bodies are the JSON of the proto. A message may also have the form of JSON-RPC, which the text of
0.3 shows, and which callers of the legacy paths send. 0.3 does not define error bodies, and
official clients read different forms: a body has all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

import msgspec

from parley.model.cards import AgentCard
from parley.model.errors import (
    ERRORS_BY_CODE,
    A2AError,
    FieldViolation,
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
)
from parley.model.operations import (
    CancelTaskRequest,
    Empty,
    GetExtendedAgentCardRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Operation,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
    TaskPushNotificationConfig,
)
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct, encode
from parley.model.tasks import Event, Task
from parley.wire.errors import ERRORS_BY_STATUS, details_of, error_of, status_of
from parley.wire.json import legacy, protojson
from parley.wire.json.problems import logging_problems
from parley.wire.json.syntax import Bytes
from parley.wire.v0_3 import cards, operations, proto, values
from parley.wire.v0_3.json import invalid_answer, normalize_params, read_task, read_value
from parley.wire.v0_3.proto import expects_base64_text, with_base64_text
from parley.wire.v1_0.http_json import OTHER_NAMES
from parley.wire.versions import HttpRequest, Route, path_segment

_STATES = [*[state.value for state in values.State], "cancelled"]
_PATHS = {
    route.operation.name: (route.verb, route.path)
    for route in reversed(operations.ROUTES)
    if not route.alias
}


class _ErrorBody(msgspec.Struct):
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
        """The error by its class name: alone (Python), or behind its package (Java)."""
        name = self.type if isinstance(self.type, str) else self.error
        if not isinstance(name, str):
            return None
        return _BY_NAME.get(name.rpartition(".")[2].removesuffix("_v0_3"))


_BY_NAME = {error.__name__: error for error in ERRORS_BY_CODE.values()}
_error_body = msgspec.json.Decoder(_ErrorBody).decode
_wrapped = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class HttpJson:
    """Bodies, paths and query parameters of HTTP+JSON (``HttpJsonCodec``).

    For a ``python_peer`` it writes the forms that official Python peers read: files as base64 text,
    and the whole message of the proto to create a webhook.
    """

    takes_json: bool = False
    media_type: str = "application/json"
    routes: Sequence[Route] = operations.ROUTES
    versionless_routes: Sequence[Route] = operations.VERSIONLESS_ROUTES

    def __init__(self, *, python_peer: bool = False) -> None:
        self._is_python_peer = python_peer

    @cached_property
    def _for_python_peers(self) -> HttpJson:
        return HttpJson(python_peer=True)

    def for_peer(self, peer: str) -> HttpJson:
        """Return the codec for a peer, by its name (``expects_base64_text``)."""
        return self._for_python_peers if expects_base64_text(peer) else self

    def read_request(
        self, route: Route, path: Mapping[str, str], query: Sequence[tuple[str, str]], body: Bytes
    ) -> Any:
        """Read a request from a path's fields, query parameters and a body.

        The path takes precedence; a body need not repeat it, and is not read if it adds nothing.
        """
        kind = route.operation.request
        members: dict[str, Any]
        if kind is SendMessageRequest:
            return legacy.read_with_fallback(
                _object(body),
                lambda members: _normalize_message(route, members),
                lambda members: _read_message(route, members),
            )
        if kind is GetExtendedAgentCardRequest:
            return GetExtendedAgentCardRequest()
        if kind is TaskPushNotificationConfig:
            return proto.read_request(
                route.operation, _create_config_members(_object(body), path["id"])
            )
        members = {OTHER_NAMES.get(name, name): text for name, text in query}
        if kind is CancelTaskRequest:
            cancel = _object(body) if bytes(body).strip() not in (b"", b"null") else {}
            members = {"id": path["id"], "metadata": cancel.get("metadata")}
            return protojson.read(members, CancelTaskRequest)
        if kind is ListTasksRequest:
            if members.get("includeArtifacts") in ("true", "false"):
                members["includeArtifacts"] = members["includeArtifacts"] == "true"
            return legacy.read_with_fallback(
                members,
                lambda members: normalize_params(route.operation, members, is_legacy=True),
                lambda members: proto.read_request(route.operation, members),
            )
        if kind is ListTaskPushNotificationConfigsRequest:
            members["parent"] = proto.task_name(path["id"])
        elif "config_id" in path:
            members = {"name": proto.config_name(path["id"], path["config_id"])}
        else:
            members["name"] = proto.task_name(path["id"])
        return proto.read_request(route.operation, members)

    def write_request(self, operation: Operation, request: A2AStruct) -> HttpRequest:
        """Write the request for an operation.

        Raises ``InvalidParamsError`` for an id that a path cannot carry.
        """
        verb, path = _PATHS[operation.name]
        ids = {"id": getattr(request, "id", ""), "config_id": ""}
        if "task_id" in request.__struct_fields__:
            ids = {"id": getattr(request, "task_id", ""), "config_id": ids["id"]}
        for field, value in ids.items():
            if f"{{{field}}}" in path:
                path = path.replace(f"{{{field}}}", path_segment(field, value))
        if self._is_python_peer:
            request = with_base64_text(request)
        members = proto.write_request(operation, request)
        if isinstance(request, TaskPushNotificationConfig) and not self._is_python_peer:
            # Some peers read the whole message, others only its ``config``: send both.
            members = {**members, **members["config"]}
        if verb == "POST":
            return HttpRequest(verb, path, "", encode(members))
        query = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in members.items()
            if name not in ("name", "parent")
        }
        return HttpRequest(verb, path, urlencode(query), None)

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Write the answer to an operation."""
        if isinstance(answer, AgentCard):
            # Some official clients read the JSON of 0.3 here, others the JSON of the proto. They
            # differ only in security schemes, which are written in both forms.
            return encode(cards.members_of(answer, with_latest=True))
        if self._is_python_peer:
            answer = with_base64_text(answer)
        return encode(proto.write_result(operation, answer))

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Read the answer to an operation."""
        if operation.response is Empty:
            return Empty()
        try:
            members = protojson.parse_answer(data)
        except A2AError as error:
            asked = f"the answer to {operation.name}"
            raise invalid_answer(asked, operation.response, error) from None
        kind = operation.response
        if kind in (SendMessageResponse, Task) and _is_of_jsonrpc(members):
            return _read_json(data, kind)
        try:
            return proto.read_result(operation, members)
        except InvalidAgentResponseError:
            if kind not in (SendMessageResponse, Task):
                raise
            with suppress(InvalidAgentResponseError):
                return _read_json(data, kind)
            raise

    def write_event(self, item: StreamItem) -> bytes:
        """Write one event of a stream."""
        event = with_base64_text(item[0]) if self._is_python_peer else item[0]
        return encode(proto.write_event(event))

    def read_event(self, data: Bytes) -> Any:
        """Read one event of a stream. Raises an error that is sent instead."""
        try:
            with logging_problems("an event of a stream"):
                return _read_event(data)
        except (A2AError, ValueError, RecursionError) as problem:
            try:
                error = self.read_error(500, data)
            except InvalidAgentResponseError:
                kind = StreamResponse
                raise invalid_answer("an event of a stream", kind, problem) from None
            raise error from None

    def ends_stream(self, event: Event) -> bool:
        """Return whether the event is final (0.3 §7.2.2)."""
        return values.ends_stream(event)

    def write_error(self, error: A2AError) -> bytes:
        """Write the body of an error, in the forms of all official clients.

        ``code``, ``message`` and ``data`` are the error of JSON-RPC without its envelope
        (JavaScript), ``type`` is the name of the error (Python), ``error`` the form of 1.0 (Go).
        """
        error = operations.with_wire_names(error, proto=True)
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

    def read_error(self, status: int, body: Bytes) -> A2AError:
        """Read the body of an error: by its details, code or name, else by its status.

        Raises ``InvalidAgentResponseError`` for a body that is not an agent's error.
        """
        try:
            try:
                given = _error_body(body)
            except msgspec.ValidationError:
                given = _error_body(_wrapped(body)["error"])
        except (ValueError, RecursionError, KeyError) as problem:
            raise InvalidAgentResponseError(
                f"the answer is not an error object: {problem}"
            ) from None
        code = given.code
        if code is None or code >= 0:
            # Agents on the official Python SDK send no code.
            kind = given.named or (
                InvalidParamsError if status == 422 else ERRORS_BY_STATUS.get(status)
            )
            code = kind.code if kind else None
        return error_of(code, given.message, given.typed)


def _read_event(data: Bytes) -> Any:
    members = protojson.parse_answer(data)
    if not _is_of_jsonrpc(members):
        try:
            return proto.read_event(members)
        except (A2AError, ValueError):
            with suppress(A2AError, ValueError):
                return read_value(data, in_stream=True)
            raise
    return read_value(data, in_stream=True)


def _read_json(data: Bytes, kind: type) -> Any:
    """Read an answer in the form of JSON-RPC, or of an older text."""
    try:
        with logging_problems("the answer"):
            return read_task(data) if kind is Task else read_value(data, in_stream=False)
    except (A2AError, ValueError, RecursionError) as error:
        raise invalid_answer("the answer", kind, error) from None


def _is_of_jsonrpc(members: Any) -> bool:
    """Return whether an answer has the form of JSON-RPC.

    Only that form has a kind, its own spelling of states, and ``parts`` in a message (the proto has
    ``content``).
    """
    if not isinstance(members, dict):
        return False
    inner = [each for each in (members, *members.values()) if isinstance(each, dict)]
    statuses = [each["status"] for each in inner if isinstance(each.get("status"), dict)]
    inside = [each.get("message") for each in (members, *statuses)]
    has_parts = any(isinstance(m, dict) and "parts" in m and "content" not in m for m in inside)
    spelled = any(each.get("state") in _STATES for each in statuses)
    return "kind" in members or has_parts or spelled


def _object(body: Bytes) -> dict[str, Any]:
    members = protojson.parse(body)
    if not isinstance(members, dict):
        protojson.refuse([FieldViolation("", "the body must be a JSON object")])
    return members


def _read_message(route: Route, members: dict[str, Any]) -> Any:
    """Read a message with ``content``, as in the proto, or ``parts``, as in JSON-RPC."""
    message = members.get("message", members.get("request"))
    has = message.keys() if isinstance(message, dict) else ()
    if "content" in has or not (route.alias or "parts" in has):
        return proto.read_request(route.operation, members)
    members = {**members, "message": message}
    if route.alias:
        return protojson.read(members, values.LegacyTaskSendParams).to_model()
    return protojson.read(members, values.MessageSendParams).to_model()


def _normalize_message(route: Route, members: dict[str, Any]) -> dict[str, Any] | None:
    """Return the 0.3 form of a message request of an older specification; ``None`` for others.

    A message of the proto has the roles of 1.0; some callers name it ``request``.
    """
    message = members.get("message", members.get("request"))
    is_legacy = route.alias and isinstance(message, dict) and "content" not in message
    return normalize_params(route.operation, {**members, "message": message}, is_legacy=is_legacy)


def _create_config_members(members: dict[str, Any], task_id: str) -> dict[str, Any]:
    """Return a request to create a webhook, from a body that is the request or its ``config``."""
    if "config" not in members:
        members = {"config": members}
    parent = proto.task_name(task_id)
    parent_in_body = members.get("parent")
    if parent_in_body not in (None, "", parent):
        words = f"the path has {parent[:100]!r}, and the body another value"
        protojson.refuse([FieldViolation("parent", words)])
    return {**members, "parent": parent}
