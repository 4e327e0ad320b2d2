"""The envelope binding of the server: messages over a WebSocket, or one by HTTP POST."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from parley.engine.description import AgentDescription
from parley.envelope.card_page import EnvelopeCardPage, SchemaPage
from parley.envelope.declared import EnvelopeSettings
from parley.envelope.messages import BINDING, PATH, SUBPROTOCOL, Source
from parley.envelope.server.directory import MessageContext
from parley.envelope.server.queue import RequestQueue
from parley.model.errors import A2AError, InvalidRequestError
from parley.model.service import ANONYMOUS, NO_TRACE, Caller, TraceContext
from parley.security.networks import client_address
from parley.server.added_bindings import BindingPlace
from parley.server.http.open_credentials import OpenCredentials, open_credentials
from parley.server.http.responses import NO_STORE, refuse_method
from parley.server.log import log_unforeseen
from parley.server.request_fields import read_trace
from parley.server.websocket.admission import as_http, refused_by
from parley.server.websocket.socket import ServerSocket

if TYPE_CHECKING:
    from parley.envelope.server.answering import Answering
    from parley.envelope.server.guard import EnvelopeGuard
    from parley.envelope.server.plugins import EnvelopeServices

_HINT = (
    "this is the address of an agent in the envelope protocol: send it messages with POST, or open "
    f"a WebSocket with the subprotocol {SUBPROTOCOL}"
)


class SharesEnvelope(Protocol):
    """What the agents of a server share (``ServerEnvelope``)."""

    requests: RequestQueue
    schema_page: SchemaPage

    @property
    def services(self) -> EnvelopeServices:
        """What plug-ins, routing and measurements there are."""
        ...

    def guard_of(self, agent: AgentDescription, settings: EnvelopeSettings) -> EnvelopeGuard:
        """Return what decides who may say what to an agent."""
        ...


class AgentEnvelope:
    """The envelope protocol of one agent (``AgentBinding``)."""

    protocol = BINDING
    path = PATH

    def __init__(
        self, server: SharesEnvelope, agent: AgentDescription, settings: EnvelopeSettings
    ) -> None:
        self.server = server
        self.settings = settings
        self._agent = agent

    @cached_property
    def guard(self) -> EnvelopeGuard:
        """What decides who may say what to the agent."""
        return self.server.guard_of(self._agent, self.settings)

    def handler(self, place: BindingPlace) -> ASGIApp:
        """Return what takes messages at an address of the agent."""
        return EnvelopeEndpoint(self, place)

    def pages(self, place: BindingPlace) -> Mapping[str, ASGIApp]:
        """Return the envelope card, and the schema of messages."""
        card = EnvelopeCardPage(place, self.settings, lambda: self.guard)
        return {"/card": place.restricted("card", card), "/schema.json": self.server.schema_page}

    @property
    def refuses_unsigned(self) -> bool:
        """Whether the data of the agent is restricted."""
        return self.settings.data_classification == "restricted"

    def refuse(self) -> A2AError:
        """Return the error for a request that is not signed."""
        from parley.envelope.errors import SignatureRequired

        return SignatureRequired(
            "the data of this agent is restricted, so it takes signed messages of the envelope "
            "protocol alone: its card has their address (urn:parley:envelope:v1)"
        )


class EnvelopeEndpoint:
    """Takes messages to one agent, or to one tenant of an endpoint, at a place of a server."""

    takes_sockets = True

    def __init__(self, agent: AgentEnvelope, place: BindingPlace) -> None:
        self._agent = agent
        self._place = place
        self._served = place.served
        self._endpoint = place.agent
        self._tenant = place.tenant
        self._server = agent.server

    @cached_property
    def answering(self) -> Answering:
        """What answers the messages. The first access loads the protocol."""
        from parley.envelope.server.answering import Answering
        from parley.envelope.server.calls import Calls

        calls = Calls(self._served, self._endpoint, self._tenant)
        return Answering(calls, self._server.services, self._source)

    @property
    def _source(self) -> Source:
        agent_type = self._agent.settings.agent_type
        return Source(agent_id=self._endpoint.key or "agent", agent_type=agent_type)

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
            from parley.envelope.server.post import EnvelopePost

            post = EnvelopePost(
                self._served,
                self.answering,
                self._context(scope, ANONYMOUS),
                services=self._server.services,
                requests=self._server.requests,
                guard=self._agent.guard,
            )
            await post.run(receive, send)

    # -- WebSockets ----------------------------------------------------------------------------

    async def _serve_socket(self, asked: Scope, socket: ServerSocket) -> None:
        with ExitStack() as held:
            try:
                caller = await self._place.caller(asked)
                self._check_subprotocol(socket)
                context = self._context(asked, caller)
                held.enter_context(self._served.sockets.slot_of((self._tenant, caller.owner)))
                guard = self._agent.guard
                sender = held.enter_context(guard.open_socket(caller, context.address))
            except A2AError as error:
                await self._refuse(socket, asked, error)
                return
            except Exception:
                await self._refuse(socket, asked, log_unforeseen("the upgrade to a WebSocket"))
                return
            credentials = open_credentials(self._served.identify, asked, caller)
            await self._converse(socket, context, sender, credentials)

    def _check_subprotocol(self, socket: ServerSocket) -> None:
        """Raise ``InvalidRequestError`` for other subprotocols; v1 is meant where none is named."""
        if socket.subprotocols and SUBPROTOCOL not in socket.subprotocols:
            offered = ", ".join(socket.subprotocols)[:100]
            raise InvalidRequestError(
                f"a WebSocket to an agent has the subprotocol {SUBPROTOCOL} "
                f"(Sec-WebSocket-Protocol); this one offers {offered}"
            )

    async def _refuse(self, socket: ServerSocket, asked: Scope, error: A2AError) -> None:
        from parley.envelope.answers import error_response
        from parley.envelope.codec import write_message

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
        from parley.envelope.server.conversation import Conversation

        settings = self._served.settings
        try:
            await socket.accept(SUBPROTOCOL if socket.subprotocols else None)
        except OSError:
            return  # the client has gone
        conversation = Conversation(
            self.answering,
            context,
            services=self._server.services,
            requests=self._server.requests,
            streams=self._served.streams,
            request_bytes=self._served.request_bytes,
            send=socket.send,
            close=socket.close,
            held_open=socket.answering,
            guard=self._agent.guard,
            sender=sender,
            credentials=credentials,
            max_bytes=settings.max_body_bytes,
            max_depth=settings.max_depth,
        )
        socket.on_drain(conversation.drain)
        await conversation.run(socket.receive)

    def _context(self, asked: Scope, caller: Caller) -> MessageContext:
        trust_proxy = self._served.settings.trust_proxy
        return MessageContext(
            caller=caller,
            agent=self._endpoint.key,
            names=self._agent.guard.names,
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
