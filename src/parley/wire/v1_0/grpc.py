"""gRPC in version 1.0 (specification §10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.model.errors import A2AError
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
from parley.wire.errors import invalid_answer
from parley.wire.json import protojson
from parley.wire.json.problems import InvalidValue, logging_problems
from parley.wire.json.protojson import LATEST_FORMS, VersionForms
from parley.wire.json.syntax import Bytes
from parley.wire.protobuf.errors import unencodable_answer
from parley.wire.protobuf.messages import POOL, Message, Messages, check_depth, check_parts
from parley.wire.protobuf.structs import Structs


class Grpc:
    """Messages of gRPC (``GrpcCodec``), in the forms that a version has of the data model."""

    takes_json = False
    package = "lf.a2a.v1"
    names: Mapping[str, str] = {name: name for name in BY_NAME}
    requests: VersionForms = LATEST_FORMS
    answers: VersionForms = LATEST_FORMS
    parts = ("message", "parts")
    kind_suffix = ""
    a_stream = "the answer to a stream"

    def __init__(self) -> None:
        service = POOL.FindServiceByName(f"{self.package}.A2AService")
        self.service: str = service.full_name
        called = {name: service.methods_by_name.get(rpc) for name, rpc in self.names.items()}
        methods = {name: method for name, method in called.items() if method is not None}
        self.names = {name: method.name for name, method in methods.items()}
        self.methods = {rpc: BY_NAME[name] for name, rpc in self.names.items()}
        self._inputs = {name: method.input_type.name for name, method in methods.items()}
        self._outputs = {name: method.output_type.name for name, method in methods.items()}
        self._messages = Messages(self.package)
        self._requests = Structs(self._messages, self.requests)
        self._answers = Structs(self._messages, self.answers)

    def for_peer(self, peer: str) -> Grpc:
        """Return this codec: all peers read the same."""
        return self

    def read_request(
        self, operation: Operation, data: Bytes, *, max_depth: int = 100, max_parts: int = 1000
    ) -> Any:
        """Read the message of a request."""
        kind = operation.request
        message = self._messages.parse(self._inputs[operation.name], data)
        if kind is SendMessageRequest:
            outer, inner = self.parts
            check_parts(getattr(getattr(message, outer), inner), max_parts, f"message.{inner}")
        try:
            request = self._requests.read(message, kind)
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)
        check_depth(request, max_depth)
        return request

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the message of a request."""
        try:
            return self._requests.encode(request, self._inputs[operation.name])
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)

    def with_wire_names(self, error: A2AError) -> A2AError:
        """Return the error unchanged: its fields have the names of the data model."""
        return error

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Write the answer to an operation."""
        if operation.response is SendMessageResponse:
            answer = SendMessageResponse.of(answer)
        return self._write(answer, self._outputs[operation.name])

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Read the answer to an operation."""
        kind = operation.response
        if kind is Empty:
            return Empty()
        name = self._outputs[operation.name]
        answer = self._read(f"the answer to {operation.name}", name, data, kind)
        return answer.payload if isinstance(answer, SendMessageResponse) else answer

    def write_event(self, item: StreamItem) -> bytes:
        """Write one event of a stream (§3.2.3)."""
        return self._write(StreamResponse.of(item.event), "StreamResponse")

    def read_event(self, data: Bytes) -> Event:
        """Read one event of a stream."""
        response = self._read(self.a_stream, "StreamResponse", data, StreamResponse)
        event: Event = response.payload if isinstance(response, StreamResponse) else response
        return event

    def ends_stream(self, event: Event) -> bool:
        """Return false: streams of this version end when their service ends them."""
        return False

    def _write(self, value: A2AStruct, name: str) -> bytes:
        try:
            return self._answers.encode(value, name)
        except InvalidValue as wrong:
            raise unencodable_answer(wrong) from None

    def _read(self, asked: str, name: str, data: Bytes, kind: type[A2AStruct]) -> Any:
        try:
            message = self._messages.parse(name, data)
            with logging_problems(asked):
                return self._read_message(message, kind)
        except A2AError as error:
            raise invalid_answer(asked, kind.__name__ + self.kind_suffix, error) from None

    def _read_message(self, message: Message, kind: type[A2AStruct]) -> Any:
        try:
            return self._answers.read(message, kind, tolerant=True)
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)
