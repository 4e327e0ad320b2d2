"""JSON-RPC in version 0.3 (0.3 §3.2.1, §7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.model.errors import A2AError
from parley.model.operations import Operation
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire import jsonrpc
from parley.wire.json.syntax import Bytes
from parley.wire.v0_3 import operations
from parley.wire.v0_3.errors import with_wire_names
from parley.wire.v0_3.json import Json, read_params, write_params


class JsonRpc(Json):
    """Parameters, results and errors of JSON-RPC (``JsonRpcCodec``)."""

    methods: Mapping[str, Operation] = operations.METHODS
    names: Mapping[str, str] = operations.NAMES

    def read_request(self, operation: Operation, params: Bytes) -> Any:
        """Read the parameters of a request."""
        return read_params(operation, params)

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the parameters of a request."""
        return write_params(request)

    def write_error(self, error: A2AError) -> bytes:
        """Write the error object of a response.

        Codes that 0.3 does not have keep their number: callers show unknown ones.
        """
        return jsonrpc.error_object(with_wire_names(error))

    def read_error(self, data: Bytes) -> A2AError:
        """Read the error object of a response."""
        return jsonrpc.read_error_object(data)

    def read_answer(self, operation: Operation, body: Bytes, id: int | None) -> Any:
        """Return ``None``: an answer of 0.3 is translated first."""
        return None

    def read_event_answer(self, body: Bytes, id: int | None) -> Event | None:
        """Return ``None``: an event of 0.3 is translated first."""
        return None
