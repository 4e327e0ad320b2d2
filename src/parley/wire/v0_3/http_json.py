"""HTTP+JSON in version 0.3 (0.3 §3.2.3, §3.5.3).

Bodies are the JSON of the proto. A message may also come in the form that JSON-RPC has, which is
what the text of 0.3 shows, and what the older paths were called with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

from parley.model import requests
from parley.model.cards import AgentCard
from parley.model.encoding import decode, encode
from parley.model.errors import A2AError, FieldViolation, InvalidAgentResponseError
from parley.model.operations import Operation
from parley.model.push import TaskPushNotificationConfig
from parley.model.requests import Empty, SendMessageRequest, SendMessageResponse
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event, Task
from parley.wire.dialect import HttpRequest, Route
from parley.wire.json import legacy_requests, protojson
from parley.wire.json.syntax import Bytes
from parley.wire.json.tolerance import noted
from parley.wire.v0_3 import cards, errors, operations, params, values
from parley.wire.v0_3.json import meant_params, read_task, read_value, unreadable
from parley.wire.v0_3.proto import codec, messages
from parley.wire.v0_3.proto.file_bytes import expects_text, with_text_bytes

_STATES = [*[state.value for state in values.State], "cancelled"]
_PATHS = {
    route.operation.name: (route.verb, route.path)
    for route in reversed(operations.ROUTES)
    if not route.alias
}


class HttpJson:
    """Bodies, paths and query parameters of HTTP+JSON (``HttpJsonCodec``).

    ``to_python``: what is written is what official Python peers read, where they differ: files are
    base64 text, and a request for a webhook is the whole message of the proto.
    """

    media_type: str = "application/json"
    routes: Sequence[Route] = operations.ROUTES
    unnamed: Sequence[Route] = operations.UNNAMED

    def __init__(self, *, to_python: bool = False) -> None:
        self._is_to_python = to_python

    @cached_property
    def _to_python(self) -> HttpJson:
        return HttpJson(to_python=True)

    def for_peer(self, peer: str) -> HttpJson:
        """Return what speaks to a peer; one of another name is told what the proto says."""
        return self._to_python if expects_text(peer) else self

    def read_request(
        self,
        route: Route,
        path: Mapping[str, str],
        query: Sequence[tuple[str, str]],
        body: Bytes,
    ) -> Any:
        """Return what is asked for by a path's fields, query parameters and a body.

        The path counts; a body need not repeat it, and is not read where it says nothing else.
        """
        kind = route.operation.request
        if kind is SendMessageRequest:
            return legacy_requests.read(
                _object(body),
                lambda members: _meant_message(route, members),
                lambda members: _read_message(members, is_older=route.alias),
            )
        if kind is requests.GetExtendedAgentCardRequest:
            return requests.GetExtendedAgentCardRequest()
        if kind is TaskPushNotificationConfig:
            return codec.read_request(route.operation, _creation(_object(body), path["id"]))
        members: dict[str, Any] = dict(query)
        if kind is requests.CancelTaskRequest:
            given = _object(body) if bytes(body).strip() not in (b"", b"null") else {}
            metadata = given.get("metadata")
            members = {"id": path["id"], "metadata": metadata}
            return protojson.read(members, requests.CancelTaskRequest)
        if kind is requests.ListTasksRequest:
            if members.get("includeArtifacts") in ("true", "false"):
                members["includeArtifacts"] = members["includeArtifacts"] == "true"
            return legacy_requests.read(
                members,
                lambda members: meant_params(route.operation, members, is_older=True),
                lambda members: codec.read_request(route.operation, members),
            )
        if kind is requests.ListTaskPushNotificationConfigsRequest:
            members["parent"] = codec.task_name(path["id"])
        elif "config_id" in path:
            members = {"name": codec.config_name(path["id"], path["config_id"])}
        else:
            members["name"] = codec.task_name(path["id"])
        return codec.read_request(route.operation, members)

    def write_request(self, operation: Operation, request: A2AStruct) -> HttpRequest:
        """Return the request that asks for an operation.

        Raises ``InvalidParamsError`` for an id that a path cannot carry.
        """
        verb, path = _PATHS[operation.name]
        ids = {"id": getattr(request, "id", ""), "config_id": ""}
        if "task_id" in request.__struct_fields__:
            ids = {"id": getattr(request, "task_id", ""), "config_id": ids["id"]}
        for field, value in ids.items():
            if f"{{{field}}}" in path:
                path = path.replace(f"{{{field}}}", _segment(field, value))
        if self._is_to_python:
            request = with_text_bytes(request)
        members = codec.write_request(operation, request)
        if isinstance(request, TaskPushNotificationConfig) and not self._is_to_python:
            # Some read the whole message, others what the proto calls the body: both are here.
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
        """Return the answer to an operation."""
        if isinstance(answer, AgentCard):
            # Official clients of one kind read the JSON of 0.3 here, of another kind that of the
            # proto. The two agree but for security schemes, which are said in both forms.
            return encode(cards.members_of(answer, with_latest=True))
        if self._is_to_python:
            answer = with_text_bytes(answer)
        return encode(codec.result_of(operation, answer))

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Return what an answer says."""
        if operation.response is Empty:
            return Empty()
        try:
            members = protojson.parse_answer(data)
        except A2AError as error:
            asked = f"the answer to {operation.name}"
            raise unreadable(asked, operation.response, error) from None
        kind = operation.response
        if kind in (SendMessageResponse, Task) and _is_of_jsonrpc(members):
            return _read_json(data, kind)
        try:
            return codec.read_result(operation, members)
        except InvalidAgentResponseError:
            if kind not in (SendMessageResponse, Task):
                raise
            try:
                return _read_json(data, kind)
            except InvalidAgentResponseError:
                pass
            raise

    def write_event(self, item: StreamItem) -> bytes:
        """Return one event of a stream."""
        event = with_text_bytes(item[0]) if self._is_to_python else item[0]
        return encode(messages.Response.of(event))

    def read_event(self, data: Bytes) -> Event:
        """Return what an event of a stream says. Raises the error that it holds instead."""
        try:
            with noted("an event of a stream"):
                return _read_event(data)
        except (A2AError, ValueError, RecursionError) as problem:
            try:
                error = errors.read_error(500, data)
            except InvalidAgentResponseError:
                kind = requests.StreamResponse
                raise unreadable("an event of a stream", kind, problem) from None
            raise error from None

    def ends_stream(self, event: Event) -> bool:
        """Whether the event is a final one (0.3 §7.2.2)."""
        return codec.ends_stream(event)

    def write_error(self, error: A2AError) -> bytes:
        """Return the body of a refusal."""
        return errors.write_error(error)

    def read_error(self, status: int, body: Bytes) -> A2AError:
        """Return the error that a refusal means: by its code, else by its status.

        Raises ``InvalidAgentResponseError`` when it is not in the form of an agent's.
        """
        return errors.read_error(status, body)


def _read_event(data: Bytes) -> Event:
    try:
        return decode(data, messages.Response).meant()
    except (ValueError, RecursionError):
        members = protojson.parse_answer(data)
    if not _is_of_jsonrpc(members):
        try:
            return protojson.read_answer(members, messages.Response).meant()
        except (A2AError, ValueError):
            try:
                return read_value(data, in_stream=True)
            except (A2AError, ValueError):
                pass
            raise
    return read_value(data, in_stream=True)


def _read_json(data: Bytes, kind: type) -> Any:
    """Return an answer in the form that JSON-RPC has, or that of an older text."""
    try:
        with noted("the answer"):
            return read_task(data) if kind is Task else read_value(data, in_stream=False)
    except (A2AError, ValueError, RecursionError) as error:
        raise unreadable("the answer", kind, error) from None


def _is_of_jsonrpc(members: Any) -> bool:
    """Whether an answer is in the form of JSON-RPC, by what only that has.

    That is a kind, a state as it is spelled there, and a message's parts, which are ``content`` in
    the proto.
    """
    if not isinstance(members, dict):
        return False
    inner = [each for each in (members, *members.values()) if isinstance(each, dict)]
    statuses = [each["status"] for each in inner if isinstance(each.get("status"), dict)]
    said = [each.get("message") for each in (members, *statuses)]
    has_parts = any(isinstance(m, dict) and "parts" in m and "content" not in m for m in said)
    spelled = any(each.get("state") in _STATES for each in statuses)
    return "kind" in members or has_parts or spelled


def _object(body: Bytes) -> dict[str, Any]:
    members = protojson.parse(body)
    if not isinstance(members, dict):
        protojson.refuse([FieldViolation("", "the body must be a JSON object")])
    return members


def _read_message(members: dict[str, Any], *, is_older: bool) -> SendMessageRequest:
    """Read a message in either form: that of the proto has content, that of JSON-RPC parts."""
    message = members.get("message", members.get("request"))
    has = message.keys() if isinstance(message, dict) else ()
    if "content" in has or not (is_older or "parts" in has):
        return protojson.read(members, codec.SendParams).meant()
    members = {**members, "message": message}
    if is_older:
        return protojson.read(members, params.TaskSendParams).meant()
    return protojson.read(members, params.MessageSendParams).meant()


def _meant_message(route: Route, members: dict[str, Any]) -> dict[str, Any] | None:
    """Return a message's parameters as 0.3 has them, if they are those of an older text.

    The proto's own message has the roles of 1.0, and is called ``request`` by some.
    """
    message = members.get("message", members.get("request"))
    is_older = route.alias and isinstance(message, dict) and "content" not in message
    return meant_params(route.operation, {**members, "message": message}, is_older=is_older)


def _creation(members: dict[str, Any], task_id: str) -> dict[str, Any]:
    """Return a request for a further webhook, of a body that may be all of it or its ``config``."""
    if "config" not in members:
        members = {"config": members}
    parent = codec.task_name(task_id)
    given = members.get("parent")
    if given not in (None, "", parent):
        words = f"the path says {parent[:100]!r}, and the body something else"
        protojson.refuse([FieldViolation("parent", words)])
    return {**members, "parent": parent}


def _segment(field: str, value: str) -> str:
    if value in ("", ".", ".."):
        protojson.refuse([FieldViolation(field, f"{value!r} cannot be part of a path")])
    return quote(value, safe="")
