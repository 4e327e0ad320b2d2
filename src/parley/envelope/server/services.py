"""Parts that the bindings of a server share: contexts, sockets, order, HEARTBEATs, counters."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import math
import re
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Protocol

import msgspec

from parley.envelope.answers import AnswerEnd, Answers, WaitingAnswers, WaitingBytes, success
from parley.envelope.answers import message as message_of
from parley.envelope.declared import HANDLER_TIMEOUT
from parley.envelope.messages import (
    AgentUnavailable,
    Envelope,
    MessageType,
    RequestPayload,
    ResponsePayload,
    Source,
    Status,
    SubType,
)
from parley.model.bounded import Bounded
from parley.model.errors import A2AError, InternalError, OverloadedError, TooManyRequestsError
from parley.model.service import ANONYMOUS, NO_TRACE, Caller, TraceContext
from parley.model.struct import Timestamp
from parley.server.lifecycle import is_cancellation

MAX_CALLS = 64
"""The most unanswered REQUESTs to one peer."""

MAX_WAITING = 256
"""The most unread answers to one REQUEST. Above it the call fails, because its reader
is too slow.
"""

MAX_WAITING_BYTES = 16 * 1024 * 1024
"""The size limit of unread answers of one peer, in all calls together, in bytes."""

RETRY_SECONDS = 2.0
GONE = "the agent's connection has ended, and its answer with it: send the request again"

Send = Callable[[Envelope], Awaitable[None]]


class SocketPeer:
    """Sends REQUESTs over a socket, and hands out their answers.

    An answer counts only if it comes over the same socket and names a REQUEST that was sent over
    it: no other socket answers for this one.
    """

    def __init__(self, send: Send, *, max_calls: int = MAX_CALLS) -> None:
        self._send = send
        self._max_calls = max_calls
        self._calls: dict[str, WaitingAnswers] = {}
        self._on_close: list[Callable[[], None]] = []
        self._on_beat: list[Callable[[], None]] = []
        self._waiting = WaitingBytes(MAX_WAITING_BYTES)
        self.is_open = True

    @property
    def in_flight(self) -> int:
        """The number of unanswered REQUESTs."""
        return len(self._calls)

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the socket has closed; at once if it has."""
        if self.is_open:
            self._on_close.append(callback)
        else:
            callback()

    def on_beat(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` at each HEARTBEAT of the other side, until the socket closes."""
        self._on_beat.append(callback)

    def beat(self) -> None:
        """Record a HEARTBEAT of the other side."""
        for callback in self._on_beat:
            callback()

    async def ask(self, request: Envelope) -> Answers:
        """Send a REQUEST and yield its answers.

        Raises ``AgentUnavailable`` when the socket closes, ``OverloadedError`` if too much is under
        way.
        """
        if not self.is_open:
            raise _unavailable(GONE)
        if len(self._calls) >= self._max_calls or request.message_id in self._calls:
            raise OverloadedError(
                "the agent has too many requests to answer; try again later",
                retry_after=RETRY_SECONDS,
            )
        if request.message.sub_type == SubType.NOTIFICATION:
            await self._send(request)
            return
        call = self._calls[request.message_id] = WaitingAnswers(self._waiting, MAX_WAITING)
        try:
            await self._send(request)
            finish, is_over = AnswerEnd(request), False
            while not is_over:
                answer = await call.next()
                is_over = finish.is_last(answer)
                yield answer
        finally:
            del self._calls[request.message_id]
            call.drop()

    def answered(self, answer: Envelope, size: int = 0) -> bool:
        """Take a RESPONSE or an EVENT of so many bytes; return whether a REQUEST waits for it."""
        call = self._calls.get(answer.message.correlation_id)
        if call is None or answer.message.type not in (MessageType.RESPONSE, MessageType.EVENT):
            return False
        if not call.put(answer, size):
            call.fail(_unavailable("the answers of the agent came faster than they were read"))
        return True

    def close(self) -> None:
        """Record that the socket has closed: running calls fail. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        self._on_beat.clear()
        for call in self._calls.values():
            call.fail(_unavailable(GONE))
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()


def _unavailable(words: str) -> AgentUnavailable:
    return AgentUnavailable(words, retry_after=RETRY_SECONDS)


LONGEST_TIMEOUT = 366 * 86_400.0
"""The longest timeout in seconds."""

ROUTED = "parley.envelope.routed"
"""The key of an ASGI scope that this process made: a message that another agent's binding has
admitted, and passes on. Its value is a ``PassedOnMessage``. Nothing of the network sets it.
"""


class PassedOnMessage(msgspec.Struct, frozen=True):
    """A message forwarded by the binding of another agent.

    ``nonce_is_used``: its signature was verified there, so its nonce is not a replay here. ``peer``
    is the socket on which it arrived.
    """

    nonce_is_used: bool = False
    peer: SocketPeer | None = None


class MessageContext(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a message, and the address at which it arrived.

    ``agent`` is the key of the agent at the address, ``names`` are all its ids, ``tenant`` is the
    tenant of the address. ``scope`` is the ASGI scope of the upgrade or the POST, ``address`` the
    IP address of its sender. ``deadline`` is a time of the event loop. ``is_signed``: a key of the
    caller signs the message. ``peer`` is the socket, ``None`` for a POST.
    """

    caller: Caller = ANONYMOUS
    agent: str = ""
    names: Collection[str] = ()
    tenant: str = ""
    scope: Any = None
    address: str = ""
    deadline: float | None = None
    trace: TraceContext = NO_TRACE
    is_signed: bool = False
    peer: SocketPeer | None = None

    @property
    def is_routed(self) -> bool:
        """Return whether another binding of this process forwards the message."""
        return self.scope is not None and ROUTED in self.scope


def with_deadline(request: Envelope, context: MessageContext) -> MessageContext:
    """Return the context of a message that arrives now: it ends with the timeout of its REQUEST."""
    payload = request.payload
    timeout = payload.metadata.timeout if isinstance(payload, RequestPayload) else None
    if timeout is None:
        return context
    ends = asyncio.get_running_loop().time() + min(timeout / 1000, LONGEST_TIMEOUT)
    if context.deadline is not None:
        ends = min(ends, context.deadline)
    return msgspec.structs.replace(context, deadline=ends)


class AgentDirectory(Protocol):
    """Knows agents by id, type and skill, and passes REQUESTs on to them."""

    def is_for_others(self, request: Envelope, context: MessageContext) -> bool:
        """Return whether a REQUEST is not simply for the agent at the address.

        Raises ``A2AError`` for a target that makes no sense.
        """
        ...

    def knows(self, agent_id: str) -> bool:
        """Return whether messages may name an agent that is not at their address."""
        ...

    def route(self, request: Envelope, context: MessageContext) -> Answers:
        """Yield the answers to a REQUEST that was admitted: a RESPONSE, and the EVENTs.

        They have the correlation id of the request, and name who answered
        (``metadata.agentId``). Closing it ends the calls under way. Raises ``A2AError``.
        """
        ...


log = logging.getLogger("parley.envelope")

MISSED = 4408
"""The close code of a socket whose other side went silent."""

SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.05, 3600.0


class HeartbeatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of connection checks. Times are in seconds.

    The server sends a HEARTBEAT every ``interval``, and closes a socket after ``tolerance`` of them
    without a message from the other side. ``per_minute`` is the limit of HEARTBEATs from one
    socket: they count against no other limit.

    Raises ``ValueError`` for a value out of range.
    """

    interval: float = 30.0
    tolerance: int = 3
    per_minute: int = 120

    def __post_init__(self) -> None:
        is_number = isinstance(self.interval, int | float) and not isinstance(self.interval, bool)
        if not is_number or not SHORTEST_INTERVAL <= self.interval <= LONGEST_INTERVAL:
            raise ValueError(
                f"the interval of heartbeats is {SHORTEST_INTERVAL} to {LONGEST_INTERVAL:g} s, not "
                f"{self.interval!r}"
            )
        for name in ("tolerance", "per_minute"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000:
                raise ValueError(f"{name} of heartbeats is a whole number from 1, not {value!r}")


class ServerLoad(msgspec.Struct):
    """Returns what HEARTBEATs say about the server; the app sets both."""

    load: Callable[[], float] = lambda: 0.0
    is_draining: Callable[[], bool] = lambda: False


class SocketHeartbeats:
    """The HEARTBEATs of one socket. ``run`` sends them until the socket closes.

    ``send`` sends a message, ``close`` closes the socket with a code and a reason. ``source`` is
    the agent at the address, and ``peer`` is notified of received HEARTBEATs. ``round_trip`` is the
    round trip time of the last answered HEARTBEAT, in seconds.
    """

    def __init__(
        self,
        send: Callable[[Envelope], Awaitable[Any]],
        close: Callable[[int, str], Awaitable[Any]],
        *,
        source: Source,
        settings: HeartbeatSettings | None = None,
        load: ServerLoad | None = None,
        peer: SocketPeer | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._send = send
        self._close = close
        self._source = source
        self._settings = settings or HeartbeatSettings()
        self._load = load or ServerLoad()
        self._peer = peer
        self._clock = clock or asyncio.get_running_loop().time
        self._heard_at = self._clock()
        self._sent: Bounded[str, float] = Bounded(self._settings.tolerance)
        self._taken: deque[float] | None = None  # until one comes: it costs 700 bytes
        self._is_beating = False
        self.round_trip: float | None = None
        self.missed = 0

    def heard(self) -> None:
        """Record a message of any type: the other side is alive."""
        self._heard_at = self._clock()
        self.missed = 0

    async def received(self, heartbeat: Envelope) -> None:
        """Process a HEARTBEAT: answer it, or record the round trip time if it is an answer.

        Raises ``TooManyRequestsError`` above the limit of one socket.
        """
        self.heard()
        if self._peer is not None:
            self._peer.beat()
        now = self._clock()
        asked = heartbeat.message.correlation_id
        sent = self._sent.pop(asked, None) if asked else None
        if sent is not None:
            self.round_trip = now - sent
            return
        if asked:
            return  # an answer that came too late, or to nothing: it is never answered
        if self._taken is None:
            self._taken = deque(maxlen=self._settings.per_minute)
        taken = self._taken
        if len(taken) == taken.maxlen and now - taken[0] < 60.0:
            raise TooManyRequestsError(
                f"at most {taken.maxlen} HEARTBEATs a minute on one connection",
                retry_after=math.ceil(60.0 - (now - taken[0])),
            )
        taken.append(now)
        await self._send(self._message(heartbeat.message_id))

    async def beat(self) -> None:
        """Send a HEARTBEAT; close the socket after too many without any message."""
        settings = self._settings
        if self._clock() - self._heard_at >= settings.interval:
            self.missed += 1
        if self.missed >= settings.tolerance:
            await self._close(MISSED, f"no message for {self.missed} heartbeats")
            return
        message = self._message()
        self._sent[message.message_id] = self._clock()
        await self._send(message)

    async def run(self) -> None:
        """Send HEARTBEATs until cancelled, or until the other side is silent."""
        while self.missed < self._settings.tolerance:
            await asyncio.sleep(self._settings.interval)
            await self.beat()

    def _message(self, correlation_id: str = "") -> Envelope:
        return heartbeat_of(self._source, self._settings, self._load, correlation_id)


def heartbeat_of(
    source: Source, settings: HeartbeatSettings, load: ServerLoad, correlation_id: str = ""
) -> Envelope:
    """Return a HEARTBEAT of the server, or the answer to one.

    ``load`` is from 0 (idle) to 1 (no room), ``draining`` says that the server takes no new work,
    ``time`` is its clock, ``interval`` the ms to its next HEARTBEAT.
    """
    payload = {
        "load": round(min(max(load.load(), 0.0), 1.0), 3),
        "draining": load.is_draining(),
        "time": str(Timestamp.now()),
        "interval": round(settings.interval * 1000),
    }
    content = msgspec.Raw(msgspec.json.encode(payload))
    return message_of(MessageType.HEARTBEAT, content, source=source, correlation_id=correlation_id)


message_log = logging.getLogger("parley.envelope.messages")

MAX_KINDS = 200
OTHERS = "(others)"

_FAULTS = frozenset({"INTERNAL_ERROR", "OVERLOADED", "INVALID_AGENT_RESPONSE"})
"""Errors that are not the caller's."""


class EnvelopeCounts(msgspec.Struct, kw_only=True, rename="camel"):
    """The counters of a server since its start.

    ``by_type`` counts messages, ``by_status`` answers; ``slowest_ms`` is the longest answer.
    """

    messages: int = 0
    answers: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    in_flight: int = 0
    retries: int = 0
    heartbeats: int = 0
    slowest_ms: int = 0
    by_type: Counter[str] = msgspec.field(default_factory=Counter)
    by_status: Counter[str] = msgspec.field(default_factory=Counter)
    by_error: Counter[str] = msgspec.field(default_factory=Counter)


class Measurement:
    """The measurement of a running message. ``end`` is called once; a second call changes nothing.

    ``size`` is the size of its answers in bytes.
    """

    __slots__ = ("_agent", "_began", "_counts", "_is_over", "_message", "size")

    def __init__(self, counts: EnvelopeCounts, agent: str, message: Envelope) -> None:
        self._counts = counts
        self._agent = agent
        self._message = message
        self._is_over = False
        self._began = time.perf_counter()
        self.size = 0

    def end(self, status: str = Status.SUCCESS, *, error: str = "") -> None:
        """Record the last answer: its status, and its error code."""
        if self._is_over:
            return
        self._is_over = True
        took = round((time.perf_counter() - self._began) * 1000)
        counts, info, payload = self._counts, self._message.message, self._message.payload
        counts.answers += 1
        counts.bytes_out += self.size
        counts.slowest_ms = max(counts.slowest_ms, took)
        _count(counts.by_status, status)
        if error:
            _count(counts.by_error, error)
        action, priority, retry = "-", "-", 0
        if isinstance(payload, RequestPayload):
            counts.in_flight -= 1
            action, priority = shown(payload.action), shown(info.priority)
            retry = payload.metadata.retry_count
        message_log.log(
            logging.INFO if error in _FAULTS else logging.DEBUG,
            "type=%s action=%s agent=%s status=%s error=%s ms=%d bytes=%d priority=%s retry=%d",
            shown(info.type),
            action,
            *(shown(text) or "-" for text in (self._agent, status, error)),
            took,
            self.size,
            priority,
            retry,
        )


class EnvelopeStatistics:
    """Counts messages, and logs a line for each. Kinds beyond a number count as ``(others)``."""

    def __init__(self) -> None:
        self._counts = EnvelopeCounts()

    def begin(self, message: Envelope, *, agent: str, size: int = 0) -> Measurement:
        """Note a message that has arrived."""
        counts, payload = self._counts, message.payload
        counts.messages += 1
        counts.bytes_in += size
        _count(counts.by_type, message.message.type)
        counts.heartbeats += message.message.type == MessageType.HEARTBEAT
        if isinstance(payload, RequestPayload):
            counts.retries += payload.metadata.retry_count > 0
            counts.in_flight += 1
        return Measurement(counts, agent, message)

    def counts(self) -> EnvelopeCounts:
        """Return the counters since the start."""
        return copy.deepcopy(self._counts)


def shown(text: str) -> str:
    """Return a text of a message for a log line: short, and without spaces, breaks and quotes."""
    return _UNSHOWN.sub("?", text[:80])


_UNSHOWN = re.compile(r"[^A-Za-z0-9_.:/@-]")


def _count(counter: Counter[str], name: str) -> None:
    """Count a kind that a sender names: at most ``MAX_KINDS`` are distinguished."""
    is_known = name[:80] in counter or len(counter) < MAX_KINDS
    counter[name[:80] if is_known else OTHERS] += 1


log = logging.getLogger("parley.envelope")

EnvelopeHandler = Callable[[Envelope, MessageContext], Awaitable[Any]]
"""Answers a message: with a ``ResponsePayload``, a list of results, one JSON value, or ``None``.

``NotImplemented``: the handler does not support the message, so it is unknown here.
"""

HANDLER_CONCURRENCY = 64
MAX_RESULT_BYTES = 4 * 1024 * 1024
REGISTRY_PREFIX = "registry."


class NotHandled(Exception):
    """The handler of the operator leaves a message alone: it returned ``NotImplemented``."""


class EnvelopeHandlers:
    """The handlers of a server: ``hook`` of the operator, and the server's own, by their actions.

    Each call ends after ``timeout`` seconds; at most ``at_once`` run at a time, and further calls
    are rejected with ``retryAfter``. Raises ``TypeError`` for a hook that is not an async function.
    """

    def __init__(
        self,
        hook: EnvelopeHandler | None = None,
        *,
        timeout: float = HANDLER_TIMEOUT,
        at_once: int = HANDLER_CONCURRENCY,
        own: Mapping[str, EnvelopeHandler] | None = None,
    ) -> None:
        of_object = getattr(type(hook), "__call__", None)  # noqa: B004 - its function is looked at
        is_async = inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(of_object)
        if hook is not None and not is_async:
            raise TypeError(
                "handler of EnvelopeBinding is an async function of a message and its context, "
                f"such as async def handle(message, context): ..., not {hook!r:.200}"
            )
        self.hook = hook
        self._timeout = timeout
        self._at_once = at_once
        self._own = dict(own or {})
        self._running = 0

    def of_server(self, request: Envelope) -> EnvelopeHandler | None:
        """Return the handler of the server for the action of a REQUEST."""
        payload = request.payload
        return self._own.get(payload.action) if isinstance(payload, RequestPayload) else None

    async def answer(
        self, handler: EnvelopeHandler, message: Envelope, context: MessageContext
    ) -> ResponsePayload | None:
        """Return the payload of the RESPONSE, ``None`` if there is no RESPONSE.

        Raises ``A2AError``, and ``NotHandled`` for a message that the handler declines.
        """
        if self._running >= self._at_once:
            raise OverloadedError("too many messages of this kind are under way", retry_after=1)
        self._running += 1
        name = getattr(message.payload, "action", "") or message.message.type
        try:
            async with asyncio.timeout(self._timeout) as timeout:
                given = await handler(message, context)
            return self._payload(given, message)
        except (A2AError, NotHandled):
            raise
        except (Exception, asyncio.CancelledError) as error:
            if is_cancellation(error):
                raise
            if isinstance(error, TimeoutError) and timeout.expired():
                log.error("the handler of %a took more than %g s", name[:100], self._timeout)
                raise InternalError("the handler of this message took too long") from None
            log.exception("the handler of %a failed", name[:100])
            words = "the handler of this message failed; the server's log has the reason"
            raise InternalError(words) from None
        finally:
            self._running -= 1

    def _payload(self, given: Any, message: Envelope) -> ResponsePayload | None:
        if given is NotImplemented:
            raise NotHandled
        if given is None:
            is_request = message.message.type == MessageType.REQUEST
            return ResponsePayload(status=Status.SUCCESS) if is_request else None
        payload = success(given)
        size = len(msgspec.json.encode(payload))  # raises TypeError for a value that is no JSON
        if size > MAX_RESULT_BYTES:
            raise ValueError(f"the answer has {size:,} bytes, more than {MAX_RESULT_BYTES:,}")
        return payload


class EnvelopeServices(msgspec.Struct, kw_only=True):
    """The parts that the envelope bindings of a server share.

    ``handlers`` are the operator's hook and the server's own (``registry.register``).
    """

    handlers: EnvelopeHandlers = msgspec.field(default_factory=EnvelopeHandlers)
    directory: AgentDirectory
    statistics: EnvelopeStatistics = msgspec.field(default_factory=EnvelopeStatistics)
    heartbeats: HeartbeatSettings = HeartbeatSettings()
    load: ServerLoad = msgspec.field(default_factory=ServerLoad)

    def heartbeat(self, source: Source, correlation_id: str) -> Envelope:
        """Return the answer to a HEARTBEAT."""
        return heartbeat_of(source, self.heartbeats, self.load, correlation_id)
