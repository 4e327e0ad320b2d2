"""One HTTP request and its response: the common part of both HTTP bindings.

``JsonRpcExchange`` and ``HttpJsonExchange`` parse and write; ``Exchange.answer`` processes a
request: parse, dispatch, answer or stream, error.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from types import CoroutineType
from typing import Any, NoReturn, cast
from urllib.parse import parse_qsl

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.concurrency import outcome_of
from parley.model.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidRequestError,
    VersionNotSupportedError,
)
from parley.model.operations import SendMessageRequest
from parley.model.service import ANONYMOUS, NO_TRACE, CallContext, Caller, StreamItem, TraceContext
from parley.security.networks import client_address
from parley.security.schemes.scheme import with_parameter
from parley.server.dispatch import Dispatcher, Parameters, ServiceCall, read_trace
from parley.server.endpoint import Interfaces
from parley.server.http.open_credentials import open_credentials
from parley.server.http.responses import (
    NO_STORE,
    AddedFields,
    ClientGone,
    Headers,
    base,
    challenges_of,
    error_headers,
    read_body,
    reply,
    reply_without_body,
)
from parley.server.http.streams import Streams
from parley.server.lifecycle import Lifecycle
from parley.server.limits import ByteReservation, SocketLimits
from parley.server.settings import Settings
from parley.wire import sse, versions
from parley.wire.json.syntax import without_bom
from parley.wire.versions import Codec

Identify = Callable[[Scope], Caller | Awaitable[Caller]]
"""Returns the caller of a request: an id, its issuer, and whether it was verified (``Caller``)."""

VERSION_HEADERS = {
    version: (b"a2a-version", version.encode()) for version in versions.SUPPORTED_VERSIONS
}
"""The response header of each version."""


_MEDIA_TYPES = frozenset({b"application/json", b"application/a2a+json"})
_EXTENSIONS = frozenset(name.encode() for name in versions.EXTENSIONS_HEADERS)
_LATEST = versions.LATEST.encode()
_A_RESULT = b"\n"  # stands for a result: no id of a request has a line end


class NotJson(ContentTypeNotSupportedError):
    """The request does not declare JSON."""

    http_status = 415


class ServedEndpoint(msgspec.Struct, frozen=True):
    """An endpoint with everything that its exchanges share.

    ``interfaces`` returns the agent's interfaces for a tenant, as the sender of a request sees
    them, and ``address`` the base URL of the agent of a tenant. ``request_bytes`` bounds the bytes
    of incomplete requests, ``sockets`` the open WebSockets. ``resource_metadata`` returns the
    address of the agent's metadata, which challenges name (RFC 9728 §5.1). ``varies`` are the
    headers with the credentials of callers.
    """

    dispatcher: Dispatcher
    settings: Settings
    lifecycle: Lifecycle
    streams: Streams
    identify: Identify | None
    interfaces: Callable[[Scope, str], Interfaces]
    address: Callable[[Scope, str], str]
    request_bytes: ByteReservation
    sockets: SocketLimits
    resource_metadata: Callable[[Scope], str] | None = None
    varies: bytes = b""

    def error_headers(self, error: A2AError, scope: Scope) -> Headers:
        """Return headers with hints for a retry; challenges name the agent's metadata."""
        return error_headers(error, self.challenges(error, scope))

    def challenges(self, error: A2AError, scope: Scope) -> tuple[str, ...]:
        """Return the challenges of an error; challenges for a token name the agent's metadata."""
        found = challenges_of(error)
        if not error.challenges or self.resource_metadata is None:
            return found
        address = self.resource_metadata(scope)
        return tuple(
            with_parameter(each, "resource_metadata", address)
            if address and each.partition(" ")[0] == "Bearer"
            else each
            for each in found
        )


class HeadFields:
    """The fields of a head, in the form that bindings need.

    They are immutable, so requests with the same head may share them. ``is_json``: the body is
    declared as JSON. ``version`` is the version in the request (§3.6), in its spelling; empty if it
    names none. ``extensions`` are the URIs that it requests. ``address`` is the agent's, without a
    tenant, after the first use.
    """

    __slots__ = (
        "address", "extensions", "headers", "is_json", "last_event_id", "scope", "trace",
        "version",
    )  # fmt: skip

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        listed = scope["headers"]
        headers: dict[bytes, bytes] = dict(listed)
        self.headers = headers
        declared = headers.get(b"content-type", b"")
        self.is_json = declared in _MEDIA_TYPES or base(declared) in _MEDIA_TYPES
        version = headers.get(b"a2a-version", b"")
        self.version = versions.LATEST if version == _LATEST else _named_version(version, scope)
        self.extensions: tuple[str, ...] = ()
        if not _EXTENSIONS.isdisjoint(headers):
            self.extensions = extension_uris(v for name, v in listed if name in _EXTENSIONS)
        last_event_id = headers.get(b"last-event-id")
        self.last_event_id = None if last_event_id is None else last_event_id.decode("latin-1")
        is_traced = b"traceparent" in headers or b"baggage" in headers
        self.trace = trace_in(listed) if is_traced else NO_TRACE
        self.address: str | None = None


class HttpAnswer(msgspec.Struct, gc=False):
    """An answer: its status, and its body if it has one, or the ``items`` of a stream."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes | None = None
    items: AsyncIterator[StreamItem] | None = None


LaterAnswer = HttpAnswer | Coroutine[Any, Any, HttpAnswer]


class Exchange(ABC):
    """One request, from its bytes to the last byte of its response.

    A binding parses the request (``parse``) and writes answers, events and errors. A failed request
    gets the error of the specification, and the connection stays usable. The body is freed before
    the service answers. ``answer`` is independent of the transport: HTTP/1.1 connections call it
    (``DirectExchange``), and ``run`` adapts it to ASGI.

    ``is_notification``: the request wants no answer. ``doing`` names the request in the log,
    ``system`` the binding.
    ``answers_message``: the stream is the answer to a message, not a subscription.
    """

    takes_body = True
    first_headers: tuple[tuple[bytes, bytes], ...] = (NO_STORE,)
    # Class attributes as defaults, which most requests never change.
    is_notification = False
    doing = "a request"
    system = ""
    context = CallContext()
    answers_message = False
    _call: ServiceCall | None = None
    _done: Callable[[LaterAnswer], object] | None = None

    def __init__(
        self,
        served: ServedEndpoint,
        scope: Scope,
        tenant: str = "",
        fields: HeadFields | None = None,
    ) -> None:
        self.served = served
        self.scope = scope
        self.tenant = tenant
        self.fields = fields or HeadFields(scope)
        self.response_headers = [*self.first_headers]

    # -- implemented by bindings ----------------------------------------------------------------

    codec: Codec
    """Writes the answer. Its version is final once the request is parsed."""

    @abstractmethod
    def parse(self, body: bytes, caller: Caller) -> ServiceCall:
        """Return the call that the request asks for. Raises ``A2AError``."""

    @abstractmethod
    def wrap(self, result: bytes) -> bytes:
        """Return the response body of a result, or of an event of a stream."""

    @abstractmethod
    def error_response(self, error: A2AError) -> tuple[int, bytes]:
        """Return status and body for an error."""

    media_type: bytes = b"application/json"

    # -- the way of a request ------------------------------------------------------------------

    def answer(self, body: bytes, caller: Caller, done: Callable[[LaterAnswer], object]) -> None:
        """Answer a request: ``done`` receives the answer, or the coroutine of it, now or later.

        It does not raise. The coroutine must be awaited even if the client has left.
        """
        self._done = done
        try:
            self._call = call = self.read(body if self.takes_body else b"", caller)
            call.begin(self._conclude)
        except (Exception, asyncio.CancelledError) as error:
            self._call = self._done = None
            refusal = self.refusal(error)
        else:
            return
        done(refusal)

    def read(self, body: bytes, caller: Caller) -> ServiceCall:
        """Return the call of the request, and keep nothing else of the request.

        Raises ``A2AError``.
        """
        call = self.parse(without_bom(body), caller)
        self.doing = call.operation.name
        del self.fields
        if call.context.extensions:
            active = ", ".join(sorted(call.context.extensions)).encode()
            name = versions.dialect(call.context.version).extensions_header
            self.response_headers.append((name.encode(), active))
        return call

    def _conclude(self, outcome: Any) -> None:
        """Answer with the outcome of the call, to which no other reference remains."""
        call, done = self._call, self._done
        self._call = self._done = None
        assert call is not None
        assert done is not None
        if self.is_notification and isinstance(outcome, AsyncIterator):
            outcome = _begun(outcome)
        if type(outcome) is CoroutineType:
            done(self._conclude_later(call, outcome))
        else:
            done(self._answer_of(call, outcome))

    async def _conclude_later(self, call: ServiceCall, outcome: Awaitable[Any]) -> HttpAnswer:
        try:
            found = await outcome
            del outcome  # a stream may be open much longer
            if self.is_notification and isinstance(found, AsyncIterator):
                await _begun(found)
        except (Exception, asyncio.CancelledError) as error:
            return self.refusal(error)
        return self._answer_of(call, found)

    def _answer_of(self, call: ServiceCall, outcome: Any) -> HttpAnswer:
        """Return the answer of the service in the binding's form."""
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            if call.grant is not None:
                fields = call.grant.fields  # the remainders of limits
                self.response_headers += [(name.encode(), each.encode()) for name, each in fields]
            if self.is_notification:
                return HttpAnswer(204, self.response_headers)
            if call.operation.streaming:
                self.context = call.context
                self.answers_message = call.operation.request is SendMessageRequest
                return HttpAnswer(200, self.response_headers, items=outcome)
            body = self.wrap(self.codec.write_result(call.operation, outcome))
        except Exception as error:
            return self.refusal(error)
        return HttpAnswer(200, self.response_headers, body)

    def refusal(self, error: BaseException) -> HttpAnswer:
        """Return the answer for an exception that is being handled (``Lifecycle.failure``)."""
        failure = self.served.lifecycle.failure(error, self.doing)
        status, body = self.error_response(failure)
        headers = [*self.response_headers, *self.served.error_headers(failure, self.scope)]
        if self.is_notification:
            return HttpAnswer(204 if status == 200 else status, headers)
        return HttpAnswer(status, headers, body)

    # -- ASGI ----------------------------------------------------------------------------------

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request of an ASGI app."""
        try:
            body, caller = await self._received(receive)
            answered = outcome_of(partial(self.answer, body, caller))
            del body  # free it: an answer may take minutes, and a body may be large
            answer = await answered
        except ClientGone:
            return
        except (Exception, asyncio.CancelledError) as error:
            answer = self.refusal(error)
        await self.send(answer, receive, send)

    async def _received(self, receive: Receive) -> tuple[bytes, Caller]:
        """Start the agents, identify the caller and read the body, in this order."""
        served, headers = self.served, self.fields.headers
        if not served.lifecycle.started:
            await served.dispatcher.start()
        caller = ANONYMOUS
        if served.identify is not None:
            identified = served.identify(self.scope)
            caller = identified if isinstance(identified, Caller) else await identified
        if not self.takes_body:
            return b"", caller
        limit, length = served.settings.max_body_bytes, headers.get(b"content-length")
        body = await read_body(receive, self.scope, length, limit, served.request_bytes)
        if not body and b"upgrade" in headers:
            _check_body_arrived(headers)
        return body, caller

    async def send(self, answer: LaterAnswer, receive: Receive, send: Send) -> None:
        """Send an answer over ASGI."""
        if not isinstance(answer, HttpAnswer):
            answer = await answer
        if answer.items is not None:
            try:
                failure = await self._stream(answer.items, receive, send)
            except asyncio.CancelledError:
                if self.served.lifecycle.draining:
                    return  # a slow reader outstayed the grace period
                raise
            if failure is None:
                return
            answer = self.refusal(failure)
        if answer.body is None:
            await reply_without_body(send, answer.status, answer.headers)
        else:
            await reply(send, answer.status, answer.body, answer.headers, self.media_type)

    def _stream(
        self, items: AsyncIterator[StreamItem], receive: Receive, send: Send
    ) -> Awaitable[A2AError | None]:
        """Send a stream. Return the error if it came before anything was sent."""
        codec, write_event = self.codec, self.codec.write_event
        # The envelope around a result is the same for the whole request, and has no line breaks.
        before, _, after = self.wrap(_A_RESULT).partition(_A_RESULT)
        return self.served.streams.serve(
            items,
            self.context,
            credentials=open_credentials(self.served.identify, self.scope, self.context.caller),
            frame=lambda item: sse.frame(write_event(item), item[1], before, after),
            failed=lambda error: sse.frame(self.error_response(error)[1]),
            ends=codec.ends_stream,
            answers_message=self.answers_message,
            headers=self._headers_of_stream,
            receive=receive,
            send=send,
        )

    def _headers_of_stream(self) -> Headers:
        """Return the headers of a stream that begins, and free the request.

        There will be no other answer, and a stream may be open for hours.
        """
        headers, self.response_headers = self.response_headers, []
        del self.scope
        return headers

    # -- for the bindings ----------------------------------------------------------------------

    def refuse_media_type(self) -> NoReturn:
        """Raise ``NotJson``, because the body is not declared as JSON."""
        declared = self.fields.headers.get(b"content-type", b"")
        named = (
            f"Content-Type {declared[:60].decode('latin-1')!r}" if declared else "no Content-Type"
        )
        wanted = self.media_type.decode()
        raise NotJson(f"a request has the Content-Type {wanted}; this one has {named}")

    def requested_version(self) -> str:
        """Return the version that the request names, empty if none (§3.6).

        Raises ``VersionNotSupportedError``.
        """
        named = self.fields.version
        return named if named == versions.LATEST else versions.requested(named)

    def sender(self) -> str:
        """Return the address of the sender (``SeenAddresses``)."""
        return client_address(self.scope, trust_proxy=self.served.settings.trust_proxy)

    def interfaces(self, tenant: str) -> Interfaces:
        """Return the interfaces of the agent of a tenant (``SeenAddresses``)."""
        return self.served.interfaces(self.scope, tenant)

    def vary_by_caller(self) -> None:
        """Name the headers that the answer depends on (``SeenAddresses``)."""
        if self.served.varies:
            self.response_headers.append((b"vary", self.served.varies))

    def address(self, tenant: str) -> str:
        """Return the base URL of the agent of a tenant (``SeenAddresses``)."""
        fields = self.fields
        if tenant or self.scope is not fields.scope:
            return self.served.address(self.scope, tenant)
        if fields.address is None:
            fields.address = self.served.address(self.scope, "")
        return fields.address

    def parameters(self, version: str, caller: Caller) -> Parameters:
        """Return the service parameters of the request."""
        fields = self.fields
        return Parameters(
            version=version,
            caller=caller,
            extensions=fields.extensions,
            tenant=self.tenant,
            last_event_id=fields.last_event_id,
            trace=fields.trace,
            addresses=self,
            takes_json=self.codec.takes_json,
            system=self.system,
        )


class AgentRequests:
    """The requests to an agent with the same head, which is read once: ``exchange`` makes
    exchanges.

    ``scope`` is the ASGI scope of all of them, with the Content-Length of the first. ``added`` are
    the fields that the app adds to each answer.
    """

    __slots__ = ("_fields", "_make", "_served", "added", "scope")

    def __init__(
        self, served: ServedEndpoint, scope: Scope, make: Callable[[HeadFields], Exchange]
    ) -> None:
        self._served = served
        self._make = make
        self._fields = HeadFields(scope)
        self.scope = scope
        self.added: AddedFields = ()

    def takes(self, length: int) -> bool:
        """Return whether a body of this size can be read without waiting."""
        served = self._served
        return length <= served.settings.max_body_bytes and served.lifecycle.started

    def exchange(self) -> Exchange:
        """Return the exchange of a request."""
        return self._make(self._fields)


class AgentHandler(ABC):
    """An ASGI app that answers the requests of an agent, or an app around one."""

    @abstractmethod
    def requests(self, scope: Scope) -> AgentRequests | None:
        """Return the requests to an agent with the head of a scope; ``None`` if ASGI answers."""


def requests_of(handler: ASGIApp, scope: Scope) -> AgentRequests | None:
    """Return the requests of a handler with the head of a scope; ``None`` for other ASGI apps."""
    return handler.requests(scope) if isinstance(handler, AgentHandler) else None


def version_missing(name: str) -> VersionNotSupportedError:
    """Return the error for a method or path of the latest version in a request without a
    version."""
    return VersionNotSupportedError(
        f"a request without A2A-Version is of version {versions.DEFAULT_VERSION}, "
        f"which does not have {name}; send the header A2A-Version: {versions.LATEST}",
        metadata={
            "requestedVersion": versions.DEFAULT_VERSION,
            "supportedVersions": ", ".join(versions.SUPPORTED_VERSIONS),
        },
    )


def extension_uris(headers: Iterable[bytes]) -> tuple[str, ...]:
    """Return the URIs in ``A2A-Extensions`` headers, each a list with commas."""
    uris = [uri.strip() for header in headers for uri in header.decode("latin-1").split(",")]
    return tuple(uri for uri in uris if uri)


def _named_version(header: bytes, scope: Scope) -> str:
    """Return the version that a request names; its header counts before its query parameter."""
    named = header.decode("latin-1").strip()
    query: bytes = scope["query_string"]
    if not named and query:
        for name, value in parse_qsl(query.decode("latin-1")):
            if name.lower() == "a2a-version":
                named = value
    return named


def trace_in(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext:
    """Return the trace that a request belongs to."""
    values: dict[bytes, list[str]] = {b"traceparent": [], b"tracestate": [], b"baggage": []}
    for name, value in headers:
        if name in values:
            values[name].append(value.decode("latin-1"))
    return read_trace(*values.values())


def _check_body_arrived(request_headers: Mapping[bytes, bytes]) -> None:
    """Raise ``InvalidRequestError`` for a request whose declared body was lost.

    uvicorn with httptools drops the body of a request for a protocol upgrade, as Java's HttpClient
    sends it first on each connection.
    """
    declared = request_headers.get(b"content-length", b"0")
    if declared == b"0" and b"transfer-encoding" not in request_headers:
        return
    protocol = request_headers[b"upgrade"][:40].decode("latin-1")
    raise InvalidRequestError(
        "the HTTP parser of this server drops the body of a request that asks for "
        f"Upgrade: {protocol}; ask over HTTP/1.1 without Upgrade, or serve with parley serve or "
        "uvicorn --http h11"
    )


async def _begun(items: AsyncIterator[StreamItem]) -> None:
    """Wait for the first event of a stream without a reader, so that the turn has started."""
    async with aclosing(cast("Any", items)):
        await anext(items, None)
