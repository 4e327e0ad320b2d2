"""The JSON of version 0.3, as JSON-RPC carries it and webhooks are told (0.3 §6, §7)."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model import requests
from parley.model.cards import AgentCard
from parley.model.encoding import decode, encode
from parley.model.errors import A2AError, InvalidAgentResponseError, InvalidParamsError
from parley.model.operations import Operation
from parley.model.push import TaskPushNotificationConfig
from parley.model.requests import Empty, ListTasksResponse, SendMessageRequest, SendMessageResponse
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event, Task, TaskStatusUpdateEvent
from parley.wire.json import legacy_answers, legacy_requests, protojson
from parley.wire.json.syntax import Bytes
from parley.wire.json.tolerance import is_null, noted
from parley.wire.v0_3 import cards, params, values

Configs = requests.ListTaskPushNotificationConfigsResponse

_PARAMS: dict[type[A2AStruct], Any] = {
    SendMessageRequest: params.MessageSendParams,
    requests.GetTaskRequest: params.TaskQueryParams,
    requests.ListTasksRequest: params.ListTasksParams,
    TaskPushNotificationConfig: params.TaskPushNotificationConfig,
    requests.GetTaskPushNotificationConfigRequest: params.GetConfigParams,
    requests.ListTaskPushNotificationConfigsRequest: params.ListConfigsParams,
    requests.DeleteTaskPushNotificationConfigRequest: params.DeleteConfigParams,
}
_WRITTEN_PARAMS: dict[type[A2AStruct], Any] = {
    **_PARAMS,
    SendMessageRequest: params.WrittenMessageSendParams,
}
"""The parameters that 0.3 has names of its own for; others are those of the data model."""

_OTHER_STATES = {
    "cancelled": values.State.CANCELED.value,
    "TASK_STATE_CANCELLED": values.State.CANCELED.value,
    **{state.value: said.value for state, said in values.STATE_OF.items()},
}
"""How else a state is spelled in the filter of a list: as in English, or as in 1.0."""

_OTHER_ROLES = {"ROLE_USER": values.Role.USER.value, "ROLE_AGENT": values.Role.AGENT.value}

_RESULTS: dict[type[A2AStruct], Any] = {
    Task: values.Task,
    ListTasksResponse: params.ListTasksResult,
    TaskPushNotificationConfig: params.AnsweredConfig,
}


def read_params(operation: Operation, data: Bytes) -> Any:
    """Return what parameters ask for. Raises ``A2AError`` that names the fields that are wrong."""
    kind = operation.request
    is_older = kind is SendMessageRequest and operation.aliases
    named = params.TaskSendParams if is_older else _PARAMS.get(kind)
    given: Any
    try:
        given = protojson.decode(data, named or kind)
    except InvalidParamsError as error:
        given = legacy_requests.read(
            protojson.parse(data),
            lambda members: meant_params(operation, members, is_older=bool(operation.aliases)),
            lambda members: protojson.read(members, named or kind),
            error,
        )
    return without_tenant(given) if named is None else given.meant()


def meant_params(operation: Operation, members: Any, *, is_older: bool) -> dict[str, Any] | None:
    """Return parameters as 0.3 has them, if they are those of an older text.

    What ``is_older`` by its name may have the roles of 1.0, with which texts mix older names.
    """
    roles = _OTHER_ROLES if is_older else {}
    return legacy_requests.params(
        operation, members, states=_OTHER_STATES, roles=roles, task_ids=True
    )


def write_params(request: A2AStruct) -> bytes:
    """Return the parameters that ask for ``request``."""
    named = _WRITTEN_PARAMS.get(type(request))
    return encode(without_tenant(request) if named is None else named.of(request))


def without_tenant(request: Any) -> Any:
    """Return a request as 0.3 has it, which knows no tenants."""
    return msgspec.structs.replace(request, tenant="") if request.tenant else request


class _Signs(msgspec.Struct):
    """The members that tell the objects of 0.3 apart."""

    kind: Any = None
    id: msgspec.Raw = msgspec.Raw()
    status: msgspec.Raw = msgspec.Raw()
    artifact: msgspec.Raw = msgspec.Raw()
    parts: msgspec.Raw = msgspec.Raw()
    role: msgspec.Raw = msgspec.Raw()


_signs = msgspec.json.Decoder(_Signs).decode
_KINDS: dict[str, type[values.Value]] = {
    "task": values.Task,
    "message": values.Message,
    "status-update": values.TaskStatusUpdateEvent,
    "artifact-update": values.TaskArtifactUpdateEvent,
}


def _kind_of(data: Bytes) -> type[values.Value]:
    """Return what an object is: what it says, or else what its members say."""
    signs = _signs(data)
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


_CONFIGS = tuple[params.AnsweredConfig, ...]


class Json:
    """Answers and events as the JSON of 0.3 (``Codec``)."""

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Return the answer to an operation."""
        kind = operation.response
        if kind is SendMessageResponse:
            return encode(values.value_of(answer))
        if kind is Empty:
            return b"null"
        if kind is AgentCard:
            return cards.write_card(answer)
        if kind is Configs:
            return encode([params.TaskPushNotificationConfig.of(each) for each in answer.configs])
        return encode(_RESULTS[kind].of(answer))

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Return what an answer says."""
        kind = operation.response
        if kind is Empty:
            return Empty()
        asked = f"the answer to {operation.name}"
        try:
            with noted(asked):
                return _read_answer(data, kind)
        except (A2AError, ValueError, RecursionError) as error:
            raise unreadable(asked, kind, error) from None

    def write_event(self, item: StreamItem) -> bytes:
        """Return one event of a stream (0.3 §7.2.1)."""
        return encode(values.value_of(item[0]))

    def read_event(self, data: Bytes) -> Event:
        """Return what an event of a stream says."""
        try:
            with noted("an event of a stream"):
                return read_value(data, in_stream=True)
        except (A2AError, ValueError, RecursionError) as error:
            raise unreadable("an event of a stream", requests.StreamResponse, error) from None

    def ends_stream(self, event: Event) -> bool:
        """Whether the event is a final one (0.3 §7.2.2)."""
        return isinstance(event, TaskStatusUpdateEvent) and values.is_final(event.status)


def _read_answer(data: Bytes, kind: type) -> Any:
    if kind is SendMessageResponse:
        return read_value(data, in_stream=False)
    if kind is Task:
        return read_task(data)
    if kind is AgentCard:
        return cards.read_card(protojson.decode_answer(data, dict))
    if kind is Configs:
        # An official agent says null for an empty list.
        given = () if is_null(data) else protojson.decode_answer(data, _CONFIGS)
        return Configs(configs=tuple([each.meant() for each in given]))
    if kind is ListTasksResponse and is_null(data):
        return ListTasksResponse(tasks=(), next_page_token="", page_size=0, total_size=0)
    return protojson.decode_answer(data, _RESULTS[kind]).meant()


def read_value(data: Bytes, *, in_stream: bool) -> Event:
    """Return an answer to a message, or an event of a stream.

    One that is not canonical may be that of an older text. Raises ``A2AError``, ``ValueError``.
    """
    try:
        return decode(data, _kind_of(data)).meant()
    except (ValueError, RecursionError):
        value = protojson.parse_answer(data)
    meant = legacy_answers.meant(value, SPELLING, in_stream=in_stream)
    if meant is None:
        return protojson.read_answer(value, _kind_of(data)).meant()
    return meant.given(protojson.read_answer(meant.members, _NAMED[meant.name]).meant())


def read_task(data: Bytes) -> Task:
    """Return a task, as ``read_value`` does."""
    try:
        return decode(data, values.Task).meant()
    except (ValueError, RecursionError):
        members = legacy_answers.task(protojson.parse_answer(data), SPELLING)
        return protojson.read_answer(members, values.Task).meant()


_NAMED: dict[str, type[values.Value]] = {
    "task": values.Task,
    "message": values.Message,
    "statusUpdate": values.TaskStatusUpdateEvent,
    "artifactUpdate": values.TaskArtifactUpdateEvent,
}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of 1.0 as 0.3 has it; one of 0.3 stays as it is."""
    if part.get("raw") is None and part.get("url") is None:
        return part
    file = {theirs: part[ours] for ours, theirs in _FILE.items() if part.get(ours)}
    made = {"kind": "file", "file": file, "metadata": part.get("metadata")}
    return {name: item for name, item in made.items() if item is not None}


_FILE = {"raw": "bytes", "url": "uri", "mediaType": "mimeType", "filename": "name"}

SPELLING = legacy_answers.Spelling(
    states=_OTHER_STATES, roles=_OTHER_ROLES, agent=values.Role.AGENT.value, part=_part
)
"""How 0.3 spells what is in an answer of an older text, or of 1.0."""


def unreadable(what: str, kind: type, error: Exception) -> InvalidAgentResponseError:
    """Return the complaint that an agent's words are not a ``kind``."""
    words = error.message if isinstance(error, A2AError) else str(error)
    violations = error.violations if isinstance(error, InvalidParamsError) else ()
    return InvalidAgentResponseError(
        f"{what} is not a {kind.__name__} of version 0.3: {words}", violations=violations
    )
