"""The JSON of version 0.3 (0.3 §6, §7), in JSON-RPC (§3.2.1) and push notifications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from parley.model import operations
from parley.model.cards import AgentCard
from parley.model.errors import A2AError, InvalidAgentResponseError, InvalidParamsError
from parley.model.operations import (
    Empty,
    ListTasksResponse,
    Operation,
    SendMessageRequest,
    SendMessageResponse,
    TaskPushNotificationConfig,
)
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct, decode, encode
from parley.model.tasks import Event, Task, TaskState
from parley.wire import errors, jsonrpc
from parley.wire.json import legacy, protojson
from parley.wire.json.problems import logging_problems
from parley.wire.json.syntax import Bytes, is_null
from parley.wire.v0_3 import cards, values
from parley.wire.v0_3.operations import METHODS, NAMES, with_wire_names

Configs = operations.ListTaskPushNotificationConfigsResponse

_PARAMS: dict[type[A2AStruct], Any] = {
    SendMessageRequest: values.MessageSendParams,
    operations.GetTaskRequest: values.TaskQueryParams,
    operations.ListTasksRequest: values.ListTasksParams,
    TaskPushNotificationConfig: values.TaskPushNotificationConfig,
    operations.GetTaskPushNotificationConfigRequest: values.GetConfigParams,
    operations.ListTaskPushNotificationConfigsRequest: values.ListConfigsParams,
    operations.DeleteTaskPushNotificationConfigRequest: values.DeleteConfigParams,
}
"""The requests with special parameters in 0.3; others use the data model's."""

_OTHER_STATES = {
    "cancelled": values.State.CANCELED.value,
    "TASK_STATE_CANCELLED": values.State.CANCELED.value,
    **{state.value: ours.value for state, ours in values.STATE_OF.items()},
}
"""Other spellings of states in a filter: British spellings, and the spellings of 1.0."""

_OTHER_ROLES = {"ROLE_USER": values.Role.USER.value, "ROLE_AGENT": values.Role.AGENT.value}

_RESULTS: dict[type[A2AStruct], Any] = {
    Task: values.Task,
    ListTasksResponse: values.ListTasksResult,
    TaskPushNotificationConfig: values.AnswerConfig,
}


def normalize_params(
    operation: Operation, members: Any, *, is_legacy: bool
) -> dict[str, Any] | None:
    """Return the 0.3 form of the parameters of an older specification; ``None`` if unchanged.

    Under a legacy method name they may have the roles of 1.0: some examples mix the two.
    """
    roles = _OTHER_ROLES if is_legacy else {}
    return legacy.normalize_request(
        operation, members, states=_OTHER_STATES, roles=roles, task_ids=True
    )


def without_tenant(request: Any) -> Any:
    """Return a request without its tenant: 0.3 has none."""
    return msgspec.structs.replace(request, tenant="") if request.tenant else request


class _Discriminators(msgspec.Struct):
    """The members by which objects of 0.3 are identified."""

    kind: Any = None
    id: msgspec.Raw = msgspec.Raw()
    status: msgspec.Raw = msgspec.Raw()
    artifact: msgspec.Raw = msgspec.Raw()
    parts: msgspec.Raw = msgspec.Raw()
    role: msgspec.Raw = msgspec.Raw()


_discriminators = msgspec.json.Decoder(_Discriminators).decode
_KINDS: dict[str, type[values.Value]] = {
    "task": values.Task,
    "message": values.Message,
    "status-update": values.TaskStatusUpdateEvent,
    "artifact-update": values.TaskArtifactUpdateEvent,
}


def _kind_of(data: Bytes) -> type[values.Value]:
    """Return the type of an object: by its kind, or else by its members."""
    signs = _discriminators(data)
    named = _KINDS.get(signs.kind) if isinstance(signs.kind, str) else None
    if named is not None:
        return named
    if signs.artifact:
        return values.TaskArtifactUpdateEvent
    if signs.status:
        return values.Task if signs.id else values.TaskStatusUpdateEvent
    if signs.parts or signs.role:
        return values.Message
    raise ValueError("it has neither a kind nor the members of a task, a message or an update")


_CONFIGS = tuple[values.AnswerConfig, ...]


class Json:
    """Answers and events as the JSON of 0.3 (``Codec``)."""

    takes_json: bool = False

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Write the answer to an operation."""
        kind = operation.response
        if kind is SendMessageResponse:
            return encode(values.from_model(answer))
        if kind is Empty:
            return b"null"
        if kind is AgentCard:
            return cards.write_card(answer)
        if kind is Configs:
            return encode([values.TaskPushNotificationConfig.of(each) for each in answer.configs])
        return encode(_RESULTS[kind].of(answer))

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Read the answer to an operation."""
        kind = operation.response
        if kind is Empty:
            return Empty()
        asked = f"the answer to {operation.name}"
        try:
            with logging_problems(asked):
                return _read_answer(data, kind)
        except (A2AError, ValueError, RecursionError) as error:
            raise invalid_answer(asked, kind, error) from None

    def write_event(self, item: StreamItem) -> bytes:
        """Write one event of a stream (0.3 §7.2.1)."""
        return encode(values.from_model(item[0]))

    def read_event(self, data: Bytes) -> Any:
        """Read one event of a stream."""
        try:
            with logging_problems("an event of a stream"):
                return read_value(data, in_stream=True)
        except (A2AError, ValueError, RecursionError) as error:
            raise invalid_answer("an event of a stream", operations.StreamResponse, error) from None

    def ends_stream(self, event: Event) -> bool:
        """Return whether the event is final (0.3 §7.2.2)."""
        return values.ends_stream(event)


def _read_answer(data: Bytes, kind: type) -> Any:
    if kind is SendMessageResponse:
        return read_value(data, in_stream=False)
    if kind is Task:
        return read_task(data)
    if kind is AgentCard:
        return cards.read_card(protojson.decode_answer(data, dict))
    if kind is Configs:
        # An official agent sends null for an empty list.
        given = () if is_null(data) else protojson.decode_answer(data, _CONFIGS)
        return Configs(configs=tuple([each.to_model() for each in given]))
    if kind is ListTasksResponse and is_null(data):
        return ListTasksResponse(tasks=(), next_page_token="", page_size=0, total_size=0)
    return protojson.decode_answer(data, _RESULTS[kind]).to_model()


def read_value(data: Bytes, *, in_stream: bool) -> Any:
    """Read an answer to a message, or an event of a stream; older texts too.

    Raises ``A2AError``, ``ValueError``.
    """
    try:
        return decode(data, _kind_of(data)).to_model()
    except (ValueError, RecursionError):
        value = protojson.parse_answer(data)
    known = legacy.normalize_answer(value, SPELLING, in_stream=in_stream)
    if known is None:
        return protojson.read_answer(value, _kind_of(data)).to_model()
    return known.strip_placeholder(
        protojson.read_answer(known.members, _NAMED[known.name]).to_model()
    )


def read_task(data: Bytes) -> Any:
    """Read a task, as ``read_value`` does."""
    try:
        return decode(data, values.Task).to_model()
    except (ValueError, RecursionError):
        members = legacy.normalize_task(protojson.parse_answer(data), SPELLING)
        return protojson.read_answer(members, values.Task).to_model()


_NAMED: dict[str, type[values.Value]] = {
    "task": values.Task,
    "message": values.Message,
    "statusUpdate": values.TaskStatusUpdateEvent,
    "artifactUpdate": values.TaskArtifactUpdateEvent,
}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Return the 0.3 form of a part of 1.0; a part of 0.3 is left unchanged."""
    if part.get("raw") is None and part.get("url") is None:
        return part
    file = {theirs: part[ours] for ours, theirs in _FILE.items() if part.get(ours)}
    made = {"kind": "file", "file": file, "metadata": part.get("metadata")}
    return {name: item for name, item in made.items() if item is not None}


_FILE = {"raw": "bytes", "url": "uri", "mediaType": "mimeType", "filename": "name"}

SPELLING = legacy.Spelling(
    states=_OTHER_STATES, roles=_OTHER_ROLES, agent=values.Role.AGENT.value, part=_part
)
"""The spellings of 0.3, by the spellings of older texts and of 1.0."""


def invalid_answer(what: str, kind: type, error: Exception) -> InvalidAgentResponseError:
    """Return the error for an agent's ``what`` that is not a ``kind``."""
    return errors.invalid_answer(what, f"{kind.__name__} of version 0.3", error)


class JsonRpc(Json):
    """Parameters, results and errors of JSON-RPC (``JsonRpcCodec``)."""

    methods: Mapping[str, Operation] = METHODS
    names: Mapping[str, str] = NAMES
    state_names: Mapping[TaskState, str] = {
        state: written.value for state, written in values.STATE_OF.items()
    }

    def read_request(self, operation: Operation, params: Bytes) -> Any:
        """Read the parameters of a request."""
        kind = operation.request
        is_legacy = kind is SendMessageRequest and operation.aliases
        named = values.LegacyTaskSendParams if is_legacy else _PARAMS.get(kind)
        given: Any
        try:
            given = protojson.decode(params, named or kind)
        except InvalidParamsError as error:
            given = legacy.read_with_fallback(
                protojson.parse(params),
                lambda members: normalize_params(
                    operation, members, is_legacy=bool(operation.aliases)
                ),
                lambda members: protojson.read(members, named or kind),
                error,
            )
        return without_tenant(given) if named is None else given.to_model()

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the parameters of a request."""
        named = _PARAMS.get(type(request))
        return encode(without_tenant(request) if named is None else named.of(request))

    def write_error(self, error: A2AError) -> bytes:
        """Write the error object of a response.

        Codes outside of 0.3 keep their number: callers display unknown ones.
        """
        return jsonrpc.error_object(with_wire_names(error))

    def read_error(self, data: Bytes) -> A2AError:
        """Read the error object of a response."""
        return jsonrpc.read_error_object(data)

    def read_answer(self, operation: Operation, body: Bytes, id: int | None) -> Any:
        """Return ``None``: an answer of 0.3 is translated first."""
        return None

    def read_event_answer(self, body: Bytes, id: int | None) -> Event | None:
        """Return ``None``: an event of 0.3 is translated first."""
        return None
