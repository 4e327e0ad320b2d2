"""A link to an agent: a WebSocket with many running requests, or a POST for each.

Both write and read messages through one ``EnvelopeIdentity``, which signs them and checks answers.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from parley.client.bindings.http import HttpTransport, OpenResponse, redacted
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
from parley.envelope.answers import (
    AnswerEnd,
    Answers,
    WaitingAnswers,
    WaitingBytes,
    error_response,
    event,
    heartbeat,
    message,
    pieces_in,
    response,
    success,
)
from parley.envelope.codec import UnreadableEnvelope, read_message, write_message
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
    SignatureInvalid,
    Source,
    Status,
    SubType,
    WrongMember,
    a2a_error,
)
from parley.envelope.signatures import EnvelopeKey, sign_message, verify_signature
from parley.model.backoff import Backoff, seconds_of
from parley.model.bounded import Bounded
from parley.model.concurrency import end
from parley.model.errors import (
    A2AError,
    InternalError,
    InvalidAgentResponseError,
    MethodNotFoundError,
    OverloadedError,
    UnauthenticatedError,
)
from parley.model.ids import RIGHT_NAME, may_be_name, new_id

logger = logging.getLogger(__name__)

Transport = Literal["auto", "socket", "http"]

TRANSPORTS: dict[str, tuple[bool, ...]] = {
    "auto": (True, False),
    "socket": (True,),
    "http": (False,),
}
"""For each transport setting, the transports in the order of attempts: true is a WebSocket."""

_LEAST: dict[str, float] = {
    "heartbeat": 0.01,
    "handshake": 0.01,
    "socket_again": 0.0,
    "ping": 0.01,
    "idle": 0.01,
    "tolerance": 1,
    "retries": 0,
    "max_message": 1024,
    "max_in_flight": 1,
    "max_waiting": 1,
}


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
                f"transport must be one of {', '.join(TRANSPORTS)}, not {self.transport!r:.60}"
            )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            kinds, what = (int, float), "a number of seconds"
            if isinstance(least, int):
                kinds, what = (int,), "a whole number"  # type: ignore[assignment]
            elif value is None and name in ("ping", "idle"):
                continue
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < least:
                raise ValueError(f"{name} is {what} from {least:g} on, not {value!r:.60}")


LONGEST_REST = 10
"""The longest pause of a transport that fails repeatedly, as a multiple of the first pause."""


class LinkEndpoint:
    """An address of an agent, for WebSockets and POSTs.

    ``url`` has the scheme of HTTP. ``headers`` and the credentials of ``auth`` go with the upgrade
    and with every POST; after a rejection (401, 403) ``auth`` is called again.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str], auth: RequestAuth | None) -> None:
        self.url = http_address(url)
        self._headers = headers
        self._auth = auth
        self._sent = NOTHING

    def __str__(self) -> str:
        return redacted(self.url)

    async def _target(self) -> tuple[str, dict[str, str]]:
        """Return the address and the headers of a request, with the credentials of now."""
        self._sent = await self._auth.parameters(None) if self._auth else NOTHING
        return self._sent.add_to(self.url), override(self._headers, self._sent.headers)

    async def open_socket(self, http: HttpTransport, settings: LinkSettings) -> OpenSocket:
        """Open a WebSocket. Raises ``AuthenticationRequired``, ``SocketRefused``, and others.

        Raises the agent's own error if it rejects the upgrade with one, such as
        ``UnauthenticatedError``.
        """
        for is_last in (False, True):
            try:
                return await http.open_socket(
                    *await self._target(),
                    subprotocol=SUBPROTOCOL,
                    handshake=settings.handshake,
                    max_message=settings.max_message,
                    ping=settings.ping,
                )
            except AuthenticationRequired as error:
                if is_last or not await self.renew(Refusal(error.status, error.challenge)):
                    raise self._refused(str(error), error, _said_in(error)) from None
                logger.info("%s rejects the credentials; trying others", self)
        raise AssertionError

    @asynccontextmanager
    async def post(
        self, http: HttpTransport, body: bytes, settings: LinkSettings
    ) -> AsyncIterator[OpenResponse]:
        """Post a message and yield the response. Raises ``ClientError``."""
        ours = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
        }
        for is_last in (False, True):
            url, headers = await self._target()
            opening = http.open("POST", url, override(headers, ours), body, idle=settings.idle)
            async with opening as answer:
                refusal = refusal_in(answer.status, answer.headers)
                is_refused = answer.status in (401, 403) and not is_last
                if is_refused and await self.renew(refusal):
                    continue
                yield answer
                return

    async def renew(self, refusal: Refusal) -> bool:
        """Return whether there are other credentials now than the rejected ones."""
        return self._auth is not None and await self._auth.answer(refusal, None, self._sent)

    def refused(self, refusal: Refusal) -> Exception:
        """Return the error for rejected credentials."""
        words = "wants credentials" if refusal.status == 401 else "refuses these credentials"
        return self._refused(f"{self} {words}", refusal, None)

    def _refused(
        self, words: str, refusal: Refusal | AuthenticationRequired, said: A2AError | None
    ) -> Exception:
        """Return an error with advice: the agent's own text, if there is any."""
        challenge = refusal.challenge
        advice = self._auth.advice(Refusal(refusal.status, challenge)) if self._auth else ""
        advice = f"; {advice}" if advice else ""
        if said is None:
            return AuthenticationRequired(
                words + advice, status=refusal.status, challenge=challenge
            )
        if isinstance(said, UnauthenticatedError):
            said.message += advice
            said.args = (said.message,)
        return said


def _said_in(error: AuthenticationRequired) -> A2AError | None:
    """Return the protocol error in a rejected handshake, or ``None``."""
    if not isinstance(error, HandshakeRefused):
        return None
    try:
        said = error_in(read_message(error.body))
    except UnreadableEnvelope:
        return None
    return None if said is None else a2a_error(said)


class Way:
    """A transport to an agent: an endpoint by WebSocket or by HTTP.

    After a failure it pauses: others are tried before it until ``rest_until``, a time of the loop.
    """

    def __init__(self, endpoint: LinkEndpoint, *, is_socket: bool) -> None:
        self.endpoint = endpoint
        self.is_socket = is_socket
        self.rest_until = 0.0
        self._failures = 0

    def __str__(self) -> str:
        return f"{'a WebSocket' if self.is_socket else 'HTTP'} at {self.endpoint}"

    def rest(self, now: float, first: float, error: Exception) -> None:
        """Record that the transport failed."""
        self._failures += 1
        wished = error.retry_after if isinstance(error, SocketRefused) else None
        pause = Backoff(first, first * LONGEST_REST).delay(self._failures)
        self.rest_until = now + (pause if wished is None else min(wished, first * LONGEST_REST))

    def works(self) -> None:
        """Record that the transport works."""
        self.rest_until, self._failures = 0.0, 0


class NotFromAgent(ClientError):
    """An answer is not signed with the agent's key. It is not used."""


class EnvelopeTooLarge(ClientError):
    """The message is larger than this side sends. Nothing was sent."""


class EnvelopeIdentity:
    """The source of messages, and the keys: ``key`` signs them, ``agent_key`` verifies answers.

    Without an ``agent_id`` the source is the owner of the key, else a random id, which an agent
    that knows the caller may replace by the id of its credentials. ``target_id`` is the id of the
    agent, which signed messages name as their target.

    Raises ``ValueError`` for an id that is not the owner of the key, and for invalid texts.
    """

    def __init__(
        self,
        agent_id: str = "",
        agent_type: str = "",
        *,
        key: EnvelopeKey | None = None,
        agent_key: EnvelopeKey | None = None,
    ) -> None:
        if key is not None and agent_id not in ("", key.owner):
            raise ValueError(
                f"the key belongs to {key.owner!r}, so agent_id must be equal, or left out"
            )
        instance = new_id()
        id = agent_id or (key.owner if key is not None else f"client-{instance}")
        for name, value in (("agent_id", id), ("agent_type", agent_type)):
            if not isinstance(value, str) or not may_be_name(value):
                raise ValueError(f"{name} is {RIGHT_NAME}, not {value!r:.80}")
        self.source = Source(agent_id=id, agent_type=agent_type or "client", instance_id=instance)
        self.target_id = ""
        self._is_given = bool(agent_id) or key is not None
        self._key = key
        self._agent_key = agent_key

    @property
    def signs(self) -> bool:
        """Return whether messages are signed."""
        return self._key is not None

    def rename(self, agent_id: str) -> None:
        """Use the id of the credentials, unless the user chose an id."""
        if not self._is_given and may_be_name(agent_id):
            self.source = replace(self.source, agent_id=agent_id)

    def write(self, sent: Envelope, limit: int) -> bytes:
        """Return a message in its sent form: signed for this one time, if there is a key.

        Raises ``EnvelopeTooLarge``, and ``ValueError`` for values without a JSON form.
        """
        if self._key is not None:
            if self.target_id and not (sent.target.agent_id or sent.target.agent_type):
                sent = replace(sent, target=replace(sent.target, agent_id=self.target_id))
            sent = sign_message(sent, self._key)
        data = write_message(sent)
        if len(data) > limit:
            raise EnvelopeTooLarge(
                f"the message has {len(data):,} bytes; this side sends at most {limit:,}: send "
                "large content as a file by reference"
            )
        return data

    def check(self, received: Envelope) -> None:
        """Check the signature of a message, if the key of the agent is known.

        Raises ``NotFromAgent``.
        """
        if self._agent_key is None:
            return
        if received.security is None:
            raise NotFromAgent("an answer is not signed, and the agent's key was given: not used")
        try:
            verify_signature(received, self._agent_key)
        except SignatureInvalid as error:
            raise NotFromAgent(f"an answer is not signed by the agent's key: {error}") from None


# -- answers -----------------------------------------------------------------------------------

MAX_IDS = 4096
MAX_NUMBERS = 1024


class SeenIds(Bounded[str, None]):
    """The ids of recently processed messages, so that each is processed once."""

    def __init__(self) -> None:
        super().__init__(MAX_IDS)

    def is_new(self, id: str) -> bool:
        """Note an id; return whether it was not known."""
        is_known = id in self
        self[id] = None
        return not is_known


class EventNumbers:
    """The numbers of received EVENTs of one stream, each once, in any order.

    ``after`` is the number up to which there is no gap: an interrupted stream continues there. A
    gap of more than 1,024 numbers is abandoned.
    """

    def __init__(self, after: int | None = None) -> None:
        self.after = after
        self._taken: Bounded[int, None] = Bounded(2 * MAX_NUMBERS)

    def is_new(self, number: int) -> bool:
        """Record a number; return whether it is new."""
        after = number if self.after is None else self.after
        if number in self._taken or number <= after - MAX_NUMBERS:
            return False
        self._taken[number] = None
        after = max(after, number - MAX_NUMBERS)
        while after + 1 in self._taken:
            after += 1
        self.after = after
        return True


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
        """The only result. Raises ``ValueError`` unless there is exactly one."""
        if len(self.results) != 1:
            raise ValueError(f"the answer has {len(self.results)} results; see results")
        return self.results[0]

    @property
    def task_id(self) -> str:
        """The task of the request, or an empty string."""
        return self.metadata.task_id

    @property
    def context_id(self) -> str:
        """The conversation of the request, or an empty string."""
        return self.metadata.context_id


class EnvelopeEvent(EnvelopeAnswer, frozen=True, kw_only=True):
    """A message of a stream: an EVENT, or the RESPONSE that accepts a command or ends a query.

    ``is_final``: it is the last message. ``error`` is why one agent of a broadcast failed; any
    other failure is raised.
    """

    is_final: bool

    @property
    def error(self) -> EnvelopeError | None:
        """The reason why the agent ``metadata.agent_id`` of a broadcast failed, or ``None``."""
        return error_in(self.message)

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
        self.violations: tuple[WrongMember, ...] = error.violations
        self.task_id = task_id
        self.answer = answer
        super().__init__(f"{error.code}: {error.message}" if error.message else error.code)

    @property
    def a2a_error(self) -> A2AError:
        """The same as an error of A2A."""
        return a2a_error(self.error)


def error_in(answer: Envelope) -> EnvelopeError | None:
    """Return the error that an answer has."""
    return answer.payload.error if isinstance(answer.payload, ResponsePayload) else None


def payload_of(answer: Envelope, *, raises: bool = True) -> ResponsePayload:
    """Return the payload of an answer. Raises ``EnvelopeFailed`` for an error, if it ``raises``."""
    payload = answer.payload
    if not isinstance(payload, ResponsePayload):
        error = EnvelopeError(code="INVALID_AGENT_RESPONSE", message="the answer has no payload")
        raise EnvelopeFailed(error, answer=answer)
    if raises and (payload.status == Status.ERROR or payload.error is not None):
        error = payload.error or EnvelopeError(code="INTERNAL_ERROR")
        raise EnvelopeFailed(error, task_id=payload.metadata.task_id, answer=answer)
    return payload


# -- REQUESTs to this side ---------------------------------------------------------------------

MAX_INBOUND_REQUESTS = 64
"""The most REQUESTs handled at a time; further REQUESTs are rejected with ``retryAfter``."""

MAX_KEPT_ANSWERS = 256
"""The number of answers kept for repeated REQUESTs."""

RequestHandler = Callable[["IncomingRequest"], Any]
"""Answers a REQUEST: with a list of results, one JSON value, or ``None`` for no result. An async
generator sends its items as EVENTs, and ends with success.
"""

Send = Callable[[Envelope], Awaitable[None]]


class IncomingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A REQUEST to this side. ``message`` is the whole message."""

    action: str
    parameters: Any
    metadata: RequestMetadata
    message: Envelope

    @property
    def sender(self) -> str:
        """The claimed sender. The agent at the other end of the connection vouches for it."""
        return self.message.source.agent_id


class InboundRequests:
    """Handles each REQUEST until it has an answer, and keeps that for when the REQUEST comes again,
    over this connection or another.
    """

    def __init__(self, identity: EnvelopeIdentity) -> None:
        self._identity = identity
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._kept: Bounded[str, Envelope] = Bounded(MAX_KEPT_ANSWERS)
        self._send: Send | None = None
        self.handler: RequestHandler | None = None

    def take(self, request: Envelope, send: Send) -> None:
        """Handle a REQUEST, and answer it over the connection that is open at that time."""
        self._send = send
        id, kept = request.message_id, self._kept.get(request.message_id)
        if self.handler is None or not isinstance(request.payload, RequestPayload):
            error: A2AError = MethodNotFoundError("this side accepts no REQUESTs")
            self._start(object(), self._reply(request, error))
        elif id in self._tasks:
            return
        elif kept is not None:
            self._start(object(), self._reply(request, kept))
        elif len(self._tasks) < MAX_INBOUND_REQUESTS:
            self._start(id, self._handle(request, request.payload, self.handler))
        elif len(self._tasks) < 2 * MAX_INBOUND_REQUESTS:
            words = "too many requests are under way; try again later"
            self._start(object(), self._reply(request, OverloadedError(words, retry_after=1.0)))

    def _start(self, key: object, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="envelope-request")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _handle(
        self, request: Envelope, payload: RequestPayload, handler: RequestHandler
    ) -> None:
        timeout = payload.metadata.timeout
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
        if request.message.sub_type != SubType.NOTIFICATION:
            await self._reply(request, answer)

    async def _answer(
        self, request: Envelope, payload: RequestPayload, handler: RequestHandler
    ) -> Envelope:
        source, is_command = self._identity.source, request.message.sub_type == SubType.COMMAND
        assert self._send is not None
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
            await self._send(response(request, accepted, source=source))
        if inspect.isasyncgen(given):
            number = 0
            async with aclosing(given):  # also when the connection breaks between two items
                async for item in given:
                    number += 1
                    known = ResponseMetadata(sequence=number)
                    part = ResponsePayload(status=Status.PARTIAL, results=(item,), metadata=known)
                    await self._send(event(request, part, source=source))
            given = None
        elif inspect.isawaitable(given):
            given = await given
        last = success(() if given is None else given)
        return (event if is_command else response)(request, last, source=source)

    async def _reply(self, request: Envelope, answer: Envelope | A2AError) -> None:
        if isinstance(answer, A2AError):
            answer = error_response(request, answer, source=self._identity.source)
        else:
            self._kept[request.message_id] = answer
        assert self._send is not None
        try:
            await self._send(answer)
        except ClientError as error:
            logger.warning("the answer to a REQUEST was not sent: %s", error)

    async def close(self) -> None:
        """Stop running work. Idempotent."""
        await end(list(self._tasks.values()))


# -- the links ---------------------------------------------------------------------------------


class PostLink:
    """Sends each message in a separate HTTP request."""

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
        limit, seen, finish = self._settings.max_message, SeenIds(), AnswerEnd(request)
        body = self._identity.write(request, limit)
        logger.debug("> POST %s %.4000r", self._endpoint, body)
        async with self._endpoint.post(self._http, body, self._settings) as answered:
            is_good, is_empty = 200 <= answered.status < 300, True
            async with aclosing(pieces_in(answered, limit)) as pieces:
                async for piece in pieces:
                    is_empty = False
                    logger.debug("< %d %.4000r", answered.status, piece)
                    try:
                        answer = read_message(piece, max_bytes=limit)
                    except UnreadableEnvelope as wrong:
                        if not is_good:
                            break
                        raise InvalidAgentResponseError(
                            f"{self._endpoint} sends an invalid message: {wrong.error.message}"
                        ) from None
                    self._identity.check(answer)
                    if seen.is_new(answer.message_id):
                        yield answer
                        if finish.is_last(answer) or not is_good:
                            return
            if not is_good:
                raise self._refused(answered)
            if not is_empty:
                if answer.message.type == MessageType.HEARTBEAT:
                    return
                raise Disconnected(f"the stream of {self._endpoint} ended before its last message")
            is_request = request.message.type == MessageType.REQUEST
            if is_request and request.message.sub_type != SubType.NOTIFICATION:
                raise InvalidAgentResponseError(
                    f"{self._endpoint} answered {answered.status} without a message"
                )

    def _refused(self, answered: OpenResponse) -> Exception:
        """Return the error of a response that is a failure and no message."""
        if answered.status in (401, 403):
            return self._endpoint.refused(refusal_in(answered.status, answered.headers))
        return UnexpectedStatus(
            f"{self._endpoint} answered {answered.status}, and no message of the protocol",
            status=answered.status,
            retry_after=seconds_of(answered.headers.get("retry-after")),
        )


MAX_WAITING_BYTES = 32 * 1024 * 1024
"""The bytes of a stream that wait for their reader."""

ANSWERED_PER_MINUTE = 120
"""The most HEARTBEATs of a server that are answered per minute."""

MAX_SENDS = 256
"""The most unsent messages of the session itself before HEARTBEATs go unanswered."""

MAX_UNREADABLE = 16
"""The most invalid messages of a server before it is disconnected."""


class StreamOverrun(Disconnected):
    """The reader of a stream is too far behind. Received events are read first."""


class SocketSession:
    """An open socket and the requests under way over it. ``start`` reads it until it ends.

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
        self._beats: dict[str, asyncio.Future[Envelope]] = {}
        self._seen = SeenIds()
        self._clock = asyncio.get_running_loop().time
        self._heard_at = self._clock()
        self._sending = asyncio.Lock()
        self._answered: deque[float] = deque(maxlen=ANSWERED_PER_MINUTE)
        self._unreadable = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: ClientError | None = None
        self.ended = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Return whether the socket is open, as far as is known."""
        return self.failure is None

    def start(self) -> None:
        """Read the socket, and send HEARTBEATs, until it ends."""
        self._spawn(self._read(), "envelope-socket")
        self._spawn(self._beat(), "envelope-heartbeats")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def send(self, sent: Envelope) -> None:
        """Send a message. Raises ``ClientError``; a broken socket ends the session."""
        text = self._identity.write(sent, self._settings.max_message).decode()
        if self.failure is not None:
            raise self.failure
        async with self._sending:
            try:
                await self._socket.send(text)
            except ClientError as error:
                self.end(error)
                raise
        logger.debug("> %.4000s", text)

    async def _send_quietly(self, sent: Envelope) -> None:
        try:
            await self.send(sent)
        except ClientError as error:
            logger.debug("not sent: %s", error)

    async def exchange(self, request: Envelope) -> Answers:
        """Send a request and yield its answers, in the order in which they come.

        A request with the id of another under way waits for its end. Raises ``Disconnected`` when
        the socket ends, ``StreamOverrun``, ``NotFromAgent``.
        """
        id, is_over = request.message_id, request.message.sub_type == SubType.NOTIFICATION
        while (other := self._waiting.get(id)) is not None:  # answers name only the id
            await other.is_over.wait()
        finish, room = AnswerEnd(request), WaitingBytes(MAX_WAITING_BYTES)
        waiting = self._waiting[id] = WaitingAnswers(room, self._settings.max_waiting)
        try:
            await self.send(request)
            while not is_over:
                answer = await waiting.next()
                is_over = finish.is_last(answer)
                yield answer
        finally:
            if self._waiting.get(id) is waiting:
                del self._waiting[id]
            if not is_over and self.failure is None:  # nothing reads the answers any more
                source, stop = self._identity.source, RequestPayload(action=STOP)
                told = message(MessageType.EVENT, stop, source=source, correlation_id=id)
                self._spawn(self._send_quietly(told), "envelope-stop")
            waiting.is_over.set()

    async def heartbeat(self, payload: dict[str, Any] | None = None) -> Envelope:
        """Send a HEARTBEAT and return its answer. Raises ``Disconnected``."""
        beat = heartbeat(self._identity.source, payload=payload)
        if self.failure is not None:
            raise self.failure
        while len(self._beats) >= 2 * self._settings.tolerance:
            self._beats.pop(next(iter(self._beats))).cancel()
        answer = self._beats[beat.message_id] = asyncio.get_running_loop().create_future()
        try:
            await self.send(beat)
            received: Envelope = await answer
            return received
        finally:
            self._beats.pop(beat.message_id, None)

    async def _beat(self) -> None:
        """Send HEARTBEATs; end the session after too many without any message."""
        interval = self._settings.heartbeat
        while self.failure is None:
            await asyncio.sleep(interval)
            silence = self._clock() - self._heard_at
            if silence >= interval * self._settings.tolerance:
                self.end(Disconnected(f"the agent sent nothing for {silence:.3g} s of HEARTBEATs"))
                return
            if silence >= interval * 0.5:
                await self._send_quietly(heartbeat(self._identity.source))

    def _take_heartbeat(self, beat: Envelope) -> None:
        """Process a HEARTBEAT; answer it in a separate task, as the agent may wait for the answer's
        reader.
        """
        asked, now, answered = beat.message.correlation_id, self._clock(), self._answered
        if asked:
            future = self._beats.get(asked)
            if future is not None and not future.done():
                future.set_result(beat)
        elif len(self._tasks) < MAX_SENDS and not (
            len(answered) == answered.maxlen and now - answered[0] < 60.0
        ):
            answered.append(now)
            reply = heartbeat(self._identity.source, answered=beat)
            self._spawn(self._send_quietly(reply), "envelope-heartbeat")

    async def _read(self) -> None:
        try:
            while True:
                text = await self._socket.receive()
                self._heard_at = self._clock()
                logger.debug("< %.4000s", text)
                self._take(text)
        except ResponseTooLarge as error:  # whose answer it is, is not known
            self._fail_all(error)
            self.end(Disconnected(str(error)))
        except ClientError as error:
            self.end(error)
        finally:  # no request waits for an unread socket
            self.end(Disconnected("the socket is not read any more"))

    def _take(self, text: str) -> None:
        try:
            received = read_message(text, max_bytes=self._settings.max_message)
        except UnreadableEnvelope as wrong:
            self._refuse(wrong, text)
            return
        if not self._seen.is_new(received.message_id):
            logger.info("message %.100r came twice; the second is ignored", received.message_id)
            return
        kind, asked = received.message.type, received.message.correlation_id
        waiting = self._waiting.get(asked)
        try:
            self._identity.check(received)
        except NotFromAgent as error:
            logger.warning("%s", error)
            if waiting is not None:
                waiting.fail(error)
            return
        if waiting is not None and kind in (MessageType.RESPONSE, MessageType.EVENT):
            if not waiting.put(received, len(text)):
                waiting.fail(StreamOverrun("events came faster than they were read"))
                self._seen.pop(received.message_id, None)
                self._waiting.pop(asked, None)
            return
        if kind == MessageType.HEARTBEAT:
            self._take_heartbeat(received)
        self._on_message(received, len(text))

    def _refuse(self, wrong: UnreadableEnvelope, text: str) -> None:
        """Fail the request that an invalid message answers, if it names the request."""
        self._unreadable += 1
        logger.warning("the agent sends an invalid message: %.300s", wrong.error.message)
        waiting = self._waiting.get(correlation_in(text))
        if waiting is not None:
            words = f"the answer is an invalid message: {wrong.error.message}"
            waiting.fail(InvalidAgentResponseError(words))
        if self._unreadable > MAX_UNREADABLE:
            raise Disconnected("the agent sends invalid messages")

    def _fail_all(self, error: ClientError) -> None:
        for waiting in self._waiting.values():
            waiting.fail(error)
        for beat in self._beats.values():
            beat.cancel()

    def end(self, error: ClientError) -> None:
        """End the session: running requests fail with the error. Idempotent."""
        if self._note_end(error):
            self._socket.abort()

    def _note_end(self, error: ClientError) -> bool:
        if self.failure is not None:
            return False
        self.failure = error
        for beat in self._beats.values():
            if not beat.done():
                beat.set_exception(error)
                beat.exception()  # retrieved: it may have no waiter
        self._fail_all(error)
        self.ended.set()
        return True

    async def close(self, reason: str = "") -> None:
        """Close the socket properly; running requests fail with ``ConnectionClosed``."""
        error = ConnectionClosed("the connection was closed during the call")
        was_open = self._note_end(error)
        await end(list(self._tasks))
        if was_open:
            await self._socket.close(1000, reason)


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


def ways_to(endpoints: tuple[LinkEndpoint, ...], settings: LinkSettings) -> Iterator[Way]:
    """Yield the ways to an agent in their order: each endpoint by WebSocket, then by HTTP."""
    for endpoint in endpoints:
        for is_socket in TRANSPORTS[settings.transport]:
            yield Way(endpoint, is_socket=is_socket)
