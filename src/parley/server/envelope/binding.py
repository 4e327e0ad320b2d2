"""The envelope binding of the server: messages over a WebSocket, or one by HTTP POST."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.envelope.messages import SUBPROTOCOL, Source
from parley.model.errors import A2AError, InvalidRequestError
from parley.model.service import ANONYMOUS, NO_TRACE, Caller, TraceContext
from parley.security.credentials.client_address import client_address
from parley.server.address import route_path
from parley.server.endpoint import Endpoint
from parley.server.envelope.directory import MessageContext
from parley.server.envelope.queue import RequestQueue
from parley.server.failures import log_unforeseen
from parley.server.http.exchange import (
    DirectHandler,
    DirectRequests,
    ServedEndpoint,
    direct_requests,
)
from parley.server.http.open_credentials import OpenCredentials, open_credentials
from parley.server.http.paths import segments_of
from parley.server.http.responses import NO_STORE, refuse_method
from parley.server.lifecycle import Lifecycle
from parley.server.restrictions import Gate
from parley.server.trace_headers import read_trace
from parley.server.websocket.denial import as_http, refused_by
from parley.server.websocket.socket import ServerSocket

if TYPE_CHECKING:
    from parley.server.envelope.measured import EnvelopeStatistics
    from parley.server.envelope.requests.answering import Answering
    from parley.server.envelope.services import EnvelopeServices

ENVELOPE = "/envelope"
"""Where messages arrive, below the address of an agent."""

_HINT = (
    "this is the address of an agent in the envelope protocol: send it messages with POST, or open "
    f"a WebSocket with the subprotocol {SUBPROTOCOL}"
)


class EnvelopeShare(msgspec.Struct):
    """What the envelope bindings of a server share.

    ``services`` are made at the first use, by ``make`` if the host has a say in them: a server that
    nobody speaks the protocol to imports nothing for it.
    """

    requests: RequestQueue
    lifecycle: Lifecycle
    given: EnvelopeServices | None = None
    make: Callable[[], EnvelopeServices] | None = None

    @property
    def services(self) -> EnvelopeServices:
        """What plug-ins, routing and measurements there are."""
        if self.given is None:
            from parley.server.envelope.services import EnvelopeServices

            self.given = (self.make or EnvelopeServices)()
        load = self.given.load
        load.load = self._load
        load.is_draining = self._is_draining
        return self.given

    @property
    def statistics(self) -> EnvelopeStatistics | None:
        """What was measured; nothing before the first message."""
        return None if self.given is None else self.given.statistics

    def _load(self) -> float:
        return self.requests.load

    def _is_draining(self) -> bool:
        return self.lifecycle.draining


class EnvelopeBinding:
    """Takes messages to one agent, or to one tenant of an endpoint.

    ``gate`` knows which addresses see the agent; others find what is ``elsewhere``.
    """

    takes_sockets = True

    def __init__(
        self,
        served: ServedEndpoint,
        endpoint: Endpoint,
        tenant: str = "",
        *,
        share: EnvelopeShare,
        gate: Gate | None = None,
        elsewhere: ASGIApp | None = None,
    ) -> None:
        self._served = served
        self._endpoint = endpoint
        self._tenant = tenant
        self._share = share
        self._gate = gate
        self._elsewhere = elsewhere

    @cached_property
    def answering(self) -> Answering:
        """What answers the messages. The first access loads the protocol."""
        from parley.server.envelope.requests.answering import Answering
        from parley.server.envelope.requests.calls import Calls

        calls = Calls(self._served, self._endpoint, self._tenant)
        return Answering(calls, self._share.services, self._source)

    @property
    def _source(self) -> Source:
        declared = self._endpoint.envelope
        agent_type = "agent" if declared is None else declared.agent_type
        return Source(agent_id=self._endpoint.key or "agent", agent_type=agent_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a POST, or serve a WebSocket."""
        is_socket = scope["type"] == "websocket"
        asked = as_http(scope) if is_socket else scope
        if self._gate is not None and not self._gate.is_visible(asked):
            assert self._elsewhere is not None
            elsewhere = refused_by(self._elsewhere) if is_socket else self._elsewhere
            await elsewhere(scope, receive, send)
        elif is_socket:
            await self._serve_socket(asked, ServerSocket(scope, receive, send))
        elif scope["method"] != "POST":
            await refuse_method(scope, send, "POST", _HINT)
        else:
            from parley.server.envelope.post import EnvelopePost

            post = EnvelopePost(
                self._served,
                self.answering,
                self._context(scope, ANONYMOUS),
                services=self._share.services,
                requests=self._share.requests,
                guard=self._endpoint.guard,
            )
            await post.run(receive, send)

    # -- WebSockets ----------------------------------------------------------------------------

    async def _serve_socket(self, asked: Scope, socket: ServerSocket) -> None:
        with ExitStack() as held:
            try:
                caller = await self._caller(asked)
                self._check_subprotocol(socket)
                context = self._context(asked, caller)
                held.enter_context(self._served.sockets.slot_of((self._tenant, caller.owner)))
                sender = None
                guard = self._endpoint.guard
                if guard is not None:
                    sender = held.enter_context(guard.open_socket(caller, context.address))
            except A2AError as error:
                await self._refuse(socket, asked, error)
                return
            except Exception:
                await self._refuse(socket, asked, log_unforeseen("the upgrade to a WebSocket"))
                return
            credentials = open_credentials(self._served.identify, asked, caller)
            await self._converse(socket, context, sender, credentials)

    async def _caller(self, asked: Scope) -> Caller:
        """Return the caller, by the credentials of the upgrade. Raises ``A2AError``."""
        if self._served.identify is None:
            return ANONYMOUS
        identified = self._served.identify(asked)
        return identified if isinstance(identified, Caller) else await identified

    def _check_subprotocol(self, socket: ServerSocket) -> None:
        """Raise ``InvalidRequestError`` for other subprotocols; v1 is meant where none is named."""
        if socket.subprotocols and SUBPROTOCOL not in socket.subprotocols:
            offered = ", ".join(socket.subprotocols)[:100]
            raise InvalidRequestError(
                f"a WebSocket to an agent has the subprotocol {SUBPROTOCOL} "
                f"(Sec-WebSocket-Protocol); this one offers {offered}"
            )

    async def _refuse(self, socket: ServerSocket, asked: Scope, error: A2AError) -> None:
        from parley.wire.envelope.answers import error_response
        from parley.wire.envelope.codec import write_message

        body = write_message(error_response("", error, source=self._source))
        headers = [
            (b"content-type", b"application/json"),
            NO_STORE,
            *self._served.error_headers(error, asked),
        ]
        await socket.refuse(error.http_status, headers, body)

    async def _converse(
        self,
        socket: ServerSocket,
        context: MessageContext,
        sender: Any,
        credentials: OpenCredentials | None,
    ) -> None:
        from parley.server.envelope.conversation import Conversation

        settings = self._served.settings
        try:
            await socket.accept(SUBPROTOCOL if socket.subprotocols else None)
        except OSError:
            return  # the client has gone
        conversation = Conversation(
            self.answering,
            context,
            services=self._share.services,
            requests=self._share.requests,
            streams=self._served.streams,
            request_bytes=self._served.request_bytes,
            send=socket.send,
            close=socket.close,
            held_open=socket.answering,
            guard=self._endpoint.guard,
            sender=sender,
            credentials=credentials,
            max_bytes=settings.max_body_bytes,
            max_depth=settings.max_depth,
        )
        socket.on_drain(conversation.drain)
        await conversation.run(socket.receive)

    def _context(self, asked: Scope, caller: Caller) -> MessageContext:
        trust_proxy = self._served.settings.trust_proxy
        guard = self._endpoint.guard
        return MessageContext(
            caller=caller,
            agent=self._endpoint.key,
            names=() if guard is None else guard.names,
            tenant=self._tenant,
            scope=asked,
            address=client_address(asked, trust_proxy=trust_proxy),
            trace=_trace_of(asked),
        )


def _trace_of(asked: Scope) -> TraceContext:
    values: dict[bytes, list[str]] = {b"traceparent": [], b"tracestate": []}
    for name, value in asked["headers"]:
        if name in values:
            values[name].append(value.decode("latin-1"))
    parents = values[b"traceparent"]
    return read_trace(parents, values[b"tracestate"]) if parents else NO_TRACE


class TenantEnvelopes(DirectHandler):
    """Takes messages to tenants that only the service of an agent knows, below the agent's address.

    ``prefix`` are the segments of that address; other paths are for what is ``otherwise`` there, as
    are those of the ``others``: tenants with agents of their own.
    """

    takes_sockets = True

    def __init__(
        self,
        otherwise: ASGIApp,
        prefix: Iterable[str],
        binding: Callable[[str], EnvelopeBinding],
        others: Container[str] = (),
    ) -> None:
        self.otherwise = otherwise
        self._prefix = tuple(prefix)
        self._binding = binding
        self._others = others

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        if scope["path"].endswith(ENVELOPE):
            below_mount = route_path(scope)
            mount = scope["path"][: len(scope["path"]) - len(below_mount)]
            try:
                segments = segments_of(scope, mount, self._prefix)
            except A2AError:
                segments = ()
            is_envelope = len(segments) == 2 and segments[1] == ENVELOPE[1:]
            if is_envelope and segments[0] not in self._others:
                return self._binding(segments[0])(scope, receive, send)
        otherwise = self.otherwise
        if scope["type"] == "websocket":
            otherwise = refused_by(otherwise)
        return otherwise(scope, receive, send)

    def direct(self, scope: Scope) -> DirectRequests | None:
        """Return the requests with the head of a scope, if they are none of the envelope."""
        is_other = not scope["path"].endswith(ENVELOPE)
        return direct_requests(self.otherwise, scope) if is_other else None
