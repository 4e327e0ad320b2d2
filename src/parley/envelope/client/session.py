"""One open WebSocket of an envelope connection: many requests under way, HEARTBEATs both ways."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from parley.client.bindings.http import HttpTransport, OpenResponse, redacted
from parley.client.bindings.http_binding import EVENT_STREAM, media_type_of
from parley.client.bindings.request_auth import NOTHING, Refusal, RequestAuth, override, refusal_in
from parley.client.bindings.websocket import HandshakeRefused, OpenSocket, SocketRefused
from parley.client.errors import (
    AuthenticationRequired,
    ClientError,
    ConnectionClosed,
    Disconnected,
    ResponseTooLarge,
    UnexpectedStatus,
)
from parley.client.origin import http_address
from parley.envelope import answers
from parley.envelope.answers import Answers, WaitingAnswers, WaitingBytes, heartbeat
from parley.envelope.answers import message as message_of
from parley.envelope.codec import UnreadableEnvelope, read_message
from parley.envelope.messages import (
    STOP,
    SUBPROTOCOL,
    DeadlineExceeded,
    Envelope,
    EnvelopeError,
    MessageType,
    RequestMetadata,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    RoutingStrategy,
    Source,
    Status,
    SubType,
    Violation,
    a2a_error,
)
from parley.model.backoff import Backoff, seconds_of
from parley.model.bounded import Bounded
from parley.model.errors import (
    A2AError,
    InternalError,
    InvalidAgentResponseError,
    MethodNotFoundError,
    OverloadedError,
    UnauthenticatedError,
)
from parley.model.ids import RIGHT_NAME, may_be_name, new_id
from parley.wire.sse import SseParser

if TYPE_CHECKING:
    from parley.envelope.signatures import EnvelopeKey

Transport = Literal["auto", "socket", "http"]

TRANSPORTS = ("auto", "socket", "http")


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an envelope connection. Times are in seconds.

    ``heartbeat`` is the interval of HEARTBEATs: after ``tolerance`` of them without any message the
    connection counts as dead. ``ping`` is the interval of WebSocket pings. ``handshake``
    is how long a server has to open a WebSocket, after connecting. ``retries`` is how often in a
    row a request is sent again; ``backoff`` has the pauses. ``idle`` bounds the silence in a
    stream over HTTP. ``socket_again`` is how long HTTP is used before a WebSocket is tried again,
    twice as long after each failure, up to ten times. ``max_message`` is the largest message in
    bytes, in both directions; at most ``max_in_flight`` requests are under way, others wait; a
    stream whose reader is ``max_waiting`` messages behind is fetched again later.

    Raises ``ValueError`` for a value out of range.
    """

    transport: Transport = "auto"
    heartbeat: float = 30.0
    tolerance: int = 3
    ping: float | None = 20.0
    handshake: float = 10.0
    retries: int = 8
    backoff: Backoff = Backoff(0.2, 10.0, jitter=(0.5, 1.0))
    idle: float | None = 120.0
    socket_again: float = 60.0
    max_message: int = 10 * 1024 * 1024
    max_in_flight: int = 64
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise ValueError(
                f"transport is one of {', '.join(TRANSPORTS)}, not {self.transport!r:.60}"
            )
        for name, least in (("heartbeat", 0.01), ("handshake", 0.01), ("socket_again", 0.0)):
            _check_seconds(name, getattr(self, name), least)
        for name in ("ping", "idle"):
            if getattr(self, name) is not None:
                _check_seconds(name, getattr(self, name), 0.01)
        for name, least in (
            ("tolerance", 1),
            ("retries", 0),
            ("max_message", 1024),
            ("max_in_flight", 1),
            ("max_waiting", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is a whole number from {least} on, not {value!r:.60}")


def _check_seconds(name: str, value: object, least: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:  # type: ignore[arg-type,operator]
        raise ValueError(f"{name} is a number of seconds from {least:g} on, not {value!r:.60}")


LONGEST_REST = 10
"""How many times as long as first a way that fails again and again is left alone."""


class LinkEndpoint:
    """One address of an agent.

    ``url`` has the scheme of HTTP; the WebSocket has the same address. ``headers`` and the
    credentials of ``auth`` go with the upgrade and with every POST; after a refusal (401, 403)
    ``auth`` is asked again. ``has_socket`` and ``has_http`` choose the transports.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        auth: RequestAuth | None,
        has_socket: bool = True,
        has_http: bool = True,
    ) -> None:
        self.url = http_address(url)
        self.has_socket = has_socket
        self.has_http = has_http
        self._headers = headers
        self._auth = auth
        self._sent = NOTHING

    def __str__(self) -> str:
        return redacted(self.url)

    async def open_socket(self, http: HttpTransport, settings: LinkSettings) -> OpenSocket:
        """Open a WebSocket. Raises ``AuthenticationRequired``, ``SocketRefused``, others.

        Raises the agent's own error if it refuses with one, such as ``UnauthenticatedError``.
        """
        may_ask = self._auth is not None
        while True:
            given = await self._auth.parameters(None) if self._auth else NOTHING
            self._sent = given
            try:
                return await http.open_socket(
                    given.add_to(self.url),
                    override(self._headers, given.headers),
                    subprotocol=SUBPROTOCOL,
                    handshake=settings.handshake,
                    max_message=settings.max_message,
                    ping=settings.ping,
                )
            except AuthenticationRequired as error:
                if not may_ask or not await self.renew(Refusal(error.status, error.challenge)):
                    said = _said_in(error)
                    if said is not None:
                        raise self._with_advice(said, error) from None
                    raise self._advised(error) from None
                may_ask = False
                logger.info("%s refuses the credentials; trying others", self)

    @asynccontextmanager
    async def post(
        self, http: HttpTransport, body: bytes, settings: LinkSettings
    ) -> AsyncIterator[OpenResponse]:
        """Post a message and yield the response. Raises ``AuthenticationRequired``, others."""
        may_ask = self._auth is not None
        ours = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
        }
        while True:
            given = await self._auth.parameters(None) if self._auth else NOTHING
            self._sent = given
            headers = override(override(self._headers, given.headers), ours)
            async with http.open(
                "POST", given.add_to(self.url), headers, body, idle=settings.idle
            ) as response:
                if response.status in (401, 403):
                    refusal = refusal_in(response.status, response.headers)
                    if may_ask and await self.renew(refusal):
                        may_ask = False
                        continue
                yield response
                return

    async def renew(self, refusal: Refusal) -> bool:
        """Return whether there are other credentials now than the refused ones."""
        return self._auth is not None and await self._auth.answer(refusal, None, self._sent)

    def refused(self, refusal: Refusal) -> AuthenticationRequired:
        """Return the error for a refusal of the credentials."""
        words = "wants credentials" if refusal.status == 401 else "refuses these credentials"
        error = AuthenticationRequired(
            f"{self} {words}", status=refusal.status, challenge=refusal.challenge
        )
        return self._advised(error)

    def _advised(self, error: AuthenticationRequired) -> AuthenticationRequired:
        """Return an error with what would help."""
        return AuthenticationRequired(
            self._and_advice(str(error), error), status=error.status, challenge=error.challenge
        )

    def _with_advice(self, said: A2AError, error: AuthenticationRequired) -> A2AError:
        """Return the agent's words about the credentials, with advice."""
        if isinstance(said, UnauthenticatedError):
            said.message = self._and_advice(said.message, error)
            said.args = (said.message,)
        return said

    def _and_advice(self, words: str, error: AuthenticationRequired) -> str:
        advice = self._auth.advice(Refusal(error.status, error.challenge)) if self._auth else ""
        return f"{words}; {advice}" if advice else words


def _said_in(error: AuthenticationRequired) -> A2AError | None:
    """Return the error that a refused handshake has as a message of the protocol, if it has one."""
    if not isinstance(error, HandshakeRefused):
        return None
    try:
        payload = read_message(error.body).payload
    except UnreadableEnvelope:
        return None
    if not isinstance(payload, ResponsePayload) or payload.error is None:
        return None
    return a2a_error(payload.error)


class Way:
    """One way to an agent: an endpoint by WebSocket or by HTTP.

    A way that failed rests: others are tried before it until ``rest_until``, a time of the loop.
    """

    def __init__(self, endpoint: LinkEndpoint, *, is_socket: bool) -> None:
        self.endpoint = endpoint
        self.is_socket = is_socket
        self.rest_until = 0.0
        self._failures = 0

    def __str__(self) -> str:
        return f"{'a WebSocket' if self.is_socket else 'HTTP'} at {self.endpoint}"

    def rest(self, now: float, first: float, error: Exception) -> None:
        """Note that the way failed."""
        self._failures += 1
        wished = error.retry_after if isinstance(error, SocketRefused) else None
        pause = Backoff(first, first * LONGEST_REST).delay(self._failures)
        self.rest_until = now + (pause if wished is None else min(wished, first * LONGEST_REST))

    def works(self) -> None:
        """Note that the way works."""
        self.rest_until, self._failures = 0.0, 0


def ways_to(endpoints: tuple[LinkEndpoint, ...], settings: LinkSettings) -> list[Way]:
    """Return the ways to an agent in their order: each endpoint by WebSocket, then by HTTP.

    Raises ``ValueError`` if the settings leave none.
    """
    kinds = {"auto": (True, False), "socket": (True,), "http": (False,)}[settings.transport]
    ways = [
        Way(endpoint, is_socket=is_socket)
        for endpoint in endpoints
        for is_socket in kinds
        if (endpoint.has_socket if is_socket else endpoint.has_http)
    ]
    if not ways:
        raise ValueError(f"the agent has no address for transport={settings.transport!r}")
    return ways


class NotFromAgent(ClientError):
    """An answer is not signed with the agent's key. It is not used."""


class EnvelopeTooLarge(ClientError):
    """The message is larger than this side sends. Nothing was sent."""


class EnvelopeIdentity:
    """The source of messages, and the keys: ``key`` signs them, ``agent_key`` verifies answers.

    ``is_given``: the user chose the source. Without that, an agent that knows the caller may say
    what its credentials are for.
    """

    def __init__(
        self,
        source: Source,
        *,
        key: EnvelopeKey | None = None,
        agent_key: EnvelopeKey | None = None,
        is_given: bool = True,
    ) -> None:
        self.source = source
        self._is_given = is_given or key is not None
        self.target_id = ""
        """The id of the agent, which signed messages name as their target."""
        self._key = key
        self._agent_key = agent_key

    @classmethod
    def of(
        cls,
        agent_id: str = "",
        agent_type: str = "",
        *,
        key: EnvelopeKey | None = None,
        agent_key: EnvelopeKey | None = None,
    ) -> EnvelopeIdentity:
        """Return an identity; the owner of the key is its id, else one by chance.

        Raises ``ValueError`` for an id that is not the owner of the key, and for other texts.
        """
        if key is not None and agent_id not in ("", key.owner):
            raise ValueError(
                f"the key is that of {key.owner!r}, so agent_id is that too, or left out"
            )
        instance = new_id()
        id = agent_id or (key.owner if key is not None else f"client-{instance}")
        for name, value in (("agent_id", id), ("agent_type", agent_type)):
            if not isinstance(value, str) or not may_be_name(value):
                raise ValueError(f"{name} is {RIGHT_NAME}, not {value!r:.80}")
        source = Source(agent_id=id, agent_type=agent_type or "client", instance_id=instance)
        return cls(source, key=key, agent_key=agent_key, is_given=bool(agent_id))

    @property
    def signs(self) -> bool:
        """Whether messages are signed."""
        return self._key is not None

    def rename(self, agent_id: str) -> bool:
        """Take the id that the credentials are for, unless the user chose one."""
        if self._is_given or agent_id == self.source.agent_id or not may_be_name(agent_id):
            return False
        self.source = msgspec.structs.replace(self.source, agent_id=agent_id)
        return True

    def write(self, message: Envelope, limit: int) -> bytes:
        """Return a message as it is sent: signed for this one time, if there is a key.

        Raises ``EnvelopeTooLarge``, and ``ValueError`` for what JSON cannot say.
        """
        from parley.envelope.codec import write_message

        if self._key is not None:
            is_open = not (message.target.agent_id or message.target.agent_type)
            if is_open and self.target_id:
                target = msgspec.structs.replace(message.target, agent_id=self.target_id)
                message = msgspec.structs.replace(message, target=target)
            from parley.envelope.signatures import sign_message
            from parley.model.struct import Timestamp

            message = sign_message(message, self._key, now=Timestamp.now())
        data = write_message(message)
        if len(data) > limit:
            raise EnvelopeTooLarge(
                f"the message has {len(data):,} bytes; this side sends at most {limit:,}: send "
                "large content as a file by reference"
            )
        return data

    def check(self, message: Envelope) -> None:
        """Check the signature of a message, if the key of the agent is known.

        Raises ``NotFromAgent``.
        """
        if self._agent_key is None:
            return
        from parley.envelope.messages import SignatureInvalid
        from parley.envelope.signatures import verify_signature

        if message.security is None:
            raise NotFromAgent("an answer is not signed, and the agent's key was given: not used")
        try:
            verify_signature(message, self._agent_key)
        except SignatureInvalid as error:
            raise NotFromAgent(f"an answer is not signed by the agent's key: {error}") from None


MAX_INBOUND_REQUESTS = 64
"""How many REQUESTs are handled at a time; further ones are refused with ``retryAfter``."""

MAX_KEPT_ANSWERS = 256
"""How many answers are kept for a REQUEST that comes again."""

RequestHandler = Callable[["IncomingRequest"], Any]
"""Answers a REQUEST: with a list of results, one JSON value, or ``None`` for no result. An async
generator sends its items as EVENTs, and ends with success."""

Send = Callable[[Envelope], Awaitable[None]]


class IncomingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A REQUEST to this side. ``message`` is the whole message."""

    action: str
    parameters: Any
    metadata: RequestMetadata
    message: Envelope

    @property
    def sender(self) -> str:
        """Who says to have sent it. The agent at the other end of the connection vouches for it."""
        return self.message.source.agent_id


class InboundRequests:
    """Handles each REQUEST until it has an answer, and keeps that for when the REQUEST comes again,
    over this connection or another.
    """

    def __init__(self, identity: EnvelopeIdentity) -> None:
        self._identity = identity
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._kept: Bounded[str, Envelope] = Bounded(MAX_KEPT_ANSWERS)
        self._send: Send | None = None
        self.handler: RequestHandler | None = None

    def take(self, request: Envelope, send: Send) -> None:
        """Handle a REQUEST, and answer it over the connection that is open then."""
        self._send = send
        if self.handler is None or not isinstance(request.payload, RequestPayload):
            words = "this side takes no REQUESTs"
            self._start("", self._reply(request, MethodNotFoundError(words)))
            return
        id = request.message_id
        if id in self._tasks:
            return
        if (kept := self._kept.get(id)) is not None:
            self._start("", self._reply(request, kept))
        elif len(self._tasks) >= MAX_INBOUND_REQUESTS:
            if len(self._tasks) < 2 * MAX_INBOUND_REQUESTS:
                words = "too many requests are under way; try again later"
                self._start("", self._reply(request, OverloadedError(words, retry_after=1.0)))
        else:
            self._start(id, self._handle(request, request.payload, self.handler))

    def _start(self, id: str, work: Any) -> None:
        task = asyncio.create_task(work, name="envelope-request")
        key = id or f"\x00{id_of(task)}"
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _handle(
        self, request: Envelope, payload: RequestPayload, handler: RequestHandler
    ) -> None:
        timeout = payload.metadata.timeout
        is_silent = request.message.sub_type == SubType.NOTIFICATION
        try:
            async with asyncio.timeout(None if timeout is None else timeout / 1000):
                answer: Envelope | A2AError = await self._answer(request, payload, handler)
        except TimeoutError:
            answer = DeadlineExceeded("the timeout of the request was over before its answer")
        except A2AError as error:
            answer = error
        except ClientError as error:
            logger.warning("the answer to a REQUEST was not sent: %s", error)
            return
        except Exception:
            logger.exception("the handler of %.100r failed", payload.action)
            answer = InternalError("the handler of this message failed")
        if not is_silent:
            await self._reply(request, answer)

    async def _answer(
        self, request: Envelope, payload: RequestPayload, handler: RequestHandler
    ) -> Envelope:
        source, is_command = self._identity.source, request.message.sub_type == SubType.COMMAND
        given = handler(
            IncomingRequest(
                action=payload.action,
                parameters=payload.parameters,
                metadata=payload.metadata,
                message=request,
            )
        )
        if is_command:
            accepted = ResponsePayload(status=Status.ACCEPTED)
            await self._transmit(answers.response(request, accepted, source=source))
        number = 0
        if inspect.isasyncgen(given):
            async with aclosing(given):  # also when the connection breaks between two items
                async for item in given:
                    number += 1
                    part = ResponsePayload(
                        status=Status.PARTIAL,
                        results=(item,),
                        metadata=ResponseMetadata(sequence=number),
                    )
                    await self._transmit(answers.event(request, part, source=source))
            given = None
        elif inspect.isawaitable(given):
            given = await given
        if isinstance(given, ResponsePayload):
            last = given
        else:
            results: Sequence[Any] = (
                () if given is None else given if isinstance(given, list | tuple) else (given,)
            )
            last = ResponsePayload(
                status=Status.SUCCESS,
                results=tuple(results),
                metadata=ResponseMetadata(total_results=len(results)),
            )
        make = answers.event if is_command else answers.response
        return make(request, last, source=source)

    async def _reply(self, request: Envelope, answer: Envelope | A2AError) -> None:
        if isinstance(answer, A2AError):
            answer = answers.error_response(request, answer, source=self._identity.source)
        else:
            self._kept[request.message_id] = answer
        try:
            await self._transmit(answer)
        except ClientError as error:
            logger.warning("the answer to a REQUEST was not sent: %s", error)

    async def _transmit(self, message: Envelope) -> None:
        assert self._send is not None
        await self._send(message)

    async def close(self) -> None:
        """End the work under way. Idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def id_of(task: asyncio.Task[None]) -> int:
    """Return a number of a task that no other running one has."""
    return id(task)


class PostLink:
    """Sends each message in a request of its own."""

    def __init__(
        self,
        http: HttpTransport,
        endpoint: LinkEndpoint,
        identity: EnvelopeIdentity,
        settings: LinkSettings,
    ) -> None:
        self._http = http
        self._endpoint = endpoint
        self._identity = identity
        self._settings = settings

    async def exchange(self, request: Envelope) -> Answers:
        """Send a message and yield its answers. Raises ``Disconnected`` if the last is missing."""
        body = self._identity.write(request, self._settings.max_message)
        logger.debug("> POST %s %.4000r", self._endpoint, body)
        async with self._endpoint.post(self._http, body, self._settings) as response:
            if response.status == 200 and media_type_of(response.headers) == EVENT_STREAM:
                end = AnswerEnd(request)
                async for answer in self._events(response):
                    yield answer
                    if end.is_last(answer):
                        return
                raise Disconnected(f"the stream of {self._endpoint} ended before its last message")
            body = await response.read(self._settings.max_message)
            logger.debug("< %d %.4000r", response.status, body)
            if not body.strip() and 200 <= response.status < 300:
                if request.message.sub_type == SubType.NOTIFICATION or (
                    request.message.type != MessageType.REQUEST
                ):
                    return
                raise InvalidAgentResponseError(
                    f"{self._endpoint} answered {response.status} without a message"
                )
            yield self._answer(response, body)

    async def _events(self, response: OpenResponse) -> Answers:
        parser, seen = SseParser(self._settings.max_message), SeenIds()
        async for chunk in response.chunks():
            for _, _, data in parser.feed(chunk):
                if data:
                    logger.debug("< %.4000r", data)
                    answer = self._read(data)
                    if seen.is_new(answer.message_id):
                        yield answer

    def _answer(self, response: OpenResponse, body: bytes) -> Envelope:
        """Return the message of a response. Raises the error of a response without a message."""
        refusal = refusal_in(response.status, response.headers)
        try:
            return self._read(body)
        except InvalidAgentResponseError:
            if response.status in (401, 403):
                raise self._endpoint.refused(refusal) from None
            if 200 <= response.status < 300:
                raise
        raise UnexpectedStatus(
            f"{self._endpoint} answered {response.status}, and no message of the protocol",
            status=response.status,
            retry_after=seconds_of(response.headers.get("retry-after")),
        )

    def _read(self, data: bytes) -> Envelope:
        try:
            answer = read_message(data, max_bytes=self._settings.max_message)
        except UnreadableEnvelope as wrong:
            raise InvalidAgentResponseError(
                f"{self._endpoint} sends what is no message of the protocol: {wrong.error.message}"
            ) from None
        self._identity.check(answer)
        return answer


logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 32 * 1024 * 1024
"""The bytes of a stream that wait for their reader."""

ANSWERED_PER_MINUTE = 120
"""How many HEARTBEATs of a server are answered: more ask for nothing but work."""

MAX_SENDS = 256
"""How many messages of the session itself wait to be sent before HEARTBEATs go unanswered."""

MAX_UNREADABLE = 16
"""How many messages that are none a server may send before it is disconnected."""


class StreamOverrun(Disconnected):
    """The reader of a stream is too far behind. Received events are read first."""


class SocketSession:
    """An open socket and the requests under way over it. ``run`` reads it until it ends.

    ``on_message`` gets what answers no request, with its size: REQUESTs, EVENTs of others,
    HEARTBEATs, unknown types; it does not block.
    """

    def __init__(
        self,
        socket: OpenSocket,
        identity: EnvelopeIdentity,
        settings: LinkSettings,
        on_message: Callable[[Envelope, int], None],
    ) -> None:
        self._socket = socket
        self._identity = identity
        self._settings = settings
        self._on_message = on_message
        self._waiting: dict[str, WaitingAnswers] = {}
        self._seen = SeenIds()
        self._clock = asyncio.get_running_loop().time
        self._heard_at = self._clock()
        self._sending = asyncio.Lock()
        self._beats: dict[str, asyncio.Future[Envelope]] = {}
        self._answered: deque[float] = deque(maxlen=ANSWERED_PER_MINUTE)
        self._unreadable = 0
        self.failure: ClientError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._sends: set[asyncio.Task[None]] = set()
        self.ended = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether the socket is, as far as is known."""
        return self.failure is None

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answers."""
        return len(self._waiting)

    def start(self) -> None:
        """Read the socket, and send HEARTBEATs, until it ends."""
        self._tasks = [
            asyncio.create_task(self._read(), name="envelope-socket"),
            asyncio.create_task(self._beat(), name="envelope-heartbeats"),
        ]

    async def send(self, message: Envelope) -> None:
        """Send a message. Raises ``ClientError``; a broken socket ends the session."""
        text = self._identity.write(message, self._settings.max_message).decode()
        await self._send_text(text)

    async def _send_text(self, text: str) -> None:
        if self.failure is not None:
            raise self.failure
        async with self._sending:
            try:
                await self._socket.send(text)
            except ClientError as error:
                self.end(error)
                raise
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("> %.4000s", text)

    async def exchange(self, request: Envelope) -> Answers:
        """Send a request and yield its answers, in the order in which they come.

        A request with the id of another under way waits for its end. Raises ``Disconnected`` when
        the socket ends, ``StreamOverrun``, ``NotFromAgent``.
        """
        id, is_over = request.message_id, request.message.sub_type == SubType.NOTIFICATION
        while (other := self._waiting.get(id)) is not None:  # answers name no more than the id
            await other.is_over.wait()
        end = AnswerEnd(request)
        room = WaitingBytes(MAX_WAITING_BYTES)
        waiting = self._waiting[id] = WaitingAnswers(room, self._settings.max_waiting)
        try:
            await self.send(request)
            while not is_over:
                answer = await waiting.next()
                is_over = end.is_last(answer)
                yield answer
        finally:
            if self._waiting.get(id) is waiting:
                del self._waiting[id]
            if not is_over and self.failure is None:
                self._stop(id)
            waiting.is_over.set()

    def _stop(self, id: str) -> None:
        """Tell the agent that its answers to a request are read no more."""
        stop = message_of(
            MessageType.EVENT,
            RequestPayload(action=STOP),
            source=self._identity.source,
            correlation_id=id,
        )
        self._send_soon(stop, "envelope-stop")

    def _send_soon(self, message: Envelope, name: str) -> None:
        task = asyncio.create_task(self._send_quietly(message), name=name)
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def _send_quietly(self, message: Envelope) -> None:
        try:
            await self.send(message)
        except ClientError as error:
            logger.debug("not sent: %s", error)

    async def heartbeat(self, payload: dict[str, Any] | None = None) -> Envelope:
        """Send a HEARTBEAT and return its answer. Raises ``Disconnected``."""
        message = heartbeat(self._identity.source, payload=payload)
        if self.failure is not None:
            raise self.failure
        while len(self._beats) >= 2 * self._settings.tolerance:
            self._beats.pop(next(iter(self._beats))).cancel()
        answer = self._beats[message.message_id] = asyncio.get_running_loop().create_future()
        try:
            await self.send(message)
            received: Envelope = await answer
            return received
        finally:
            self._beats.pop(message.message_id, None)

    async def _beat(self) -> None:
        """Send HEARTBEATs; end the session after too many without any message."""
        interval, tolerance = self._settings.heartbeat, self._settings.tolerance
        try:
            while True:
                await asyncio.sleep(interval)
                silence = self._clock() - self._heard_at
                if silence >= interval * tolerance:
                    self.end(
                        Disconnected(f"the agent sent nothing for {silence:.3g} s of HEARTBEATs")
                    )
                    return
                if silence >= interval * 0.5:
                    await self.send(heartbeat(self._identity.source))
        except ClientError as error:
            self.end(error)

    def _answer_heartbeat(self, asked: Envelope) -> None:
        """Answer a HEARTBEAT beside reading: an agent may read on only after it has been read."""
        now, answered = self._clock(), self._answered
        if len(answered) == answered.maxlen and now - answered[0] < 60.0:
            return
        if len(self._sends) < MAX_SENDS:
            answered.append(now)
            self._send_soon(heartbeat(self._identity.source, answered=asked), "envelope-heartbeat")

    async def _read(self) -> None:
        try:
            while True:
                text = await self._socket.receive()
                self._heard_at = self._clock()
                if logger.isEnabledFor(logging.DEBUG):
                    logger.debug("< %.4000s", text)
                self._take(text)
        except ResponseTooLarge as error:
            self._abandon(error)
        except ClientError as error:
            self.end(error)
        finally:  # no request waits for an unread socket
            self.end(Disconnected("the socket is not read any more"))

    def _take(self, text: str) -> None:
        try:
            message = read_message(text, max_bytes=self._settings.max_message)
        except UnreadableEnvelope as wrong:
            self._refuse(wrong, text)
            return
        if not self._seen.is_new(message.message_id):
            logger.info("message %.100r came twice; the second is ignored", message.message_id)
            return
        asked = message.message.correlation_id
        waiting = self._waiting.get(asked)
        try:
            self._identity.check(message)
        except NotFromAgent as error:
            logger.warning("%s", error)
            if waiting is not None:
                waiting.fail(error)
            return
        if message.message.type == MessageType.HEARTBEAT:
            if not asked:
                self._answer_heartbeat(message)
            elif (beat := self._beats.get(asked)) is not None and not beat.done():
                beat.set_result(message)
            self._on_message(message, len(text))
        elif waiting is not None and message.message.type in _ANSWERS:
            if not waiting.put(message, len(text)):
                waiting.fail(StreamOverrun("events came faster than they were read"))
                self._seen.forget(message.message_id)
                self._waiting.pop(asked, None)
        else:
            self._on_message(message, len(text))

    def _refuse(self, wrong: UnreadableEnvelope, text: str) -> None:
        """Fail the request that a message answers, if that much of it can be read."""
        self._unreadable += 1
        logger.warning("the agent sends what is no message: %.300s", wrong.error.message)
        waiting = self._waiting.get(correlation_in(text))
        if waiting is not None:
            words = f"the answer is no message of the protocol: {wrong.error.message}"
            waiting.fail(InvalidAgentResponseError(words))
        if self._unreadable > MAX_UNREADABLE:
            raise Disconnected("the agent sends what are no messages of the protocol")

    def _abandon(self, error: ResponseTooLarge) -> None:
        """End the session after a message that is too large: whose answer it is, is not known."""
        for waiting in self._waiting.values():
            waiting.fail(error)
        self.end(Disconnected(str(error)))

    def end(self, error: ClientError) -> None:
        """End the session: requests under way fail with the error. Idempotent."""
        if self.failure is not None:
            return
        self.failure = error
        for waiting in self._waiting.values():
            waiting.fail(error)
        for beat in self._beats.values():
            if not beat.done():
                beat.set_exception(error)
                beat.exception()  # retrieved: it may have no waiter
        self.ended.set()
        self._socket.abort()

    async def close(self, reason: str = "") -> None:
        """Close the socket properly; requests under way fail with ``ConnectionClosed``."""
        if self.failure is None:
            self.failure = ConnectionClosed("the connection was closed during the call")
            for waiting in self._waiting.values():
                waiting.fail(self.failure)
            for beat in self._beats.values():
                beat.cancel()
            self.ended.set()
            await self._stop_tasks()
            await self._socket.close(1000, reason)
        else:
            await self._stop_tasks()

    async def _stop_tasks(self) -> None:
        tasks = [*self._tasks, *self._sends]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


_ANSWERS = frozenset({MessageType.RESPONSE, MessageType.EVENT})


def correlation_in(text: str | bytes) -> str:
    """Return the correlation id of an unreadable message; empty if unknown."""
    try:
        read = msgspec.json.decode(text, type=_Correlated)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    return read.message.correlation_id


class _Correlation(msgspec.Struct, rename="camel"):
    correlation_id: str = ""


class _Correlated(msgspec.Struct, rename="camel"):
    message: _Correlation = msgspec.field(default_factory=_Correlation)


MAX_IDS = 4096
MAX_NUMBERS = 1024


class SeenIds(Bounded[str, None]):
    """The last ids of messages that were taken, so that each is taken once."""

    def __init__(self, limit: int = MAX_IDS) -> None:
        super().__init__(limit)

    def is_new(self, id: str) -> bool:
        """Note an id; return whether it was not known."""
        is_known = id in self
        self[id] = None
        return not is_known

    def forget(self, id: str) -> None:
        """Take an id as new again."""
        self.pop(id, None)


class EventNumbers:
    """The numbers of the EVENTs of one stream that were taken.

    Each EVENT is taken once, also after another overtook it. ``after`` is the number up to which
    there is no gap, where a cut stream continues: no event before it is missing. Of more than
    ``limit`` numbers beyond a gap, the gap is given up.
    """

    def __init__(self, after: int | None = None, limit: int = MAX_NUMBERS) -> None:
        self.after = after
        self._first = after
        self._limit = limit
        self._beyond: set[int] = set()

    def is_new(self, number: int) -> bool:
        """Note a number; return whether it was not taken yet."""
        if self.after is None:
            self.after = self._first = number
            return True
        if self._first is not None and number < self._first:
            # Later ones overtook the beginning of the stream.
            self._beyond.update(range(self._first, self.after + 1)[-self._limit :])
            self._first = self.after = number
            self._go_on()
            return True
        if number <= self.after or number in self._beyond:
            return False
        self._beyond.add(number)
        if len(self._beyond) > self._limit:
            self.after = min(self._beyond)
        self._go_on()
        return True

    def _go_on(self) -> None:
        assert self.after is not None
        self._beyond.discard(self.after)
        while self.after + 1 in self._beyond:
            self.after += 1
            self._beyond.discard(self.after)


MORE_TO_COME = frozenset({Status.PARTIAL, Status.ACCEPTED})
"""The statuses of an EVENT that is not the last one."""


class EnvelopeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a REQUEST.

    ``status`` is ``success``, ``accepted``, ``input-required`` or ``auth-required``; to answer a
    question, send a further request with ``task_id``. ``message`` is the whole message.
    """

    results: tuple[Any, ...]
    status: str
    metadata: ResponseMetadata
    message: Envelope

    @property
    def result(self) -> Any:
        """The only result. Raises ``ValueError`` if there is none, or more than one."""
        if len(self.results) != 1:
            raise ValueError(f"the answer has {len(self.results)} results; see results")
        return self.results[0]

    @property
    def task_id(self) -> str:
        """The task of the request, empty if it has none."""
        return self.metadata.task_id

    @property
    def context_id(self) -> str:
        """The conversation of the request, empty if it has none."""
        return self.metadata.context_id


class EnvelopeEvent(EnvelopeAnswer, frozen=True, kw_only=True):
    """One message of a stream: an EVENT, or the RESPONSE that accepts a command or ends a query.

    ``is_final``: nothing follows. ``error`` is why one agent of a broadcast failed; any other
    failure is raised.
    """

    is_final: bool

    @property
    def error(self) -> EnvelopeError | None:
        """Why the agent ``metadata.agent_id`` of a broadcast failed, if it did."""
        payload = self.message.payload
        return payload.error if isinstance(payload, ResponsePayload) else None

    @property
    def sequence(self) -> int | None:
        """The number of the event in its task's log, if it has one."""
        return self.metadata.sequence


class EnvelopeFailed(Exception):
    """The agent answered with an error.

    ``code`` is its reason, such as ``TASK_NOT_FOUND``; ``retry_after`` is in seconds;
    ``violations`` are the members of the request that are wrong; ``details`` are its typed
    details. ``task_id`` is the task's that failed, if there is one.
    """

    def __init__(
        self, error: EnvelopeError, *, task_id: str = "", answer: Envelope | None = None
    ) -> None:
        self.error = error
        self.code: str = error.code
        self.message = error.message
        self.retry_after = None if error.retry_after is None else error.retry_after / 1000
        self.violations: tuple[Violation, ...] = error.violations
        self.task_id = task_id
        self.answer = answer
        super().__init__(f"{error.code}: {error.message}" if error.message else error.code)

    @property
    def a2a_error(self) -> A2AError:
        """The same as an error of A2A."""
        from parley.envelope.messages import a2a_error

        return a2a_error(self.error)


class AnswerEnd:
    """Finds the last answer to one request.

    A command that is broadcast has ended when each agent that accepted it has.
    """

    def __init__(self, request: Envelope) -> None:
        self._is_command = request.message.sub_type == SubType.COMMAND
        self._is_broadcast = is_broadcast(request)
        self._ended: set[str] = set()
        self._accepted: frozenset[str] | None = None

    def is_last(self, answer: Envelope) -> bool:
        """Note an answer; return whether no further one follows."""
        payload = answer.payload
        is_response = answer.message.type == MessageType.RESPONSE
        if not isinstance(payload, ResponsePayload):
            return is_response
        if not self._is_command:
            return is_response
        if not self._is_broadcast:
            return payload.status not in MORE_TO_COME
        if is_response:
            if payload.status != Status.ACCEPTED:
                return True
            self._accepted = frozenset(_who_accepted(payload))
        elif payload.status not in MORE_TO_COME and len(self._ended) < MAX_AGENTS:
            self._ended.add(payload.metadata.agent_id)
        return self._accepted is not None and self._accepted <= self._ended


MAX_AGENTS = 1024
"""How many agents of one broadcast are distinguished."""


def is_broadcast(request: Envelope) -> bool:
    """Return whether several agents may answer a request."""
    return request.target.routing_strategy == RoutingStrategy.BROADCAST


def _who_accepted(summary: ResponsePayload) -> Iterator[str]:
    for outcome in summary.results:
        if isinstance(outcome, dict) and outcome.get("status") == Status.ACCEPTED:
            agent = outcome.get("agentId")
            if isinstance(agent, str):
                yield agent


def payload_of(answer: Envelope) -> ResponsePayload:
    """Return the payload of an answer. Raises ``EnvelopeFailed`` for an error."""
    payload = answer.payload
    if not isinstance(payload, ResponsePayload):
        raise EnvelopeFailed(
            EnvelopeError(code="INVALID_AGENT_RESPONSE", message="the answer has no payload"),
            answer=answer,
        )
    if payload.status == Status.ERROR or payload.error is not None:
        error = payload.error or EnvelopeError(code="INTERNAL_ERROR")
        raise EnvelopeFailed(error, task_id=payload.metadata.task_id, answer=answer)
    return payload


def answer_of(answer: Envelope) -> EnvelopeAnswer:
    """Return an answer for its caller. Raises ``EnvelopeFailed`` for an error."""
    payload = payload_of(answer)
    return EnvelopeAnswer(
        results=payload.results, status=payload.status, metadata=payload.metadata, message=answer
    )


def event_of(answer: Envelope, *, is_final: bool, of_one: bool = False) -> EnvelopeEvent:
    """Return a message of a stream for its caller.

    Raises ``EnvelopeFailed`` for an error, but not for the error of a single agent in a broadcast.
    """
    payload = answer.payload
    if not (of_one and isinstance(payload, ResponsePayload)):
        payload = payload_of(answer)
    return EnvelopeEvent(
        results=payload.results,
        status=payload.status,
        metadata=payload.metadata,
        message=answer,
        is_final=is_final,
    )


def request_in(message: Envelope) -> RequestPayload:
    """Return the payload of a REQUEST. Raises ``TypeError`` for another message."""
    if not isinstance(message.payload, RequestPayload):
        raise TypeError(f"a REQUEST has an action, unlike this {message.message.type}")
    return message.payload
