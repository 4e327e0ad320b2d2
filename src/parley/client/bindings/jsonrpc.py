"""The JSON-RPC binding, calling (specification §9)."""

from __future__ import annotations

import itertools
import json
import logging
from typing import Any

import msgspec

from parley.client.bindings.exchange import HttpBinding, Written
from parley.client.bindings.http import Reply
from parley.model.operations import Operation
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire import jsonrpc
from parley.wire.dialect import JsonRpcCodec

logger = logging.getLogger(__name__)


class JsonRpcBinding(HttpBinding):
    """Calls one JSON-RPC endpoint."""

    codec: JsonRpcCodec

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.codec = self.dialect.jsonrpc
        self._ids = itertools.count(1)

    def write(self, operation: Operation, request: A2AStruct) -> Written:
        """Return the request that asks for an operation."""
        extends = self.extends(operation)
        name = operation.name if extends else self.codec.names.get(operation.name)
        if name is None:
            raise self.unspoken(operation, "JSON-RPC")
        params = self.codec.write_request(operation, request)
        id = next(self._ids)
        return Written("POST", self.url, jsonrpc.request(id, name, params), id)

    def answer(self, reply: Reply, written: Written) -> msgspec.Raw:
        """Return the result that a reply holds. Raises the error that it holds."""
        return jsonrpc.parse_response(reply.body, self.codec.read_error, id=written.id)

    def event(self, data: bytes, written: Written) -> Event | None:
        """Return the event that data of a stream hold; ``None`` if they answer another request.

        Raises the error that they hold.
        """
        try:
            result = jsonrpc.parse_response(data, self.codec.read_error, id=written.id)
        except jsonrpc.MismatchedId as error:
            logger.warning("an event is passed over: %s", error)
            return None
        return self.codec.read_event(result)

    def is_agents(self, reply: Reply) -> bool:
        """Whether a reply is meant as a JSON-RPC answer, though a wrong one or an error."""
        try:
            members = json.loads(reply.body)
        except (ValueError, RecursionError):
            return False
        return isinstance(members, dict) and "jsonrpc" in members
