"""Messages that answer others. Each has its own id, and names the message that it answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from parley.client.bindings.http import OpenResponse
from parley.client.bindings.http_binding import EVENT_STREAM, media_type_of
from parley.envelope.messages import (
    OPERATION_PREFIX,
    VERSION,
    Envelope,
    MessageInfo,
    MessageType,
    Priority,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    RoutingStrategy,
    Source,
    Status,
    SubType,
    Target,
    UnknownAction,
    envelope_error,
)
from parley.model.errors import A2AError
from parley.model.ids import new_id
from parley.model.operations import BY_NAME, Operation
from parley.model.parts import Message, Part
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct, Timestamp, encode, to_wire
from parley.model.tasks import Event, Task, TaskState
from parley.wire.sse import SseParser
from parley.wire.v1_0.json import Json, read_params

Answers = AsyncGenerator[Envelope, None]
"""The RESPONSE and the EVENTs that answer a REQUEST, as they arrive."""

_STATUSES = {
    TaskState.COMPLETED: Status.SUCCESS,
    TaskState.INPUT_REQUIRED: Status.INPUT_REQUIRED,
    TaskState.AUTH_REQUIRED: Status.AUTH_REQUIRED,
    TaskState.FAILED: Status.ERROR,
    TaskState.REJECTED: Status.ERROR,
    TaskState.CANCELED: Status.ERROR,
}


def status_of(task: Task) -> Status:
    """Return the status that stands for the state of a task; ``ACCEPTED`` for a running task."""
    return _STATUSES.get(task.state, Status.ACCEPTED)


def results_of(answer: Task | Message) -> tuple[Any, ...]:
    """Return the results of a task or a direct reply, as JSON values.

    A task that waits for its caller has its question. Others have their artifacts, in their order;
    a completed task without artifacts has the agent's last message. If the only part is a data part
    with a list, its items are the results. Otherwise each part is a result: a data part is its
    value, a file ``{"file": <the part>}``, and a text ``{"text": ...}``, with the chunks of one
    artifact joined.
    """
    if isinstance(answer, Message):
        return _results([answer.parts])
    said = answer.status.message
    if answer.state.is_interrupted:
        return _results([said.parts] if said is not None else [])
    if answer.artifacts or answer.state is not TaskState.COMPLETED:
        return _results([artifact.parts for artifact in answer.artifacts])
    last = said or answer.final_message
    return _results([last.parts] if last is not None else [])


def _results(groups: Sequence[Sequence[Part]]) -> tuple[Any, ...]:
    match [part for parts in groups for part in parts]:
        case [Part(data=list(items))]:
            return tuple(items)
    return tuple(result for parts in groups for result in _each(parts))


def _each(parts: Sequence[Part]) -> list[Any]:
    found: list[Any] = []
    chunks: list[str] = []
    for part in parts:
        if part.text is not None:
            chunks.append(part.text)
            continue
        if chunks:
            found.append({"text": "".join(chunks)})
            chunks = []
        if part.is_file:
            found.append({"file": msgspec.to_builtins(part, enc_hook=to_wire)})
        else:
            found.append(part.data)
    return [*found, {"text": "".join(chunks)}] if chunks else found


async def pieces_in(response: OpenResponse, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield the messages in the response to a POST: the data of its events, or its body.

    ``limit`` bounds each, in bytes. Raises ``ClientError``.
    """
    if media_type_of(response.headers) != EVENT_STREAM:
        if body := (await response.read(limit)).strip():
            yield body
        return
    parser = SseParser(limit)
    async for chunk in response.chunks():
        for _, _, data in parser.feed(chunk):
            if data:
                yield data


_json = Json()


def operation_of(action: str) -> Operation | None:
    """Return the operation of an action; ``None`` for a skill.

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
    """Return the request of an operation. Raises ``A2AError`` with the wrong fields."""
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


Payload = RequestPayload | ResponsePayload | msgspec.Raw

_NO_METADATA = ResponseMetadata()
_ANYONE = Target()


def response(request: Envelope, payload: ResponsePayload, *, source: Source) -> Envelope:
    """Return the RESPONSE to a request, for its sender."""
    return _answer(MessageType.RESPONSE, request, payload, source)


def event(request: Envelope, payload: ResponsePayload, *, source: Source) -> Envelope:
    """Return an EVENT about a request, for its sender."""
    return _answer(MessageType.EVENT, request, payload, source)


def heartbeat(
    source: Source, *, answered: Envelope | None = None, payload: dict[str, Any] | None = None
) -> Envelope:
    """Return a HEARTBEAT, or the answer to one."""
    content = msgspec.Raw(encode(payload or {}))
    if answered is not None:
        return _answer(MessageType.HEARTBEAT, answered, content, source)
    return message(MessageType.HEARTBEAT, content, source=source)


def error_response(
    request: Envelope | str,
    error: A2AError,
    *,
    source: Source,
    metadata: ResponseMetadata = _NO_METADATA,
) -> Envelope:
    """Return the RESPONSE that a request has failed.

    ``request`` may be the id of a message that could not be read, empty if that could not be read
    either.
    """
    payload = ResponsePayload(status=Status.ERROR, error=envelope_error(error), metadata=metadata)
    if isinstance(request, Envelope):
        return response(request, payload, source=source)
    return message(MessageType.RESPONSE, payload, source=source, correlation_id=request)


def message(
    type: str,
    payload: Payload,
    *,
    source: Source,
    target: Target = _ANYONE,
    sub_type: str = SubType.QUERY,
    priority: str = Priority.NORMAL,
    correlation_id: str = "",
    message_id: str = "",
) -> Envelope:
    """Return a new message with the current time, by default with a fresh id."""
    return Envelope(
        version=VERSION,
        message_id=message_id or new_id(),
        timestamp=Timestamp.now(),
        source=source,
        target=target,
        message=MessageInfo(
            type=type, sub_type=sub_type, correlation_id=correlation_id, priority=priority
        ),
        payload=payload,
    )


def _answer(type: str, request: Envelope, payload: Payload, source: Source) -> Envelope:
    asked, sender = request.message, request.source
    return message(
        type,
        payload,
        source=source,
        target=Target(agent_id=sender.agent_id, agent_type=sender.agent_type),
        sub_type=asked.sub_type,
        priority=asked.priority,
        correlation_id=request.message_id,
    )


def success(given: Any) -> ResponsePayload:
    """Return the payload of a handler's answer: a payload, a list of results, or one value."""
    if isinstance(given, ResponsePayload):
        return given
    results = tuple(given) if isinstance(given, list | tuple) else (given,)
    total = ResponseMetadata(total_results=len(results))
    return ResponsePayload(status=Status.SUCCESS, results=results, metadata=total)


MAX_AGENTS = 1024
"""The most agents of one broadcast whose events are distinguished."""

MORE_TO_COME = frozenset({Status.PARTIAL, Status.ACCEPTED})
"""The statuses of an EVENT that is not the last one."""


def is_broadcast(request: Envelope) -> bool:
    """Return whether several agents may answer a request."""
    return request.target.routing_strategy == RoutingStrategy.BROADCAST


class AnswerEnd:
    """Finds the last answer to one request.

    A command that is broadcast has ended when each agent that accepted it has.
    """

    def __init__(self, request: Envelope) -> None:
        self._is_command = request.message.sub_type == SubType.COMMAND
        self._is_broadcast = is_broadcast(request)
        self._ended: set[str] = set()
        self._accepted: frozenset[str] | None = None

    def is_last(self, answer: Envelope) -> bool:
        """Note an answer; return whether no further one follows."""
        payload = answer.payload
        is_response = answer.message.type == MessageType.RESPONSE
        if not self._is_command or not isinstance(payload, ResponsePayload):
            return is_response
        has_more = payload.status in MORE_TO_COME
        if not self._is_broadcast or (is_response and not has_more):
            return not has_more
        if is_response:
            self._accepted = frozenset(
                str(each.get("agentId"))
                for each in payload.results
                if isinstance(each, dict) and each.get("status") == Status.ACCEPTED
            )
        elif not has_more and len(self._ended) < MAX_AGENTS:
            self._ended.add(payload.metadata.agent_id)
        return self._accepted is not None and self._accepted <= self._ended


class WaitingBytes:
    """The limit of unread answers in bytes, for all queues that share it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0


class WaitingAnswers:
    """The answers to one REQUEST that were not read yet: at most ``most`` of them."""

    def __init__(self, waiting: WaitingBytes, most: int) -> None:
        self._waiting = waiting
        self._most = most
        self._answers: deque[tuple[Envelope, int]] = deque()
        self._has_news = asyncio.Event()
        self.is_over = asyncio.Event()
        self.failure: Exception | None = None

    def put(self, answer: Envelope, size: int) -> bool:
        """Add an answer; return whether there was room."""
        waiting = self._waiting
        is_full = waiting.held and waiting.held + size > waiting.most
        if self.failure is not None or is_full or len(self._answers) >= self._most:
            return False
        self._answers.append((answer, size))
        waiting.held += size
        self._has_news.set()
        return True

    def fail(self, error: Exception) -> None:
        """Raise an error after the earlier answers are read."""
        self.failure = self.failure or error
        self._has_news.set()

    async def next(self) -> Envelope:
        """Return the next answer. Raises the error of ``fail``."""
        while not self._answers:
            if self.failure is not None:
                raise self.failure
            self._has_news.clear()
            await self._has_news.wait()
        answer, size = self._answers.popleft()
        self._waiting.held -= size
        return answer

    def drop(self) -> None:
        """Drop the unread answers."""
        self._waiting.held -= sum(size for _, size in self._answers)
        self._answers.clear()
