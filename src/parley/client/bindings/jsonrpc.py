"""The client side of the JSON-RPC binding (specification §9)."""

from __future__ import annotations

import itertools
import json
import logging
from typing import Any

import msgspec

from parley.client.bindings.http import Reply
from parley.client.bindings.http_binding import HttpClientBinding, SentRequest
from parley.model.operations import Operation
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire import jsonrpc
from parley.wire.versions import JsonRpcCodec

logger = logging.getLogger(__name__)


class JsonRpcClientBinding(HttpClientBinding):
    """Calls one JSON-RPC endpoint."""

    codec: JsonRpcCodec

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.codec = self.dialect.jsonrpc
        self._ids = itertools.count(1)

    def write(self, operation: Operation, request: A2AStruct) -> SentRequest:
        """Return the HTTP request of an operation."""
        extends = self.extends(operation)
        name = operation.name if extends else self.codec.names.get(operation.name)
        if name is None:
            raise self.unsupported(operation, "JSON-RPC")
        params = self.codec.write_request(operation, request)
        id = next(self._ids)
        body = jsonrpc.request(id, name, params)
        return SentRequest("POST", self.url, body, id, request)

    def read_at_once(self, operation: Operation, body: bytes, sent: SentRequest) -> Any:
        """Return the result in a response in the form that Parley writes, else ``None``."""
        return self.codec.read_answer(operation, body, sent.id)

    def read_answer(self, reply: Reply, sent: SentRequest) -> msgspec.Raw:
        """Return the result in a reply. Raises the error in the reply."""
        return jsonrpc.parse_response(reply.body, self.codec.read_error, id=sent.id)

    def read_event(self, data: bytes, sent: SentRequest) -> Event | None:
        """Return the event in a stream's ``data``; ``None`` if it answers another request.

        Raises the error in ``data``.
        """
        event = self.codec.read_event_answer(data, sent.id)
        if event is not None:
            return event
        try:
            result = jsonrpc.parse_response(data, self.codec.read_error, id=sent.id)
        except jsonrpc.MismatchedId as error:
            logger.warning("an event is skipped: %s", error)
            return None
        return self.codec.read_event(result)

    def is_from_agent(self, reply: Reply) -> bool:
        """Return whether a reply is a JSON-RPC response, even if it is malformed or an error."""
        try:
            members = json.loads(reply.body)
        except (ValueError, RecursionError):
            return False
        return isinstance(members, dict) and "jsonrpc" in members
