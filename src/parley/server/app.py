"""The ASGI app of one or more agents: it composes routes, lifecycle, streams and budgets.

A request passes through these parts: ``App`` checks its host, ``Routes`` finds the handler, a
binding parses it, ``Dispatcher`` selects the agent, ``Exchange`` or ``Streams`` writes the answer.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.security.authentication import Authenticator
from parley.security.authorization import Authorization
from parley.security.signing.cards import JWKS_PATH
from parley.security.signing.keys import SigningKeys
from parley.server.address import AllowedHosts, HostNotAllowed, route_path
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.catalog_link import CatalogLink, ServedAgent
from parley.server.cards.discovery import KeySetPage
from parley.server.endpoint import Endpoint as Endpoint
from parley.server.http.exchange import AgentRequests, Identify, requests_of
from parley.server.http.refusals import refusing_host
from parley.server.http.responses import (
    NO_STORE,
    hsts_fields,
    refuse_method,
    reply,
    reply_without_body,
    with_hsts,
)
from parley.server.http.streams import Streams
from parley.server.lifecycle import Hook, Lifecycle
from parley.server.limits import ByteReservation, SocketLimits, UnsentBytes
from parley.server.log import hide_tokens
from parley.server.middleware import AnyMiddleware, middleware_of, wrapped
from parley.server.restrictions import authenticated_only, read_restrictions
from parley.server.routes import Routes, checked_endpoints
from parley.server.settings import Settings as Settings
from parley.server.websocket.admission import (
    SocketAdmission,
    TakesSockets,
    refused_by,
    refusing,
    takes_sockets,
)

METRICS_PATH = "/metrics"

_URL = re.compile(r"https?://[^/?#\s]+(?:/[^?#\s]*)?")
_REQUEST_HEADERS = (
    "A2A-Version",
    "A2A-Extensions",
    "X-A2A-Extensions",
    "Authorization",
    "baggage",
    "Content-Type",
    "If-None-Match",
    "If-Range",
    "Last-Event-ID",
    "Range",
    "Upload-Complete",
    "Upload-Offset",
    "traceparent",
    "tracestate",
)
_RESPONSE_HEADERS = (
    "A2A-Version",
    "A2A-Extensions",
    "X-A2A-Extensions",
    "Accept-Ranges",
    "Content-Disposition",
    "Content-Range",
    "ETag",
    "Link",
    "Location",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "Upload-Complete",
    "Upload-Offset",
    "WWW-Authenticate",
)
_log = logging.getLogger("parley.server")


def create_app(
    endpoints: Mapping[str, Endpoint],
    *,
    settings: Settings | None = None,
    identify: Identify | None = None,
    url: str | None = None,
    startup: Hook | None = None,
    shutdown: Hook | None = None,
    on_drain: Callable[[], None] | None = None,
    unavailable_reason: Callable[[], str] | None = None,
    unavailable_message: str = "",
    middleware: Iterable[AnyMiddleware] = (),
    signing_keys: SigningKeys | None = None,
    metrics: ASGIApp | None = None,
) -> App:
    """Return the app that serves agents, each under its path ("" or "/" for the root).

    ``identify`` returns the caller of a request from its ASGI scope; without it every caller is
    anonymous. It sets ``issuer`` if ids come from several issuers, and ``authenticated=True`` for a
    verified id: an unauthenticated "bob" is a different caller than "bob". ``url`` is the public
    address of the app, if requests do not show it. ``startup`` runs once before the first answer,
    ``on_drain`` when the server begins to drain, ``shutdown`` at the end. ``unavailable_reason``
    returns the reason why the agents cannot work now: then the app is not ready. ``middleware`` is
    around every HTTP request and every WebSocket, the first one outermost. With
    ``unavailable_message`` there may be no agents: the app answers health probes, and rejects every
    other request with that message. The public half of ``signing_keys`` is published; the endpoints
    have the signers of cards. ``metrics`` answers ``/metrics``.

    Raises ``ValueError`` for an invalid path or URL, and ``TypeError`` for invalid middleware.
    """
    if not endpoints and not unavailable_message:
        raise ValueError("a server needs at least one agent")
    lifecycle = Lifecycle(startup, shutdown, unavailable_reason)
    if on_drain is not None:
        lifecycle.on_drain(on_drain)
    hide_tokens()
    return App(
        checked_endpoints(endpoints),
        settings=settings or Settings(),
        identify=identify,
        url=_public_url(url),
        lifecycle=lifecycle,
        unavailable_message=unavailable_message,
        middleware=middleware_of(middleware),
        signing_keys=signing_keys,
        metrics=metrics,
    )


class App:
    """An ASGI app: run it, or mount it in another under a prefix.

    ``rules`` are its agents' authorizations; ``is_open``: everyone may call some agent.

    Mounted, it needs ``lifespan=app.lifespan`` on the outer app (or to be entered in the outer
    app's own lifespan), which then starts and stops it. Otherwise the first request starts it and
    nothing stops it.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        settings: Settings,
        identify: Identify | None,
        url: str | None,
        lifecycle: Lifecycle,
        unavailable_message: str = "",
        middleware: Iterable[AnyMiddleware] = (),
        signing_keys: SigningKeys | None = None,
        metrics: ASGIApp | None = None,
    ) -> None:
        self.lifecycle = lifecycle
        self.settings = settings
        self.identify = identify
        agents = [each for e in endpoints.values() for each in (e, *e.tenants.values())]
        self.rules = tuple(each.authorization for each in agents if each.service is not None)
        has_hook = identify is not None and not isinstance(identify, Authenticator)
        agents_restriction = read_restrictions(settings.restrict).get("agents")
        is_closed = agents_restriction is not None and agents_restriction.is_authenticated
        self.is_open = not (has_hook or is_closed) and any(map(_is_open, self.rules))
        self.url = url
        streams = Streams(settings)
        lifecycle.on_drain(streams.drain)
        self.hosts = AllowedHosts(settings.allowed_hosts, url=url, trust_proxy=settings.trust_proxy)
        self.request_bytes = ByteReservation(settings)
        self.unsent_bytes = UnsentBytes(settings)
        self.sockets = SocketLimits(settings)
        self._routes = Routes(
            endpoints,
            settings=settings,
            identify=identify,
            url=url,
            lifecycle=lifecycle,
            streams=streams,
            hosts=self.hosts,
            request_bytes=self.request_bytes,
            sockets=self.sockets,
            unavailable_message=unavailable_message,
        )
        if is_closed and identify is not None:
            self.identify = authenticated_only(identify)
        self.agents = self._routes.agents
        self.bindings: Mapping[str, Any] = {}
        self.publishes = False
        self.grpc = self._routes.grpc
        self.gate = self._routes.gate
        for path, handler in (("live", live), ("ready", ready(lifecycle))):
            self._routes.add(f"/health/{path}", self._routes.restricted("health", handler))
        if metrics is not None:
            if METRICS_PATH in endpoints:
                raise ValueError("the path /metrics has the metrics: serve the agent elsewhere")
            self._routes.add(METRICS_PATH, self._routes.restricted("metrics", metrics))
        if signing_keys is not None:
            page = KeySetPage(signing_keys)
            self._routes.add(JWKS_PATH, self._routes.restricted("jwks", page))
        self._has_agents = bool(endpoints)
        self._cors: ASGIApp | None = None
        if settings.cors_origins:
            from starlette.middleware.cors import CORSMiddleware  # loads much of Starlette

            self._cors = CORSMiddleware(
                self._dispatch,
                allow_origins=settings.cors_origins,
                allow_methods=("GET", "POST", "PATCH", "DELETE", "HEAD"),
                allow_headers=(*_REQUEST_HEADERS, *_key_headers(identify, endpoints.values())),
                expose_headers=_RESPONSE_HEADERS,
            )
        self._admission = SocketAdmission(
            self._handler, settings=settings, url=url, lifecycle=lifecycle, limits=self.sockets
        )
        self._with_middleware = wrapped(self._answer, middleware) if middleware else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http":
            send = with_hsts(send, hsts_fields(scope, self.settings.hsts_max_age))
            answer = self._with_middleware or self._answering(scope)
            await answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "websocket":
            if self._with_middleware is not None:
                await self._with_middleware(scope, receive, refusing(scope, send))
            else:
                await self._open_socket(scope, receive, send)

    def serve_at(
        self,
        path: str,
        handler: ASGIApp,
        *,
        below: bool = False,
        restrict: str = "",
        sockets: bool = False,
    ) -> None:
        """Serve another handler at a path, replacing what agents have there.

        With ``below`` it also serves all paths below it. Requests reach it after the check of
        hosts, and within CORS and middleware, like requests to agents; it checks callers itself, or
        the setting ``restrict`` of an endpoint does. With ``sockets`` it accepts WebSockets in
        addition to HTTP requests, after the check of their origin and within the limits of sockets.
        """
        if sockets:
            handler = TakesSockets(handler)
        if restrict:
            handler = self._routes.restricted(restrict, handler)
        self._routes.put(path, handler, below=below)

    @property
    def served(self) -> Sequence[ServedAgent]:
        """The agents, with their tenants and their advertised addresses."""
        return self._routes.served

    @property
    def address(self) -> AdvertisedInterfaces:
        """The advertised addresses of the server."""
        return self._routes.server

    @property
    def cards_are_public(self) -> bool:
        """True if everyone may see cards, and therefore a catalog of them."""
        return self._routes.cards_are_public

    def publish(
        self, link: CatalogLink | None, pages: Mapping[str, tuple[ASGIApp, Endpoint | None]]
    ) -> None:
        """Add the pages of a catalog by path, each with the agent whose callers may see it.

        A page without an agent is for callers of any agent, as cards are. Cards, pages for people
        and the root get the ``link`` to it. Existing handlers of agents stay.
        """
        self.publishes = link is not None
        self._routes.publish(link, pages)

    def handler_at(self, path: str) -> ASGIApp:
        """Return the handler at a path."""
        return self._routes.find(path)

    @property
    def revision(self) -> int:
        """The number of changes of the handlers at paths, and of accepted hosts."""
        return self._routes.revision + self.hosts.revision

    def requests(self, scope: Scope) -> AgentRequests | None:
        """Return the requests to an agent with the head of a scope, to be answered without ASGI.

        They are valid for all requests on the same connection with the same head, as long as
        ``revision`` is unchanged. ``None`` means that more than the agent's binding is involved in
        the answer: middleware, CORS, a restriction, another handler, a rejected host. The caller is
        identified for each request.
        """
        if self._with_middleware is not None or self._cors is not None or scope["type"] != "http":
            return None
        try:
            self.hosts.check(scope)
        except HostNotAllowed:
            return None
        requests = requests_of(self._handler(scope), scope)
        if requests is not None:
            requests.added = hsts_fields(scope, self.settings.hsts_max_age)
        return requests

    def takes_socket(self, scope: Scope) -> bool:
        """Return whether the handler of a scope's path accepts WebSockets."""
        return self.settings.max_sockets > 0 and takes_sockets(self._handler(scope))

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Start the agents, and stop them at the end."""
        try:
            await self.lifecycle.start()
            yield
        finally:
            await self.lifecycle.stop()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._open_socket if scope["type"] == "websocket" else self._answering(scope)
        await answer(scope, receive, send)

    async def _open_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket."""
        admission: ASGIApp = self._admission
        if not self._has_agents:
            admission = refused_by(self._handler(scope))
        try:
            self.hosts.check(scope)
        except HostNotAllowed as error:
            admission = refused_by(refusing_host(self._handler(scope), error))
        await admission(scope, receive, send)

    def _answering(self, scope: Scope) -> ASGIApp:
        """Return the app for an HTTP request, without a coroutine frame per request."""
        try:
            self.hosts.check(scope)
        except HostNotAllowed as error:
            return refusing_host(self._handler(scope), error)
        return self._cors or self._handler(scope)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope)(scope, receive, send)

    def _handler(self, scope: Scope) -> ASGIApp:
        return self._routes.find(route_path(scope), scope.get("raw_path") or b"")

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        """Follow ASGI's lifespan protocol, even if it is cancelled."""
        try:
            await self._follow_lifespan(receive, send)
        except asyncio.CancelledError:
            # The server is aborted: close everything, and wait for no turn.
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await self.lifecycle.stop()
            raise

    async def _follow_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.lifecycle.start()
        except Exception as error:
            _log.exception("the agents cannot start")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        try:
            await self.lifecycle.stop()
        except Exception as error:
            _log.exception("the server failed to stop cleanly")
            await send({"type": "lifespan.shutdown.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


def _key_headers(identify: object, endpoints: Iterable[Endpoint]) -> list[str]:
    """Return the headers that carry API keys for agents, which pages of other origins may send."""
    verifiers = (identify, *[endpoint.identify for endpoint in endpoints])
    schemes = [
        scheme.declared().api_key_security_scheme
        for verifier in verifiers
        if isinstance(verifier, Authenticator)
        for scheme in verifier.schemes
    ]
    return sorted({each.name for each in schemes if each and each.location == "header"})


def _is_open(rules: Authorization | None) -> bool:
    """Return whether everyone may call an agent with these rules."""
    if rules is None:
        return True
    return not rules.needs_identity and (rules.security is None or rules.security.is_open)


def _public_url(url: str | None) -> str | None:
    if url is not None and not _URL.fullmatch(url):
        raise ValueError(f"url is an address such as https://example.com/agents, not {url!r}")
    return url


# -- health -----------------------------------------------------------------------------------


class _Health(msgspec.Struct, omit_defaults=True):
    """The answer. ``reason`` is the reason why the agents cannot work now."""

    status: str
    reason: str = ""


async def live(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 200 as long as the process runs, whatever its store does."""
    await _answer(scope, send, 200, _Health("live"))


def ready(lifecycle: Lifecycle) -> ASGIApp:
    """Return the handler of the readiness probe: 503 before the start and while draining.

    It is also 503 while the store is known to be unreachable. A probe starts the agents of a
    mounted app that was not started otherwise.
    """

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        unavailable_reason = lifecycle.unavailable_reason
        if lifecycle.draining:
            await _answer(scope, send, 503, _Health("draining", unavailable_reason))
        elif unavailable_reason:
            await _answer(scope, send, 503, _Health("unavailable", unavailable_reason))
        elif lifecycle.started:
            await _answer(scope, send, 200, _Health("ready"))
        else:
            lifecycle.start_soon()
            await _answer(scope, send, 503, _Health("starting"))

    return handle


async def _answer(scope: Scope, send: Send, status: int, health: _Health) -> None:
    if scope["method"] == "HEAD":
        await reply_without_body(send, status, [NO_STORE])
    elif scope["method"] == "GET":
        await reply(send, status, msgspec.json.encode(health), [NO_STORE])
    else:
        await refuse_method(scope, send, "GET, HEAD", "the health of the server is read with GET")
