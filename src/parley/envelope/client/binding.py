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

import msgspec

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
    Answers,
    heartbeat,
    message,
    read_operation_result,
    read_stream_event,
    write_operation,
)
from parley.envelope.client.session import (
    AnswerEnd,
    EnvelopeFailed,
    EnvelopeIdentity,
    EventNumbers,
    InboundRequests,
    LinkEndpoint,
    LinkSettings,
    PostLink,
    SocketSession,
    Way,
    is_broadcast,
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
from parley.model.errors import A2AError, InvalidAgentResponseError
from parley.model.operations import Operation
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct, Timestamp
from parley.security.egress import Egress
from parley.wire.versions import Dialect

logger = logging.getLogger(__name__)

MAX_UNCLAIMED = 1000
MAX_UNCLAIMED_SIZE = 16 * 1024 * 1024
"""How many messages that answer nothing, and characters of them, wait for ``messages``. Then the
oldest is dropped."""

# A request with such a status was not processed, and may be sent to another address.
_NOTHING_THERE = frozenset({404, 405, 410, 426, 501})


class EnvelopeConnection:
    """A connection to one agent, over the best way to it that works at the time.

    Opening a WebSocket is tried first, then HTTP, at each endpoint in turn; a way that fails rests.
    Endpoints that the server refuses for other reasons than credentials are passed over. ``close``
    ends it; requests under way then fail with ``ConnectionClosed``.
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
        self._http = http
        self._ways = ways_to(tuple(endpoints), self.settings)
        self._way: Way | None = None
        self._sessions: dict[Egress | None, SocketSession] = {}
        self._opening = asyncio.Lock()
        self._slots = asyncio.Semaphore(self.settings.max_in_flight)
        self._unclaimed: deque[tuple[Envelope, int]] = deque()
        self._unclaimed_size = 0
        self._has_unclaimed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._greetings: dict[str, Callable[[], Envelope]] = {}
        self._greeted: dict[str, str] = {}
        self.inbound = InboundRequests(identity)
        self.is_closed = False
        self.reconnects = 0

    @property
    def _session(self) -> SocketSession | None:
        """The WebSocket for the egress policy that holds here, which judged where it goes."""
        return self._sessions.get(self._http.egress)

    @property
    def uses_socket(self) -> bool:
        """Whether a WebSocket is open."""
        return self._session is not None and self._session.is_open

    @property
    def way(self) -> str:
        """The way that was used last, for people; empty before the first."""
        return "" if self._way is None else str(self._way)

    async def open(self) -> None:
        """Open a WebSocket if one can be had, so that errors show before the first request.

        Raises ``AuthenticationRequired``, ``Unreachable``, with ``transport="socket"``
        ``SocketRefused``, and the agent's own error, such as ``UnauthenticatedError``.
        """
        refusals: list[ClientError] = []
        unreachable: set[LinkEndpoint] = set()
        for way in self._in_order():
            if way.endpoint in unreachable:
                continue
            if not way.is_socket:
                return  # only a message shows more
            try:
                await self._linked(way)
                return
            except (SocketRefused, Unreachable) as error:
                if isinstance(error, Untrusted):
                    raise
                refusals.append(error)
                if isinstance(error, Unreachable):
                    unreachable.add(way.endpoint)
        raise _combined(refusals)

    def _in_order(self) -> Iterator[Way]:
        """Yield the way of the open session, then ways without a failure, then others.

        After an endpoint that cannot be reached by WebSocket, HTTP is not tried there.
        """
        if self.uses_socket and self._way is not None:
            yield self._way
        now = asyncio.get_running_loop().time()
        ways = sorted(self._ways, key=lambda way: way.rest_until > now)
        yield from ways

    async def _linked(self, way: Way) -> SocketSession | PostLink:
        if self.is_closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        if not way.is_socket:
            return PostLink(self._http, way.endpoint, self.identity, self.settings)
        async with self._opening:
            if self._session is not None and self._session.is_open:
                return self._session
            try:
                socket = await way.endpoint.open_socket(self._http, self.settings)
            except (SocketRefused, Unreachable) as error:
                self._failed(way, error)
                raise
            session = SocketSession(
                socket,
                self.identity,
                self.settings,
                lambda message, size: self._take(message, size, session),
            )
            if self.is_closed:
                await session.close()
                raise ConnectionClosed("this connection was closed; open a new one")
            if self._session is not None:
                self.reconnects += 1
            for egress, ended in list(self._sessions.items()):
                if not ended.is_open:
                    del self._sessions[egress]
            self._sessions[self._http.egress] = session
            session.start()
            self._uses(way)
            for name in self._greetings:
                await self._greet(name, session)
            return session

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

    def _failed(self, way: Way, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        is_refused = isinstance(error, SocketRefused)
        first = self.settings.socket_again if is_refused else self.settings.backoff.first
        way.rest(now, first, error)
        logger.info("envelope: %s cannot be used: %s", way, error)

    async def ask(
        self, request: Envelope, *, deadline: float | None = None, repeats: bool = True
    ) -> Answers:
        """Send a request and yield its answers, each once; the last one ends it.

        ``deadline`` is a time of the event loop: the message has the time until then.
        ``repeats``: an unanswered request is sent again after the connection broke, and a refused
        one at its ``retryAfter``. Without it, ``Disconnected`` is raised for a request that may
        have been processed.
        """
        async with self._slots:
            task = _RequestInFlight(request, deadline, is_patient=repeats)
            end = AnswerEnd(request)
            while True:
                cut: Exception | None = None
                try:
                    async with aclosing(self._attempt(task)) as answers:
                        async for answer in answers:
                            if task.refusal_passes(answer, self.settings.retries):
                                cut = task.passing
                                break
                            if await self._is_renewed(task, answer):
                                cut = Disconnected("the credentials were renewed")
                                break
                            if self._is_renamed(task, answer):
                                cut = Disconnected("the source was corrected")
                                break
                            is_last = end.is_last(answer)
                            if task.is_new(answer) or (is_last and not task.is_broadcast):
                                yield answer
                            if is_last:
                                return
                        else:
                            return  # a notification
                except (Disconnected, Unreachable, UnexpectedStatus) as error:
                    if not task.may_repeat(error, self.settings.retries):
                        raise
                    cut = error
                await asyncio.sleep(task.pause(cut, self.settings))

    async def _attempt(self, task: _RequestInFlight) -> Answers:
        """Send a request once, by the first way that takes it, and yield the answers."""
        refusals: list[ClientError] = []
        unreachable: set[LinkEndpoint] = set()
        for way in self._in_order():
            if way.endpoint in unreachable:
                continue
            begun = False
            try:
                link = await self._linked(way)
                message = task.next_message()
                async with aclosing(link.exchange(message)) as answers:
                    async for answer in answers:
                        if not begun:
                            begun = True
                            self._uses(way)
                        yield answer
                return
            except (SocketRefused, Unreachable, UnexpectedStatus) as error:
                is_undelivered = not begun and (
                    isinstance(error, SocketRefused | Unreachable) or error.status in _NOTHING_THERE
                )
                if not is_undelivered or isinstance(error, Untrusted):
                    raise
                if isinstance(error, Unreachable):
                    unreachable.add(way.endpoint)
                if not way.is_socket:
                    self._failed(way, error)
                refusals.append(error)
        raise _combined(refusals)

    async def _is_renewed(self, task: _RequestInFlight, answer: Envelope) -> bool:
        """Return whether an answer refused the credentials, and there are others now."""
        payload = answer.payload
        if not isinstance(payload, ResponsePayload) or payload.error is None or task.is_renewed:
            return False
        if payload.error.code != "UNAUTHENTICATED" or self._way is None:
            return False
        task.is_renewed = True
        if not await self._way.endpoint.renew(Refusal(401)):
            return False
        if self._session is not None:
            self._session.end(Disconnected("the credentials were renewed"))
        return True

    def _is_renamed(self, task: _RequestInFlight, answer: Envelope) -> bool:
        """Return whether an answer names the source to be, and this side had chosen none."""
        payload = answer.payload
        if not isinstance(payload, ResponsePayload) or payload.error is None or task.is_renamed:
            return False
        if payload.error.code != "SOURCE_MISMATCH":
            return False
        task.is_renamed = True
        return task.takes_source(self.identity, a2a_error(payload.error).metadata.get("agentId"))

    async def heartbeat(self, payload: dict[str, Any] | None = None) -> Envelope | None:
        """Send a HEARTBEAT; return its answer, ``None`` if HTTP brings none."""
        refusals: list[ClientError] = []
        for way in self._in_order():
            try:
                link = await self._linked(way)
                if isinstance(link, SocketSession):
                    return await link.heartbeat(payload)
                message = heartbeat(self.identity.source, payload=payload)
                async with aclosing(link.exchange(message)) as answers:
                    async for answer in answers:
                        self._uses(way)
                        return answer
                return None
            except (SocketRefused, Unreachable) as error:
                refusals.append(error)
        raise _combined(refusals)

    def greet_with(self, name: str, greeting: Callable[[], Envelope]) -> None:
        """Send a message after each connect from now on, such as a registration."""
        self._greetings[name] = greeting

    async def _greet(self, name: str, session: SocketSession) -> None:
        greeting = self._greetings[name]()
        self._greeted[name] = greeting.message_id
        await session.send(greeting)

    def _log_refused_greeting(self, message: Envelope) -> None:
        """Say that a greeting was refused."""
        payload = message.payload
        if not isinstance(payload, ResponsePayload) or payload.error is None:
            return
        for name, id in self._greeted.items():
            if id == message.message.correlation_id:
                words = f"{payload.error.code}: {payload.error.message[:300]}"
                logger.warning("envelope: %s was refused after a reconnect: %s", name, words)

    def keep(self) -> None:
        """Keep a WebSocket open, also while no request is under way. Idempotent."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="envelope-keeper")

    async def _keep(self) -> None:
        sockets = [way for way in self._ways if way.is_socket]
        failures = 0
        while sockets and not self.is_closed:
            session = self._session
            if session is None or not session.is_open:
                try:
                    linked = await self._linked(
                        next(way for way in self._in_order() if way.is_socket)
                    )
                except (ClientError, A2AError) as error:  # A2AError: refused with a message
                    failures += 1
                    logger.info("envelope: no WebSocket: %s", error)
                    await asyncio.sleep(self.settings.backoff.delay(failures))
                    continue
                assert isinstance(linked, SocketSession)
                session = linked
            await session.ended.wait()
            failures = 0
            await asyncio.sleep(self.settings.backoff.delay(1))

    async def messages(self) -> AsyncIterator[Envelope]:
        """Yield messages that answer no request, such as EVENTs of others and HEARTBEATs.

        Of more than 1,000 unread ones, or 16 MiB, the oldest are dropped.
        """
        while not self.is_closed:
            while self._unclaimed:
                message, size = self._unclaimed.popleft()
                self._unclaimed_size -= size
                yield message
            self._has_unclaimed.clear()
            await self._has_unclaimed.wait()

    def _take(self, message: Envelope, size: int, session: SocketSession) -> None:
        if message.message.type == MessageType.REQUEST:
            self.inbound.take(message, session.send)
        self._log_refused_greeting(message)
        waiting = self._unclaimed
        waiting.append((message, size))
        self._unclaimed_size += size
        while len(waiting) > MAX_UNCLAIMED or self._unclaimed_size > MAX_UNCLAIMED_SIZE:
            self._unclaimed_size -= waiting.popleft()[1]
        self._has_unclaimed.set()

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self.is_closed = True
        self._has_unclaimed.set()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self.inbound.close()
        for session in list(self._sessions.values()):
            await session.close()


class _RequestInFlight:
    """One request: how often it was sent, and its answers."""

    def __init__(self, request: Envelope, deadline: float | None, *, is_patient: bool) -> None:
        self._request = request
        self._deadline = deadline
        self._is_patient = is_patient
        self._clock = asyncio.get_running_loop().time
        payload = request.payload
        assert isinstance(payload, RequestPayload)
        self._payload = payload
        self.is_broadcast = is_broadcast(request)
        self._numbers = EventNumbers(payload.metadata.after)
        self._times = payload.metadata.retry_count
        self._failures = 0
        self._has_begun = False
        self._is_accepted = False
        self._is_unnumbered = False
        self.is_renewed = self.is_renamed = False
        self.passing: Exception | None = None

    def next_message(self) -> Envelope:
        """Return the message to send now: of now, with the rest of its time."""
        metadata: dict[str, Any] = {"retry_count": self._times}
        if self._deadline is not None:
            metadata["timeout"] = max(int((self._deadline - self._clock()) * 1000), 1)
        after = self._numbers.after
        if self._has_begun and after is not None:
            metadata["after"] = after
        replace = msgspec.structs.replace
        payload = replace(self._payload, metadata=replace(self._payload.metadata, **metadata))
        self._times += 1
        return replace(self._request, timestamp=Timestamp.now(), payload=payload)

    def takes_source(self, identity: EnvelopeIdentity, agent_id: str | None) -> bool:
        """Send the request as from another source now; return whether it is another one."""
        if agent_id:
            identity.rename(agent_id)
        if self._request.source == identity.source:  # else another request corrected it before
            return False
        self._request = msgspec.structs.replace(self._request, source=identity.source)
        return True

    def is_new(self, answer: Envelope) -> bool:
        """Note an answer; return whether the caller has not had it."""
        self._failures = 0
        payload = answer.payload
        if not isinstance(payload, ResponsePayload):
            return True
        number = payload.metadata.sequence
        if answer.message.type == MessageType.EVENT and number is not None:
            self._has_begun = True
            if not self.is_broadcast:  # each agent has numbers of its own
                return self._numbers.is_new(number)
        if answer.message.type == MessageType.EVENT:
            self._is_unnumbered = True
        elif payload.status == Status.ACCEPTED:
            was_accepted, self._is_accepted = self._is_accepted, True
            return not was_accepted
        return True

    def may_repeat(self, error: Exception, retries: int) -> bool:
        """Return whether the request is sent again after an error."""
        if self._failures >= retries or isinstance(error, Untrusted | ConnectionClosed):
            return False
        if self._is_unnumbered:  # the events would come again, without a number to tell
            return False
        self._failures += 1
        if isinstance(error, UnexpectedStatus):
            return self._is_patient and error.status in TRANSIENT_STATUSES
        return self._is_patient

    def refusal_passes(self, answer: Envelope, retries: int) -> bool:
        """Return whether an answer is a refusal until a time, after which it is asked again."""
        payload = answer.payload
        if not self._is_patient or not isinstance(payload, ResponsePayload):
            return False
        error = payload.error
        if error is None or error.retry_after is None:
            return False
        wait = error.retry_after / 1000
        left = None if self._deadline is None else self._deadline - self._clock()
        if wait > LONGEST_WAIT or (left is not None and wait >= left):
            return False
        if self._failures >= retries or self._has_begun:
            return False
        self._failures += 1
        self.passing = UnexpectedStatus(error.message, status=503, retry_after=wait)
        return True

    def pause(self, cut: Exception | None, settings: LinkSettings) -> float:
        """Return how long to wait before the request is sent again."""
        wished: float | None = getattr(cut, "retry_after", None)
        if wished is not None:
            pause = min(wished, LONGEST_WAIT)
        elif self._failures:
            pause = settings.backoff.delay(self._failures)
        else:
            pause = 0.0
        logger.info("envelope: sending %.60r again in %.2f s: %s", self._payload.action, pause, cut)
        return pause


def _combined(refusals: Sequence[ClientError]) -> ClientError:
    """Return one error for all ways: a server's words before an unreachable address."""
    said = [error for error in refusals if isinstance(error, UnexpectedStatus)]
    by_http = [error for error in said if not isinstance(error, SocketRefused)]
    unreachable = [error for error in refusals if isinstance(error, Unreachable)]
    if by_http and not unreachable:
        return by_http[0]
    if len(unreachable) > 1:
        return Unreachable("; ".join(dict.fromkeys(map(str, unreachable))))
    return (unreachable or by_http or list(refusals))[0]


class EnvelopeClientBinding:
    """Calls one address by the envelope protocol; each operation is an action ``a2a.<name>``.

    All calls share a WebSocket, or HTTP where none can be had. A call whose connection breaks fails
    with ``Disconnected``: whether it is repeated is for the caller to say, as over other bindings.
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
        self._identity = EnvelopeIdentity.of()
        self._settings = LinkSettings(idle=idle, max_message=http.max_response)
        self._connection: EnvelopeConnection | None = None
        self._is_closed = False
        self._where = redacted(url)

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return what the operation answers."""
        timeout = None if waits_for_task(request) else self._timeout
        try:
            async with asyncio.timeout(timeout) as limit:
                async with aclosing(self._ask(operation, request, context)) as answers:
                    async for answer in answers:
                        result = _only_result(answer)
                        return read_operation_result(operation, result)
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
                if answer.message.type == MessageType.EVENT:
                    is_begun = True
                    number = payload.metadata.sequence if self._numbered else None
                    yield StreamItem(read_stream_event(_only_result(answer)), number)
                elif not is_begun and len(payload.results) == 1:
                    yield StreamItem(read_stream_event(payload.results[0]))

    async def aclose(self) -> None:
        """Close the WebSocket; calls under way fail with ``ConnectionClosed``. Idempotent."""
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()

    def _ask(self, operation: Operation, request: A2AStruct, context: CallContext) -> Answers:
        if self._is_closed or self._http.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        if self._connection is None:
            self._connection = EnvelopeConnection(
                self._http, (self._endpoint,), self._identity, self._settings
            )
        after = context.last_event_id
        given = message(
            MessageType.REQUEST,
            RequestPayload(
                action=OPERATION_PREFIX + operation.name,
                parameters=write_operation(operation, request),
                metadata=RequestMetadata(
                    stream=operation.streaming,
                    after=int(after) if after is not None and after.isdecimal() else None,
                    service_parameters=self._service_parameters(context),
                ),
            ),
            source=self._identity.source,
        )
        return self._connection.ask(given, repeats=False)

    def _service_parameters(self, context: CallContext) -> dict[str, str]:
        """Return the service parameters of A2A (specification §3.2.6)."""
        ours: dict[str, str] = {}
        if context.extensions:
            ours[self._dialect.extensions_header] = join_items(sorted(context.extensions))
        if context.trace:
            ours |= context.trace.headers
        return ours


def _checked(answer: Envelope) -> Any:
    try:
        return payload_of(answer)
    except EnvelopeFailed as failed:
        raise failed.a2a_error from None


def _only_result(answer: Envelope) -> Any:
    """Return the one result of an operation. Raises the error in the answer."""
    payload = _checked(answer)
    if len(payload.results) != 1:
        raise InvalidAgentResponseError(
            f"an operation has one result, and the answer has {len(payload.results)}"
        )
    return payload.results[0]
