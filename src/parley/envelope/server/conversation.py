"""Receives messages at an address of an agent, over a WebSocket or by HTTP POST.

Both are read, admitted, called and answered alike (``EnvelopeEndpoint``). A socket has many running
messages and an ``Outbox``; a POST has one, and answers as JSON or as server-sent events.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing, suppress
from typing import Any, cast

from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from parley.envelope.answers import Answers, error_response
from parley.envelope.codec import UnreadableEnvelope, read_message, write_message
from parley.envelope.declared import EnvelopeSettings
from parley.envelope.messages import (
    STOP,
    SUBPROTOCOL,
    Envelope,
    MessageType,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    Source,
    Status,
    SubType,
)
from parley.envelope.server.answering import Answering, Calls
from parley.envelope.server.guard import EnvelopeGuard, MessageSender
from parley.envelope.server.queue import RequestQueue, Slot
from parley.envelope.server.services import (
    ROUTED,
    EnvelopeServices,
    Measurement,
    MessageContext,
    PassedOnMessage,
    SocketHeartbeats,
    SocketPeer,
    with_deadline,
)
from parley.model.errors import (
    A2AError,
    InvalidRequestError,
    OverloadedError,
    UnauthenticatedError,
    an,
    shutting_down,
)
from parley.model.service import ANONYMOUS, CallContext, Caller, StreamItem
from parley.security.networks import client_address, network_of
from parley.server.added_bindings import BindingPlace
from parley.server.dispatch import ServiceCall
from parley.server.http.exchange import NotJson, trace_in
from parley.server.http.open_credentials import (
    CredentialsExpired,
    OpenCredentials,
    open_credentials,
)
from parley.server.http.responses import (
    NO_STORE,
    ClientGone,
    base,
    read_body,
    refuse_method,
    reply,
    reply_without_body,
)
from parley.server.lifecycle import is_cancellation
from parley.server.log import failure_of
from parley.server.websocket.admission import SERVICE_RESTART, SHUTTING_DOWN, as_http, refused_by
from parley.server.websocket.socket import ServerSocket
from parley.wire import sse

_HINT = (
    "this is the address of an agent in the envelope protocol: send it messages with POST, or open "
    f"a WebSocket with the subprotocol {SUBPROTOCOL}"
)


class EnvelopeEndpoint:
    """Receives messages to one agent, or to one tenant of an endpoint, at an address of
    a server.
    """

    def __init__(
        self,
        place: BindingPlace,
        settings: EnvelopeSettings,
        services: EnvelopeServices,
        requests: RequestQueue,
        guard: EnvelopeGuard,
    ) -> None:
        self.place = place
        self.served = place.served
        self.services = services
        self.requests = requests
        self.guard = guard
        self._agent = place.agent.key
        self.source = Source(agent_id=self._agent or "agent", agent_type=settings.agent_type)
        calls = Calls(self.served, place.agent, place.tenant)
        self.answering = Answering(calls, services, self.source)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a POST, or serve a WebSocket."""
        is_socket = scope["type"] == "websocket"
        asked = as_http(scope) if is_socket else scope
        gate, elsewhere = self.place.gate, self.place.elsewhere
        if gate is not None and not gate.is_visible(asked):
            elsewhere = refused_by(elsewhere) if is_socket else elsewhere
            await elsewhere(scope, receive, send)
        elif is_socket:
            await self._serve_socket(asked, ServerSocket(scope, receive, send))
        elif scope["method"] != "POST":
            await refuse_method(scope, send, "POST", _HINT)
        else:
            await EnvelopePost(self, self._context(scope, ANONYMOUS)).run(receive, send)

    async def _serve_socket(self, asked: Scope, socket: ServerSocket) -> None:
        with ExitStack() as held:
            try:
                caller = await self.place.caller(asked)
                _check_subprotocol(socket)
                context = self._context(asked, caller)
                slot = self.served.sockets.slot_of((self.place.tenant, caller.owner))
                held.enter_context(slot)
                sender = held.enter_context(self.guard.open_socket(caller, context.address))
            except Exception as error:
                failure = failure_of(error, "the upgrade to a WebSocket")
                kind = (b"content-type", b"application/json")
                headers = [kind, NO_STORE, *self.served.error_headers(failure, asked)]
                await socket.refuse(failure.http_status, headers, self.failed("", failure))
                return
            credentials = open_credentials(self.served.identify, asked, caller)
            try:
                await socket.accept(SUBPROTOCOL if socket.subprotocols else None)
            except OSError:
                return  # the client has gone
            await Conversation(self, context, socket, sender, credentials).run()

    def _context(self, asked: Scope, caller: Caller) -> MessageContext:
        return MessageContext(
            caller=caller,
            agent=self._agent,
            names=self.guard.names,
            tenant=self.place.tenant,
            scope=asked,
            address=client_address(asked, trust_proxy=self.served.settings.trust_proxy),
            trace=trace_in(asked["headers"]),
        )

    def read(self, data: bytes | str) -> Envelope:
        """Return a message. Raises ``UnreadableEnvelope``."""
        settings = self.served.settings
        return read_message(data, max_bytes=settings.max_body_bytes, max_depth=settings.max_depth)

    async def admit(
        self, message: Envelope, sender: MessageSender, context: MessageContext
    ) -> MessageContext:
        """Return the context of a message, with its caller. Raises ``A2AError``."""
        caller = await self.guard.admit(message, sender)
        context = replace(context, caller=caller, is_signed=message.security is not None)
        is_request = message.message.type == MessageType.REQUEST
        return with_deadline(message, context) if is_request else context

    async def replies(
        self,
        message: Envelope,
        context: MessageContext,
        slot: Slot | None,
        measured: Measurement,
        on_call: Callable[[ServiceCall], None] | None = None,
    ) -> Answers:
        """Yield the answers to an admitted message, in its turn; a stream gives its turn back.

        Raises ``A2AError``, for whatever fails before the first answer.
        """
        last = None
        try:
            if slot is not None:
                await self.requests.acquire(slot, context.deadline)
            async with aclosing(self.answering.answers(message, context, on_call)) as answers:
                async for last in answers:
                    if slot is not None and begins_stream(last):
                        slot.release()
                    yield last
            payload = None if last is None else last.payload
            if isinstance(payload, ResponsePayload):
                code = "" if payload.error is None else payload.error.code
                measured.end(payload.status, error=code)
            measured.end()
        except (Exception, asyncio.CancelledError) as error:
            if is_cancellation(error):
                raise
            failure = failure_of(error, "a message")
            measured.end(Status.ERROR, error=failure.reason)
            raise failure from None
        finally:
            measured.end("closed")  # unless it has ended otherwise
            if slot is not None:
                slot.release()

    def written(
        self, answer: Envelope, request: Envelope | str, measured: Measurement | None = None
    ) -> bytes:
        """Return an answer as it is sent: signed if its request was."""
        asked = request if isinstance(request, Envelope) else None
        data = write_message(self.guard.sign(answer, asked))
        if measured is not None:
            measured.size += len(data)
        return data

    def failed(
        self, request: Envelope | str, error: A2AError, metadata: ResponseMetadata | None = None
    ) -> bytes:
        """Return the RESPONSE that a request has failed, as it is sent."""
        known = metadata or ResponseMetadata()
        answer = error_response(request, error, source=self.source, metadata=known)
        return self.written(answer, request)


def _check_subprotocol(socket: ServerSocket) -> None:
    """Raise ``InvalidRequestError`` for other subprotocols; without a subprotocol it is v1."""
    if socket.subprotocols and SUBPROTOCOL not in socket.subprotocols:
        offered = ", ".join(socket.subprotocols)[:100]
        raise InvalidRequestError(
            f"a WebSocket to an agent has the subprotocol {SUBPROTOCOL} "
            f"(Sec-WebSocket-Protocol); this one offers {offered}"
        )


def begins_stream(answer: Envelope) -> bool:
    """Return whether EVENTs follow an answer, or it is one."""
    if answer.message.type == MessageType.EVENT:
        return True
    status = getattr(answer.payload, "status", "")
    return answer.message.sub_type == SubType.COMMAND and status == Status.ACCEPTED


def _is_silent(message: Envelope) -> bool:
    """Return whether a message gets no answer: a notification, and what answers others."""
    info = message.message
    if info.type == MessageType.REQUEST:
        return info.sub_type == SubType.NOTIFICATION
    return info.type in (MessageType.RESPONSE, MessageType.EVENT)


MAX_BYTES = 1024 * 1024
MAX_MESSAGES = 256
"""The limits of unsent messages at which reading pauses: such a sender does not read either."""

_Waiting = tuple[bytes, "asyncio.Future[None] | None"]


class OutboxClosed(Exception):
    """The socket is closed: nothing is sent any more."""


class Outbox:
    """Sends messages one after another, each RESPONSE and HEARTBEAT before EVENTs that wait.

    ``send`` waits until the message is sent, so that a stream gives its next event only when its
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
        """Send a message soon, without waiting. After ``close`` it is dropped."""
        if not self.is_closed:
            self._put(self._urgent, data, None)

    async def send(self, data: bytes, *, is_event: bool = False) -> None:
        """Send a RESPONSE, before all EVENTs, or an EVENT. Raises ``OutboxClosed``."""
        if self.is_closed:
            raise OutboxClosed
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(self._events if is_event else self._urgent, data, sent)
        await sent

    async def room(self) -> None:
        """Wait until the backlog of unsent messages is below the limit."""
        while self._is_full and not self.is_closed:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    async def flushed(self) -> None:
        """Wait until everything is sent."""
        if self._sending is not None:
            await asyncio.wait({self._sending})

    def close(self) -> None:
        """Drop unsent messages; their senders get ``OutboxClosed``."""
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
        """Send the queued messages, until none is left or the socket is closed."""
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

    def _put(self, queue: list[_Waiting], data: bytes, waiter: asyncio.Future[None] | None) -> None:
        queue.append((data, waiter))
        self._size += len(data)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._run())


def _give_up(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_exception(OutboxClosed())
        waiter.exception()  # the waiting task may have been cancelled


MAX_BAD_MESSAGES = 32
"""The most unreadable or unauthenticated messages of one connection."""

POLICY_VIOLATION = 1008
_LAST_WORDS_SECONDS = 1.0


class Conversation:
    """Receives the messages of one WebSocket, and sends the answers.

    REQUESTs are answered concurrently, within the limits of the queue; each answer names its
    REQUEST. When the connection ends, unsent answers are dropped: tasks and received notifications
    continue. ``context`` applies to all messages.
    """

    def __init__(
        self,
        endpoint: EnvelopeEndpoint,
        context: MessageContext,
        socket: ServerSocket,
        sender: MessageSender,
        credentials: OpenCredentials | None,
    ) -> None:
        self._endpoint = endpoint
        self._services = services = endpoint.services
        self._streams = endpoint.served.streams
        self._socket = socket
        self._sender = sender
        self._credentials = credentials
        self._refusal: CredentialsExpired | None = None
        self._outbox = Outbox(socket.send)
        self._bad = 0
        self._is_draining = False
        self._waiting: set[asyncio.Task[None]] = set()
        self._silent: set[asyncio.Task[None]] = set()
        self._by_id: dict[str, asyncio.Task[None]] = {}
        self._peer = SocketPeer(self._tell)
        self._context = replace(context, peer=self._peer)
        self._connection = endpoint.requests.open(context.caller.owner or None)
        self._heartbeats = SocketHeartbeats(
            self._beat,
            socket.close,
            source=endpoint.source,
            settings=services.heartbeats,
            load=services.load,
            peer=self._peer,
        )

    async def run(self) -> None:
        """Receive messages until the connection has ended."""
        self._socket.on_drain(self._drain)
        own, credentials = [asyncio.create_task(self._heartbeats.run())], self._credentials
        if credentials is not None:
            self._streams.watch.add(
                credentials, lambda error: own.append(asyncio.create_task(self._expire(error)))
            )
        try:
            while (text := await self._socket.receive()) is not None:
                await self._take(text)
                await self._outbox.room()
        except asyncio.CancelledError:
            await self._leave()
            raise
        finally:
            if credentials is not None:
                self._streams.watch.remove(credentials)
            self._peer.close()
            await self._outbox.aclose()
            await self._end(self._waiting)
            try:
                if self._silent:
                    await asyncio.wait(self._silent)
            finally:
                await self._end(self._silent, own)
                self._endpoint.requests.close(self._connection)

    def _drain(self) -> None:
        """Record that the server drains. ``Streams`` ends its streams; other requests
        are answered.
        """
        self._is_draining = True

    async def _leave(self) -> None:
        """Stop running work, and report it: the grace period of the server is over."""
        self._is_draining = True
        with self._socket.answering():
            await self._end(self._waiting, self._silent)
            await self._close_for(SHUTTING_DOWN, SERVICE_RESTART)

    async def _take(self, text: str) -> None:
        """Read a message, and begin to answer it. Invalid messages are answered too."""
        self._heartbeats.heard()
        try:
            message = self._endpoint.read(text)
        except UnreadableEnvelope as unreadable:
            self._post_error(unreadable.message_id, unreadable.error)
            await self._count_bad()
            return
        size, begin = len(text), self._services.statistics.begin
        measured = begin(message, agent=self._context.agent, size=size)
        try:
            context = await self._admitted(message)
            if await self._is_for_connection(message, size):
                measured.end()
            else:
                self._start(message, context, measured, size)
        except A2AError as error:
            measured.end(Status.ERROR, error=error.reason)
            if not _is_silent(message):
                self._post_error(message, error)
            if isinstance(error, CredentialsExpired):
                await self._expire(error)
            elif isinstance(error, UnauthenticatedError):
                await self._count_bad()

    async def _is_for_connection(self, message: Envelope, size: int) -> bool:
        """Take a HEARTBEAT, the wish to read no more, or an answer; return whether it is one."""
        kind = message.message.type
        if kind == MessageType.HEARTBEAT:
            await self._heartbeats.received(message)
            return True
        if kind == MessageType.EVENT and getattr(message.payload, "action", "") == STOP:
            if (task := self._by_id.get(message.message.correlation_id)) is not None:
                task.cancel()  # its answers are read no more; its task continues
            return True
        return kind in (MessageType.RESPONSE, MessageType.EVENT) and (
            self._peer.answered(message, size) or not self._endpoint.answering.is_for_hook(message)
        )

    async def _admitted(self, message: Envelope) -> MessageContext:
        """Return the context of a message, by the current validity of its credentials.

        Raises ``A2AError`` for a rejected message.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._credentials is not None:
            found = self._credentials.judge()
            caller = found if isinstance(found, Caller) else await found
            context = self._context
            if caller.owner != context.caller.owner:
                words = "the credentials of this connection are somebody else's now"
                raise CredentialsExpired(words)
            if caller != context.caller:
                self._context = replace(context, caller=caller)
                guard = self._endpoint.guard
                self._sender.caller = guard.sender(caller, context.address).caller
        return await self._endpoint.admit(message, self._sender, self._context)

    async def _expire(self, error: CredentialsExpired) -> None:
        """End everything that the credentials of the connection started here, and close it."""
        if self._refusal is None:
            self._refusal = error
            self._peer.close()
            await self._end(self._waiting)
        await self._close_for("the credentials have expired")

    def _start(
        self, message: Envelope, context: MessageContext, measured: Measurement, size: int
    ) -> None:
        """Answer a message concurrently. Raises ``OverloadedError`` when too many wait.

        While it waits, the bytes of the message count for its address.
        """
        address, held = self._context.address, self._endpoint.served.request_bytes
        held.reserve(address, size)
        try:
            is_quick = self._endpoint.answering.is_quick(message)
            enter = self._endpoint.requests.enter
            slot = enter(self._connection, message.message.priority, is_quick=is_quick)
        except A2AError:
            held.release(address, size)
            raise
        if slot.granted is None:
            held.release(address, size)
        else:
            slot.granted.add_done_callback(lambda _: held.release(address, size))
        task = asyncio.create_task(self._answer(message, context, slot, measured))
        tasks, id = self._silent if _is_silent(message) else self._waiting, message.message_id
        tasks.add(task)
        if message.message.type == MessageType.REQUEST and tasks is self._waiting:
            self._by_id[id] = task

        def ended(_: object) -> None:  # also for a task that is cancelled before its first step
            tasks.discard(task)
            slot.release()
            measured.end("closed")
            if self._by_id.get(id) is task:
                del self._by_id[id]

        task.add_done_callback(ended)

    async def _answer(
        self, message: Envelope, context: MessageContext, slot: Slot, measured: Measurement
    ) -> None:
        is_silent, is_stream, answer = _is_silent(message), False, None
        replies = self._endpoint.replies(message, context, slot, measured)
        try:
            with ExitStack() as streaming, ExitStack() as held:
                if not is_silent:
                    held.enter_context(self._socket.answering())
                async with aclosing(replies):
                    async for answer in replies:
                        if is_silent:
                            continue
                        if not is_stream and begins_stream(answer):
                            is_stream = True
                            try:
                                of_caller = CallContext(
                                    caller=context.caller, tenant=context.tenant
                                )
                                stream = self._streams.registered(_Stream(), of_caller)
                                streaming.enter_context(stream)
                            except OverloadedError as error:
                                measured.end(Status.ERROR, error=error.reason)
                                self._post_error(message, error, answer)
                                return
                        data = self._endpoint.written(answer, message, measured)
                        is_event = answer.message.type == MessageType.EVENT
                        if is_event:
                            held.close()
                        await self._outbox.send(data, is_event=is_event)
        except OutboxClosed:
            return
        except asyncio.CancelledError:
            if self._refusal is not None and not is_silent:
                self._post_error(message, self._refusal)
            elif self._is_draining and answer is None and not is_silent:
                self._post_error(message, shutting_down())
            raise
        except A2AError as error:
            if not is_silent:
                self._post_error(message, error)

    async def _tell(self, message: Envelope) -> None:
        """Send a REQUEST to the other side. Raises ``OverloadedError`` if it has disconnected."""
        try:
            await self._outbox.send(self._endpoint.written(message, ""))
        except OutboxClosed:
            raise OverloadedError("the agent's connection has ended", retry_after=1) from None

    async def _beat(self, heartbeat: Envelope) -> None:
        self._outbox.post(self._endpoint.written(heartbeat, ""))

    def _post_error(
        self, request: Envelope | str, error: A2AError, answer: Envelope | None = None
    ) -> None:
        """Send an error, with the limits of the caller, or with the task of an answer."""
        metadata = self._endpoint.answering.limits_in(error)
        if answer is not None and isinstance(answer.payload, ResponsePayload):
            known = answer.payload.metadata
            metadata = ResponseMetadata(task_id=known.task_id, context_id=known.context_id)
        self._outbox.post(self._endpoint.failed(request, error, metadata))

    async def _count_bad(self) -> None:
        """Count a message that cannot be read; too many of them end the connection."""
        self._bad += 1
        if self._bad == MAX_BAD_MESSAGES:
            await self._close_for(f"{self._bad} messages could not be read, or proved nothing")

    async def _close_for(self, reason: str, code: int = POLICY_VIOLATION) -> None:
        """Close the connection after the queued messages are sent."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                await self._outbox.flushed()
        await self._socket.close(code, reason)

    async def _end(self, *groups: Any) -> None:
        tasks = [task for group in groups for task in group]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class _Stream:
    """A stream of the task that runs (``Drainable``): the task ends when the server drains."""

    def __init__(self) -> None:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())

    def drain(self) -> None:
        """End it: its reader resumes on another replica."""
        self._task.cancel()

    def refuse(self, error: A2AError) -> None:
        """End it: the connection is over (``_expire``)."""
        self._task.cancel()


_MEDIA_TYPES = frozenset({b"application/json", b"application/a2a+json"})


class EnvelopePost:
    """A POST, from its message to the last byte of the answer.

    The answer is a RESPONSE as JSON, or EVENTs as server-sent events.
    """

    def __init__(self, endpoint: EnvelopeEndpoint, context: MessageContext) -> None:
        self._endpoint = endpoint
        self._served = endpoint.served
        self._context = context
        self._scope: Scope = context.scope
        self._request: Envelope | str = ""
        self._measured: Measurement | None = None
        self._call: ServiceCall | None = None

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the message."""
        try:
            await self._handle(receive, send)
        except ClientGone:
            return
        except (Exception, asyncio.CancelledError) as error:
            failure = self._served.lifecycle.failure(error, "a message")
            if self._measured is not None:
                self._measured.end(Status.ERROR, error=failure.reason)
            headers = [NO_STORE, *self._served.error_headers(failure, self._scope)]
            body = self._endpoint.failed(self._request, failure)
            await self._reply(send, failure.http_status, body, headers)
        finally:
            if self._measured is not None:
                self._measured.end("closed")  # unless it has ended otherwise

    async def _handle(self, receive: Receive, send: Send) -> None:
        endpoint, answering = self._endpoint, self._endpoint.answering
        message, size = await self._read(receive)
        kind, info = message.message.type, message.message
        begin = endpoint.services.statistics.begin
        measured = self._measured = begin(message, agent=self._context.agent, size=size)
        context = await self._admitted(message)
        if kind == MessageType.HEARTBEAT:
            await answering.calls.count(context)  # no socket bounds them
            beat = endpoint.services.heartbeat(endpoint.source, message.message_id)
            await self._send_answer(send, None if info.correlation_id else beat)
            measured.end()
            return
        if kind in (MessageType.RESPONSE, MessageType.EVENT) and not answering.is_for_hook(message):
            raise InvalidRequestError(
                f"{an(kind)} answers a REQUEST over its socket: no REQUEST waits for one by POST"
            )
        connection, slot = None, None
        try:
            if kind == MessageType.REQUEST:
                message = _resuming(message, self._scope)
                if not context.is_routed:  # which has a slot already
                    known = context.caller.owner or f"@{network_of(context.address)}"
                    connection = endpoint.requests.open(known)
                    enter, is_quick = endpoint.requests.enter, answering.is_quick(message)
                    slot = enter(connection, info.priority, is_quick=is_quick)
            replies = endpoint.replies(message, context, slot, measured, self._note)
            async with aclosing(replies):
                first = await anext(replies, None)
                if first is not None and begins_stream(first):
                    await self._stream(first, replies, context, receive, send)
                    return
                await self._send_answer(send, first)
                await anext(replies, None)  # to its end
        finally:
            if slot is not None:
                slot.release()
            if connection is not None:
                endpoint.requests.close(connection)

    async def _read(self, receive: Receive) -> tuple[Envelope, int]:
        """Identify the caller, and read the message. Raises ``A2AError``."""
        served, scope = self._served, self._scope
        if not served.lifecycle.started:
            await served.dispatcher.start()
        caller = await self._endpoint.place.caller(scope)
        headers = dict(scope["headers"])
        _check_media_type(headers.get(b"content-type", b""))
        length, limit = headers.get(b"content-length"), served.settings.max_body_bytes
        body = await read_body(receive, scope, length, limit, served.request_bytes)
        self._context = replace(self._context, caller=caller)
        try:
            self._request = message = self._endpoint.read(body)
        except UnreadableEnvelope as unreadable:
            self._request = unreadable.message_id
            raise unreadable.error from None
        return message, len(body)

    async def _admitted(self, message: Envelope) -> MessageContext:
        context = self._context
        sender = self._endpoint.guard.sender(context.caller, context.address)
        routed = self._scope.get(ROUTED)
        if isinstance(routed, PassedOnMessage):
            context = replace(context, peer=routed.peer)
            sender.nonce_is_used = routed.nonce_is_used
        return await self._endpoint.admit(message, sender, context)

    def _note(self, call: ServiceCall) -> None:
        """Use the headers of a call; its grant is known once it is answered."""
        self._call = call

    async def _stream(
        self, first: Envelope, rest: Answers, context: MessageContext, receive: Receive, send: Send
    ) -> None:
        async def items() -> AsyncIterator[StreamItem]:
            yield _item(first)
            async for answer in rest:
                yield _item(answer)

        failure = await self._served.streams.serve(
            items(),
            CallContext(caller=context.caller, tenant=context.tenant),
            credentials=open_credentials(self._served.identify, self._scope, self._context.caller),
            frame=lambda item: sse.frame(self._written(cast("Any", item.event)), item.seq),
            failed=lambda error: sse.frame(self._endpoint.failed(self._request, error)),
            ends=lambda event: False,
            answers_message=False,
            headers=self._headers,
            receive=receive,
            send=send,
        )
        if failure is not None:
            self._call = None
            raise failure

    def _written(self, answer: Envelope) -> bytes:
        return self._endpoint.written(answer, self._request, self._measured)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        call, found = self._call, [NO_STORE]
        if call is not None and call.context.extensions:
            found.append((b"a2a-extensions", ", ".join(sorted(call.context.extensions)).encode()))
        if call is not None and call.grant is not None:
            found += [(name.encode(), value.encode()) for name, value in call.grant.fields]
        return found

    async def _send_answer(self, send: Send, answer: Envelope | None) -> None:
        body = None if answer is None else self._written(answer)
        await self._reply(send, 204 if body is None else 200, body, self._headers())

    async def _reply(
        self, send: Send, status: int, body: bytes | None, headers: list[tuple[bytes, bytes]]
    ) -> None:
        """Send a response. A notification has no body, not even for an error."""
        info = self._request.message if isinstance(self._request, Envelope) else None
        if info is not None and (info.type, info.sub_type) == _NOTIFICATION:
            body = None
        if body is None:
            await reply_without_body(send, 204 if status == 200 else status, headers)
        else:
            await reply(send, status, body, headers)


_NOTIFICATION = (MessageType.REQUEST, SubType.NOTIFICATION)


def _item(answer: Envelope) -> StreamItem:
    """Return a message as an item of ``Streams``: its number is the id for a reader."""
    metadata = getattr(answer.payload, "metadata", None)
    return StreamItem(cast("Any", answer), getattr(metadata, "sequence", None))


def _resuming(request: Envelope, scope: Scope) -> Envelope:
    """Return a REQUEST with the number in ``Last-Event-ID``, unless it has its own."""
    payload = request.payload
    if not isinstance(payload, RequestPayload) or payload.metadata.after is not None:
        return request
    given = [value for name, value in scope["headers"] if name == b"last-event-id"]
    if not given:
        return request
    if len(given) != 1 or not given[0].isdigit() or len(given[0]) > 15:
        raise InvalidRequestError("Last-Event-ID is the number of the last event, in digits")
    metadata = replace(payload.metadata, after=int(given[0]))
    changed = replace(payload, metadata=metadata)
    return replace(request, payload=changed)


def _check_media_type(declared: bytes) -> None:
    if declared not in _MEDIA_TYPES and base(declared) not in _MEDIA_TYPES:
        shown = declared[:60].decode("latin-1")
        named = f"Content-Type {shown!r}" if declared else "no Content-Type"
        raise NotJson(f"a message has the Content-Type application/json; this one has {named}")
