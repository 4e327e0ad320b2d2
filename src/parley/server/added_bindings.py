"""Bindings that are added to a server, next to JSON-RPC, HTTP+JSON and gRPC.

A package adds one with an entry point of the group ``parley.bindings``, or an operator with
``parley.asgi(agent, bindings=[...])`` (docs/guides/extend-parley.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.errors import A2AError
from parley.model.operations import Operation
from parley.model.service import ANONYMOUS, Caller
from parley.model.struct import A2AStruct
from parley.security.networks import client_address
from parley.server.address import route_path
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.dispatch import Parameters
from parley.server.endpoint import Endpoint, Interfaces
from parley.server.http.exchange import AgentHandler, AgentRequests, ServedEndpoint, requests_of
from parley.server.http.paths import segments_of
from parley.server.http.responses import read_body
from parley.server.restrictions import Gate
from parley.server.websocket.admission import refused_by
from parley.wire.versions import LATEST


class BindingPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The position of an agent on a server, for an added binding.

    ``served`` is shared by the bindings of the agent: dispatcher, settings of the server, callers.
    The ``agent`` may be the ``tenant`` of the endpoint; ``below`` is its path below the address in
    ``advertised``. ``gate`` decides which addresses see the agent; other addresses get
    ``elsewhere``. ``restricted`` wraps a handler in the restriction of an endpoint of the server,
    such as ``card``.
    """

    served: ServedEndpoint
    agent: Endpoint
    advertised: AdvertisedInterfaces
    tenant: str
    below: str
    gate: Gate | None
    elsewhere: ASGIApp
    restricted: Callable[[str, ASGIApp], ASGIApp]

    async def caller(self, scope: Scope) -> Caller:
        """Return the caller of a request, by its credentials. Raises ``A2AError``."""
        if self.served.identify is None:
            return ANONYMOUS
        identified = self.served.identify(scope)
        return identified if isinstance(identified, Caller) else await identified

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body of a request, of at most ``Settings.max_body_bytes``.

        Raises ``BodyTooLarge`` for a larger one, and ``ClientGone``.
        """
        limit = self.served.settings.max_body_bytes
        return await read_body(receive, scope, None, limit, self.served.request_bytes)

    async def call(
        self, operation: Operation, request: A2AStruct, scope: Scope, *, caller: Caller = ANONYMOUS
    ) -> Any:
        """Return the agent's answer to an operation of the latest version.

        Streaming operations return an async iterator. Raises ``A2AError``.
        """
        await self.served.dispatcher.start()
        parameters = Parameters(
            version=LATEST,
            addresses=SeenFromScope(self.served, scope),
            caller=caller,
            tenant=self.tenant,
        )
        call = self.served.dispatcher.call(operation, parameters, lambda: request)
        return await call.answer()


class SeenFromScope:
    """The addresses of an agent, as the sender of a request sees them (``SeenAddresses``).

    ``scope`` is an HTTP request; for a socket, the GET of its handshake.
    """

    __slots__ = ("_scope", "_served")

    def __init__(self, served: ServedEndpoint, scope: Scope) -> None:
        self._served = served
        self._scope = scope

    def sender(self) -> str:
        """Return the IP address of the sender; empty if there is none."""
        return client_address(self._scope, trust_proxy=self._served.settings.trust_proxy)

    def interfaces(self, tenant: str) -> Interfaces:
        """Return the interfaces of the agent of a tenant. Raises ``BadAddress``."""
        return self._served.interfaces(self._scope, tenant)

    def vary_by_caller(self) -> None:
        """Do nothing: answers of added bindings are not cached."""

    def address(self, tenant: str) -> str:
        """Return the URL below which the agent of a tenant is."""
        return self._served.address(self._scope, tenant)


class TenantBindings(AgentHandler):
    """Answers for tenants that only the service of an agent knows, below the agent's address.

    ``prefix`` are the segments of that address. Other paths, and the paths of ``others`` (tenants
    with agents of their own), are answered by ``otherwise``. ``handlers`` makes the handler of a
    tenant for each path of a binding.
    """

    takes_sockets = True

    def __init__(
        self,
        otherwise: ASGIApp,
        prefix: Iterable[str],
        handlers: Mapping[str, Callable[[str], ASGIApp]],
        others: Container[str] = (),
    ) -> None:
        self.otherwise = otherwise
        self._prefix = tuple(prefix)
        self._handlers = handlers
        self._ends = tuple(handlers)
        self._others = others

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        if scope["path"].endswith(self._ends):
            below_mount = route_path(scope)
            mount = scope["path"][: len(scope["path"]) - len(below_mount)]
            try:
                segments = segments_of(scope, mount, self._prefix)
            except A2AError:
                segments = ()
            handler = self._handlers.get(f"/{segments[1]}") if len(segments) == 2 else None
            if handler is not None and segments[0] not in self._others:
                return handler(segments[0])(scope, receive, send)
        otherwise = self.otherwise
        if scope["type"] == "websocket":
            otherwise = refused_by(otherwise)
        return otherwise(scope, receive, send)

    def requests(self, scope: Scope) -> AgentRequests | None:
        """Return the requests with the head of a scope, unless they are for an added binding."""
        is_other = not scope["path"].endswith(self._ends)
        return requests_of(self.otherwise, scope) if is_other else None
