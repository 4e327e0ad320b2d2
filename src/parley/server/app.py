"""The ASGI app of one or more agents: bindings, discovery and health, put together."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.server import health
from parley.server.address import BadAddress, route_path
from parley.server.discovery import CARD_PATHS, CardPage
from parley.server.dispatch import Dispatcher
from parley.server.endpoint import Endpoint as Endpoint
from parley.server.exchange import Identify, Surroundings
from parley.server.http_json import HttpJsonBinding
from parley.server.jsonrpc import JsonRpcBinding
from parley.server.lifecycle import Hook, Lifecycle
from parley.server.offer import Offer
from parley.server.replies import reply, reply_in_words, reply_without_body
from parley.server.settings import Settings as Settings
from parley.server.streams import Streams

_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_URL = re.compile(r"https?://[^/?#\s]+(?:/[^?#\s]*)?")
_OWN_PATHS = ("/health", "/.well-known")
_REQUEST_HEADERS = (
    "A2A-Version",
    "A2A-Extensions",
    "Authorization",
    "Content-Type",
    "If-None-Match",
    "Last-Event-ID",
    "traceparent",
)
_RESPONSE_HEADERS = ("A2A-Version", "A2A-Extensions", "ETag", "Retry-After")
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
) -> App:
    """Return the app that serves agents, each under its path ("" or "/" for the root).

    ``identify`` says who sends a request, from its ASGI scope; without it everybody is anonymous.
    ``url`` is the public address of the app, where requests do not tell it. ``startup`` runs once
    before the first request is answered, ``on_drain`` when the end is near, ``shutdown`` at it.

    Raises ``ValueError`` for a path or a URL that cannot be one.
    """
    lifecycle = Lifecycle(startup, shutdown)
    if on_drain is not None:
        lifecycle.on_drain(on_drain)
    return App(
        _endpoints(endpoints),
        settings=settings or Settings(),
        identify=identify,
        url=_public(url),
        lifecycle=lifecycle,
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
    ) -> None:
        self.lifecycle = lifecycle
        self.is_open = identify is None
        streams = Streams(settings)
        lifecycle.on_drain(streams.drain)
        self._offers: list[Offer] = []
        self._below: dict[str, HttpJsonBinding] = {}
        self._handlers: dict[str, ASGIApp] = {
            "/health/live": health.live,
            "/health/ready": health.ready(lifecycle),
        }
        for prefix, endpoint in endpoints.items():
            offer = Offer(prefix, url=url, trust_proxy=settings.trust_proxy)
            card = CardPage(endpoint, offer, settings=settings)
            surroundings = Surroundings(
                dispatcher=Dispatcher(endpoint, lifecycle),
                settings=settings,
                lifecycle=lifecycle,
                streams=streams,
                identify=identify,
                interfaces=offer.interfaces,
            )
            binding = JsonRpcBinding(surroundings)
            self._offers.append(offer)
            self._handlers[prefix or "/"] = self._handlers[f"{prefix}/"] = binding
            for path in CARD_PATHS:
                self._handlers[prefix + path] = card
            self._below[prefix] = HttpJsonBinding(surroundings, prefix)
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
            await (self._cors or self._handler(scope))(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Start what is served, and stop it at the end."""
        await self.lifecycle.start()
        try:
            yield
        finally:
            await self.lifecycle.stop()

    def _handler(self, scope: Scope) -> ASGIApp:
        # Most paths are known as they are, so one look-up takes the place of a router.
        path = route_path(scope)
        handler = self._handlers.get(path)
        if handler is not None:
            return handler
        prefix = path
        while prefix:
            prefix = prefix[: prefix.rfind("/")]
            if prefix in self._below:
                return self._below[prefix]
        return self._nothing_here

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope)(scope, receive, send)

    async def _nothing_here(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Say which agents there are: the index of a server that has none at its root."""
        path = route_path(scope)
        try:
            addresses = [offer.address(scope) for offer in self._offers]
        except BadAddress as error:
            await reply_in_words(scope, send, 400, str(error))
            return
        body: dict[str, Any] = {
            "agents": [
                {"url": address, "card": address.rstrip("/") + CARD_PATHS[0]}
                for address in addresses
            ]
        }
        is_index = path == "/" and scope["method"] in ("GET", "HEAD")
        if not is_index:
            body = {"error": f"nothing is at {path[:200]}; the agents here are these", **body}
        if scope["method"] == "HEAD":
            await reply_without_body(send, 200 if is_index else 404)
        else:
            await reply(send, 200 if is_index else 404, msgspec.json.encode(body))

    async def _live(self, receive: Receive, send: Send) -> None:
        """Follow the lifespan of the server (ASGI's lifespan protocol)."""
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


def _prefix(path: str) -> str:
    prefix = path.rstrip("/")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise ValueError(f"an agent's path is one such as /time, or / for the root, not {path!r}")
    if any(prefix == own or prefix.startswith(f"{own}/") for own in _OWN_PATHS):
        raise ValueError(f"the path {path!r} is the server's own: {', '.join(_OWN_PATHS)}")
    return prefix


def _endpoints(given: Mapping[str, Endpoint]) -> dict[str, Endpoint]:
    endpoints = {_prefix(path): endpoint for path, endpoint in given.items()}
    if not endpoints:
        raise ValueError("a server needs at least one agent")
    if len(endpoints) < len(given):
        raise ValueError(f"two agents have the same path: {', '.join(map(repr, given))}")
    return endpoints


def _public(url: str | None) -> str | None:
    if url is not None and not _URL.fullmatch(url):
        raise ValueError(f"url is an address such as https://example.com/agents, not {url!r}")
    return url
