"""gRPC in version 0.3: the messages of its proto (0.3 §3.2.2)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from parley.model.cards import AgentCard
from parley.model.errors import A2AError, FieldViolation
from parley.model.operations import BY_NAME, Empty, Operation, SendMessageRequest, StreamResponse
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct, InvalidField
from parley.model.tasks import Event
from parley.wire.json import protojson
from parley.wire.json.problems import InvalidValue
from parley.wire.json.syntax import Bytes
from parley.wire.json.tolerance import logging_problems
from parley.wire.protobuf.errors import unencodable_answer
from parley.wire.protobuf.limits import check_depth, check_parts
from parley.wire.protobuf.members import fill, members_of
from parley.wire.protobuf.messages import Messages
from parley.wire.v0_3 import values
from parley.wire.v0_3.errors import with_wire_names
from parley.wire.v0_3.json import invalid_answer
from parley.wire.v0_3.operations import PROTO_NAMES
from parley.wire.v0_3.proto import codec
from parley.wire.v0_3.proto.file_bytes import expects_base64_text
from parley.wire.v0_3.proto.schema import SCHEMA

_SERVICE = "A2AService"
_EVENT = "StreamResponse"


class Grpc:
    """Messages of gRPC (``GrpcCodec``), translated from and to their JSON (``proto.codec``)."""

    takes_json = False
    service = f"{SCHEMA.package}.{_SERVICE}"
    names: Mapping[str, str] = {
        name: rpc for name, rpc in PROTO_NAMES.items() if rpc in SCHEMA.services[_SERVICE]
    }
    methods: Mapping[str, Operation] = {rpc: BY_NAME[name] for name, rpc in names.items()}

    def __init__(self, messages: Messages | None = None, *, bytes_as_text: bool = False) -> None:
        self._messages = messages or Messages(SCHEMA)
        self._bytes_as_text = bytes_as_text
        self.pool = self._messages.pool

    @cached_property
    def _for_text_peers(self) -> Grpc:
        return Grpc(self._messages, bytes_as_text=True)

    def for_peer(self, peer: str) -> Grpc:
        """Return the codec for a peer: most official SDKs expect files as base64 text.

        Our own client puts our name before that of its library.
        """
        return self._for_text_peers if expects_base64_text(peer) else self

    def read_request(
        self, operation: Operation, data: Bytes, *, max_depth: int = 100, max_parts: int = 1000
    ) -> Any:
        """Read the message of a request."""
        message = self._messages.parse(self._types(operation)[0], data)
        if operation.request is SendMessageRequest:
            check_parts(message.request.content, max_parts, "message.content")
        try:
            request = codec.read_request(operation, members_of(message))
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)
        check_depth(request, max_depth)
        return request

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the message of a request."""
        try:
            return self._write(self._types(operation)[0], codec.write_request(operation, request))
        except InvalidValue as wrong:
            protojson.refuse(wrong.violations)
        except InvalidField as wrong:
            protojson.refuse([FieldViolation(wrong.field, wrong.description)])

    def with_wire_names(self, error: A2AError) -> A2AError:
        """Return an error with the names of fields in the proto."""
        return with_wire_names(error, proto=True)

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Write the answer to an operation."""
        return self._write_answer(self._types(operation)[1], codec.write_result(operation, answer))

    def read_result(self, operation: Operation, data: Bytes) -> Any:
        """Read the answer to an operation."""
        if operation.response is Empty:
            return Empty()
        try:
            with logging_problems(asked := f"the answer to {operation.name}"):
                members = self._read(self._types(operation)[1], data)
        except A2AError as error:
            raise invalid_answer(asked, operation.response, error) from None
        if operation.response is AgentCard:
            members.setdefault("url", "")  # protobuf leaves an empty one out
        return codec.read_result(operation, members)

    def write_event(self, item: StreamItem) -> bytes:
        """Write one event of a stream."""
        return self._write_answer(_EVENT, codec.write_event(item.event))

    def read_event(self, data: Bytes) -> Event:
        """Read one event of a stream."""
        try:
            with logging_problems("an event of a stream"):
                members = self._read(_EVENT, data)
        except A2AError as error:
            raise invalid_answer("an event of a stream", StreamResponse, error) from None
        return codec.read_event(members)

    def ends_stream(self, event: Event) -> bool:
        """Return whether the event is a final one (0.3 §7.2.2)."""
        return values.ends_stream(event)

    def _types(self, operation: Operation) -> tuple[str, str]:
        """Return the request and response messages of an operation."""
        request, response = SCHEMA.services[_SERVICE][self.names[operation.name]]
        return request, response.removesuffix("[]")

    def _read(self, name: str, data: Bytes) -> codec.Members:
        return members_of(self._messages.parse(name, data), tolerant=True)

    def _write(self, name: str, members: codec.Members) -> bytes:
        message = self._messages[name]()
        fill(message, members, bytes_as_text=self._bytes_as_text)
        return message.SerializeToString()  # type: ignore[no-any-return]

    def _write_answer(self, name: str, members: codec.Members) -> bytes:
        try:
            return self._write(name, members)
        except InvalidValue as wrong:
            raise unencodable_answer(wrong) from None
