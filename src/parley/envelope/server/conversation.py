"""``Conversation``: one connection, whose messages are answered as they can be."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, aclosing, suppress
from typing import Any

import msgspec

from parley.envelope.answers import error_response
from parley.envelope.codec import UnreadableEnvelope, read_message, write_message
from parley.envelope.errors import DeadlineExceeded
from parley.envelope.messages import (
    STOP,
    Envelope,
    MessageType,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    Status,
    SubType,
)
from parley.envelope.server.answering import Answering
from parley.envelope.server.directory import MessageContext, SocketPeer, with_deadline
from parley.envelope.server.guard import EnvelopeGuard
from parley.envelope.server.heartbeats import SocketHeartbeats
from parley.envelope.server.measured import Measurement
from parley.envelope.server.plugins import EnvelopeServices
from parley.envelope.server.queue import RequestLane, RequestQueue, Slot
from parley.model.errors import A2AError, OverloadedError, UnauthenticatedError
from parley.model.service import CallContext, Caller
from parley.server.http.open_credentials import CredentialsExpired, OpenCredentials
from parley.server.http.streams import Streams, shutting_down
from parley.server.limits import ByteReservation
from parley.server.log import log_unforeseen
from parley.server.websocket.admission import SERVICE_RESTART, SHUTTING_DOWN

# -- outbox -----------------------------------------------------------------------------------
#
# What waits to be sent over one socket: answers and HEARTBEATs before EVENTs.


MAX_BYTES = 1024 * 1024
MAX_MESSAGES = 256
"""How much may wait before no further message of the sender is read: it does not read either."""

_Waiting = tuple[bytes, "asyncio.Future[None] | None"]


class OutboxClosed(Exception):
    """The socket is closed: nothing is sent any more."""


class Outbox:
    """Sends messages one after another, each RESPONSE and HEARTBEAT before EVENTs that wait.

    ``event`` waits until the message is sent, so that a stream gives its next event only when its
    reader has room. EVENTs of several streams go in the order in which they came.

    It has a task only while it has something to send, and no events or deques: most sockets are
    idle most of the time, and thousands are open.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._urgent: list[_Waiting] = []
        self._events: list[_Waiting] = []
        self._size = 0
        self._sending: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self.is_closed = False

    def post(self, data: bytes) -> None:
        """Send a message soon, and do not wait for that. After ``close`` it is dropped."""
        if not self.is_closed:
            self._put(self._urgent, data, None)

    async def send(self, data: bytes) -> None:
        """Send a RESPONSE, before all EVENTs. Raises ``OutboxClosed``."""
        await self._sent(self._urgent, data)

    async def event(self, data: bytes) -> None:
        """Send an EVENT. Raises ``OutboxClosed``."""
        await self._sent(self._events, data)

    async def room(self) -> None:
        """Wait while too much waits to be sent."""
        while self._is_full and not self.is_closed:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    async def flushed(self) -> None:
        """Wait until everything is sent."""
        if self._sending is not None:
            await asyncio.wait({self._sending})

    def close(self) -> None:
        """Drop what waits; whoever waits for it is told."""
        self.is_closed = True
        for waiting in (*self._urgent, *self._events):
            _give_up(waiting[1])
        self._urgent.clear()
        self._events.clear()
        self._wake()

    async def aclose(self) -> None:
        """Close it, and send no more."""
        self.close()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})

    @property
    def _is_full(self) -> bool:
        return self._size >= MAX_BYTES or len(self._urgent) >= MAX_MESSAGES

    async def _run(self) -> None:
        """Send what waits, until that is all or the socket is closed."""
        sent: asyncio.Future[None] | None = None
        try:
            while waiting := self._urgent or self._events:
                data, sent = waiting.pop(0)
                await self._send(data)
                self._size -= len(data)
                if not self._is_full:
                    self._wake()
                if sent is not None and not sent.done():
                    sent.set_result(None)
        except OSError:
            self.close()  # how the other side's end is reported
        except BaseException:
            self.close()
            raise
        finally:
            self._sending = None
            _give_up(sent)

    def _wake(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    async def _sent(self, queue: list[_Waiting], data: bytes) -> None:
        if self.is_closed:
            raise OutboxClosed
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(queue, data, waiter)
        await waiter

    def _put(self, queue: list[_Waiting], data: bytes, waiter: asyncio.Future[None] | None) -> None:
        queue.append((data, waiter))
        self._size += len(data)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._run())


def _give_up(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_exception(OutboxClosed())
        waiter.exception()  # whoever waits may have been cancelled


# -- conversation -----------------------------------------------------------------------------


MAX_BAD_MESSAGES = 32
"""How many messages that cannot be read, or prove nothing, one connection may send."""

POLICY_VIOLATION = 1008
_LAST_WORDS_SECONDS = 1.0

Read = Callable[[str], Envelope]


class Conversation:
    """Takes the messages of one sender, and sends the answers through ``send``.

    REQUESTs are answered at the same time, within the limits of ``requests``; each answer names its
    REQUEST. When the connection ends, nobody waits for answers any more: tasks go on, and so do
    notifications that were read. ``context`` is what is known of all messages. ``answering`` keeps
    the connection open while it lasts, though the server drains.
    """

    def __init__(
        self,
        answering: Answering,
        context: MessageContext,
        *,
        services: EnvelopeServices,
        requests: RequestQueue,
        streams: Streams,
        request_bytes: ByteReservation,
        send: Callable[[bytes], Awaitable[None]],
        close: Callable[[int, str], Awaitable[None]],
        held_open: Callable[[], AbstractContextManager[None]],
        guard: EnvelopeGuard | None = None,
        sender: Any = None,
        credentials: OpenCredentials | None = None,
        max_bytes: int = 10 * 1024 * 1024,
        max_depth: int = 100,
    ) -> None:
        self._answering = answering
        self._services = services
        self._requests = requests
        self._streams = streams
        self._request_bytes = request_bytes
        self._close = close
        self._held_open = held_open
        self._guard = guard
        self._sender = sender
        self._credentials = credentials
        self._refusal: CredentialsExpired | None = None
        self._max_bytes, self._max_depth = max_bytes, max_depth
        self._outbox = Outbox(send)
        self._bad = 0
        self._is_draining = False
        self._waiting: set[asyncio.Task[None]] = set()
        self._by_id: dict[str, asyncio.Task[None]] = {}
        self._silent: set[asyncio.Task[None]] = set()
        self.peer = SocketPeer(self._tell)
        self._context = msgspec.structs.replace(context, peer=self.peer)
        self._lane: RequestLane = requests.open(context.caller.owner or None)
        self._heartbeats = SocketHeartbeats(
            self._beat,
            close,
            source=answering.source,
            settings=services.heartbeats,
            load=services.load,
            peer=self.peer,
        )

    async def run(self, receive: Callable[[], Awaitable[str | None]]) -> None:
        """Take messages until ``receive`` returns ``None``: the connection has ended."""
        own, credentials = [asyncio.create_task(self._heartbeats.run())], self._credentials
        if credentials is not None:
            self._streams.watch.add(
                credentials, lambda error: own.append(asyncio.create_task(self._expire(error)))
            )
        try:
            while (text := await receive()) is not None:
                await self.take(text)
                await self._outbox.room()
        except asyncio.CancelledError:
            await self._leave()
            raise
        finally:
            if credentials is not None:
                self._streams.watch.remove(credentials)
            self.peer.close()
            await self._outbox.aclose()
            await self._end(self._waiting)
            try:
                if self._silent:
                    await asyncio.wait(self._silent)
            finally:
                await self._end(self._silent, own)
                self._requests.close(self._lane)

    async def _leave(self) -> None:
        """End what is under way, and say so: the grace period of the server is over."""
        self._is_draining = True
        with self._held_open(), suppress(TimeoutError):
            await self._end(self._waiting, self._silent)
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._outbox.flushed()
                await self._close(SERVICE_RESTART, SHUTTING_DOWN)

    async def take(self, text: str) -> None:
        """Read a message, and begin to answer it. Whatever is wrong with it is answered too."""
        try:
            message = read_message(text, max_bytes=self._max_bytes, max_depth=self._max_depth)
        except UnreadableEnvelope as unreadable:
            self._heartbeats.heard()
            self._post_error(unreadable.message_id, unreadable.error)
            await self._count_bad()
            return
        await self.take_message(message, size=len(text))

    async def take_message(self, message: Envelope, *, size: int = 0) -> None:
        """Begin to answer a message."""
        self._heartbeats.heard()
        kind = message.message.type
        measurement = self._services.statistics.begin(message, agent=self._context.agent, size=size)
        try:
            context = await self._admitted(message)
            if kind == MessageType.REQUEST:
                self._start(message, with_deadline(message, context), measurement, size)
                return
            if kind == MessageType.HEARTBEAT:
                await self._heartbeats.received(message)
            elif is_stop(message):
                self._stop(message.message.correlation_id)
            elif kind not in (MessageType.RESPONSE, MessageType.EVENT) or (
                not self.deliver(message, size) and self._answering.is_for_hook(message)
            ):
                self._start(message, context, measurement, size)
                return
            measurement.end()
        except A2AError as error:
            measurement.end(Status.ERROR, error=error.reason)
            if not _is_silent(message):
                self._post_error(message, error)
            if isinstance(error, CredentialsExpired):
                await self._expire(error)
            elif isinstance(error, UnauthenticatedError):
                await self._count_bad()

    def deliver(self, answer: Envelope, size: int = 0) -> bool:
        """Hand a RESPONSE or an EVENT to who asked; return whether somebody did.

        What the other side answers counts only over the socket that asked it.
        """
        return self.peer.answered(answer, size)

    def _stop(self, id: str) -> None:
        """Send no more answers to a REQUEST of this connection; its task goes on."""
        task = self._by_id.get(id)
        if task is not None:
            task.cancel()

    def drain(self) -> None:
        """Note that the server drains. ``Streams`` ends its streams; the rest is answered."""
        self._is_draining = True

    # -- the way of one message ----------------------------------------------------------------

    async def _admitted(self, message: Envelope) -> MessageContext:
        """Return the context of a message. Raises ``A2AError`` for one that is refused."""
        if self._refusal is not None:
            raise self._refusal
        if self._credentials is not None:
            found = self._credentials.judge()
            self._judged(found if isinstance(found, Caller) else await found)
        if self._guard is None:
            return self._context
        caller = await self._guard.admit(message, self._sender)
        return msgspec.structs.replace(
            self._context, caller=caller, is_signed=message.security is not None
        )

    def _judged(self, caller: Caller) -> None:
        """Take the caller as its credentials prove it now. Raises ``A2AError``."""
        context = self._context
        if caller == context.caller:
            return
        if caller.owner != context.caller.owner:
            raise CredentialsExpired("the credentials of this connection are somebody else's now")
        self._context = msgspec.structs.replace(context, caller=caller)
        if self._guard is not None:
            self._sender.caller = self._guard.sender(caller, context.address).caller

    async def _expire(self, error: CredentialsExpired) -> None:
        """End all that the credentials of the connection have begun here, and close it."""
        if self._refusal is None:
            self._refusal = error
            self.peer.close()
            await self._end(self._waiting)
        await self._close_for("the credentials have expired")

    def _start(
        self, message: Envelope, context: MessageContext, measured: Measurement, size: int
    ) -> None:
        """Answer a message beside others. Raises ``OverloadedError`` when too many wait."""
        is_request = message.message.type == MessageType.REQUEST
        is_quick = is_request and self._answering.is_quick(message)
        slot = self._enter(message.message.priority, size, is_quick=is_quick)
        answer = self._answer if is_request else self._answer_unknown
        task = asyncio.create_task(answer(message, context, slot, measured))
        tasks = self._silent if _is_silent(message) else self._waiting
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        # A task that is cancelled before its first step does nothing of this itself.
        task.add_done_callback(lambda _: slot.release())
        task.add_done_callback(lambda _: measured.end("closed"))
        if is_request and tasks is self._waiting:
            id = message.message_id
            self._by_id[id] = task
            task.add_done_callback(
                lambda _: self._by_id.pop(id) if self._by_id.get(id) is task else None
            )

    def _enter(self, priority: str, size: int, *, is_quick: bool) -> Slot:
        """Return a slot; while it waits, the bytes of its message count as those of its address."""
        address, held = self._context.address, self._request_bytes
        held.reserve(address, size)
        try:
            slot = self._requests.enter(self._lane, priority, is_quick=is_quick)
        except A2AError:
            held.release(address, size)
            raise
        if slot.granted is None:
            held.release(address, size)
        else:
            slot.granted.add_done_callback(lambda _: held.release(address, size))
        return slot

    async def _answer(
        self, request: Envelope, context: MessageContext, slot: Slot, measured: Measurement
    ) -> None:
        is_silent = _is_silent(request)
        size, last, is_stream = 0, None, False
        try:
            with ExitStack() as streaming, ExitStack() as held:
                if not is_silent:
                    held.enter_context(self._held_open())
                held.callback(slot.release)
                await self._requests.acquire(slot, context.deadline)
                answers = self._answering.answers(request, context)
                async with aclosing(answers):
                    async for answer in answers:
                        last = answer
                        if is_silent:
                            continue
                        if not is_stream and begins_stream(answer):
                            is_stream = True
                            try:
                                streaming.enter_context(self._stream(context))
                            except OverloadedError as error:
                                last = self._failed(request, error, answer)
                                await self._outbox.send(self._written(last, request))
                                break
                        data = self._written(answer, request)
                        size += len(data)
                        if answer.message.type == MessageType.EVENT:
                            held.close()
                            await self._outbox.event(data)
                        else:
                            await self._outbox.send(data)
                            held.close()
        except OutboxClosed:
            measured.end("closed", size=size)
        except asyncio.CancelledError:
            measured.end("closed", size=size)
            if self._refusal is not None and not is_silent:
                self._post_error(request, self._refusal)
            elif self._is_draining and last is None and not is_silent:
                self._post_error(request, shutting_down())
            raise
        except DeadlineExceeded as error:  # while it waited
            measured.end(Status.ERROR, error=error.reason)
            if not is_silent:
                self._post_error(request, error)
        except Exception:
            failure = log_unforeseen("a REQUEST")
            measured.end(Status.ERROR, error=failure.reason, size=size)
            self._post_error(request, failure)
        else:
            status, code = outcome_of(last)
            measured.end(status, error=code, size=size)

    async def _answer_unknown(
        self, message: Envelope, context: MessageContext, slot: Slot, measured: Measurement
    ) -> None:
        """Answer a message of a type that the protocol does not have."""
        size, answer = 0, None
        try:
            await self._requests.acquire(slot)
            try:
                answer = await self._answering.of_unknown_type(message, context)
            except A2AError as error:
                answer = error_response(message, error, source=self._answering.source)
            if answer is not None and not _is_silent(message):
                data = self._written(answer, message)
                size = len(data)
                await self._outbox.send(data)
        except OutboxClosed:
            pass
        finally:
            slot.release()
            status, code = outcome_of(answer)
            measured.end(status, error=code, size=size)

    def _stream(self, context: MessageContext) -> AbstractContextManager[None]:
        """Count a stream while the context lasts. Raises ``OverloadedError``."""
        task = asyncio.current_task()
        assert task is not None
        of_caller = CallContext(caller=context.caller, tenant=context.tenant)
        return self._streams.registered(_Stream(task), of_caller)

    # -- what is sent --------------------------------------------------------------------------

    def _written(self, answer: Envelope, request: Envelope | None) -> bytes:
        if self._guard is not None:
            answer = self._guard.sign(answer, request)
        return write_message(answer)

    async def _tell(self, message: Envelope) -> None:
        """Send a REQUEST to the other side. Raises ``OverloadedError`` once it has gone."""
        try:
            await self._outbox.send(self._written(message, None))
        except OutboxClosed:
            raise OverloadedError("the agent's connection has ended", retry_after=1) from None

    async def _beat(self, heartbeat: Envelope) -> None:
        self._outbox.post(self._written(heartbeat, None))

    def _failed(self, request: Envelope, error: A2AError, answer: Envelope) -> Envelope:
        payload = answer.payload
        known = payload.metadata if isinstance(payload, ResponsePayload) else ResponseMetadata()
        metadata = ResponseMetadata(task_id=known.task_id, context_id=known.context_id)
        return error_response(request, error, source=self._answering.source, metadata=metadata)

    def _post_error(self, request: Envelope | str, error: A2AError) -> None:
        answer = self._answering.refusal(request, error)
        asked = request if isinstance(request, Envelope) else None
        self._outbox.post(self._written(answer, asked))

    async def _count_bad(self) -> None:
        """Count a message that cannot be read; too many of them end the connection."""
        self._bad += 1
        if self._bad == MAX_BAD_MESSAGES:
            await self._close_for(f"{self._bad} messages could not be read, or proved nothing")

    async def _close_for(self, reason: str) -> None:
        """Close the connection once what waits is sent."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._outbox.flushed()
        await self._close(POLICY_VIOLATION, reason)

    async def _end(self, *groups: Any) -> None:
        tasks = [task for group in groups for task in group]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _Stream:
    """A stream under way (``Drainable``): its task ends when the server drains."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    def drain(self) -> None:
        """End it: its reader resumes on another replica."""
        self._task.cancel()

    def refuse(self, error: A2AError) -> None:
        """End it: the connection is over (``_expire``)."""
        self._task.cancel()


def outcome_of(answer: Envelope | None) -> tuple[str, str]:
    """Return the status and the error code of an answer."""
    payload = None if answer is None else answer.payload
    if not isinstance(payload, ResponsePayload):
        return Status.SUCCESS, ""
    return payload.status, "" if payload.error is None else payload.error.code


def begins_stream(answer: Envelope) -> bool:
    """Return whether EVENTs follow an answer, or it is one."""
    payload = answer.payload
    if answer.message.type == MessageType.EVENT:
        return True
    is_command = answer.message.sub_type == SubType.COMMAND
    return is_command and isinstance(payload, ResponsePayload) and payload.status == Status.ACCEPTED


def is_stop(message: Envelope) -> bool:
    """Return whether an EVENT says that its sender wants no more answers to a REQUEST."""
    payload = message.payload
    return (
        message.message.type == MessageType.EVENT
        and isinstance(payload, RequestPayload)
        and payload.action == STOP
    )


def _is_silent(message: Envelope) -> bool:
    """Return whether a message gets no answer: a notification, and what answers others."""
    info = message.message
    if info.type == MessageType.REQUEST:
        return info.sub_type == SubType.NOTIFICATION
    return info.type in (MessageType.RESPONSE, MessageType.EVENT)
