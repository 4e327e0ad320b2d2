"""The HTTP+JSON binding, calling (specification §11)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from parley.client.bindings.exchange import HttpBinding, Written, media_type_of
from parley.client.bindings.http import Reply
from parley.client.errors import UnexpectedStatus
from parley.model.errors import A2AError, InvalidAgentResponseError, MethodNotFoundError
from parley.model.operations import Operation
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire.dialect import HttpJsonCodec

# How servers say that nothing takes this verb at this path.
_NOT_THERE = frozenset({404, 405, 501})
_OTHER = {"POST": "GET", "GET": "POST"}


class HttpJsonBinding(HttpBinding):
    """Calls the paths below one address; a query of the address goes with every request.

    Servers differ in the verb of SubscribeToTask, as texts of the specification do: where one is
    not taken the other is tried, and the one that was taken is used from then on.
    """

    codec: HttpJsonCodec

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.codec = self.dialect.http_json.for_peer(self.peer)
        self.media_type = self.codec.media_type
        self._base = urlsplit(self.url)
        self._prefers_other = False

    def write(self, operation: Operation, request: A2AStruct) -> Written:
        """Return the request that asks for an operation."""
        known = any(route.operation is operation for route in self.codec.routes)
        if not known and not self.extends(operation):
            raise self.unspoken(operation, "HTTP+JSON")
        verb, path, query, body = self.codec.write_request(operation, request)
        base = self._base
        url = urlunsplit(
            base._replace(
                path=base.path.rstrip("/") + path,
                query="&".join(filter(None, (base.query, query))),
                fragment="",
            )
        )
        return Written(verb, url, body)

    def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Return the events of a stream, or the one that a plain answer holds."""
        written = self.write(operation, request)
        return self._either(written, context) if operation.safe else self.items(written, context)

    async def _either(self, written: Written, context: CallContext) -> AsyncIterator[StreamItem]:
        """Yield the events that a request is answered with, with the one verb or the other."""
        ways = [written, _swapped(written)]
        if self._prefers_other:
            ways.reverse()
        for way, is_last in zip(ways, (False, True), strict=True):
            begun = False
            items = cast("AsyncGenerator[StreamItem]", self.items(way, context))
            try:
                async with aclosing(items):
                    async for item in items:
                        begun = True
                        self._prefers_other = way is not written
                        yield item
                return
            except (UnexpectedStatus, A2AError) as error:
                if begun or not _is_not_there(error):
                    self._prefers_other = way is not written
                    raise
                if is_last:
                    raise

    def answer(self, reply: Reply, written: Written) -> bytes:
        """Return the body of a reply. Raises the error that it holds."""
        if not 200 <= reply.status < 300:
            raise self.codec.read_error(reply.status, reply.body)
        kind = media_type_of(reply.headers)
        if reply.body and kind and not kind.endswith(("/json", "+json")):
            raise InvalidAgentResponseError("expected JSON")
        return reply.body

    def event(self, data: bytes, written: Written) -> Event:
        """Return the event that data of a stream hold. Raises the error that they hold."""
        return self.codec.read_event(data)

    def is_agents(self, reply: Reply) -> bool:
        """Whether a reply is a refusal as agents write them."""
        try:
            self.codec.read_error(reply.status, reply.body)
        except A2AError:
            return False
        return True


def _swapped(written: Written) -> Written:
    body = None if written.verb == "POST" else b"{}"
    return written._replace(verb=_OTHER[written.verb], body=body)


def _is_not_there(error: Exception) -> bool:
    if isinstance(error, UnexpectedStatus):
        return error.status in _NOT_THERE
    return isinstance(error, MethodNotFoundError)
