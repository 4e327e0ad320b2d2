"""The way of a WebSocket through the app: origin, start, limits, and to what answers its path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.errors import A2AError, OverloadedError
from parley.security.networks import client_address
from parley.server.address import BadAddress, server_address
from parley.server.lifecycle import Lifecycle
from parley.server.settings import Settings
from parley.server.websocket.denial import refuse_with_message
from parley.server.websocket.draining import OPEN_SOCKET, SHUTTING_DOWN, ServedSocket, ServedSockets
from parley.server.websocket.limits import SocketLimits

# -- origins ----------------------------------------------------------------------------------
#
# Which pages may open WebSockets (RFC 6455 §10.2): browsers ask nobody before, so servers check.
#
# Cookies and the network that a browser is in would be those of its user, whatever page asks.


_ANY = "*"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class OriginNotAllowed(Exception):
    """The page that asks is of another origin."""


class AllowedOrigins:
    """The origins whose pages may open sockets: the server's own, and ``cors_origins``.

    Clients that are no browsers send no origin, and pass.
    """

    def __init__(self, allowed: Iterable[str], *, url: str | None, trust_proxy: bool) -> None:
        self._allowed = {_origin(each) for each in allowed if each != _ANY}
        self._is_open = _ANY in allowed
        self._own = None if url is None else _origin(url)
        self._trust_proxy = trust_proxy

    def check(self, scope: Scope) -> None:
        """Raise ``OriginNotAllowed`` for a page of another origin."""
        given = [value for name, value in scope["headers"] if name == b"origin"]
        if not given or self._is_open:
            return
        origin = _origin(given[0].decode("latin-1")) if len(given) == 1 else ""
        if origin and (origin in self._allowed or origin == self._own or origin == self._of(scope)):
            return
        raise OriginNotAllowed(
            "pages of this origin may not open a WebSocket here; if they are meant to, add the "
            "origin to cors_origins (parley.Settings), or, behind a proxy, have the server know "
            "its public address (url, or trust_proxy)"
        )

    def _of(self, scope: Scope) -> str:
        """Return the origin that the request was sent to."""
        try:
            return _origin(server_address(scope, trust_proxy=self._trust_proxy))
        except BadAddress:
            return ""


def _origin(address: str) -> str:
    """Return the origin of an address in one form, empty if it has none (``null``)."""
    try:
        parts = urlsplit(address)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return ""
    if not parts.hostname or port is None:
        return ""
    return f"{parts.scheme}://{parts.hostname}:{port}"


# -- admission --------------------------------------------------------------------------------


NOTHING_HERE = "no WebSocket can be opened at this address"


class TakesSockets:
    """Marks a handler as one that takes WebSockets besides HTTP requests."""

    takes_sockets = True

    def __init__(self, handler: ASGIApp) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request or a WebSocket on."""
        await self._handler(scope, receive, send)


def takes_sockets(handler: ASGIApp) -> bool:
    """Return whether a handler takes WebSockets: it says so with ``takes_sockets = True``."""
    return bool(getattr(handler, "takes_sockets", False))


class SocketAdmission:
    """Admits WebSockets to the handlers of their paths, and refuses others with an HTTP answer.

    ``handler`` returns what answers the path of a scope.
    """

    def __init__(
        self,
        handler: Callable[[Scope], ASGIApp],
        *,
        settings: Settings,
        url: str | None,
        lifecycle: Lifecycle,
        limits: SocketLimits,
    ) -> None:
        self._handler = handler
        self._lifecycle = lifecycle
        self._limits = limits
        self._trust_proxy = settings.trust_proxy
        self._takes_any = settings.max_sockets > 0
        self._origins = AllowedOrigins(
            settings.cors_origins, url=url, trust_proxy=settings.trust_proxy
        )
        self._open = ServedSockets()
        lifecycle.on_drain(self._open.drain)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket, from its handshake to its end."""
        handler = self._handler(scope)
        if not (self._takes_any and takes_sockets(handler)):
            await refuse_with_message(scope, receive, send, 404, NOTHING_HERE)
            return
        try:
            self._origins.check(scope)
        except OriginNotAllowed as error:
            await refuse_with_message(scope, receive, send, 403, str(error))
            return
        address = client_address(scope, trust_proxy=self._trust_proxy)
        try:
            await self._start()
            self._limits.acquire(address)
        except A2AError as error:
            retry = (b"retry-after", b"%d" % (error.retry_after or 1))
            status, message = error.http_status, error.message
            await refuse_with_message(scope, receive, send, status, message, [retry])
            return
        # No context managers, and no copy of the scope: they would stay as long as the socket.
        socket = ServedSocket(send)
        self._open.add(socket)
        scope["extensions"] = {**(scope.get("extensions") or {}), OPEN_SOCKET: socket}
        try:
            await handler(scope, receive, send)
        finally:
            self._open.discard(socket)
            self._limits.release(address)

    async def _start(self) -> None:
        """Start the agents, if the outer app did not. Raises ``OverloadedError``."""
        if self._lifecycle.draining:
            raise OverloadedError(SHUTTING_DOWN, retry_after=1)
        if not self._lifecycle.started:
            try:
                await self._lifecycle.start_late()
            except Exception as error:  # the lifecycle has logged it
                raise OverloadedError("the server cannot start; its log says why") from error
