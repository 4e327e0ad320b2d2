"""Parts that the bindings of a server share: contexts, sockets, order, HEARTBEATs, counters."""

from __future__ import annotations

import asyncio
import copy
import heapq
import inspect
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping
from itertools import count
from typing import Any, Protocol

import msgspec

from parley.envelope.answers import Answers, WaitingAnswers, WaitingBytes
from parley.envelope.declared import HANDLER_TIMEOUT
from parley.envelope.messages import (
    VERSION,
    AgentUnavailable,
    DeadlineExceeded,
    Envelope,
    MessageInfo,
    MessageType,
    Priority,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    Source,
    Status,
    SubType,
)
from parley.model.bounded import Bounded
from parley.model.errors import A2AError, InternalError, OverloadedError, TooManyRequestsError
from parley.model.ids import new_id
from parley.model.service import ANONYMOUS, NO_TRACE, Caller, TraceContext
from parley.model.struct import Timestamp

MAX_CALLS = 64
"""How many REQUESTs to one peer wait for their answers."""

MAX_WAITING = 256
"""How many answers to one REQUEST wait to be read. Then the call fails: its reader is too slow."""

MAX_WAITING_BYTES = 16 * 1024 * 1024
"""How many bytes of answers of one peer wait to be read, in all calls together."""

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
        """How many REQUESTs wait for their answers."""
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
        """Note a HEARTBEAT of the other side."""
        for callback in self._on_beat:
            callback()

    async def ask(self, request: Envelope, *, awaits_events: bool = False) -> Answers:
        """Send a REQUEST and yield its answers.

        The RESPONSE is the last, or with ``awaits_events`` (a command) the EVENT with a status that
        ends it. Raises ``AgentUnavailable`` when the socket closes, ``OverloadedError`` if too
        much is under way.
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
            is_over = False
            while not is_over:
                answer = await call.next()
                is_over = _ends(answer, awaits_events=awaits_events)
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
        """Note that the socket has closed: calls under way fail. Idempotent."""
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


def _ends(answer: Envelope, *, awaits_events: bool) -> bool:
    payload = answer.payload
    if not isinstance(payload, ResponsePayload):
        return answer.message.type == MessageType.RESPONSE
    if answer.message.type == MessageType.RESPONSE:
        return not (awaits_events and payload.status == Status.ACCEPTED)
    return awaits_events and payload.status not in (Status.PARTIAL, Status.ACCEPTED)


LONGEST_TIMEOUT = 366 * 86_400.0
"""The longest timeout in seconds."""

ROUTED = "parley.envelope.routed"
"""The key of an ASGI scope that this process made: a message that another agent's binding has
admitted, and passes on. Its value is a ``PassedOnMessage``. Nothing of the network sets it.
"""


class PassedOnMessage(msgspec.Struct, frozen=True):
    """A message that the binding of another agent passes on.

    ``nonce_is_used``: its signature was verified there, so that its nonce is no replay here.
    ``peer`` is the socket that it came by.
    """

    nonce_is_used: bool = False
    peer: SocketPeer | None = None


class MessageContext(msgspec.Struct, frozen=True, kw_only=True):
    """Who sent a message, and where it arrived.

    ``agent`` is the key of the agent at the address, ``names`` are all its ids, ``tenant``
    is that of the address. ``scope`` is
    the ASGI scope of the upgrade or the POST, ``address`` the IP address of its sender.
    ``deadline`` is a time of the event loop. ``is_signed``: a key of the caller signs the message.
    ``peer`` is the socket, ``None`` for a POST.
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
        """Whether another binding of this process passes the message on."""
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
    """How connections are kept and watched. Times are in seconds.

    The server sends a HEARTBEAT every ``interval``, and closes a socket after ``tolerance`` of them
    without a message from the other side. ``per_minute`` is how many HEARTBEATs one socket may
    send: they count against no other limit.

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


class HeartbeatPayload(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The payload of a HEARTBEAT of the server.

    ``load`` is from 0 (idle) to 1 (no room), ``draining`` says that the server takes no new work,
    ``time`` is its clock, ``interval`` the ms to its next HEARTBEAT.
    """

    load: float
    draining: bool
    time: str
    interval: int


class ServerLoad(msgspec.Struct):
    """Returns what HEARTBEATs say about the server; the app sets both."""

    load: Callable[[], float] = lambda: 0.0
    is_draining: Callable[[], bool] = lambda: False


class SocketHeartbeats:
    """The HEARTBEATs of one socket. ``run`` sends them until the socket closes.

    ``send`` sends a message, ``close`` closes the socket with a code and a reason. ``source`` is
    the agent at the address, and ``peer`` hears of HEARTBEATs that come. ``round_trip`` is that of
    the last HEARTBEAT that was answered, in seconds.
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
        """Note a message of any type: the other side lives."""
        self._heard_at = self._clock()
        self.missed = 0

    async def received(self, heartbeat: Envelope) -> None:
        """Take a HEARTBEAT: answer it, or note the round trip if it is an answer.

        Raises ``TooManyRequestsError`` for more than one socket may send.
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
        """Send a HEARTBEAT; close the socket if too many went without any message."""
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
        """Send HEARTBEATs until this is cancelled, or the other side went silent."""
        while self.missed < self._settings.tolerance:
            await asyncio.sleep(self._settings.interval)
            await self.beat()

    def _message(self, correlation_id: str = "") -> Envelope:
        return heartbeat_of(self._source, self._settings, self._load, correlation_id)


def heartbeat_of(
    source: Source, settings: HeartbeatSettings, load: ServerLoad, correlation_id: str = ""
) -> Envelope:
    """Return a HEARTBEAT of the server, or the answer to one."""
    payload = HeartbeatPayload(
        load=round(min(max(load.load(), 0.0), 1.0), 3),
        draining=load.is_draining(),
        time=str(Timestamp.now()),
        interval=round(settings.interval * 1000),
    )
    return Envelope(
        version=VERSION,
        message_id=new_id(),
        timestamp=Timestamp.now(),
        source=source,
        message=MessageInfo(type=MessageType.HEARTBEAT, correlation_id=correlation_id),
        payload=msgspec.Raw(msgspec.json.encode(payload)),
    )


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
    by_type: dict[str, int] = {}
    by_status: dict[str, int] = {}
    by_error: dict[str, int] = {}


class Measurement:
    """One message under way. ``end`` is called once; calling it again changes nothing.

    ``size`` is the bytes of its answers.
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
        """Note the last answer: its status, and its error code."""
        if self._is_over:
            return
        self._is_over = True
        took = round((time.perf_counter() - self._began) * 1000)
        counts, message = self._counts, self._message
        payload = message.payload if isinstance(message.payload, RequestPayload) else None
        counts.answers += 1
        counts.bytes_out += self.size
        counts.slowest_ms = max(counts.slowest_ms, took)
        _count(counts.by_status, status)
        if error:
            _count(counts.by_error, error)
        if payload is not None:
            counts.in_flight -= 1
        level = logging.INFO if error in _FAULTS else logging.DEBUG
        if message_log.isEnabledFor(level):
            message_log.log(
                level,
                "type=%s action=%s agent=%s status=%s error=%s ms=%d bytes=%d priority=%s retry=%d",
                shown(message.message.type),
                "-" if payload is None else shown(payload.action),
                shown(self._agent) or "-",
                shown(status) or "-",
                shown(error) or "-",
                took,
                self.size,
                "-" if payload is None else shown(message.message.priority),
                0 if payload is None else payload.metadata.retry_count,
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
    short = text[:80]
    if short.isascii() and short.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return short
    return "".join(
        char if char.isascii() and (char.isalnum() or char in "-_.:/@") else "?" for char in short
    )


def _count(counter: dict[str, int], name: str) -> None:
    """Count a kind that a sender names: at most ``MAX_KINDS`` are distinguished."""
    if name not in counter and len(counter) >= MAX_KINDS:
        name = OTHERS
    counter[name[:80]] = counter.get(name[:80], 0) + 1


log = logging.getLogger("parley.envelope")

EnvelopeHandler = Callable[[Envelope, MessageContext], Awaitable[Any]]
"""Answers a message: with a ``ResponsePayload``, a list of results, one JSON value, or ``None``.

``NotImplemented``: the message is none of its own, so it is unknown here.
"""

HANDLER_CONCURRENCY = 64
MAX_RESULT_BYTES = 4 * 1024 * 1024
REGISTRY_PREFIX = "registry."


class NotHandled(Exception):
    """The handler of the operator leaves a message alone: it returned ``NotImplemented``."""


class EnvelopeHandlers:
    """The handlers of a server: ``hook`` of the operator, and the server's own, by their actions.

    Each call ends after ``timeout`` seconds; at most ``at_once`` run at a time, and further ones
    are refused with ``retryAfter``. Raises ``TypeError`` for a hook that is no async function.
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
        """Return the payload of the RESPONSE, ``None`` where none is sent.

        Raises ``A2AError``, and ``NotHandled`` for a message that the handler leaves alone.
        """
        if self._running >= self._at_once:
            raise OverloadedError("too many messages of this kind are under way", retry_after=1)
        self._running += 1
        try:
            async with asyncio.timeout(self._timeout) as timeout:
                given = await handler(message, context)
            return self._payload(given, message)
        except (A2AError, NotHandled):
            raise
        except TimeoutError:
            if not timeout.expired():
                raise _failed(message) from None
            log.error("the handler of %s took more than %g s", _named(message), self._timeout)
            raise InternalError("the handler of this message took too long") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _failed(message) from None  # something within the handler was cancelled
        except Exception:
            raise _failed(message) from None
        finally:
            self._running -= 1

    def _payload(self, given: Any, message: Envelope) -> ResponsePayload | None:
        if given is NotImplemented:
            raise NotHandled
        if given is None:
            if message.message.type != MessageType.REQUEST:
                return None
            return ResponsePayload(status=Status.SUCCESS)
        if isinstance(given, ResponsePayload):
            payload = given
        else:
            results = tuple(given) if isinstance(given, list | tuple) else (given,)
            payload = ResponsePayload(
                status=Status.SUCCESS,
                results=results,
                metadata=ResponseMetadata(total_results=len(results)),
            )
        size = len(msgspec.json.encode(payload))  # raises TypeError for a value that is no JSON
        if size > MAX_RESULT_BYTES:
            raise ValueError(f"the answer has {size:,} bytes, more than {MAX_RESULT_BYTES:,}")
        return payload


def _failed(message: Envelope) -> InternalError:
    log.exception("the handler of %s failed", _named(message))
    return InternalError("the handler of this message failed; the server's log says why")


def _named(message: Envelope) -> str:
    name = message.message.type
    if isinstance(message.payload, RequestPayload):
        name = message.payload.action
    return ascii(name[:100])


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


RANKS = {Priority.URGENT: 0, Priority.HIGH: 1, Priority.NORMAL: 2, Priority.LOW: 3}
"""The order of priorities. An unknown priority counts as normal."""

_Waiting = tuple[int, int, "Slot"]


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many REQUESTs run and wait.

    ``total`` run at once, of which each connection may have ``in_flight``, and each caller
    ``share`` of all; ``waiting`` more of each caller wait. An eighth of ``in_flight`` is kept for
    those that wait for no turn, so that a task can be canceled while many are worked on.
    """

    total: int = 10_000
    in_flight: int = 64
    waiting: int = 256
    share: float = 0.5


class Slot:
    """The right of one REQUEST to run, from ``RequestQueue.acquire`` to ``release``."""

    __slots__ = ("_lane", "_queue", "granted", "is_quick", "is_running")

    def __init__(self, queue: RequestQueue, lane: RequestLane, *, is_quick: bool) -> None:
        self._queue = queue
        self._lane = lane
        self.is_quick = is_quick
        self.is_running = False
        self.granted: asyncio.Future[None] | None = None

    def release(self) -> None:
        """Let the next one run; a waiting REQUEST leaves the queue. Idempotent."""
        if self.is_running:
            self.is_running = False
            self._queue.ended(self._lane, self)
        elif self.granted is not None and not self.granted.done():
            self._queue.leave(self._lane, self)
            self.granted.cancel()


class RequestLane:
    """The REQUESTs of one connection."""

    __slots__ = ("caller", "quick", "slow", "waiting_quick", "waiting_slow")

    def __init__(self, caller: _Caller) -> None:
        self.caller = caller
        self.quick = self.slow = 0
        self.waiting_quick: list[_Waiting] = []
        self.waiting_slow: list[_Waiting] = []

    @property
    def running(self) -> int:
        """How many run."""
        return self.quick + self.slow


class _Caller:
    """The connections of one caller."""

    __slots__ = ("key", "lanes", "running", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.lanes: set[RequestLane] = set()
        self.running = self.waiting = 0


class RequestQueue:
    """Lets REQUESTs run within the limits of a server.

    Of one caller's that wait, the one of highest priority runs first, then the one that came first.
    Callers take turns: however many REQUESTs one has, and of whatever priority, each other caller's
    next one waits for one of them at most.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._caller_limit = max(1, int(limits.total * limits.share))
        self._slow_limit = max(1, limits.in_flight - limits.in_flight // 8)
        self._running = 0
        self._arrivals = count()
        self._callers: dict[Hashable, _Caller] = {}
        self._turns: dict[_Caller, None] = {}  # waiting callers, the next one first

    def open(self, caller: Hashable) -> RequestLane:
        """Return the lane of a new connection. ``caller`` is ``None`` for an unknown caller."""
        key = object() if caller is None else caller
        known = self._callers.get(key)
        if known is None:
            known = self._callers[key] = _Caller(key)
        lane = RequestLane(known)
        known.lanes.add(lane)
        return lane

    def close(self, lane: RequestLane) -> None:
        """Forget a lane once nothing of it runs or waits."""
        caller = lane.caller
        caller.lanes.discard(lane)
        if not caller.lanes:
            self._callers.pop(caller.key, None)

    @property
    def load(self) -> float:
        """How full it is: from 0 to 1."""
        return min(1.0, self._running / self._limits.total)

    def enter(self, lane: RequestLane, priority: str, *, is_quick: bool = False) -> Slot:
        """Return the slot of a REQUEST that runs now, or once ``granted`` is done.

        ``is_quick``: it waits for no turn. Raises ``OverloadedError`` when too many wait.
        """
        slot, caller = Slot(self, lane, is_quick=is_quick), lane.caller
        heap = lane.waiting_quick if is_quick else lane.waiting_slow
        if not heap and self._has_room(lane, is_quick=is_quick) and not self._turns:
            self._start(lane, slot)
            return slot
        if caller.waiting >= self._limits.waiting:
            raise OverloadedError(
                f"{caller.running} requests of this caller are under way and {caller.waiting} "
                "wait, which is as many as may; send this one again later",
                retry_after=1,
            )
        slot.granted = asyncio.get_running_loop().create_future()
        rank = RANKS.get(priority, RANKS[Priority.NORMAL])  # type: ignore[call-overload]
        heapq.heappush(heap, (rank, next(self._arrivals), slot))
        caller.waiting += 1
        self._turns.setdefault(caller)
        self._grant()
        return slot

    async def acquire(self, slot: Slot, until: float | None = None) -> None:
        """Wait until a slot is granted; a caller that is cancelled leaves the queue.

        So does one at ``until``, a time of the event loop. Raises ``DeadlineExceeded`` then.
        """
        if slot.granted is None:
            return
        try:
            async with asyncio.timeout_at(until):
                await asyncio.shield(slot.granted)
        except TimeoutError:
            slot.release()
            raise DeadlineExceeded(
                "the timeout of the request was over before there was room for it"
            ) from None
        except asyncio.CancelledError:
            slot.release()
            raise

    def ended(self, lane: RequestLane, slot: Slot) -> None:
        """Note that a REQUEST ended, and let others run."""
        self._running -= 1
        lane.caller.running -= 1
        if slot.is_quick:
            lane.quick -= 1
        else:
            lane.slow -= 1
        if lane.caller.waiting:
            self._turns.setdefault(lane.caller)
        if self._turns:
            self._grant()

    def _has_room(self, lane: RequestLane, *, is_quick: bool) -> bool:
        if self._running >= self._limits.total or lane.caller.running >= self._caller_limit:
            return False
        if lane.running >= self._limits.in_flight:
            return False
        return is_quick or lane.slow < self._slow_limit

    def _start(self, lane: RequestLane, slot: Slot) -> None:
        slot.is_running = True
        self._running += 1
        lane.caller.running += 1
        if slot.is_quick:
            lane.quick += 1
        else:
            lane.slow += 1

    def _grant(self) -> None:
        """Let those run for which there is room, one of each caller at a time."""
        while self._turns and self._running < self._limits.total:
            caller = next(iter(self._turns))
            del self._turns[caller]
            if self._grant_one(caller) and caller.waiting:
                self._turns[caller] = None  # behind the others

    def _grant_one(self, caller: _Caller) -> bool:
        """Let one REQUEST of a caller run; return whether one may.

        If there is none, the caller waits for the end of one of its own, and has no turn until
        then.
        """
        heads = [(heap[0], lane, heap) for lane in caller.lanes for heap in self._eligible(lane)]
        if not heads:
            return False
        _, lane, heap = min(heads, key=lambda head: head[0][:2])
        slot = heapq.heappop(heap)[2]
        caller.waiting -= 1
        self._start(lane, slot)
        assert slot.granted is not None
        if not slot.granted.done():
            slot.granted.set_result(None)
        return True

    def _eligible(self, lane: RequestLane) -> Iterator[list[_Waiting]]:
        if lane.waiting_quick and self._has_room(lane, is_quick=True):
            yield lane.waiting_quick
        if lane.waiting_slow and self._has_room(lane, is_quick=False):
            yield lane.waiting_slow

    def leave(self, lane: RequestLane, slot: Slot) -> None:
        """Take a REQUEST that waits out of the queue."""
        heap = lane.waiting_quick if slot.is_quick else lane.waiting_slow
        for index, waiting in enumerate(heap):
            if waiting[2] is slot:
                del heap[index]
                heapq.heapify(heap)
                lane.caller.waiting -= 1
                if not lane.caller.waiting:
                    self._turns.pop(lane.caller, None)
                return
