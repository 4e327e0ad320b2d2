"""The JSON of version 1.0: answers, events and cards, and its JSON-RPC (specification §9).

The security of a card (§4.4, §8) is read in all forms: of 1.0, of 0.3 and OpenAPI, and mixed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from parley.model.cards import LOCATIONS, AgentCard
from parley.model.errors import A2AError, InvalidParamsError
from parley.model.operations import (
    BY_NAME,
    Empty,
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    Operation,
    SendMessageResponse,
    StreamResponse,
)
from parley.model.parts import Message, Role
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct, decode, encode
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from parley.wire import jsonrpc
from parley.wire.errors import invalid_answer
from parley.wire.json import legacy, problems, protojson
from parley.wire.json.problems import logging_problems
from parley.wire.json.syntax import Bytes, is_null

_MEMBERS: dict[type, bytes] = {
    Task: b'{"task":',
    msgspec.Raw: b'{"task":',  # a task that is JSON already
    Message: b'{"message":',
    TaskStatusUpdateEvent: b'{"statusUpdate":',
    TaskArtifactUpdateEvent: b'{"artifactUpdate":',
}

_OTHER_STATES = dict.fromkeys(
    ("cancelled", "canceled", "TASK_STATE_CANCELLED"), TaskState.CANCELED.value
)


def normalize_params(operation: Operation, members: Any) -> dict[str, Any] | None:
    """Return the 1.0 form of the parameters of an older specification; ``None`` if unchanged."""
    return legacy.normalize_request(operation, members, states=_OTHER_STATES)


def read_params(operation: Operation, data: Bytes) -> Any:
    """Read the parameters of a request, of an older text too."""
    try:
        return protojson.decode(data, operation.request)
    except InvalidParamsError as error:
        return legacy.read_with_fallback(
            protojson.parse(data),
            lambda members: normalize_params(operation, members),
            lambda members: protojson.read(members, operation.request),
            error,
        )


# The members that hold the items of a page.
_PAGES: dict[type, str] = {
    ListTasksResponse: "tasks",
    ListTaskPushNotificationConfigsResponse: "configs",
}


class Json:
    """Answers and events as ProtoJSON of the data model (``Codec``).

    ``encode`` copies a task that is JSON already.
    """

    takes_json: bool = True

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Write the answer to an operation."""
        if operation.response is SendMessageResponse:
            return b"".join((_MEMBERS[type(answer)], encode(answer), b"}"))
        return encode(answer)

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Read the answer to an operation."""
        if operation.response is Empty:
            return Empty()
        kind = operation.response
        if kind is SendMessageResponse:
            try:
                return decode(data, SendMessageResponse).payload
            except (ValueError, RecursionError):
                return self._read(operation.name, data, kind, _read_answer)
        if kind is Task:
            try:
                return decode(data, Task)
            except (ValueError, RecursionError):
                return self._read(operation.name, data, kind, _read_task)
        return self._read(operation.name, data, kind, lambda data: _read_other(data, kind))

    def write_event(self, item: StreamItem) -> bytes:
        """Write one event of a stream (§3.2.3)."""
        event, _, json = item
        return b"".join((_MEMBERS[type(event)], json or encode(event), b"}"))

    def read_event(self, data: Bytes) -> Event:
        """Read one event of a stream."""
        try:
            return decode(data, StreamResponse).payload
        except (ValueError, RecursionError):
            event: Event = self._read("a stream", data, StreamResponse, _read_event)
            return event

    def ends_stream(self, event: Event) -> bool:
        """Return false: streams of this version end when their service ends them."""
        return False

    def _read(self, asked: str, data: Bytes, kind: type, read: Callable[[Bytes], Any]) -> Any:
        try:
            with logging_problems(f"the answer to {asked}"):
                return read(data)
        except A2AError as error:
            raise invalid_answer(f"the answer to {asked}", kind.__name__, error) from None


def _read_answer(data: Bytes) -> Event:
    return _read_value(data, SendMessageResponse, in_stream=False)


def _read_event(data: Bytes) -> Event:
    return _read_value(data, StreamResponse, in_stream=True)


def _read_value(
    data: Bytes, kind: type[SendMessageResponse | StreamResponse], *, in_stream: bool
) -> Event:
    """Read an answer or an event that is not canonical, such as one of an older specification."""
    value = protojson.parse_answer(data)
    known = legacy.normalize_answer(value, SPELLING, in_stream=in_stream)
    if known is None:
        return protojson.read_answer(value, kind).payload
    return known.strip_placeholder(protojson.read_answer({known.name: known.members}, kind).payload)


def _read_task(data: Bytes) -> Task:
    members = legacy.normalize_task(protojson.parse_answer(data), SPELLING)
    return protojson.read_answer(members, Task)


def _read_other(data: Bytes, kind: type) -> Any:
    if kind is AgentCard:
        return read_card(protojson.decode_answer(data, dict))
    items = _PAGES.get(kind)
    if items is not None and is_null(data):
        return protojson.read_answer({}, kind)
    if items is not None and memoryview(data)[:1].tobytes() == b"[":
        # Some agents send the items without the page object.
        return protojson.read_answer({items: protojson.parse_answer(data)}, kind)
    return protojson.decode_answer(data, kind)


SPELLING = legacy.Spelling(
    states={
        **{state.name.lower().replace("_", "-"): state.value for state in TaskState},
        "unknown": TaskState.UNSPECIFIED.value,
        **_OTHER_STATES,
    },
    roles=legacy.LATEST_ROLES,
    agent=Role.AGENT.value,
    part=legacy.part_to_latest,
)
"""The spellings of 1.0, by the spellings of older texts and of 0.3."""


class JsonRpc(Json):
    """Parameters, results and errors of JSON-RPC (``JsonRpcCodec``)."""

    methods: Mapping[str, Operation] = BY_NAME
    names: Mapping[str, str] = {name: name for name in BY_NAME}
    state_names: Mapping[TaskState, str] = {state: state.value for state in TaskState}

    def read_request(self, operation: Operation, params: Bytes) -> Any:
        """Read the parameters of a request."""
        return read_params(operation, params)

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the parameters of a request."""
        return encode(request)

    def write_error(self, error: A2AError) -> bytes:
        """Write the error object of a response (§9.5)."""
        return jsonrpc.error_object(error)

    def read_error(self, data: Bytes) -> A2AError:
        """Read the error object of a response."""
        return jsonrpc.read_error_object(data)

    def read_answer(self, operation: Operation, body: Bytes, id: int | None) -> Any:
        """Read a whole response and its result in one step, if both are canonical."""
        if operation.response is SendMessageResponse:
            answer = jsonrpc.read_result(body, SendMessageResponse, id)
            return None if answer is None else answer.payload
        return jsonrpc.read_result(body, Task, id) if operation.response is Task else None

    def read_event_answer(self, body: Bytes, id: int | None) -> Event | None:
        """Read a whole response of a stream and its event in one step, if both are canonical."""
        answer = jsonrpc.read_result(body, StreamResponse, id)
        return None if answer is None else answer.payload


UNREADABLE = "(unreadable)"
"""The scheme of an unreadable requirement. No card declares it, so no credential fits."""

_API_KEY, _HTTP = "apiKeySecurityScheme", "httpAuthSecurityScheme"
_OAUTH2, _OPENID = "oauth2SecurityScheme", "openIdConnectSecurityScheme"
_KINDS = {
    "apikey": _API_KEY,
    "http": _HTTP,
    "httpauth": _HTTP,
    "bearer": _HTTP,
    "basic": _HTTP,
    "oauth": _OAUTH2,
    "oauth2": _OAUTH2,
    "openidconnect": _OPENID,
    "oidc": _OPENID,
    "mutualtls": "mtlsSecurityScheme",
    "mtls": "mtlsSecurityScheme",
}
_SCHEME_MEMBERS = {
    "in": "location",
    "location": "location",
    "name": "name",
    "scheme": "scheme",
    "bearerformat": "bearerFormat",
    "openidconnecturl": "openIdConnectUrl",
    "oauth2metadataurl": "oauth2MetadataUrl",
    "flows": "flows",
    "type": "type",
}
# The kind of a scheme without a type, by a member that only this kind has.
_TELLING = {
    "location": _API_KEY,
    "scheme": _HTTP,
    "openIdConnectUrl": _OPENID,
    "flows": _OAUTH2,
    "flow": _OAUTH2,
}
# If there are several flows the first in this list is used, because 1.0 allows only one.
_FLOWS = {
    "authorizationcode": "authorizationCode",
    "accesscode": "authorizationCode",
    "clientcredentials": "clientCredentials",
    "application": "clientCredentials",
    "devicecode": "deviceCode",
    "implicit": "implicit",
    "password": "password",
}


def read_card(members: dict[str, Any]) -> AgentCard:
    """Read a card tolerantly.

    Unknown members, security schemes of unknown kinds and wrong optional members are left out.
    Requirements are always kept: an unreadable one names a scheme that no card declares. Raises
    ``A2AError`` with the problem.
    """
    card = _secured(members)
    if isinstance(card.get("skills"), list):
        card["skills"] = [
            problems.read_below(f"skills[{index}]", _secured, skill)
            for index, skill in enumerate(card["skills"])
        ]
    schemes = card.pop("security_schemes", None) or {}
    schemes = card.get("securitySchemes") or schemes
    if isinstance(schemes, dict):
        card["securitySchemes"] = {name: _scheme(each) for name, each in schemes.items()}
    return protojson.read_answer(card, AgentCard)


def _secured(secured: Any) -> Any:
    """Return a card or a skill with its requirements in the form of 1.0."""
    if not isinstance(secured, dict):
        return secured
    members = dict(secured)
    names = ("securityRequirements", "security_requirements", "security")
    given = [members.pop(name, None) for name in names]
    needs: Any = next((each for each in given if each not in (None, [])), [])
    needs = needs if isinstance(needs, list) else [needs]
    if needs:
        members["securityRequirements"] = [_requirement(need) for need in needs]
    return members


def _requirement(need: Any) -> dict[str, Any]:
    if isinstance(need, str):
        need = [need]
    schemes = need.get("schemes", need) if isinstance(need, dict) else need
    if isinstance(schemes, list) and schemes and all(isinstance(each, str) for each in schemes):
        schemes = dict.fromkeys(schemes)
    if not isinstance(schemes, dict):
        problems.report([("securityRequirements", "expected objects with schemes")])
        schemes = {UNREADABLE: None}
    return {"schemes": {name: {"list": _scopes(each)} for name, each in schemes.items()}}


def _scopes(given: Any) -> list[str]:
    """Return scopes from the form of any version; servers of the Go SDK (2.4) write a list."""
    if isinstance(given, dict):
        given = given.get("list")
    given = [given] if isinstance(given, str) else given
    return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def _scheme(scheme: Any) -> Any:
    """Return a security scheme in the form of 1.0, as far as possible."""
    if not isinstance(scheme, dict):
        return scheme  # the reader reports the problem
    kinds = {
        _KINDS[_spelled(key)]: held
        for key, held in scheme.items()
        if isinstance(held, dict) and _spelled(key) in _KINDS
    }
    type = ""
    if len(kinds) == 1:
        ((kind, scheme),) = kinds.items()
    elif kinds:
        return scheme
    held = {_SCHEME_MEMBERS.get(_spelled(key), key): value for key, value in scheme.items()}
    if not kinds:
        type = _spelled(str(held.pop("type", "")))
        telling = [_TELLING[key] for key in held if key in _TELLING]
        kind = _KINDS.get(type, "") if type else "".join(telling[:1])
    location = held.get("location")
    if kind == _API_KEY and isinstance(location, str) and location.lower() in LOCATIONS:
        held["location"] = location.lower()
    elif kind == _HTTP and not kinds and (type in ("bearer", "basic") or "bearerFormat" in held):
        held = {"scheme": "basic" if type == "basic" else "bearer", **held}
    elif kind == _OAUTH2:
        held["flows"] = _flow(held)
    return {kind: held} if kind else scheme


def _flow(scheme: dict[str, Any]) -> Any:
    """Return the flow of an OAuth scheme that counts, in an object by its name."""
    flows = scheme.get("flows")
    if isinstance(scheme.get("flow"), str) and flows is None:  # as in OpenAPI 2
        flows = {scheme["flow"]: scheme}
    if not isinstance(flows, dict):
        return flows
    known = {_FLOWS.get(_spelled(key), key): flow for key, flow in flows.items()}
    for name in _FLOWS.values():
        flow = known.get(name)
        if isinstance(flow, dict):
            scopes = flow.get("scopes")
            if isinstance(scopes, list):
                flow = {**flow, "scopes": {str(scope): "" for scope in scopes}}
            return {name: flow}
    return known


def _spelled(name: str) -> str:
    """Return a name in lower case, without separators and the common suffix of all members."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("securityscheme")
