"""One message by HTTP POST: a RESPONSE as JSON, or EVENTs as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import msgspec
from starlette.types import Receive, Scope, Send

from parley.envelope.answers import error_response
from parley.envelope.codec import UnreadableEnvelope, read_message, write_message
from parley.envelope.messages import Envelope, MessageType, RequestPayload, Status, SubType
from parley.envelope.server.answering import Answering
from parley.envelope.server.conversation import begins_stream, outcome_of
from parley.envelope.server.directory import ROUTED, MessageContext, PassedOnMessage, with_deadline
from parley.envelope.server.guard import EnvelopeGuard
from parley.envelope.server.heartbeats import SocketHeartbeats
from parley.envelope.server.measured import Measurement
from parley.envelope.server.plugins import EnvelopeServices
from parley.envelope.server.queue import RequestQueue
from parley.model.errors import A2AError, InvalidRequestError, OverloadedError, an
from parley.model.service import ANONYMOUS, CallContext, Caller, StreamItem
from parley.security.networks import network_of
from parley.server.dispatch import ServiceCall
from parley.server.http.exchange import NotJson, ServedEndpoint, TooLarge
from parley.server.http.open_credentials import open_credentials
from parley.server.http.responses import (
    NO_STORE,
    BodyTooLarge,
    ClientGone,
    base,
    read_body,
    reply,
    reply_without_body,
)
from parley.server.log import log_unforeseen
from parley.wire import sse

_MEDIA_TYPES = frozenset({b"application/json", b"application/a2a+json"})


class EnvelopePost:
    """One POST, from its message to the last byte of the answer."""

    def __init__(
        self,
        served: ServedEndpoint,
        answering: Answering,
        context: MessageContext,
        *,
        services: EnvelopeServices,
        requests: RequestQueue,
        guard: EnvelopeGuard | None,
    ) -> None:
        self._served = served
        self._answering = answering
        self._services = services
        self._requests = requests
        self._guard = guard
        self._context = context
        self._scope: Scope = context.scope
        self._request: Envelope | None = None
        self._headers: list[tuple[bytes, bytes]] = [NO_STORE]
        self._call: ServiceCall | None = None
        self._is_answered = False

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the message."""
        try:
            await self._handle(receive, send)
        except ClientGone:
            return
        except BodyTooLarge:
            limit = self._served.settings.max_body_bytes
            message = f"the message has more than the {limit} bytes allowed here"
            await self._send_error(send, TooLarge(message))
        except A2AError as error:
            await self._send_error(send, error)
        except asyncio.CancelledError:
            if not self._served.lifecycle.draining:
                raise
            message = "the server shut down before the answer was there"
            await self._send_error(send, OverloadedError(message))
        except Exception:
            await self._send_error(send, log_unforeseen("a message"))

    async def _handle(self, receive: Receive, send: Send) -> None:
        message, size = await self._read(receive)
        kind = message.message.type
        measured = self._services.statistics.begin(message, agent=self._context.agent, size=size)
        try:
            context = await self._admitted(message)
            if kind == MessageType.REQUEST:
                context = with_deadline(message, context)
                await self._answer(
                    _resuming(message, self._scope), context, measured, receive, send
                )
            elif kind == MessageType.HEARTBEAT:
                await self._answering.calls.count(context)  # no socket bounds them
                await self._beat(message, send)
            elif kind in (
                MessageType.RESPONSE,
                MessageType.EVENT,
            ) and not self._answering.is_for_hook(message):
                raise InvalidRequestError(
                    f"{an(kind)} answers a REQUEST over the socket that it came by: nobody waits "
                    "for one by POST"
                )
            else:
                answer = await self._answering.of_unknown_type(message, context)
                await self._send_answer(send, answer)
            measured.end()  # unless it has ended otherwise
        except A2AError as error:
            measured.end(Status.ERROR, error=error.reason)
            raise
        except BaseException:
            measured.end("closed")
            raise

    async def _read(self, receive: Receive) -> tuple[Envelope, int]:
        """Identify the caller, and read the message. Raises ``A2AError``."""
        served, scope = self._served, self._scope
        if not served.lifecycle.started:
            await served.dispatcher.start()
        caller = ANONYMOUS
        if served.identify is not None:
            identified = served.identify(scope)
            caller = identified if isinstance(identified, Caller) else await identified
        headers = dict(scope["headers"])
        _check_media_type(headers.get(b"content-type", b""))
        settings = served.settings
        body = await read_body(
            receive,
            scope,
            headers.get(b"content-length"),
            settings.max_body_bytes,
            served.request_bytes,
        )
        self._context = msgspec.structs.replace(self._context, caller=caller)
        try:
            message = read_message(
                body, max_bytes=settings.max_body_bytes, max_depth=settings.max_depth
            )
        except UnreadableEnvelope as unreadable:
            self._correlation_id = unreadable.message_id
            raise unreadable.error from None
        self._request = message
        return message, len(body)

    _correlation_id = ""

    async def _admitted(self, message: Envelope) -> MessageContext:
        context = self._context
        routed = self._scope.get(ROUTED)
        if isinstance(routed, PassedOnMessage):
            context = msgspec.structs.replace(context, peer=routed.peer)
        if self._guard is None:
            return context
        sender = self._guard.sender(context.caller, context.address)
        if isinstance(routed, PassedOnMessage):
            sender.nonce_is_used = routed.nonce_is_used
        caller = await self._guard.admit(message, sender)
        return msgspec.structs.replace(
            context, caller=caller, is_signed=message.security is not None
        )

    # -- the answer ----------------------------------------------------------------------------

    async def _answer(
        self,
        request: Envelope,
        context: MessageContext,
        measured: Measurement,
        receive: Receive,
        send: Send,
    ) -> None:
        known = context.caller.owner or f"@{network_of(context.address)}"
        lane = self._requests.open(known)
        try:
            slot = None
            if not context.is_routed:  # the message has a slot already
                slot = self._requests.enter(
                    lane, request.message.priority, is_quick=self._answering.is_quick(request)
                )
                await self._requests.acquire(slot, context.deadline)
            try:
                answers = self._answering.tried(request, context, self._note)
                async with aclosing(answers):
                    first = await anext(answers, None)
                    if first is None or not begins_stream(first):
                        status, code = outcome_of(first)
                        measured.end(status, error=code)
                        await self._send_answer(send, first)
                        return
                    if slot is not None:
                        slot.release()
                    await self._stream(first, answers, context, measured, receive, send)
            finally:
                if slot is not None:
                    slot.release()
        finally:
            self._requests.close(lane)

    def _note(self, call: ServiceCall) -> None:
        self._call = call

    async def _stream(
        self,
        first: Envelope,
        rest: AsyncGenerator[Envelope, None],
        context: MessageContext,
        measured: Measurement,
        receive: Receive,
        send: Send,
    ) -> None:
        last = first

        async def items() -> AsyncIterator[StreamItem]:
            nonlocal last
            yield _item(first)
            async for answer in rest:
                last = answer
                yield _item(answer)

        self._add_call_headers()
        failure = await self._served.streams.serve(
            items(),
            CallContext(caller=context.caller, tenant=context.tenant),
            credentials=open_credentials(self._served.identify, self._scope, self._context.caller),
            frame=lambda item: sse.frame(self._written(cast("Any", item.event)), item.seq),
            failed=lambda error: sse.frame(self._written(self._failed(error))),
            ends=lambda event: False,
            answers_message=False,
            headers=lambda: self._headers,
            receive=receive,
            send=send,
        )
        status, code = outcome_of(last)
        measured.end(status, error=code)
        if failure is not None:
            self._headers = [NO_STORE]
            await self._send_error(send, failure)

    async def _beat(self, heartbeat: Envelope, send: Send) -> None:
        answers: list[Envelope] = []

        async def answer(message: Envelope) -> None:
            answers.append(message)

        async def close(code: int, reason: str) -> None:
            return

        beats = SocketHeartbeats(
            answer,
            close,
            source=self._answering.source,
            settings=self._services.heartbeats,
            load=self._services.load,
        )
        await beats.received(heartbeat)
        await self._send_answer(send, answers[0] if answers else None)

    def _written(self, answer: Envelope) -> bytes:
        if self._guard is not None:
            answer = self._guard.sign(answer, self._request)
        return write_message(answer)

    def _failed(self, error: A2AError) -> Envelope:
        asked = self._request or self._correlation_id
        return error_response(asked, error, source=self._answering.source)

    def _add_call_headers(self) -> None:
        call = self._call
        if call is None:
            return
        if call.context.extensions:
            active = ", ".join(sorted(call.context.extensions)).encode()
            self._headers.append((b"a2a-extensions", active))
        if call.grant is not None:
            self._headers += [(name.encode(), value.encode()) for name, value in call.grant.fields]

    async def _send_answer(self, send: Send, answer: Envelope | None) -> None:
        self._add_call_headers()
        if answer is None or self._is_notification:
            await reply_without_body(send, 204, self._headers)
        else:
            await reply(send, 200, self._written(answer), self._headers)

    async def _send_error(self, send: Send, error: A2AError) -> None:
        headers = [*self._headers, *self._served.error_headers(error, self._scope)]
        if self._is_notification:
            await reply_without_body(send, error.http_status, headers)
        else:
            await reply(send, error.http_status, self._written(self._failed(error)), headers)

    @property
    def _is_notification(self) -> bool:
        request = self._request
        if request is None or request.message.type != MessageType.REQUEST:
            return False
        return request.message.sub_type == SubType.NOTIFICATION


def _item(answer: Envelope) -> StreamItem:
    """Return a message as an item of ``Streams``: its number is the id for a reader."""
    payload: Any = answer.payload
    metadata = getattr(payload, "metadata", None)
    return StreamItem(cast("Any", answer), getattr(metadata, "sequence", None))


def _resuming(request: Envelope, scope: Scope) -> Envelope:
    """Return a REQUEST with the number in ``Last-Event-ID``, unless it has one of its own."""
    payload = request.payload
    if not isinstance(payload, RequestPayload) or payload.metadata.after is not None:
        return request
    given = [value for name, value in scope["headers"] if name == b"last-event-id"]
    if not given:
        return request
    if len(given) != 1 or not given[0].isdigit() or len(given[0]) > 15:
        raise InvalidRequestError("Last-Event-ID is the number of the last event, in digits")
    metadata = msgspec.structs.replace(payload.metadata, after=int(given[0]))
    changed = msgspec.structs.replace(payload, metadata=metadata)
    return msgspec.structs.replace(request, payload=changed)


def _check_media_type(declared: bytes) -> None:
    if declared not in _MEDIA_TYPES and base(declared) not in _MEDIA_TYPES:
        shown = declared[:60].decode("latin-1")
        named = f"Content-Type {shown!r}" if declared else "no Content-Type"
        raise NotJson(f"a message has the Content-Type application/json; this one has {named}")
