"""JSON-RPC in version 1.0 (specification §9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parley.model.errors import A2AError
from parley.model.operations import BY_NAME, Operation, SendMessageResponse, StreamResponse
from parley.model.struct import A2AStruct, encode
from parley.model.tasks import Event, Task
from parley.wire import jsonrpc
from parley.wire.json.syntax import Bytes
from parley.wire.v1_0.json import Json, read_params


class JsonRpc(Json):
    """Parameters, results and errors of JSON-RPC (``JsonRpcCodec``)."""

    methods: Mapping[str, Operation] = BY_NAME
    names: Mapping[str, str] = {name: name for name in BY_NAME}

    def read_request(self, operation: Operation, params: Bytes) -> Any:
        """Read the parameters of a request."""
        return read_params(operation, params)

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the parameters of a request."""
        return encode(request)

    def write_error(self, error: A2AError) -> bytes:
        """Write the error object of a response (§9.5)."""
        return jsonrpc.error_object(error)

    def read_error(self, data: Bytes) -> A2AError:
        """Read the error object of a response."""
        return jsonrpc.read_error_object(data)

    def read_answer(self, operation: Operation, body: Bytes, id: int | None) -> Any:
        """Read a whole response and the result in it at once, if both are canonical."""
        if operation.response is SendMessageResponse:
            answer = jsonrpc.read_result(body, SendMessageResponse, id)
            return None if answer is None else answer.payload
        return jsonrpc.read_result(body, Task, id) if operation.response is Task else None

    def read_event_answer(self, body: Bytes, id: int | None) -> Event | None:
        """Read a whole response of a stream and its event at once, if both are canonical."""
        answer = jsonrpc.read_result(body, StreamResponse, id)
        return None if answer is None else answer.payload
