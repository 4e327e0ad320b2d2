"""Other agents of a server, and those that registered: who gets a REQUEST besides the agent at the
address. The host implements ``AgentDirectory``; the binding asks it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Protocol

import msgspec

from parley.envelope.errors import AgentUnavailable
from parley.envelope.messages import (
    Envelope,
    MessageType,
    RequestPayload,
    ResponsePayload,
    Status,
    SubType,
)
from parley.model.errors import OverloadedError
from parley.model.service import ANONYMOUS, NO_TRACE, Caller, TraceContext

# -- peers ------------------------------------------------------------------------------------
#
# ``SocketPeer``: the other side of a socket, which may answer REQUESTs too.


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
        self._calls: dict[str, _Call] = {}
        self._on_close: list[Callable[[], None]] = []
        self._on_beat: list[Callable[[], None]] = []
        self._waiting = WaitingBytes()
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

    async def ask(
        self, request: Envelope, *, awaits_events: bool = False
    ) -> AsyncIterator[Envelope]:
        """Send a REQUEST and yield its answers.

        The RESPONSE is the last, or with ``awaits_events`` (a command) the EVENT with a status that
        ends it. Raises ``AgentUnavailable`` when the socket closes, ``OverloadedError`` if too
        much is under way.
        """
        if not self.is_open:
            raise AgentUnavailable(GONE, retry_after=RETRY_SECONDS)
        if len(self._calls) >= self._max_calls or request.message_id in self._calls:
            raise OverloadedError(
                "the agent has too many requests to answer; try again later",
                retry_after=RETRY_SECONDS,
            )
        if request.message.sub_type == SubType.NOTIFICATION:
            await self._send(request)
            return
        call = self._calls[request.message_id] = _Call(self._waiting)
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
        call.put(answer, size)
        return True

    def close(self) -> None:
        """Note that the socket has closed: calls under way fail. Idempotent."""
        if not self.is_open:
            return
        self.is_open = False
        self._on_beat.clear()
        for call in self._calls.values():
            call.fail(GONE)
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()


def _ends(answer: Envelope, *, awaits_events: bool) -> bool:
    payload = answer.payload
    if not isinstance(payload, ResponsePayload):
        return answer.message.type == MessageType.RESPONSE
    if answer.message.type == MessageType.RESPONSE:
        return not (awaits_events and payload.status == Status.ACCEPTED)
    return awaits_events and payload.status not in (Status.PARTIAL, Status.ACCEPTED)


class WaitingBytes:
    """How many bytes wait in the calls of one peer."""

    held = 0


class _Call:
    """The answers to one REQUEST that were not read yet."""

    def __init__(self, waiting: WaitingBytes) -> None:
        self._answers: deque[tuple[Envelope, int]] = deque()
        self._waiting = waiting
        self._has_news = asyncio.Event()
        self._failure = ""

    def put(self, answer: Envelope, size: int) -> None:
        is_full = self._waiting.held + size > MAX_WAITING_BYTES and self._waiting.held
        if is_full or len(self._answers) >= MAX_WAITING:
            self.fail("the answers of the agent came faster than they were read")
            return
        self._answers.append((answer, size))
        self._waiting.held += size
        self._has_news.set()

    def fail(self, words: str) -> None:
        self._failure = self._failure or words
        self._has_news.set()

    async def next(self) -> Envelope:
        while not self._answers:
            if self._failure:
                raise AgentUnavailable(self._failure, retry_after=RETRY_SECONDS)
            self._has_news.clear()
            await self._has_news.wait()
        answer, size = self._answers.popleft()
        self._waiting.held -= size
        return answer

    def drop(self) -> None:
        """Drop what nobody reads any more."""
        self._waiting.held -= sum(size for _, size in self._answers)
        self._answers.clear()


# -- directory --------------------------------------------------------------------------------


LONGEST = 366 * 86_400.0
"""The longest timeout in seconds."""

ROUTED = "parley.envelope.routed"
"""The key of an ASGI scope that this process made: a message that another agent's binding has
admitted, and passes on. Its value is a ``PassedOnMessage``. Nothing of the network sets it.
"""


class PassedOnMessage(msgspec.Struct, frozen=True):
    """What is known of a message that the binding of another agent passes on.

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
    ends = asyncio.get_running_loop().time() + min(timeout / 1000, LONGEST)
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

    def route(self, request: Envelope, context: MessageContext) -> AsyncIterator[Envelope]:
        """Yield the answers to a REQUEST that was admitted: a RESPONSE, and the EVENTs.

        They have the correlation id of the request, and name who answered
        (``metadata.agentId``). Closing it ends what is under way. Raises ``A2AError``.
        """
        ...
