"""One open WebSocket of an envelope connection: many requests under way, HEARTBEATs both ways."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from parley.client.bindings.http import HttpTransport, OpenResponse
from parley.client.bindings.http_binding import EVENT_STREAM, media_type_of
from parley.client.bindings.request_auth import refusal_in
from parley.client.bindings.websocket import OpenSocket
from parley.client.errors import (
    ClientError,
    ConnectionClosed,
    Disconnected,
    ResponseTooLarge,
    UnexpectedStatus,
)
from parley.envelope.answers import heartbeat
from parley.envelope.answers import message as message_of
from parley.envelope.client.answers import AnswerEnd, SeenIds
from parley.envelope.client.identity import EnvelopeIdentity, NotFromAgent
from parley.envelope.client.settings import LinkEndpoint, LinkSettings
from parley.envelope.codec import UnreadableEnvelope, read_message
from parley.envelope.messages import STOP, Envelope, MessageType, RequestPayload, SubType
from parley.model.backoff import seconds_of
from parley.model.errors import InvalidAgentResponseError
from parley.wire.sse import SseParser

# -- posting ----------------------------------------------------------------------------------
#
# Envelope messages by HTTP POST, where no WebSocket can be had: EVENTs come as SSE.


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

    async def exchange(self, request: Envelope) -> AsyncGenerator[Envelope]:
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

    async def _events(self, response: OpenResponse) -> AsyncGenerator[Envelope]:
        parser, seen = SseParser(self._settings.max_message), SeenIds()
        async for chunk in response.chunks():
            for _, _, data in parser.feed(chunk):
                if data:
                    logger.debug("< %.4000r", data)
                    answer = self._read(data)
                    if seen.is_new(answer.message_id):
                        yield answer

    def _answer(self, response: OpenResponse, body: bytes) -> Envelope:
        """Return the message of a response. Raises what a response without one means."""
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


# -- session ----------------------------------------------------------------------------------


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
    """The reader of a stream is too far behind. What was received is read first."""


class _Waiting:
    """The answers to one request that were not read yet."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._answers: deque[tuple[Envelope, int]] = deque()
        self._size = 0
        self._has_news = asyncio.Event()
        self.is_over = asyncio.Event()
        self.failure: Exception | None = None

    def put(self, answer: Envelope, size: int) -> bool:
        """Add an answer; return whether there was room."""
        if self.failure is not None:
            return False
        self._size += size
        if len(self._answers) >= self._limit or self._size > max(MAX_WAITING_BYTES, size):
            self.fail(StreamOverrun("events came faster than they were read"))
            return False
        self._answers.append((answer, size))
        self._has_news.set()
        return True

    def fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        self._has_news.set()

    async def next(self) -> Envelope:
        while not self._answers:
            if self.failure is not None:
                raise self.failure
            self._has_news.clear()
            await self._has_news.wait()
        answer, size = self._answers.popleft()
        self._size -= size
        return answer


class SocketSession:
    """An open socket and what is under way over it. ``run`` reads it until it ends.

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
        self._waiting: dict[str, _Waiting] = {}
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

    # -- sending -------------------------------------------------------------------------------

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

    async def exchange(self, request: Envelope) -> AsyncGenerator[Envelope]:
        """Send a request and yield its answers, in the order in which they come.

        One with the id of another that is under way waits for its end. Raises ``Disconnected`` when
        the socket ends, ``StreamOverrun``, ``NotFromAgent``.
        """
        id, is_over = request.message_id, request.message.sub_type == SubType.NOTIFICATION
        while (other := self._waiting.get(id)) is not None:  # answers name no more than the id
            await other.is_over.wait()
        end = AnswerEnd(request)
        waiting = self._waiting[id] = _Waiting(self._settings.max_waiting)
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
        """Tell the agent that nobody reads its answers to a request any more."""
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

    # -- heartbeats ----------------------------------------------------------------------------

    async def heartbeat(self, payload: dict[str, Any] | None = None) -> Envelope:
        """Send a HEARTBEAT and return the one that answers it. Raises ``Disconnected``."""
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

    # -- receiving -----------------------------------------------------------------------------

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
        finally:  # nobody waits for what is not read any more
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

    # -- the end -------------------------------------------------------------------------------

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
                beat.exception()  # somebody may wait for it, or nobody
        self.ended.set()
        self._socket.abort()

    async def close(self, reason: str = "") -> None:
        """Close the socket properly; what is under way fails with ``ConnectionClosed``."""
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
    """Return the id of what a message answers that cannot be read itself; empty if unknown."""
    try:
        read = msgspec.json.decode(text, type=_Correlated)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return ""
    return read.message.correlation_id


class _Correlation(msgspec.Struct, rename="camel"):
    correlation_id: str = ""


class _Correlated(msgspec.Struct, rename="camel"):
    message: _Correlation = msgspec.field(default_factory=_Correlation)
