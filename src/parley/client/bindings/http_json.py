"""The client side of the HTTP+JSON binding (specification §11)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

from parley.client.bindings.http import Reply
from parley.client.bindings.http_binding import HttpClientBinding, SentRequest, media_type_of
from parley.client.errors import UnexpectedStatus
from parley.model.errors import A2AError, InvalidAgentResponseError, MethodNotFoundError
from parley.model.operations import Operation
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire.versions import HttpJsonCodec

# Statuses of servers without a route for this verb and path.
_NOT_ROUTED = frozenset({404, 405, 501})
_OTHER_VERB = {"POST": "GET", "GET": "POST"}


class HttpJsonClientBinding(HttpClientBinding):
    """Calls the paths below one address; the address's query is sent with every request.

    Servers differ in the verb of SubscribeToTask, as versions of the specification do. If a server
    has no route for one verb, the other is tried, and the one that works is kept.
    """

    codec: HttpJsonCodec

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.codec = self.dialect.http_json.for_peer(self.peer)
        self.media_type = self.codec.media_type
        self._base = urlsplit(self.url)
        self._prefers_other = False

    def write(self, operation: Operation, request: A2AStruct) -> SentRequest:
        """Return the HTTP request of an operation."""
        known = any(route.operation is operation for route in self.codec.routes)
        if not known and not self.extends(operation):
            raise self.unsupported(operation, "HTTP+JSON")
        verb, path, query, body = self.codec.write_request(operation, request)
        base = self._base
        url = urlunsplit(
            base._replace(
                path=base.path.rstrip("/") + path,
                query="&".join(filter(None, (base.query, query))),
                fragment="",
            )
        )
        return SentRequest(verb, url, body, request=request)

    def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Return the events of a stream, or the single event of a plain answer."""
        sent = self.write(operation, request)
        return self._try_both_verbs(sent, context) if operation.safe else self.items(sent, context)

    async def _try_both_verbs(
        self, sent: SentRequest, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield the events that answer a request, sent with either verb."""
        attempts = [sent, _with_other_verb(sent)]
        if self._prefers_other:
            attempts.reverse()
        for attempt, is_last in zip(attempts, (False, True), strict=True):
            begun = False
            items = cast("AsyncGenerator[StreamItem]", self.items(attempt, context))
            try:
                async with aclosing(items):
                    async for item in items:
                        begun = True
                        self._prefers_other = attempt is not sent
                        yield item
                return
            except (UnexpectedStatus, A2AError) as error:
                if begun or not _is_not_routed(error):
                    self._prefers_other = attempt is not sent
                    raise
                if is_last:
                    raise

    def read_answer(self, reply: Reply, sent: SentRequest) -> bytes:
        """Return the body of a reply. Raises the error in the reply."""
        if not 200 <= reply.status < 300:
            raise self.codec.read_error(reply.status, reply.body)
        kind = media_type_of(reply.headers)
        if reply.body and kind and not kind.endswith(("/json", "+json")):
            raise InvalidAgentResponseError("expected JSON")
        return reply.body

    def read_event(self, data: bytes, sent: SentRequest) -> Event:
        """Return the event in a stream's ``data``. Raises the error in ``data``."""
        return self.codec.read_event(data)

    def is_from_agent(self, reply: Reply) -> bool:
        """Return whether a reply has the form of an agent's error."""
        try:
            self.codec.read_error(reply.status, reply.body)
        except A2AError:
            return False
        return True


def _with_other_verb(sent: SentRequest) -> SentRequest:
    body = None if sent.verb == "POST" else b"{}"
    return sent._replace(verb=_OTHER_VERB[sent.verb], body=body)


def _is_not_routed(error: Exception) -> bool:
    if isinstance(error, UnexpectedStatus):
        return error.status in _NOT_ROUTED
    return isinstance(error, MethodNotFoundError)
