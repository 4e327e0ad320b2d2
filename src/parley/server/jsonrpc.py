"""JSON-RPC 2.0 over HTTP, listening (specification §9)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import cached_property
from typing import Any, cast

import msgspec
from starlette.types import Receive, Scope, Send

from parley.model.cards import AgentCapabilities
from parley.model.encoding import encode
from parley.model.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidRequestError,
    MethodNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from parley.model.operations import BY_NAME, Operation
from parley.model.parts import Message
from parley.model.requests import SendMessageResponse
from parley.model.service import ANONYMOUS, CallContext, Caller, StreamItem
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from parley.server.body import BodyTooLarge, ClientGone, read_body
from parley.server.endpoint import Endpoint
from parley.server.failures import unforeseen
from parley.server.lifecycle import Lifecycle
from parley.server.parameters import SERVED_VERSION, Extensions, negotiate_version
from parley.server.replies import refuse_method, reply, reply_without_body
from parley.server.settings import Settings
from parley.server.streams import Streams
from parley.wire import jsonrpc, protojson, sse

Identify = Callable[[Scope], Caller | Awaitable[Caller]]

_MEDIA_TYPES = frozenset({b"application/json", b"application/a2a+json"})
_VERSION = (b"a2a-version", SERVED_VERSION.encode())
_MEMBERS: dict[type, jsonrpc.Member] = {
    Task: "task",
    Message: "message",
    TaskStatusUpdateEvent: "statusUpdate",
    TaskArtifactUpdateEvent: "artifactUpdate",
}
# Errors that HTTP has a status for that proxies and clients act on; all others are 200, as
# JSON-RPC wants.
_WITH_STATUS = (UnauthenticatedError, PermissionDeniedError, OverloadedError)


class _NotJson(Exception):
    """The request does not say that it is JSON."""


class _Exchange(msgspec.Struct):
    """What is known of a request, so far, about its response.

    ``id`` is that of the request, once it has told it; it is ``silent`` if it asks for no answer.
    """

    headers: list[tuple[bytes, bytes]]
    id: msgspec.Raw | None = None
    silent: bool = False
    doing: str = "a request"


class JsonRpcBinding:
    """Answers JSON-RPC requests to one agent.

    A request that fails is answered with the error of the specification, and changes nothing for
    those after it on the same connection. Of its body nothing is kept while it is answered but
    what the service was given.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        settings: Settings,
        lifecycle: Lifecycle,
        streams: Streams,
        identify: Identify | None,
    ) -> None:
        self._service = endpoint.service
        self._card = endpoint.card
        self._settings = settings
        self._lifecycle = lifecycle
        self._streams = streams
        self._identify = identify

    @cached_property
    def _capabilities(self) -> AgentCapabilities:
        # Asked for when the first request comes: an author may add to an agent until then.
        return self._card("http://localhost").capabilities

    @cached_property
    def _extensions(self) -> Extensions:
        return Extensions.of(self._capabilities)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["method"] != "POST":
            words = "this is the address of an A2A agent: send it JSON-RPC 2.0 requests with POST"
            await refuse_method(scope, send, "POST", words)
            return
        exchange = _Exchange([_VERSION])
        try:
            answer = await self._handle(scope, receive, exchange)
        except ClientGone:
            return
        except BodyTooLarge:
            words = f"the body has more than the {self._settings.max_body_bytes} bytes allowed here"
            await _refuse(send, exchange, InvalidRequestError(words), 413)
        except _NotJson as problem:
            await _refuse(send, exchange, ContentTypeNotSupportedError(str(problem)), 415)
        except A2AError as error:
            await _refuse(send, exchange, error)
        except asyncio.CancelledError:
            if self._lifecycle.draining:
                # The grace period is over: the server takes back the task that runs this request.
                words = "the server shut down before the answer was there"
                await _refuse(send, exchange, OverloadedError(words))
            elif _is_cancelled():
                raise
            else:  # something within the service was cancelled, and this request was not
                await _refuse(send, exchange, unforeseen(exchange.doing))
        except Exception:
            await _refuse(send, exchange, unforeseen(exchange.doing))
        else:
            if not isinstance(answer, bytes):
                try:
                    failure = await self._stream(answer, exchange, receive, send)
                except asyncio.CancelledError:
                    if self._lifecycle.draining:
                        return  # a reader that stopped reading outstayed the grace period
                    raise
                if failure is not None:
                    await _refuse(send, exchange, failure)
            elif exchange.silent:
                await reply_without_body(send, 204, exchange.headers)
            else:
                await reply(send, 200, answer, exchange.headers)

    async def _handle(
        self, scope: Scope, receive: Receive, exchange: _Exchange
    ) -> bytes | AsyncIterator[StreamItem]:
        """Read one request and have the service answer it: with a body, or with a stream."""
        given: dict[bytes, bytes] = dict(scope["headers"])
        _check_media_type(given.get(b"content-type", b""))
        if not self._lifecycle.started:
            await self._start()
        caller = ANONYMOUS if self._identify is None else await self._ask(self._identify, scope)
        settings = self._settings
        body = await read_body(receive, given.get(b"content-length"), settings.max_body_bytes)
        try:
            rpc = jsonrpc.parse_request(body)
        except A2AError:
            exchange.id = jsonrpc.request_id(body)
            raise
        exchange.id, exchange.silent = rpc.id, rpc.is_notification
        protojson.check_limits(body, settings.max_depth, settings.max_parts)
        operation, request, context = self._understand(rpc, scope, given, caller)
        exchange.doing = operation.name
        del body, rpc, given  # an answer may take minutes, and a body be large
        if context.extensions:
            named = ", ".join(sorted(context.extensions))
            exchange.headers.append((b"a2a-extensions", named.encode()))
        answering = getattr(self._service, operation.method)(request, context)
        if operation.streaming:
            if not exchange.silent:
                return cast("AsyncIterator[StreamItem]", answering)
            # What nobody listens to is begun: its first event says that it is under way.
            async with aclosing(answering):
                await anext(answering, None)
            return b""
        answer = await answering
        if operation.response is SendMessageResponse:
            answer = SendMessageResponse.of(answer)
        return jsonrpc.response(exchange.id, encode(answer))

    async def _start(self) -> None:
        try:
            await self._lifecycle.start_late()
        except Exception as error:  # the lifecycle has logged it
            raise OverloadedError("the server cannot start; its log says why") from error

    async def _ask(self, identify: Identify, scope: Scope) -> Caller:
        caller = identify(scope)
        return caller if isinstance(caller, Caller) else await caller

    def _understand(
        self,
        rpc: jsonrpc.RpcRequest,
        scope: Scope,
        given: Mapping[bytes, bytes],
        caller: Caller,
    ) -> tuple[Operation, Any, CallContext]:
        """Make out what is asked for, and refuse what this agent does not do."""
        settings = self._settings
        version = negotiate_version(
            given.get(b"a2a-version"), scope["query_string"], settings.missing_version
        )
        operation = BY_NAME.get(rpc.method)
        if operation is None:
            raise _no_such_method(rpc.method)
        asked: list[bytes] = []
        if b"a2a-extensions" in given:
            asked = [value for name, value in scope["headers"] if name == b"a2a-extensions"]
        extensions = self._extensions.negotiate(asked)
        operation.check(self._capabilities)
        if self._lifecycle.draining and (operation.streaming or not operation.safe):
            raise OverloadedError("the server is shutting down", retry_after=1)
        request: Any = protojson.decode(rpc.params or b"{}", operation.request)
        last_event_id = given.get(b"last-event-id")
        context = CallContext(
            caller=caller,
            tenant=request.tenant,
            version=version,
            extensions=extensions,
            last_event_id=None if last_event_id is None else last_event_id.decode("latin-1"),
            traceparent=given.get(b"traceparent", b"").decode("latin-1"),
        )
        return operation, request, context

    async def _stream(
        self,
        items: AsyncIterator[StreamItem],
        exchange: _Exchange,
        receive: Receive,
        send: Send,
    ) -> A2AError | None:
        return await self._streams.serve(
            items,
            frame=_framing(exchange.id),
            failed=lambda error: sse.frame(jsonrpc.error_response(exchange.id, error)),
            headers=exchange.headers,
            receive=receive,
            send=send,
        )


def _is_cancelled() -> bool:
    """Whether the task that runs this request is to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _framing(request_id: msgspec.Raw | None) -> Callable[[StreamItem], bytes]:
    """Return what makes an event into a frame that answers the request of this id."""

    def frame(item: StreamItem) -> bytes:
        event, seq, json = item
        return sse.frame(
            jsonrpc.stream_frame(request_id, _MEMBERS[type(event)], json or encode(event)), seq
        )

    return frame


def _check_media_type(given: bytes) -> None:
    if given in _MEDIA_TYPES or given.partition(b";")[0].strip().lower() in _MEDIA_TYPES:
        return
    named = f"Content-Type {given[:60].decode('latin-1')!r}" if given else "no Content-Type"
    words = f"a request of JSON-RPC has the Content-Type application/json; this one has {named}"
    raise _NotJson(words)


def _no_such_method(name: str) -> MethodNotFoundError:
    if "/" in name:
        words = f"{name[:60]!r} is spelled as in version 0.3, which is not spoken here"
    else:
        words = f"there is no method {name[:60]!r}"
    return MethodNotFoundError(f"{words}; the methods are {', '.join(BY_NAME)}")


async def _refuse(
    send: Send, exchange: _Exchange, error: A2AError, status: int | None = None
) -> None:
    """Answer with an error: in the body, and where HTTP has a status for it there too."""
    if status is None:
        status = error.http_status if isinstance(error, _WITH_STATUS) else 200
    headers = [*exchange.headers, *_advice(error)]
    if exchange.silent:
        await reply_without_body(send, 204 if status == 200 else status, headers)
    else:
        await reply(send, status, jsonrpc.error_response(exchange.id, error), headers)


def _advice(error: A2AError) -> list[tuple[bytes, bytes]]:
    """Return the headers that tell the client what to do about an error."""
    advice = []
    if error.retry_after is not None:
        advice.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
    if isinstance(error, UnauthenticatedError):
        advice.append((b"www-authenticate", b"Bearer"))
    return advice
