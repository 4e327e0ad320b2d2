"""A connection to an agent by the envelope protocol, and all of A2A over it.

Requests survive the connections that carry them: an unanswered one is sent again with the same
``messageId``, and a stream continues after its last event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from parley.client.bindings.binding import waits_for_task
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.bindings.request_auth import Refusal, RequestAuth, join_items
from parley.client.bindings.websocket import SocketRefused
from parley.client.errors import (
    ClientError,
    ConnectionClosed,
    Disconnected,
    Timeout,
    UnexpectedStatus,
    Unreachable,
    Untrusted,
)
from parley.client.retry import LONGEST_WAIT, TRANSIENT_STATUSES
from parley.envelope.answers import (
    AnswerEnd,
    Answers,
    heartbeat,
    is_broadcast,
    message,
    read_operation_result,
    read_stream_event,
    write_operation,
)
from parley.envelope.client.session import (
    EnvelopeFailed,
    EnvelopeIdentity,
    EventNumbers,
    InboundRequests,
    LinkEndpoint,
    LinkSettings,
    PostLink,
    SocketSession,
    Way,
    error_in,
    payload_of,
    ways_to,
)
from parley.envelope.messages import (
    OPERATION_PREFIX,
    Envelope,
    MessageType,
    RequestMetadata,
    RequestPayload,
    ResponsePayload,
    Status,
    a2a_error,
)
from parley.model.concurrency import end
from parley.model.errors import A2AError, InvalidAgentResponseError
from parley.model.operations import Operation
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct, Timestamp
from parley.security.egress import Egress
from parley.wire.versions import Dialect

logger = logging.getLogger(__name__)

MAX_UNCLAIMED = 1000
MAX_UNCLAIMED_SIZE = 16 * 1024 * 1024
"""The limits of unclaimed messages for ``messages``, in number and in characters. Above them the
oldest is dropped.
"""

# A request with such a status was not processed, and may be sent to another address.
_NOTHING_THERE = frozenset({404, 405, 410, 426, 501})


class EnvelopeConnection:
    """A connection to one agent, over the best available transport.

    A WebSocket is tried first, then HTTP, at each endpoint in turn; a failed transport is not tried
    for a while. Endpoints that the server rejects for reasons other than credentials are skipped.
    ``close`` ends it; running requests then fail with ``ConnectionClosed``.
    """

    def __init__(
        self,
        http: HttpTransport,
        endpoints: Sequence[LinkEndpoint],
        identity: EnvelopeIdentity,
        settings: LinkSettings | None = None,
    ) -> None:
        self.identity = identity
        self.settings = settings or LinkSettings()
        self.inbound = InboundRequests(identity)
        self.is_closed = False
        self.reconnects = 0
        self._http = http
        self._ways = list(ways_to(tuple(endpoints), self.settings))
        self._way: Way | None = None
        self._sessions: dict[Egress | None, SocketSession] = {}
        self._opening = asyncio.Lock()
        self._slots = asyncio.Semaphore(self.settings.max_in_flight)
        self._unclaimed: deque[tuple[Envelope, int]] = deque()
        self._unclaimed_size = 0
        self._has_unclaimed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._greeting: Callable[[], Envelope] | None = None
        self._greeted = ""

    @property
    def _session(self) -> SocketSession | None:
        """The open WebSocket for the egress policy that holds here, which judged where it goes."""
        session = self._sessions.get(self._http.egress)
        return session if session is not None and session.is_open else None

    @property
    def uses_socket(self) -> bool:
        """Return whether a WebSocket is open."""
        return self._session is not None

    @property
    def way(self) -> str:
        """The way that was used last, for people; empty before the first."""
        return "" if self._way is None else str(self._way)

    async def open(self) -> None:
        """Open a WebSocket if possible, so that errors appear before the first request.

        Raises ``AuthenticationRequired``, ``Unreachable``, with ``transport="socket"``
        ``SocketRefused``, and the agent's own error, such as ``UnauthenticatedError``.
        """
        search = _Search(self)
        for way in search.ways():
            if not way.is_socket:
                return  # only a message shows more
            try:
                await self._linked(way)
                return
            except (SocketRefused, Unreachable) as error:
                search.passes(way, error)
        raise search.failure

    def in_order(self) -> Iterator[Way]:
        """Yield the way of the open session, then ways without a failure, then others."""
        if self.uses_socket and self._way is not None:
            yield self._way
        now = asyncio.get_running_loop().time()
        yield from sorted(self._ways, key=lambda way: way.rest_until > now)

    async def _linked(self, way: Way) -> SocketSession | PostLink:
        self._check_open()
        if not way.is_socket:
            return PostLink(self._http, way.endpoint, self.identity, self.settings)
        async with self._opening:
            if self._session is not None:
                return self._session
            try:
                socket = await way.endpoint.open_socket(self._http, self.settings)
            except (SocketRefused, Unreachable) as error:
                self.failed(way, error)
                raise
            session = SocketSession(
                socket,
                self.identity,
                self.settings,
                lambda message, size: self._take(message, size, session),
            )
            if self.is_closed:
                await session.close()
            self._check_open()
            self.reconnects += self._http.egress in self._sessions
            self._sessions = {key: each for key, each in self._sessions.items() if each.is_open}
            self._sessions[self._http.egress] = session
            session.start()
            self._uses(way)
            if self._greeting is not None:
                greeting = self._greeting()
                self._greeted = greeting.message_id
                await session.send(greeting)
            return session

    def _check_open(self) -> None:
        if self.is_closed:
            raise ConnectionClosed("this connection was closed; open a new one")

    def _uses(self, way: Way) -> None:
        way.works()
        if way is not self._way:
            logger.log(
                logging.INFO if self._way is None else logging.WARNING,
                "envelope: using %s%s",
                way,
                "" if self._way is None else f", and no longer {self._way}",
            )
            self._way = way

    def failed(self, way: Way, error: Exception) -> None:
        """Record that a transport cannot be used for a while."""
        is_refused = isinstance(error, SocketRefused)
        first = self.settings.socket_again if is_refused else self.settings.backoff.first
        way.rest(asyncio.get_running_loop().time(), first, error)
        logger.info("envelope: %s cannot be used: %s", way, error)

    async def ask(
        self, request: Envelope, *, deadline: float | None = None, repeats: bool = True
    ) -> Answers:
        """Send a request and yield its answers, each once; the last answer ends it.

        ``deadline`` is a time of the event loop: the message has the remaining time. ``repeats``:
        an unanswered request is sent again after the connection broke, and a rejected request at
        its ``retryAfter``. Without it, ``Disconnected`` is raised for a request that may have been
        processed.
        """
        async with self._slots:
            task = _RequestInFlight(request, deadline, self.settings.retries, repeats=repeats)
            finish = AnswerEnd(request)
            while True:
                cut: Exception | None = None
                try:
                    async with aclosing(self._attempt(task)) as answers:
                        async for answer in answers:
                            cut = await self._correction(task, answer)
                            if cut is not None:
                                break
                            is_last = finish.is_last(answer)
                            if task.is_new(answer) or (is_last and not task.is_broadcast):
                                yield answer
                            if is_last:
                                return
                        else:
                            return  # a notification
                except (Disconnected, Unreachable, UnexpectedStatus) as error:
                    if not task.may_repeat(error):
                        raise
                    cut = error
                await asyncio.sleep(task.pause(cut, self.settings))

    async def _attempt(self, task: _RequestInFlight) -> Answers:
        """Send a request once, by the first transport that accepts it, and yield the answers."""
        search = _Search(self)
        for way in search.ways():
            is_begun = False
            try:
                link = await self._linked(way)
                async with aclosing(link.exchange(task.next_message())) as answers:
                    async for answer in answers:
                        if not is_begun:
                            is_begun = True
                            self._uses(way)
                        yield answer
                return
            except (SocketRefused, Unreachable, UnexpectedStatus) as error:
                is_undelivered = isinstance(error, SocketRefused | Unreachable)
                is_undelivered |= getattr(error, "status", 0) in _NOTHING_THERE
                if is_begun or not is_undelivered:
                    raise
                search.passes(way, error)
        raise search.failure

    async def _correction(self, task: _RequestInFlight, answer: Envelope) -> Exception | None:
        """Return why a rejected request is sent again, ``None`` for other answers.

        It is sent once more with other credentials, once from the source that belongs to the
        credentials, and at its ``retryAfter``.
        """
        error = error_in(answer)
        if error is None:
            return None
        if (passing := task.passing_refusal(error.retry_after, error.message)) is not None:
            return passing
        is_first = error.code not in task.corrected
        task.corrected.add(error.code)
        endpoint = None if self._way is None else self._way.endpoint
        is_refused = is_first and error.code == "UNAUTHENTICATED"
        if is_refused and endpoint is not None and await endpoint.renew(Refusal(401)):
            renewed = Disconnected("the credentials were renewed")
            if self._session is not None:
                self._session.end(renewed)
            return renewed
        if is_first and error.code == "SOURCE_MISMATCH":
            self.identity.rename(a2a_error(error).metadata.get("agentId") or "")
            if task.takes_source(self.identity):
                return Disconnected("the source was corrected")
        return None

    async def heartbeat(self, payload: dict[str, Any] | None = None) -> Envelope | None:
        """Send a HEARTBEAT; return its answer, ``None`` if HTTP returns none."""
        search = _Search(self)
        for way in search.ways():
            try:
                link = await self._linked(way)
                if isinstance(link, SocketSession):
                    return await link.heartbeat(payload)
                sent = heartbeat(self.identity.source, payload=payload)
                async with aclosing(link.exchange(sent)) as answers:
                    async for answer in answers:
                        self._uses(way)
                        return answer
                return None
            except (SocketRefused, Unreachable) as error:
                search.passes(way, error)
        raise search.failure

    def greet_with(self, greeting: Callable[[], Envelope]) -> None:
        """Send this message after each connect from now on: a registration."""
        self._greeting = greeting

    def keep(self) -> None:
        """Keep a WebSocket open, also while no request is running. Idempotent."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="envelope-keeper")

    async def _keep(self) -> None:
        failures, backoff = 0, self.settings.backoff
        while not self.is_closed:
            way = next((way for way in self.in_order() if way.is_socket), None)
            if way is None:
                return
            try:
                session = await self._linked(way)
            except (ClientError, A2AError) as error:  # A2AError: refused with a message
                failures += 1
                logger.info("envelope: no WebSocket: %s", error)
                await asyncio.sleep(backoff.delay(failures))
                continue
            assert isinstance(session, SocketSession)
            await session.ended.wait()
            failures = 0
            await asyncio.sleep(backoff.delay(1))

    async def messages(self) -> AsyncIterator[Envelope]:
        """Yield messages that answer no request, such as EVENTs of others and HEARTBEATs.

        Of more than 1,000 unread ones, or 16 MiB, the oldest are dropped.
        """
        while not self.is_closed:
            while self._unclaimed:
                received, size = self._unclaimed.popleft()
                self._unclaimed_size -= size
                yield received
            self._has_unclaimed.clear()
            await self._has_unclaimed.wait()

    def _take(self, received: Envelope, size: int, session: SocketSession) -> None:
        if received.message.type == MessageType.REQUEST:
            self.inbound.take(received, session.send)
        error = error_in(received)
        if error is not None and self._greeted == received.message.correlation_id:
            words = f"{error.code}: {error.message[:300]}"
            logger.warning("envelope: registering was rejected after a reconnect: %s", words)
        waiting = self._unclaimed
        waiting.append((received, size))
        self._unclaimed_size += size
        while len(waiting) > MAX_UNCLAIMED or self._unclaimed_size > MAX_UNCLAIMED_SIZE:
            self._unclaimed_size -= waiting.popleft()[1]
        self._has_unclaimed.set()

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self.is_closed = True
        self._has_unclaimed.set()
        if self._keeper is not None:
            await end([self._keeper])
        await self.inbound.close()
        for session in list(self._sessions.values()):
            await session.close()


class _Search:
    """Searches for a transport that accepts a request. ``failure`` combines the errors of all
    others.

    After an endpoint that cannot be reached by WebSocket, HTTP is not tried there.
    """

    def __init__(self, connection: EnvelopeConnection) -> None:
        self._connection = connection
        self._errors: list[ClientError] = []
        self._unreachable: set[LinkEndpoint] = set()

    def ways(self) -> Iterator[Way]:
        """Yield the ways to try."""
        for way in self._connection.in_order():
            if way.endpoint not in self._unreachable:
                yield way

    def passes(self, way: Way, error: ClientError) -> None:
        """Record that a transport failed. Raises the error of an endpoint that is not trusted."""
        if isinstance(error, Untrusted):
            raise error
        self._errors.append(error)
        if isinstance(error, Unreachable):
            self._unreachable.add(way.endpoint)
        if not way.is_socket:
            self._connection.failed(way, error)

    @property
    def failure(self) -> ClientError:
        """A server's words, or that it is out of reach."""
        said = [
            error
            for error in self._errors
            if isinstance(error, UnexpectedStatus) and not isinstance(error, SocketRefused)
        ]
        unreachable = [error for error in self._errors if isinstance(error, Unreachable)]
        if len(unreachable) > 1:
            return Unreachable("; ".join(dict.fromkeys(map(str, unreachable))))
        return [*unreachable, *said, *self._errors][0]


class _RequestInFlight:
    """A request: how often it was sent, and its answers. ``corrected`` are earlier rejections."""

    def __init__(
        self, request: Envelope, deadline: float | None, retries: int, *, repeats: bool
    ) -> None:
        payload = request.payload
        assert isinstance(payload, RequestPayload)
        self.is_broadcast = is_broadcast(request)
        self.corrected: set[str] = set()
        self._request = request
        self._payload = payload
        self._deadline = deadline
        self._retries = retries
        self._repeats = repeats
        self._numbers = EventNumbers(payload.metadata.after)
        self._times = payload.metadata.retry_count
        self._failures = 0
        self._has_begun = self._is_accepted = self._is_unnumbered = False

    def _left(self) -> float | None:
        if self._deadline is None:
            return None
        return self._deadline - asyncio.get_running_loop().time()

    def next_message(self) -> Envelope:
        """Return the message to send now: of now, with the rest of its time."""
        metadata: dict[str, Any] = {"retry_count": self._times}
        if (left := self._left()) is not None:
            metadata["timeout"] = max(int(left * 1000), 1)
        if self._has_begun and self._numbers.after is not None:
            metadata["after"] = self._numbers.after
        payload = replace(self._payload, metadata=replace(self._payload.metadata, **metadata))
        self._times += 1
        return replace(self._request, timestamp=Timestamp.now(), payload=payload)

    def takes_source(self, identity: EnvelopeIdentity) -> bool:
        """Send the request as from another source now; return whether it is another one."""
        is_other = self._request.source != identity.source  # another request may have corrected it
        self._request = replace(self._request, source=identity.source)
        return is_other

    def is_new(self, answer: Envelope) -> bool:
        """Record an answer; return whether it is new to the caller."""
        self._failures = 0
        payload = answer.payload
        if not isinstance(payload, ResponsePayload):
            return True
        number, is_event = payload.metadata.sequence, answer.message.type == MessageType.EVENT
        if is_event and number is not None:
            self._has_begun = True
            if not self.is_broadcast:  # each agent of a broadcast numbers its own events
                return self._numbers.is_new(number)
        self._is_unnumbered |= is_event
        was_accepted = self._is_accepted
        self._is_accepted |= not is_event and payload.status == Status.ACCEPTED
        return is_event or payload.status != Status.ACCEPTED or not was_accepted

    def may_repeat(self, error: Exception) -> bool:
        """Return whether the request is sent again after an error."""
        if self._failures >= self._retries or isinstance(error, Untrusted | ConnectionClosed):
            return False
        if self._is_unnumbered:  # the events would come again, without a number to tell
            return False
        self._failures += 1
        is_transient = not isinstance(error, UnexpectedStatus) or error.status in TRANSIENT_STATUSES
        return self._repeats and is_transient

    def passing_refusal(self, retry_after: int | None, words: str) -> Exception | None:
        """Return the error of a temporary rejection, after which the request is sent again."""
        if retry_after is None or not self._repeats or self._has_begun:
            return None
        wait, left = retry_after / 1000, self._left()
        if wait > LONGEST_WAIT or (left is not None and wait >= left):
            return None
        if self._failures >= self._retries:
            return None
        self._failures += 1
        return UnexpectedStatus(words, status=503, retry_after=wait)

    def pause(self, cut: Exception, settings: LinkSettings) -> float:
        """Return how long to wait before the request is sent again."""
        wished: float | None = getattr(cut, "retry_after", None)
        pause = settings.backoff.delay(self._failures) if self._failures else 0.0
        if wished is not None:
            pause = min(wished, LONGEST_WAIT)
        logger.info("envelope: sending %.60r again in %.2f s: %s", self._payload.action, pause, cut)
        return pause


class EnvelopeClientBinding:
    """Calls an address by the envelope protocol; each operation is an action ``a2a.<name>``.

    All calls share a WebSocket, or HTTP if none is available. A call whose connection breaks fails
    with ``Disconnected``: the caller decides on a retry, as over other bindings.
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
        peer: str = "",
        auth: RequestAuth | None = None,
    ) -> None:
        self._http = http
        self._endpoint = LinkEndpoint(url, headers=headers, auth=auth)
        self._dialect = dialect
        self._timeout = timeout
        self._numbered = numbered
        self._settings = LinkSettings(idle=idle, max_message=http.max_response)
        self._connection: EnvelopeConnection | None = None
        self._is_closed = False
        self._where = redacted(url)

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return the answer of the operation."""
        timeout = None if waits_for_task(request) else self._timeout
        try:
            async with asyncio.timeout(timeout) as limit:
                async with aclosing(self._ask(operation, request, context)) as answers:
                    async for answer in answers:
                        return read_operation_result(operation, _result_of(_checked(answer)))
        except TimeoutError:
            if not limit.expired():
                raise
            raise Timeout(f"{self._where} did not answer in time") from None
        raise InvalidAgentResponseError(f"{self._where} sent no answer")

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield the events of a stream."""
        is_begun = False
        async with aclosing(self._ask(operation, request, context)) as answers:
            async for answer in answers:
                payload = _checked(answer)
                number = None
                if answer.message.type == MessageType.EVENT:
                    is_begun = True
                    number = payload.metadata.sequence if self._numbered else None
                elif is_begun or len(payload.results) != 1:
                    continue
                yield StreamItem(read_stream_event(_result_of(payload)), number)

    async def aclose(self) -> None:
        """Close the WebSocket; running calls fail with ``ConnectionClosed``. Idempotent."""
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()

    def _ask(self, operation: Operation, request: A2AStruct, context: CallContext) -> Answers:
        if self._is_closed or self._http.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        if self._connection is None:
            self._connection = EnvelopeConnection(
                self._http, (self._endpoint,), EnvelopeIdentity(), self._settings
            )
        after = context.last_event_id
        given = context.trace.headers
        if context.extensions:
            given[self._dialect.extensions_header] = join_items(sorted(context.extensions))
        asked = message(
            MessageType.REQUEST,
            RequestPayload(
                action=OPERATION_PREFIX + operation.name,
                parameters=write_operation(operation, request),
                metadata=RequestMetadata(
                    stream=operation.streaming,
                    after=int(after) if after is not None and after.isdecimal() else None,
                    service_parameters=given,
                ),
            ),
            source=self._connection.identity.source,
        )
        return self._connection.ask(asked, repeats=False)


def _checked(answer: Envelope) -> ResponsePayload:
    """Return the payload of an answer. Raises the error in it."""
    try:
        return payload_of(answer)
    except EnvelopeFailed as failed:
        raise failed.a2a_error from None


def _result_of(payload: ResponsePayload) -> Any:
    """Return the one result of an operation."""
    if len(payload.results) != 1:
        raise InvalidAgentResponseError(
            f"an operation has one result, and the answer has {len(payload.results)}"
        )
    return payload.results[0]
