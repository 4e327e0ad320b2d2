"""One call over HTTP, as far as the HTTP bindings have it in common."""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from parley.client.bindings.http import Answer, HttpTransport, Reply, place
from parley.client.errors import AuthenticationRequired, UnexpectedStatus
from parley.client.headers import given, joined, listed, with_ours
from parley.model.errors import (
    A2AError,
    InvalidAgentResponseError,
    PeerError,
    UnsupportedOperationError,
)
from parley.model.operations import Operation
from parley.model.requests import SendMessageRequest
from parley.model.retry_after import seconds_of
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire import versions
from parley.wire.dialect import Codec, Dialect
from parley.wire.json.syntax import Bytes
from parley.wire.sse import SseParser

logger = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
# More events than that no log has, and no text of more digits is read as a number.
_EVENT_NUMBER = re.compile(r"[0-9]{1,18}")


# What every server of HTTP+JSON takes, and some alone.
_PLAIN_JSON = "application/json"


class Written(NamedTuple):
    """A request as it goes out. ``id`` is that of a JSON-RPC request."""

    verb: str
    url: str
    body: bytes | None
    id: int | None = None


class HttpBinding(ABC):
    """Calls one address over HTTP.

    A binding says how a request is written (``write``), and what of an answer or an event is the
    agent's (``answer``, ``event``).

    A server that refuses the media type of a request (415) has done nothing. It is asked again with
    ``application/json``, and from then on only so if it takes that.

    ``headers`` (with credentials) go with every request. ``timeout`` bounds calls that the agent
    answers at once; a message that waits for its task is bounded by its caller alone. ``idle``
    bounds the silence in a stream, comments being signs of life. ``numbered``: the ids of stream
    events are numbers in the task's log, which only an agent that says so guarantees. ``peer`` is
    what the agent's server calls itself.
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
    ) -> None:
        self.url = url
        self.peer = peer
        self.dialect = dialect
        self._http = http
        self._headers = headers
        self._timeout = timeout
        self._idle = idle
        self._numbered = numbered
        self._takes_plain_json_only = False

    # -- what a binding says -------------------------------------------------------------------

    @abstractmethod
    def write(self, operation: Operation, request: A2AStruct) -> Written:
        """Return the request that asks for an operation. Raises ``A2AError``."""

    @abstractmethod
    def answer(self, reply: Reply, written: Written) -> Bytes:
        """Return the answer that a reply to a request holds.

        Raises the error that it holds, and ``InvalidAgentResponseError`` when it is wrong.
        """

    @abstractmethod
    def event(self, data: bytes, written: Written) -> Event | None:
        """Return the event that data of a stream hold; ``None`` if they answer another request.

        Raises the error that they hold.
        """

    @abstractmethod
    def is_agents(self, reply: Reply) -> bool:
        """Whether a reply that holds no answer was meant as one, by an agent."""

    # -- what all have in common ---------------------------------------------------------------

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return what the operation answers, out of its wrapper."""
        written = self.write(operation, request)
        timeout = None if _waits(request) else self._timeout
        async with self._open(written, context, timeout=timeout) as answer:
            reply = Reply(answer.status, answer.headers, await answer.read(), answer.url)
        return self.codec.read_result(operation, self._answer(reply, written))

    def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Return the events of a stream, or the one that a plain answer holds."""
        return self.items(self.write(operation, request), context)

    async def items(self, written: Written, context: CallContext) -> AsyncIterator[StreamItem]:
        """Yield the events that a request is answered with."""
        async with self._open(written, context, accept=EVENT_STREAM, idle=self._idle) as answer:
            if answer.status != 200 or media_type_of(answer.headers) != EVENT_STREAM:
                reply = Reply(answer.status, answer.headers, await answer.read(), answer.url)
                yield StreamItem(self.codec.read_event(self._answer(reply, written)))
                return
            async for item in self._events(answer, written):
                yield item

    @asynccontextmanager
    async def _open(
        self,
        written: Written,
        context: CallContext,
        *,
        accept: str = "",
        timeout: float | None = None,
        idle: float | None = None,
    ) -> AsyncIterator[Answer]:
        """Send a request and give its answer; where its media type is refused, to the next try."""
        clock = asyncio.get_running_loop().time
        end = None if timeout is None else clock() + timeout
        first = _PLAIN_JSON if self._takes_plain_json_only else self.media_type
        for media_type in dict.fromkeys((first, _PLAIN_JSON)):
            headers = self._with_parameters(context, written, media_type, accept)
            left = None if end is None else max(end - clock(), 0.001)
            verb, url, body = _logged(written)
            async with self._http.open(verb, url, headers, body, timeout=left, idle=idle) as answer:
                is_refused = answer.status == 415
                sent = headers.get("Content-Type")  # none with a request that has no body
                if not is_refused or sent != media_type or media_type == _PLAIN_JSON:
                    self._takes_plain_json_only |= media_type != first and not is_refused
                    yield answer
                    return
                await answer.read()  # leaves the connection usable
            logger.info("%s does not take %s; asking as JSON", place(url), media_type)

    async def aclose(self) -> None:
        """Do nothing: the transport is shared."""
        return

    def extends(self, operation: Operation) -> bool:
        """Whether an operation is one of an extension, which the latest version can ask for."""
        return bool(operation.extension) and self.dialect.version == versions.LATEST

    def unspoken(self, operation: Operation, binding: str) -> UnsupportedOperationError:
        """Return the refusal of an operation that the version does not have."""
        return UnsupportedOperationError(
            f"version {self.dialect.version} of the protocol has no {operation.name} "
            f"over {binding}",
            metadata={"operation": operation.name},
        )

    async def _events(self, answer: Answer, written: Written) -> AsyncIterator[StreamItem]:
        parser = SseParser(self._http.max_response)
        async for chunk in answer.chunks():
            for id, _, data in parser.feed(chunk):
                if not data:
                    continue
                if logger.isEnabledFor(logging.DEBUG):
                    logger.debug("< %s", _Shown(data))
                event = self.event(data, written)
                if event is None:
                    continue
                yield StreamItem(event, None if id is None else self._number(id))
                if self.codec.ends_stream(event):
                    return

    def _number(self, id: str) -> int | None:
        if self._numbered and _EVENT_NUMBER.fullmatch(id):
            return int(id)
        return None

    def _with_parameters(
        self, context: CallContext, written: Written, media_type: str, accept: str
    ) -> dict[str, str]:
        """Return the caller's headers and our own; those of one call count before the caller's."""
        ours = {
            "Accept": joined(
                (accept, self.media_type, _PLAIN_JSON), listed(given(self._headers, "accept"))
            ),
            "A2A-Version": self.dialect.version,
        }
        if accept and not given(self._headers, "accept-encoding"):
            ours["Accept-Encoding"] = "identity"  # compressing proxies hold events back
        if written.body is not None and not given(self._headers, "content-type"):
            ours["Content-Type"] = media_type
        if context.extensions:
            ours[self.dialect.extensions_header] = joined(sorted(context.extensions))
        if context.last_event_id is not None:
            ours["Last-Event-ID"] = context.last_event_id
        if context.traceparent:
            ours["traceparent"] = context.traceparent
        return with_ours(self._headers, ours)

    def _answer(self, reply: Reply, written: Written) -> Bytes:
        logger.debug("< %d %s", reply.status, _Shown(reply.body))
        try:
            return self.answer(reply, written)
        except A2AError as error:
            foreign = isinstance(error, InvalidAgentResponseError) and not self.is_agents(reply)
            if foreign or (reply.status in (401, 403) and isinstance(error, PeerError)):
                raise _without_answer(reply, error) from None
            if error.retry_after is None:
                error.retry_after = seconds_of(reply.headers.get("retry-after"))
            raise


def media_type_of(headers: Mapping[str, str]) -> str:
    """Return the media type that headers name, in lower case."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _logged(written: Written) -> tuple[str, str, bytes | None]:
    logger.debug("> %s %s %s", written.verb, place(written.url), _Shown(written.body or b""))
    return written.verb, written.url, written.body


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
        kind = media_type_of(reply.headers) or "no content type"
        return InvalidAgentResponseError(f"{where} answered with {kind}: {error.message}")
    words = f"{where} answered {reply.status}"
    if 300 <= reply.status < 400 and "location" in reply.headers:
        words += f" and points to {place(reply.headers['location'])}, where it should be called"
    return UnexpectedStatus(
        words, status=reply.status, retry_after=seconds_of(reply.headers.get("retry-after"))
    )


class _Shown:
    """A body in a log line: made text only if the line is written, and cut where it gets long."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __str__(self) -> str:
        text = self._body[:4000].decode("utf-8", "replace")
        return text if len(self._body) <= 4000 else f"{text}... ({len(self._body):,} bytes)"
