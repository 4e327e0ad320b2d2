"""Operations of A2A as actions (``a2a.GetTask``): the JSON of version 1.0 in both directions."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.envelope.errors import UnknownAction
from parley.envelope.messages import OPERATION_PREFIX
from parley.model.operations import BY_NAME, Operation
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct, encode
from parley.model.tasks import Event
from parley.wire.v1_0.json import Json, read_params

_json = Json()


def operation_of(action: str) -> Operation | None:
    """Return the operation that an action is; ``None`` for one without the prefix, a skill.

    Raises ``UnknownAction`` for an operation that A2A does not have.
    """
    if not action.startswith(OPERATION_PREFIX):
        return None
    operation = BY_NAME.get(action.removeprefix(OPERATION_PREFIX))
    if operation is None:
        known = ", ".join(OPERATION_PREFIX + name for name in BY_NAME)
        raise UnknownAction(f"A2A has no operation {action[:80]!r}; it has {known}")
    return operation


def action_of(operation: Operation) -> str:
    """Return the action that an operation is."""
    return OPERATION_PREFIX + operation.name


def read_operation(operation: Operation, parameters: Any) -> Any:
    """Return the request of an operation. Raises ``A2AError`` that names what is wrong."""
    return read_params(operation, encode(parameters))


def write_operation(operation: Operation, request: A2AStruct) -> Any:
    """Return the parameters of an operation's request, as a JSON value."""
    return msgspec.json.decode(encode(request))


def write_operation_result(operation: Operation, answer: Any) -> Any:
    """Return the answer to an operation as a JSON value: the only result of a RESPONSE."""
    return msgspec.json.decode(_json.write_result(operation, answer))


def read_operation_result(operation: Operation, result: Any) -> Any:
    """Return the answer to an operation, read tolerantly.

    Raises ``InvalidAgentResponseError``.
    """
    return _json.read_result(operation, encode(result))


def write_stream_event(item: StreamItem) -> Any:
    """Return an event of a stream as a JSON value: the only result of an EVENT."""
    return msgspec.json.decode(_json.write_event(item))


def read_stream_event(result: Any) -> Event:
    """Return the event of a stream, read tolerantly. Raises ``InvalidAgentResponseError``."""
    return _json.read_event(encode(result))
