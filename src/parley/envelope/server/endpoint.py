"""Takes messages of the envelope protocol at an address of an agent: a POST, or a WebSocket."""

from __future__ import annotations

from contextlib import ExitStack

from starlette.types import Receive, Scope, Send

from parley.envelope.answers import error_response
from parley.envelope.codec import write_message
from parley.envelope.declared import EnvelopeSettings
from parley.envelope.messages import SUBPROTOCOL, Source
from parley.envelope.server.answering import Answering, Calls
from parley.envelope.server.conversation import Conversation, EnvelopePost, Exchanges
from parley.envelope.server.guard import EnvelopeGuard
from parley.envelope.server.services import EnvelopeServices, MessageContext, RequestQueue
from parley.model.errors import A2AError, InvalidRequestError
from parley.model.service import ANONYMOUS, NO_TRACE, Caller, TraceContext
from parley.security.networks import client_address
from parley.server.added_bindings import BindingPlace
from parley.server.dispatch import read_trace
from parley.server.http.open_credentials import open_credentials
from parley.server.http.responses import NO_STORE, refuse_method
from parley.server.log import failure_of
from parley.server.websocket.admission import as_http, refused_by
from parley.server.websocket.socket import ServerSocket

_HINT = (
    "this is the address of an agent in the envelope protocol: send it messages with POST, or open "
    f"a WebSocket with the subprotocol {SUBPROTOCOL}"
)


class EnvelopeEndpoint:
    """Takes messages to one agent, or to one tenant of an endpoint, at a place of a server."""

    def __init__(
        self,
        place: BindingPlace,
        settings: EnvelopeSettings,
        services: EnvelopeServices,
        requests: RequestQueue,
        guard: EnvelopeGuard,
    ) -> None:
        self._place = place
        self._served = place.served
        self._endpoint = place.agent
        self._tenant = place.tenant
        self._guard = guard
        self._agent_type = settings.agent_type
        answering = Answering(
            Calls(self._served, self._endpoint, self._tenant), services, self._source
        )
        self._exchanges = Exchanges(self._served, answering, services, requests, guard)

    @property
    def _source(self) -> Source:
        return Source(agent_id=self._endpoint.key or "agent", agent_type=self._agent_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a POST, or serve a WebSocket."""
        is_socket = scope["type"] == "websocket"
        asked = as_http(scope) if is_socket else scope
        gate, elsewhere = self._place.gate, self._place.elsewhere
        if gate is not None and not gate.is_visible(asked):
            elsewhere = refused_by(elsewhere) if is_socket else elsewhere
            await elsewhere(scope, receive, send)
        elif is_socket:
            await self._serve_socket(asked, ServerSocket(scope, receive, send))
        elif scope["method"] != "POST":
            await refuse_method(scope, send, "POST", _HINT)
        else:
            await EnvelopePost(self._exchanges, self._context(scope, ANONYMOUS)).run(receive, send)

    async def _serve_socket(self, asked: Scope, socket: ServerSocket) -> None:
        with ExitStack() as held:
            try:
                caller = await self._place.caller(asked)
                self._check_subprotocol(socket)
                context = self._context(asked, caller)
                held.enter_context(self._served.sockets.slot_of((self._tenant, caller.owner)))
                sender = held.enter_context(self._guard.open_socket(caller, context.address))
            except Exception as error:
                failure = failure_of(error, "the upgrade to a WebSocket")
                await self._refuse(socket, asked, failure)
                return
            credentials = open_credentials(self._served.identify, asked, caller)
            try:
                await socket.accept(SUBPROTOCOL if socket.subprotocols else None)
            except OSError:
                return  # the client has gone
            await Conversation(self._exchanges, context, socket, sender, credentials).run()

    def _check_subprotocol(self, socket: ServerSocket) -> None:
        """Raise ``InvalidRequestError`` for other subprotocols; v1 is meant where none is named."""
        if socket.subprotocols and SUBPROTOCOL not in socket.subprotocols:
            offered = ", ".join(socket.subprotocols)[:100]
            raise InvalidRequestError(
                f"a WebSocket to an agent has the subprotocol {SUBPROTOCOL} "
                f"(Sec-WebSocket-Protocol); this one offers {offered}"
            )

    async def _refuse(self, socket: ServerSocket, asked: Scope, error: A2AError) -> None:
        body = write_message(error_response("", error, source=self._source))
        headers = [
            (b"content-type", b"application/json"),
            NO_STORE,
            *self._served.error_headers(error, asked),
        ]
        await socket.refuse(error.http_status, headers, body)

    def _context(self, asked: Scope, caller: Caller) -> MessageContext:
        trust_proxy = self._served.settings.trust_proxy
        return MessageContext(
            caller=caller,
            agent=self._endpoint.key,
            names=self._guard.names,
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
