"""One HTTP request and its response, as far as the HTTP bindings have it in common."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope, Send

from parley.model.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InvalidRequestError,
    OverloadedError,
    UnauthenticatedError,
    VersionNotSupportedError,
)
from parley.model.requests import SendMessageRequest
from parley.model.service import ANONYMOUS, CallContext, Caller, StreamItem
from parley.server.byte_budget import ByteReservation
from parley.server.dispatch import Dispatcher, Parameters, ServiceCall
from parley.server.endpoint import Interfaces
from parley.server.failures import log_unforeseen
from parley.server.http.body import BodyTooLarge, ClientGone, read_body
from parley.server.http.media_types import base
from parley.server.http.responses import NO_STORE, Headers, reply, reply_without_body
from parley.server.http.streams import Streams
from parley.server.lifecycle import Lifecycle
from parley.server.settings import Settings
from parley.wire import sse, versions
from parley.wire.dialect import Codec

Identify = Callable[[Scope], Caller | Awaitable[Caller]]
"""Says who sends a request: an id, who vouches for it, and whether it was checked (``Caller``)."""

_MEDIA_TYPES = frozenset({b"application/json", b"application/a2a+json"})
_EXTENSIONS = frozenset(name.encode() for name in versions.EXTENSIONS_HEADERS)
_LATEST = versions.LATEST.encode()


class NotJson(ContentTypeNotSupportedError):
    """The request does not say that it is JSON."""

    http_status = 415


class TooLarge(InvalidRequestError):
    """The request is larger than the server takes."""

    http_status = 413


class Surroundings(msgspec.Struct, frozen=True):
    """What the exchanges of one endpoint share.

    ``interfaces`` tells where the agent is offered to a tenant, as the sender of a request sees it.
    ``held`` counts what is here of requests that are not whole.
    """

    dispatcher: Dispatcher
    settings: Settings
    lifecycle: Lifecycle
    streams: Streams
    identify: Identify | None
    interfaces: Callable[[Scope, str], Interfaces]
    held: ByteReservation


class Exchange(ABC):
    """One request, from its bytes to the last byte of its response.

    A binding says how a request is read (``understand``) and how an answer, an event and an error
    are written. A request that fails is answered with the error of the specification, and changes
    nothing for those after it on the same connection. Of its body nothing is kept while it is
    answered but what the service was given.

    ``headers`` go with the response. ``silent``: the request asks for no answer. ``doing`` names
    it in the log.
    """

    takes_body = True

    def __init__(self, surroundings: Surroundings, scope: Scope, tenant: str = "") -> None:
        self.around = surroundings
        self.scope = scope
        self.tenant = tenant
        self.given: Mapping[bytes, bytes] = dict(scope["headers"])
        self.headers: list[tuple[bytes, bytes]] = [NO_STORE]
        self.silent = False
        self.doing = "a request"
        self.context = CallContext()
        self.answers = False

    # -- what a binding says -------------------------------------------------------------------

    codec: Codec
    """What writes the answer; known, at the latest, once the request is understood."""

    @abstractmethod
    def understand(self, body: bytes, caller: Caller) -> ServiceCall:
        """Return what is asked for. Raises ``A2AError``."""

    @abstractmethod
    def whole(self, result: bytes) -> bytes:
        """Return the body around a result, or around an event of a stream."""

    @abstractmethod
    def refusal(self, error: A2AError) -> tuple[int, bytes]:
        """Return status and body for an error."""

    media_type: bytes = b"application/json"

    # -- what all have in common ---------------------------------------------------------------

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            answer = await self._handle(receive)
        except ClientGone:
            return
        except BodyTooLarge:
            most = self.around.settings.max_body_bytes
            words = f"the body has more than the {most} bytes allowed here"
            await self._refuse(send, TooLarge(words))
        except A2AError as error:
            await self._refuse(send, error)
        except asyncio.CancelledError:
            if self.around.lifecycle.draining:
                # The grace period is over: the server takes back the task that runs this request.
                words = "the server shut down before the answer was there"
                await self._refuse(send, OverloadedError(words))
            elif _is_cancelled():
                raise
            else:  # something within the service was cancelled, and this request was not
                await self._refuse(send, log_unforeseen(self.doing))
        except Exception:
            await self._refuse(send, log_unforeseen(self.doing))
        else:
            if not isinstance(answer, bytes):
                try:
                    failure = await self._stream(answer, receive, send)
                except asyncio.CancelledError:
                    if self.around.lifecycle.draining:
                        return  # a reader that stopped reading outstayed the grace period
                    raise
                if failure is not None:
                    await self._refuse(send, failure)
            elif self.silent:
                await reply_without_body(send, 204, self.headers)
            else:
                await reply(send, 200, answer, self.headers, self.media_type)

    async def _handle(self, receive: Receive) -> bytes | AsyncIterator[StreamItem]:
        """Read one request and have the service answer it: with a body, or with a stream."""
        around, given = self.around, self.given
        if not around.lifecycle.started:
            await around.dispatcher.start()
        caller = ANONYMOUS
        if around.identify is not None:
            named = around.identify(self.scope)
            caller = named if isinstance(named, Caller) else await named
        body = b""
        if self.takes_body:
            body = await read_body(
                receive,
                self.scope,
                given.get(b"content-length"),
                around.settings.max_body_bytes,
                around.held,
            )
            if not body and b"upgrade" in given:
                _check_body_came(given)
        call = self.understand(body, caller)
        self.doing = call.operation.name
        del body, given  # an answer may take minutes, and a body be large
        self.given = {}
        if call.context.extensions:
            named_ = ", ".join(sorted(call.context.extensions)).encode()
            name = versions.dialect(call.context.version).extensions_header
            self.headers.append((name.encode(), named_))
        if call.operation.streaming:
            self.context = call.context
            self.answers = call.operation.request is SendMessageRequest
            items = call.stream()
            if not self.silent:
                return items
            # What nobody listens to is begun: its first event says that it is under way.
            async with aclosing(cast("Any", items)):
                await anext(items, None)
            return b""
        return self.whole(self.codec.write_result(call.operation, await call.answer()))

    async def _stream(
        self, items: AsyncIterator[StreamItem], receive: Receive, send: Send
    ) -> A2AError | None:
        codec, whole = self.codec, self.whole
        return await self.around.streams.serve(
            items,
            self.context,
            frame=lambda item: sse.frame(whole(codec.write_event(item)), item[1]),
            failed=lambda error: sse.frame(self.refusal(error)[1]),
            ends=codec.ends_stream,
            answers=self.answers,
            headers=self.headers,
            receive=receive,
            send=send,
        )

    async def _refuse(self, send: Send, error: A2AError) -> None:
        """Answer with an error: in the body, and in the status as the binding has it."""
        status, body = self.refusal(error)
        headers = [*self.headers, *_advice(error)]
        if self.silent:
            await reply_without_body(send, 204 if status == 200 else status, headers)
        else:
            await reply(send, status, body, headers, self.media_type)

    # -- what bindings use ---------------------------------------------------------------------

    def check_media_type(self) -> None:
        """Refuse a body that does not say that it is JSON. Raises ``A2AError``."""
        given = self.given.get(b"content-type", b"")
        if given in _MEDIA_TYPES or base(given) in _MEDIA_TYPES:
            return
        named = f"Content-Type {given[:60].decode('latin-1')!r}" if given else "no Content-Type"
        wanted = self.media_type.decode()
        raise NotJson(f"a request has the Content-Type {wanted}; this one has {named}")

    def asked_version(self) -> str:
        """Return the version that the request names, empty if none (§3.6).

        The header counts before the query parameter of the same name.
        Raises ``VersionNotSupportedError``.
        """
        header = self.given.get(b"a2a-version", b"")
        if header == _LATEST:
            return versions.LATEST
        named = header.decode("latin-1").strip()
        query: bytes = self.scope["query_string"]
        if not named and query:
            for name, value in parse_qsl(query.decode("latin-1")):
                if name.lower() == "a2a-version":
                    named = value
        return versions.requested(named)

    def parameters(self, version: str, caller: Caller) -> Parameters:
        """Return the service parameters of the request."""
        given, scope = self.given, self.scope
        extensions: tuple[str, ...] = ()
        if not _EXTENSIONS.isdisjoint(given):
            extensions = named_in(v for name, v in scope["headers"] if name in _EXTENSIONS)
        last_event_id = given.get(b"last-event-id")
        return Parameters(
            version=version,
            caller=caller,
            extensions=extensions,
            tenant=self.tenant,
            last_event_id=None if last_event_id is None else last_event_id.decode("latin-1"),
            traceparent=given.get(b"traceparent", b"").decode("latin-1"),
            interfaces=lambda tenant: self.around.interfaces(scope, tenant),
        )


def unsaid(what: str) -> VersionNotSupportedError:
    """Return the refusal of what is of the latest version, asked for without naming one."""
    return VersionNotSupportedError(
        f"a request without A2A-Version is of version {versions.DEFAULT_VERSION}, "
        "which does not have "
        f"{what}; send the header A2A-Version: {versions.LATEST}",
        metadata={
            "requestedVersion": versions.DEFAULT_VERSION,
            "supportedVersions": ", ".join(versions.SUPPORTED_VERSIONS),
        },
    )


def named_in(headers: Iterable[bytes]) -> tuple[str, ...]:
    """Return the extensions that headers name, each a list with commas."""
    uris = [uri.strip() for header in headers for uri in header.decode("latin-1").split(",")]
    return tuple(uri for uri in uris if uri)


def _check_body_came(given: Mapping[bytes, bytes]) -> None:
    """Refuse a request whose body was announced and lost. Raises ``InvalidRequestError``.

    uvicorn's own connections over httptools drop the body of a request that asks for another
    protocol, as Java's HttpClient does with the first one of each connection.
    """
    if given.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in given:
        return
    asked = given[b"upgrade"][:40].decode("latin-1")
    raise InvalidRequestError(
        "the HTTP parser of this server drops the body of a request that asks for "
        f"Upgrade: {asked}; ask over HTTP/1.1 without Upgrade, or serve with parley serve or "
        "uvicorn --http h11"
    )


def _is_cancelled() -> bool:
    """Whether the task that runs this request is to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _advice(error: A2AError) -> Headers:
    """Return the headers that tell the client what to do about an error."""
    advice = []
    if error.retry_after is not None:
        advice.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
    if isinstance(error, UnauthenticatedError):
        advice.append((b"www-authenticate", b"Bearer"))
    return advice
