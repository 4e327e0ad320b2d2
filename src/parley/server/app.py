"""The ASGI app of one or more agents: bindings, discovery and health, put together."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.server.address import route_path
from parley.server.byte_budget import ByteReservation
from parley.server.endpoint import Endpoint as Endpoint
from parley.server.hosts import Hosts, NotOurHost
from parley.server.http import health
from parley.server.http.exchange import Identify
from parley.server.http.misdirected import refuse_host
from parley.server.http.streams import Streams
from parley.server.lifecycle import Hook, Lifecycle
from parley.server.routes import Routes, checked
from parley.server.settings import Settings as Settings
from parley.server.slow_readers import UnsentBytes

_URL = re.compile(r"https?://[^/?#\s]+(?:/[^?#\s]*)?")
_REQUEST_HEADERS = (
    "A2A-Version",
    "A2A-Extensions",
    "X-A2A-Extensions",
    "Authorization",
    "Content-Type",
    "If-None-Match",
    "Last-Event-ID",
    "traceparent",
)
_RESPONSE_HEADERS = (
    "A2A-Version",
    "A2A-Extensions",
    "X-A2A-Extensions",
    "ETag",
    "Retry-After",
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
    instead: str = "",
) -> App:
    """Return the app that serves agents, each under its path ("" or "/" for the root).

    ``identify`` says who sends a request, from its ASGI scope; without it everybody is anonymous.
    It gives an ``issuer`` where ids come from several, and ``authenticated=True`` for an id that it
    has checked: an unauthenticated "bob" is another caller than "bob".
    ``url`` is the public address of the app, where requests do not tell it. ``startup`` runs once
    before the first request is answered, ``on_drain`` when the end is near, ``shutdown`` at it.
    ``unavailable_reason`` says why nothing can be done just now: then the app is not ready.
    With ``instead`` it can do without agents: it tells how it is (health), and whoever asks for
    anything else those words.

    Raises ``ValueError`` for a path or a URL that cannot be one.
    """
    if not endpoints and not instead:
        raise ValueError("a server needs at least one agent")
    lifecycle = Lifecycle(startup, shutdown, unavailable_reason)
    if on_drain is not None:
        lifecycle.on_drain(on_drain)
    return App(
        checked(endpoints),
        settings=settings or Settings(),
        identify=identify,
        url=_public(url),
        lifecycle=lifecycle,
        instead=instead,
    )


class App:
    """An ASGI app: run it, or mount it in another under a prefix.

    Where it is mounted, pass ``lifespan=app.lifespan`` to the app around it (or enter it in that
    app's own lifespan), so that it is started and stopped with it; without that, the first request
    starts it and nothing stops it.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        *,
        settings: Settings,
        identify: Identify | None,
        url: str | None,
        lifecycle: Lifecycle,
        instead: str = "",
    ) -> None:
        self.lifecycle = lifecycle
        self.settings = settings
        self.is_open = identify is None
        streams = Streams(settings)
        lifecycle.on_drain(streams.drain)
        self.hosts = Hosts(settings.allowed_hosts, url=url, trust_proxy=settings.trust_proxy)
        self.held = ByteReservation(settings)
        self.unsent = UnsentBytes(settings)
        self._routes = Routes(
            endpoints,
            settings=settings,
            identify=identify,
            url=url,
            lifecycle=lifecycle,
            streams=streams,
            hosts=self.hosts,
            held=self.held,
            instead=instead,
        )
        self.agents = self._routes.agents
        self.grpc = self._routes.grpc
        self._routes.add("/health/live", health.live)
        self._routes.add("/health/ready", health.ready(lifecycle))
        self._cors: ASGIApp | None = None
        if settings.cors_origins:
            self._cors = CORSMiddleware(
                self._dispatch,
                allow_origins=settings.cors_origins,
                allow_methods=("GET", "POST", "DELETE", "HEAD"),
                allow_headers=_REQUEST_HEADERS,
                expose_headers=_RESPONSE_HEADERS,
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI asks."""
        if scope["type"] == "http":
            try:
                self.hosts.check(scope)
            except NotOurHost as error:
                await refuse_host(self._handler(scope), error, scope, send)
                return
            await (self._cors or self._handler(scope))(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Start what is served, and stop it at the end."""
        try:
            await self.lifecycle.start()
            yield
        finally:
            await self.lifecycle.stop()

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope)(scope, receive, send)

    def _handler(self, scope: Scope) -> ASGIApp:
        return self._routes.find(route_path(scope), scope.get("raw_path") or b"")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Follow the lifespan of the server (ASGI's lifespan protocol)."""
        try:
            await self._follow(receive, send)
        except asyncio.CancelledError:
            # The server is given up: what is open is closed, and nobody's turn is waited for.
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await self.lifecycle.stop()
            raise

    async def _follow(self, receive: Receive, send: Send) -> None:
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
            _log.exception("the server did not stop as it should")
            await send({"type": "lifespan.shutdown.failed", "message": str(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


def _public(url: str | None) -> str | None:
    if url is not None and not _URL.fullmatch(url):
        raise ValueError(f"url is an address such as https://example.com/agents, not {url!r}")
    return url
