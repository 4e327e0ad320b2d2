"""The JSON-RPC binding, calling (specification §9)."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from parley.client.errors import AuthenticationRequired, UnexpectedStatus
from parley.client.http import Answer, HttpTransport, Reply, place
from parley.client.retry import seconds_of
from parley.model.errors import (
    A2AError,
    InvalidAgentResponseError,
    PeerError,
    UnsupportedOperationError,
)
from parley.model.operations import Operation
from parley.model.requests import SendMessageRequest
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire import jsonrpc
from parley.wire.dialect import Dialect
from parley.wire.sse import SseParser

logger = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"


class JsonRpcBinding:
    """Calls one JSON-RPC endpoint.

    ``headers`` (with credentials) go with every request. ``timeout`` bounds calls that the agent
    answers at once; a message that waits for its task is bounded by its caller alone. ``idle``
    bounds the silence in a stream, comments being signs of life. ``numbered``: the ids of stream
    events are numbers in the task's log, which only an agent that says so guarantees.
    """

    def __init__(
        self,
        http: HttpTransport,
        url: str,
        *,
        dialect: Dialect,
        headers: Mapping[str, str],
        timeout: float | None,
        idle: float | None,
        numbered: bool,
    ) -> None:
        self._http = http
        self._url = url
        self._dialect = dialect
        self._codec = dialect.jsonrpc
        self._headers = {"Content-Type": "application/json", **headers}
        self._timeout = timeout
        self._idle = idle
        self._numbered = numbered
        self._ids = itertools.count(1)

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return what the operation answers, out of its wrapper."""
        headers = self._with_parameters(context, "application/json")
        body = self._body(operation, request)
        timeout = None if _waits(request) else self._timeout
        reply = await self._http.post(self._url, headers, body, timeout=timeout)
        return self._result(operation, reply)

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield the events of a stream, or the one that a plain answer holds."""
        headers = self._with_parameters(context, f"{EVENT_STREAM}, application/json")
        headers["Accept-Encoding"] = "identity"  # compressing proxies hold events back
        body = self._body(operation, request)
        async with self._http.open("POST", self._url, headers, body, idle=self._idle) as answer:
            if answer.status != 200 or _media_type(answer.headers) != EVENT_STREAM:
                reply = Reply(answer.status, answer.headers, await answer.read(), answer.url)
                yield StreamItem(self._only_event(reply))
                return
            async for item in self._items(answer):
                yield item

    async def _items(self, answer: Answer) -> AsyncIterator[StreamItem]:
        parser = SseParser(self._http.max_response)
        async for chunk in answer.chunks():
            for id, _, data in parser.feed(chunk):
                if not data:
                    continue
                logger.debug("< %s", _Shown(data))
                event = self._codec.read_event(jsonrpc.parse_response(data, self._codec.read_error))
                yield StreamItem(event, self._number(id))
                if self._codec.ends_stream(event):
                    return

    def _number(self, id: str | None) -> int | None:
        if self._numbered and id is not None and id.isascii() and id.isdigit():
            return int(id)
        return None

    def _body(self, operation: Operation, request: A2AStruct) -> bytes:
        name = self._codec.names.get(operation.name)
        if name is None:
            raise UnsupportedOperationError(
                f"version {self._dialect.version} of the protocol has no {operation.name} "
                "over JSON-RPC",
                metadata={"operation": operation.name},
            )
        params = self._codec.write_request(operation, request)
        body = jsonrpc.request(next(self._ids), name, params)
        logger.debug("> POST %s %s", place(self._url), _Shown(body))
        return body

    def _with_parameters(self, context: CallContext, accept: str) -> dict[str, str]:
        headers = {**self._headers, "Accept": accept, "A2A-Version": self._dialect.version}
        if context.extensions:
            headers[self._dialect.extensions_header] = ", ".join(sorted(context.extensions))
        if context.last_event_id is not None:
            headers["Last-Event-ID"] = context.last_event_id
        if context.traceparent:
            headers["traceparent"] = context.traceparent
        return headers

    def _result(self, operation: Operation, reply: Reply) -> Any:
        return self._codec.read_result(operation, self._answer(reply))

    def _only_event(self, reply: Reply) -> Event:
        return self._codec.read_event(self._answer(reply))

    def _answer(self, reply: Reply) -> msgspec.Raw:
        logger.debug("< %d %s", reply.status, _Shown(reply.body))
        try:
            return jsonrpc.parse_response(reply.body, self._codec.read_error)
        except A2AError as error:
            foreign = isinstance(error, InvalidAgentResponseError) and not _has_answer(reply.body)
            if foreign or (reply.status in (401, 403) and isinstance(error, PeerError)):
                raise _without_answer(reply, error) from None
            if error.retry_after is None:
                error.retry_after = seconds_of(reply.headers.get("retry-after"))
            raise


def _waits(request: A2AStruct) -> bool:
    """Whether the agent may answer only when a task has come to its end."""
    if not isinstance(request, SendMessageRequest):
        return False
    return request.configuration is None or not request.configuration.return_immediately


def _without_answer(reply: Reply, error: A2AError) -> Exception:
    """Return what an HTTP answer means that is none of the agent's own."""
    where = place(reply.url)
    if reply.status in (401, 403):
        return AuthenticationRequired(
            f"{where} wants credentials"
            if reply.status == 401
            else f"{where} refuses these credentials",
            status=reply.status,
            challenge=reply.headers.get("www-authenticate", ""),
        )
    if 200 <= reply.status < 300:
        kind = _media_type(reply.headers) or "no content type"
        return InvalidAgentResponseError(f"{where} answered with {kind}: {error.message}")
    words = f"{where} answered {reply.status}"
    if 300 <= reply.status < 400 and "location" in reply.headers:
        words += f" and points to {place(reply.headers['location'])}, where it should be called"
    return UnexpectedStatus(
        words, status=reply.status, retry_after=seconds_of(reply.headers.get("retry-after"))
    )


def _has_answer(body: bytes) -> bool:
    """Whether ``body`` is meant as a JSON-RPC answer, though a wrong one or an error."""
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(members, dict) and "jsonrpc" in members


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


class _Shown:
    """A body in a log line: made text only if the line is written, and cut where it gets long."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __str__(self) -> str:
        text = self._body[:4000].decode("utf-8", "replace")
        return text if len(self._body) <= 4000 else f"{text}... ({len(self._body):,} bytes)"
