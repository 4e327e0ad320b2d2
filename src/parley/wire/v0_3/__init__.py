"""Version 0.3 of the protocol and of older texts, translated to the 1.0 data model at the edge.

``operations`` finds the operation by its method or path, and ``jsonrpc``, ``http_json`` or ``grpc``
is the codec of the binding. JSON-RPC decodes with ``json`` into the structs of ``params`` and
``values``; HTTP+JSON and gRPC with ``proto.codec`` into those of ``proto.messages``. Their
``to_model()`` gives the 1.0 request. Answers go the same way back, from ``of()`` of these structs;
``errors`` and ``cards`` translate the rest.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from parley.model.struct import encode
from parley.model.tasks import Event, Task, TaskState
from parley.wire.dialect import GrpcCodec, HttpJsonCodec
from parley.wire.v0_3 import cards, values
from parley.wire.v0_3.jsonrpc import JsonRpc

if TYPE_CHECKING:
    from parley.wire.dialect import Dialect

read_card = cards.read_card
write_card = cards.write_card
write_merged_card = cards.write_merged_card


class _Dialect:
    version = "0.3"
    extensions_header = "x-a2a-extensions"
    pushes_tasks = True
    repeats_cancel = False
    jsonrpc = JsonRpc()

    @cached_property
    def http_json(self) -> HttpJsonCodec:
        from parley.wire.v0_3.http_json import HttpJson

        return HttpJson()

    def grpc(self) -> GrpcCodec:
        return self._grpc

    @cached_property
    def _grpc(self) -> GrpcCodec:
        from parley.wire.v0_3.grpc import Grpc

        return Grpc()

    def state_name(self, state: TaskState) -> str:
        return values.STATE_OF[state].value

    def write_push(self, event: Event, task: Task | None, json: bytes | None = None) -> bytes:
        return encode(values.from_model(event if task is None else task))


DIALECT: Dialect = _Dialect()
