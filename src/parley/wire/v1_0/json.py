"""The JSON of answers and events in version 1.0, which JSON-RPC and HTTP+JSON share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from parley.model.cards import AgentCard
from parley.model.errors import A2AError, InvalidParamsError
from parley.model.operations import (
    Empty,
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    Operation,
    SendMessageResponse,
    StreamResponse,
)
from parley.model.parts import Message, Role
from parley.model.service import StreamItem
from parley.model.struct import decode, encode
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from parley.wire.errors import invalid_answer
from parley.wire.json import legacy_answers, legacy_requests, protojson
from parley.wire.json.syntax import Bytes, is_null
from parley.wire.json.tolerance import logging_problems
from parley.wire.v1_0 import cards

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
    """Return the 1.0 form of the parameters of an older text; ``None`` if they are not."""
    return legacy_requests.normalize(operation, members, states=_OTHER_STATES)


def read_params(operation: Operation, data: Bytes) -> Any:
    """Read the parameters of a request, of an older text too."""
    try:
        return protojson.decode(data, operation.request)
    except InvalidParamsError as error:
        return legacy_requests.read_with_fallback(
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
    """Read an answer or an event that is not canonical, such as one of an older text."""
    value = protojson.parse_answer(data)
    known = legacy_answers.normalize(value, SPELLING, in_stream=in_stream)
    if known is None:
        return protojson.read_answer(value, kind).payload
    return known.strip_placeholder(protojson.read_answer({known.name: known.members}, kind).payload)


def _read_task(data: Bytes) -> Task:
    members = legacy_answers.normalize_task(protojson.parse_answer(data), SPELLING)
    return protojson.read_answer(members, Task)


def _read_other(data: Bytes, kind: type) -> Any:
    if kind is AgentCard:
        return cards.read_card(protojson.decode_answer(data, dict))
    items = _PAGES.get(kind)
    if items is not None and is_null(data):
        return protojson.read_answer({}, kind)
    if items is not None and memoryview(data)[:1].tobytes() == b"[":
        # Some agents send the items without the page around them.
        return protojson.read_answer({items: protojson.parse_answer(data)}, kind)
    return protojson.decode_answer(data, kind)


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Return the 1.0 form of a part of 0.3; one of 1.0 is left unchanged."""
    file = part.get("file")
    if not isinstance(file, dict):
        return part
    made = {name: item for name, item in part.items() if name not in ("kind", "type", "file")}
    made.update({_FILE[name]: item for name, item in file.items() if name in _FILE and item})
    return made


_FILE = {
    "bytes": "raw",
    "fileWithBytes": "raw",
    "uri": "url",
    "fileWithUri": "url",
    "mimeType": "mediaType",
    "name": "filename",
}

SPELLING = legacy_answers.Spelling(
    states={
        **{state.name.lower().replace("_", "-"): state.value for state in TaskState},
        "unknown": TaskState.UNSPECIFIED.value,
        **_OTHER_STATES,
    },
    roles={"user": Role.USER.value, "agent": Role.AGENT.value},
    agent=Role.AGENT.value,
    part=_part,
)
"""The spellings of 1.0, by those of older texts and of 0.3."""
