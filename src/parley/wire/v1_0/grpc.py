"""gRPC in version 1.0 (specification §10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.model.errors import (
    A2AError,
    FieldViolation,
    InvalidAgentResponseError,
    InvalidRequestError,
    an,
)
from parley.model.operations import (
    BY_NAME,
    Empty,
    Operation,
    SendMessageRequest,
    SendMessageResponse,
    StreamResponse,
)
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire.json import protojson
from parley.wire.json.problems import InvalidValue
from parley.wire.json.syntax import Bytes
from parley.wire.json.tolerance import logging_problems
from parley.wire.protobuf.errors import unencodable_answer
from parley.wire.protobuf.limits import check_depth, check_parts
from parley.wire.protobuf.messages import Messages
from parley.wire.protobuf.structs import Structs
from parley.wire.v1_0.grpc_schema import SCHEMA


class Grpc:
    """Messages of gRPC (``GrpcCodec``), which have the fields of the data model."""

    takes_json = False
    service = f"{SCHEMA.package}.A2AService"
    methods: Mapping[str, Operation] = BY_NAME
    names: Mapping[str, str] = {name: name for name in BY_NAME}

    def __init__(self) -> None:
        self._messages = Messages(SCHEMA)
        self._structs = Structs(self._messages)
        self.pool = self._messages.pool

    def for_peer(self, peer: str) -> Grpc:
        """Return this codec: all peers read the same."""
        return self

    def read_request(
        self, operation: Operation, data: Bytes, *, max_depth: int = 100, max_parts: int = 1000
    ) -> Any:
        """Read the message of a request."""
        kind = operation.request
        message = self._messages.parse(kind.__name__, data)
        if kind is SendMessageRequest:
            check_parts(message.message.parts, max_parts)
        try:
            request = self._structs.read(message, kind)
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)
        check_depth(request, max_depth)
        return request

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the message of a request."""
        try:
            return self._structs.encode(request)
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)

    def with_wire_names(self, error: A2AError) -> A2AError:
        """Return the error unchanged: its fields have the names of the data model."""
        return error

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Write the answer to an operation."""
        if operation.response is SendMessageResponse:
            answer = SendMessageResponse.of(answer)
        return self._write(answer)

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Read the answer to an operation."""
        if operation.response is Empty:
            return Empty()
        answer = self._read(operation.name, data, operation.response)
        return answer.payload if isinstance(answer, SendMessageResponse) else answer

    def write_event(self, item: StreamItem) -> bytes:
        """Write one event of a stream (§3.2.3)."""
        return self._write(StreamResponse.of(item.event))

    def read_event(self, data: Bytes) -> Event:
        """Read one event of a stream."""
        response: StreamResponse = self._read("a stream", data, StreamResponse)
        return response.payload

    def ends_stream(self, event: Event) -> bool:
        """Return false: streams of this version end when their service ends them."""
        return False

    def _write(self, value: A2AStruct) -> bytes:
        try:
            return self._structs.encode(value)
        except InvalidValue as wrong:
            raise unencodable_answer(wrong) from None

    def _read(self, asked: str, data: Bytes, kind: type[A2AStruct]) -> Any:
        try:
            message = self._messages.parse(kind.__name__, data)
            with logging_problems(f"the answer to {asked}"):
                return self._structs.read(message, kind, tolerant=True)
        except InvalidValue as wrong:
            violations = tuple(FieldViolation(*problem) for problem in wrong.problems)
            field, description = violations[0]
            words = f"{field}: {description}" if field else description
        except InvalidRequestError as error:
            violations, words = (), error.message
        raise InvalidAgentResponseError(
            f"the answer to {asked} is not {an(kind.__name__)}: {words}", violations=violations
        )
