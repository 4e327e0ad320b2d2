"""gRPC in version 0.3: the messages of its proto (0.3 §3.2.2)."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from google.protobuf.json_format import Error, MessageToDict, ParseDict

from parley.model.cards import AgentCard
from parley.model.errors import A2AError, FieldViolation, InternalError
from parley.model.operations import Operation
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct, InvalidField
from parley.model.tasks import Event
from parley.wire.json import protojson
from parley.wire.protobuf.messages import POOL, Message
from parley.wire.v0_3 import cards, proto, values
from parley.wire.v0_3.operations import PROTO_NAMES, with_wire_names
from parley.wire.v1_0 import grpc as latest


class Grpc(latest.Grpc):
    """Messages of gRPC (``GrpcCodec``), in the forms of the proto (``proto``)."""

    package = "a2a.v1"
    names = PROTO_NAMES
    requests = proto.REQUESTS
    answers = proto.ANSWERS
    parts = ("request", "content")
    kind_suffix = " of version 0.3"
    a_stream = "an event of a stream"

    def __init__(self, *, bytes_as_text: bool = False) -> None:
        super().__init__()
        self._bytes_as_text = bytes_as_text

    @cached_property
    def _for_text_peers(self) -> Grpc:
        return Grpc(bytes_as_text=True)

    def for_peer(self, peer: str) -> Grpc:
        """Return the codec for a peer: most official SDKs expect files as base64 text.

        Parley's own client puts its name before the name of its library.
        """
        return self._for_text_peers if proto.expects_base64_text(peer) else self

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the message of a request."""
        try:
            return super().write_request(operation, self._for_text(proto.outgoing(request)))
        except InvalidField as wrong:
            protojson.refuse([FieldViolation(wrong.field, wrong.description)])

    def with_wire_names(self, error: A2AError) -> A2AError:
        """Return an error with the names of fields in the proto."""
        return with_wire_names(error, proto=True)

    def write_result(self, operation: Operation, answer: Any) -> bytes:
        """Write the answer to an operation."""
        if not isinstance(answer, AgentCard):
            return super().write_result(operation, self._for_text(answer))
        message = self._messages["AgentCard"]()
        try:
            members = cards.proto_members_of(answer)
            ParseDict(members, message, ignore_unknown_fields=True, descriptor_pool=POOL)
        except (Error, ValueError, OverflowError) as wrong:
            raise InternalError(f"the answer cannot be sent over gRPC: {wrong}") from None
        return message.SerializeToString()  # type: ignore[no-any-return]

    def write_event(self, item: StreamItem) -> bytes:
        """Write one event of a stream."""
        return super().write_event(StreamItem(self._for_text(item.event)))

    def ends_stream(self, event: Event) -> bool:
        """Return whether the event is final (0.3 §7.2.2)."""
        return values.ends_stream(event)

    def _for_text(self, value: Any) -> Any:
        return proto.with_base64_text(value) if self._bytes_as_text else value

    def _read_message(self, message: Message, kind: type[A2AStruct]) -> Any:
        if kind is not AgentCard:
            return super()._read_message(message, kind)
        try:
            members = MessageToDict(message, descriptor_pool=POOL)
        except (Error, ValueError) as wrong:
            protojson.refuse([FieldViolation("", str(wrong))])
        return cards.read_card({"url": "", **members})  # protobuf leaves out an empty url
