"""One call over HTTP: the shared part of the JSON-RPC and HTTP+JSON bindings."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from parley.client.bindings.binding import waits_for_task
from parley.client.bindings.http import HttpTransport, OpenResponse, Reply, redacted
from parley.client.bindings.request_auth import (
    NOTHING,
    RequestAuth,
    header_value,
    join_items,
    list_items,
    override,
    refusal_in,
)
from parley.client.errors import AuthenticationRequired, UnexpectedStatus
from parley.model.backoff import seconds_of
from parley.model.errors import (
    A2AError,
    InvalidAgentResponseError,
    PeerError,
    UnsupportedOperationError,
)
from parley.model.operations import Operation
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire import versions
from parley.wire.json.syntax import Bytes
from parley.wire.sse import SseParser
from parley.wire.versions import Codec, Dialect

logger = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"

# Every HTTP+JSON server accepts this media type; some accept no other.
_PLAIN_JSON = "application/json"
# The last event of some agents' streams, as model APIs send it.
_DONE = b"[DONE]"


MOST_KNOWN_HEADERS = 100
"""The number of cached header sets: callers of a gateway may name any extensions."""


class SentRequest(NamedTuple):
    """An encoded request. ``id`` is the JSON-RPC id, ``request`` the decoded form."""

    verb: str
    url: str
    body: bytes | None
    id: int | None = None
    request: A2AStruct | None = None


class HttpClientBinding(ABC):
    """Calls one address over HTTP.

    A subclass encodes requests (``write``) and decodes answers and events (``read_answer``,
    ``read_event``).

    If a server rejects a request's media type (415), it has not processed the request. The request
    is sent again as ``application/json``; if that is accepted, later requests use it too.

    ``headers`` are sent with every request, together with the credentials of ``auth``. After a
    rejection (401, 403) ``auth`` is called again, and the request is repeated if there are new
    credentials. ``timeout`` bounds calls that the agent answers at once; only the caller bounds a
    message that waits for its task. ``idle`` bounds the silence in a stream; comments count as
    activity. ``numbered``: the ids of stream events are their numbers in the task's log, as the
    agent declares. ``peer`` is the agent's ``Server`` header.
    """

    codec: Codec
    media_type = _PLAIN_JSON

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
        peer: str = "",
        auth: RequestAuth | None = None,
    ) -> None:
        self.url = url
        self.peer = peer
        self._auth = auth
        self.dialect = dialect
        self._http = http
        self._headers = headers
        self._timeout = timeout
        self._idle = idle
        self._numbered = numbered
        self._only_plain_json = False
        self._known_headers: dict[tuple[str, str, bool, frozenset[str]], dict[str, str]] = {}

    # -- implemented by subclasses -------------------------------------------------------------

    @abstractmethod
    def write(self, operation: Operation, request: A2AStruct) -> SentRequest:
        """Return the HTTP request of an operation. Raises ``A2AError``."""

    @abstractmethod
    def read_answer(self, reply: Reply, sent: SentRequest) -> Bytes:
        """Return the answer in a reply.

        Raises the error in the reply, and ``InvalidAgentResponseError`` for a malformed one.
        """

    @abstractmethod
    def read_event(self, data: bytes, sent: SentRequest) -> Event | None:
        """Return the event in a stream's ``data``; ``None`` if it answers another request.

        Raises the error in ``data``.
        """

    def read_at_once(self, operation: Operation, body: bytes, sent: SentRequest) -> Any:
        """Return the answer in a simple body on a fast path, else ``None``."""
        return None

    @abstractmethod
    def is_from_agent(self, reply: Reply) -> bool:
        """Return whether a reply without a valid answer was sent by an agent."""

    # -- inherited -----------------------------------------------------------------------------

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return the operation's result, without its wrapper."""
        sent = self.write(operation, request)
        timeout = None if waits_for_task(request) else self._timeout
        attempts = _Attempts(self, sent, context, timeout=timeout)
        while True:
            async with await attempts.open() as answer:
                if not await attempts.is_refused(answer):
                    body = await answer.read()
                    break
        result = self.read_at_once(operation, body, sent)
        if result is None:
            reply = Reply(answer.status, answer.headers, body, answer.url)
            return self.codec.read_result(operation, self._checked_answer(reply, sent))
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("< %d %s", answer.status, _BodyPreview(body))
        return result

    def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Return the events of a stream, or the single event of a plain answer."""
        return self.items(self.write(operation, request), context)

    async def items(self, sent: SentRequest, context: CallContext) -> AsyncIterator[StreamItem]:
        """Yield the events that answer a request."""
        attempts = _Attempts(self, sent, context, accept=EVENT_STREAM, idle=self._idle)
        while True:
            async with await attempts.open() as answer:
                if await attempts.is_refused(answer):
                    continue
                if answer.status != 200 or media_type_of(answer.headers) != EVENT_STREAM:
                    reply = Reply(answer.status, answer.headers, await answer.read(), answer.url)
                    yield StreamItem(self.codec.read_event(self._checked_answer(reply, sent)))
                    return
                async for item in self._events(answer, sent):
                    yield item
                return

    async def aclose(self) -> None:
        """Do nothing: the transport is shared."""
        return

    def extends(self, operation: Operation) -> bool:
        """Return whether an operation belongs to an extension; only the latest version has them."""
        return bool(operation.extension) and self.dialect.version == versions.LATEST

    def unsupported(self, operation: Operation, binding: str) -> UnsupportedOperationError:
        """Return the error for an operation that this protocol version lacks."""
        return UnsupportedOperationError(
            f"version {self.dialect.version} of the protocol has no {operation.name} "
            f"over {binding}",
            metadata={"operation": operation.name},
        )

    async def _events(self, answer: OpenResponse, sent: SentRequest) -> AsyncIterator[StreamItem]:
        parser = SseParser(self._http.max_response)
        async for chunk in answer.chunks():
            is_logged = logger.isEnabledFor(logging.DEBUG)
            for id, _, data in parser.feed(chunk):
                if not data:
                    continue
                if data == _DONE:
                    return
                if is_logged:
                    logger.debug("< %s", _BodyPreview(data))
                event = self.read_event(data, sent)
                if event is None:
                    continue
                yield StreamItem(event, None if id is None else self._event_number(id))
                if self.codec.ends_stream(event):
                    return

    def _event_number(self, id: str) -> int | None:
        # No log has more events, and longer text is not parsed as a number.
        is_number = len(id) <= 18 and id.isascii() and id.isdigit()
        return int(id) if self._numbered and is_number else None

    def _request_headers(
        self, context: CallContext, sent: SentRequest, media_type: str, accept: str
    ) -> Mapping[str, str]:
        """Return the caller's headers, overridden by this call's."""
        has_type = sent.body is not None
        kind = (media_type, accept, has_type, context.extensions)
        headers = self._known_headers.get(kind)
        if headers is None:
            if len(self._known_headers) >= MOST_KNOWN_HEADERS:
                self._known_headers.clear()
            headers = self._known_headers[kind] = self._constant_headers(*kind)
        if context.last_event_id is None and not context.trace:
            return headers
        ours = context.trace.headers
        if context.last_event_id is not None:
            ours = {"Last-Event-ID": context.last_event_id, **ours}
        return override(headers, ours)

    def _constant_headers(
        self, media_type: str, accept: str, has_type: bool, extensions: Iterable[str]
    ) -> dict[str, str]:
        """Return the headers that are equal for all calls of a kind."""
        ours = {
            "Accept": join_items(
                (accept, self.media_type, _PLAIN_JSON),
                list_items(header_value(self._headers, "accept")),
            ),
            "A2A-Version": self.dialect.version,
        }
        if accept and not header_value(self._headers, "accept-encoding"):
            ours["Accept-Encoding"] = "identity"  # compressing proxies delay events
        if has_type and not header_value(self._headers, "content-type"):
            ours["Content-Type"] = media_type
        if extensions:
            ours[self.dialect.extensions_header] = join_items(sorted(extensions))
        return override(self._headers, ours)

    def _checked_answer(self, reply: Reply, sent: SentRequest) -> Bytes:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("< %d %s", reply.status, _BodyPreview(reply.body))
        try:
            return self.read_answer(reply, sent)
        except A2AError as error:
            foreign = isinstance(error, InvalidAgentResponseError) and not self.is_from_agent(reply)
            advice = self._advice_for(reply) if reply.status in (401, 403) else ""
            if foreign or (reply.status in (401, 403) and isinstance(error, PeerError)):
                raise _http_error(reply, error, advice) from None
            if advice:
                error.message = f"{error.message}; {advice}"
                error.args = (error.message,)
            if error.retry_after is None:
                error.retry_after = seconds_of(reply.headers.get("retry-after"))
            raise

    def _advice_for(self, reply: Reply) -> str:
        refusal = refusal_in(reply.status, reply.headers)
        return "" if self._auth is None else self._auth.advice(refusal)


class _Attempts:
    """The attempts of a request: again after a rejected media type, and once after a 401 or 403.

    Open an attempt, check whether the response is a rejection, and repeat if it is.
    """

    def __init__(
        self,
        binding: HttpClientBinding,
        sent: SentRequest,
        context: CallContext,
        *,
        accept: str = "",
        timeout: float | None = None,
        idle: float | None = None,
    ) -> None:
        self._binding = binding
        self._sent = sent
        self._context = context
        self._accept = accept
        self._timeout = timeout
        self._idle = idle
        self._clock = asyncio.get_running_loop().time
        self._spent = 0.0  # without the time of a person's login
        self._first = _PLAIN_JSON if binding._only_plain_json else binding.media_type
        self._media_type = self._first
        self._may_ask = binding._auth is not None
        self._given = NOTHING

    async def open(self) -> AbstractAsyncContextManager[OpenResponse]:
        """Return the context manager of the response to an attempt."""
        binding, sent = self._binding, self._sent
        headers = binding._request_headers(self._context, sent, self._media_type, self._accept)
        url = sent.url
        if binding._auth is not None:
            self._given = await binding._auth.parameters(sent.request)
            if self._given is not NOTHING:
                headers = override(headers, self._given.headers)
                url = self._given.add_to(url)
        # ``None`` for a request without a body.
        self._sent_type = headers.get("Content-Type")
        left = None if self._timeout is None else max(self._timeout - self._spent, 0.001)
        self._began = self._clock()
        self._url = url
        if logger.isEnabledFor(logging.DEBUG):
            preview = _BodyPreview(sent.body or b"")
            logger.debug("> %s %s %s", sent.verb, redacted(sent.url), preview)
        return binding._http.open(sent.verb, url, headers, sent.body, timeout=left, idle=self._idle)

    async def is_refused(self, answer: OpenResponse) -> bool:
        """Return whether another attempt should be made."""
        binding, status = self._binding, answer.status
        if status in (401, 403) and self._may_ask and binding._auth is not None:
            self._may_ask = False
            self._spent += self._clock() - self._began
            refusal = refusal_in(status, answer.headers)
            if await binding._auth.answer(refusal, self._sent.request, self._given):
                logger.info("%s rejects the credentials; trying others", redacted(self._url))
                return True
        if status != 415:
            binding._only_plain_json |= self._media_type != self._first
            return False
        if self._sent_type != self._media_type or self._media_type == _PLAIN_JSON:
            return False
        await answer.read()  # so that the connection can be reused
        self._spent += self._clock() - self._began
        logger.info("%s does not accept %s; sending JSON", redacted(self._url), self._media_type)
        self._media_type = _PLAIN_JSON
        return True


def media_type_of(headers: Mapping[str, str]) -> str:
    """Return the media type in headers, in lower case."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _http_error(reply: Reply, error: A2AError, advice: str = "") -> Exception:
    """Return the error for an HTTP answer that is not from the agent."""
    where = redacted(reply.url)
    if reply.status in (401, 403):
        words = "wants credentials" if reply.status == 401 else "rejects these credentials"
        return AuthenticationRequired(
            f"{where} {words}" + (f"; {advice}" if advice else ""),
            status=reply.status,
            challenge=reply.headers.get("www-authenticate", ""),
        )
    if 200 <= reply.status < 300:
        kind = media_type_of(reply.headers) or "no content type"
        return InvalidAgentResponseError(f"{where} answered with {kind}: {error.message}")
    words = f"{where} answered {reply.status}"
    if 300 <= reply.status < 400 and "location" in reply.headers:
        words += f" and points to {redacted(reply.headers['location'])}, where it should be called"
    return UnexpectedStatus(
        words, status=reply.status, retry_after=seconds_of(reply.headers.get("retry-after"))
    )


class _BodyPreview:
    """The body in a log line: decoded only if the line is written, and shortened."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __str__(self) -> str:
        text = self._body[:4000].decode("utf-8", "replace")
        return text if len(self._body) <= 4000 else f"{text}... ({len(self._body):,} bytes)"
