"""Version 1.0 of the protocol, which is that of the data model."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from parley.model.cards import AgentCard
from parley.model.service import StreamItem
from parley.model.struct import encode
from parley.model.tasks import Event, Task, TaskState
from parley.wire.dialect import GrpcCodec, HttpJsonCodec
from parley.wire.v1_0 import cards
from parley.wire.v1_0.jsonrpc import JsonRpc

if TYPE_CHECKING:
    from parley.wire.dialect import Dialect

read_card = cards.read_card


def write_card(card: AgentCard) -> bytes:
    """Write a card as JSON of this version."""
    return encode(card)


class _Dialect:
    version = "1.0"
    extensions_header = "a2a-extensions"
    pushes_tasks = False
    repeats_cancel = True
    jsonrpc = JsonRpc()

    @cached_property
    def http_json(self) -> HttpJsonCodec:
        from parley.wire.v1_0.http_json import HttpJson

        return HttpJson()

    def grpc(self) -> GrpcCodec:
        return self._grpc

    @cached_property
    def _grpc(self) -> GrpcCodec:
        from parley.wire.v1_0.grpc import Grpc

        return Grpc()

    def state_name(self, state: TaskState) -> str:
        return state.value

    def write_push(self, event: Event, task: Task | None, json: bytes | None = None) -> bytes:
        return self.jsonrpc.write_event(StreamItem(event, json=json))


DIALECT: Dialect = _Dialect()
