"""The JSON of answers and events in version 1.0, which JSON-RPC and HTTP+JSON share."""

from __future__ import annotations

from typing import Any

from parley.model.cards import AgentCard
from parley.model.encoding import encode
from parley.model.errors import A2AError, InvalidAgentResponseError
from parley.model.operations import Operation
from parley.model.parts import Message
from parley.model.requests import (
    Empty,
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    SendMessageResponse,
    StreamResponse,
)
from parley.model.service import StreamItem
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from parley.wire import older_texts, protojson
from parley.wire.forgiveness import is_null, noted
from parley.wire.syntax import Bytes
from parley.wire.v1_0 import cards

_MEMBERS: dict[type, bytes] = {
    Task: b'{"task":',
    Message: b'{"message":',
    TaskStatusUpdateEvent: b'{"statusUpdate":',
    TaskArtifactUpdateEvent: b'{"artifactUpdate":',
}

_OTHER_STATES = dict.fromkeys(
    ("cancelled", "canceled", "TASK_STATE_CANCELLED"), TaskState.CANCELED.value
)


def meant_params(operation: Operation, members: Any) -> dict[str, Any] | None:
    """Return parameters as this version has them, if they are those of an older text."""
    return older_texts.params(operation, members, states=_OTHER_STATES)


# The member that holds the items of a page.
_PAGES: dict[type, str] = {
    ListTasksResponse: "tasks",
    ListTaskPushNotificationConfigsResponse: "configs",
}


class Json:
    """Answers and events as ProtoJSON of the data model (``Codec``)."""

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Return the answer to an operation."""
        if operation.response is SendMessageResponse:
            return b"".join((_MEMBERS[type(answer)], encode(answer), b"}"))
        return encode(answer)

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Return what an answer says."""
        if operation.response is Empty:
            return Empty()
        answer = self._read(operation.name, data, operation.response)
        return answer.payload if isinstance(answer, SendMessageResponse) else answer

    def write_event(self, item: StreamItem) -> bytes:
        """Return one event of a stream (§3.2.3)."""
        event, _, json = item
        return b"".join((_MEMBERS[type(event)], json or encode(event), b"}"))

    def read_event(self, data: Bytes) -> Event:
        """Return what an event of a stream says."""
        response: StreamResponse = self._read("a stream", data, StreamResponse)
        return response.payload

    def ends_stream(self, event: Event) -> bool:
        """No event does: streams of this version end when their service ends them."""
        return False

    def _read(self, asked: str, data: Bytes, kind: type) -> Any:
        try:
            with noted(f"the answer to {asked}"):
                if kind is AgentCard:
                    return cards.read_card(protojson.decode_answer(data, dict))
                items = _PAGES.get(kind)
                if items is not None and is_null(data):
                    return protojson.read_answer({}, kind)
                if items is not None and memoryview(data)[:1].tobytes() == b"[":
                    # The items without the page around them.
                    return protojson.read_answer({items: protojson.parse_answer(data)}, kind)
                return protojson.decode_answer(data, kind)
        except A2AError as error:
            raise InvalidAgentResponseError(
                f"the answer to {asked} is not a {kind.__name__}: {error.message}",
                violations=error.violations,
            ) from None
