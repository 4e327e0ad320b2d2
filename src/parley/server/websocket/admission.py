"""The way of a WebSocket through the app: origin, start, limits, and to what answers its path."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.errors import A2AError, OverloadedError
from parley.security.credentials.client_address import client_address
from parley.server.lifecycle import Lifecycle
from parley.server.settings import Settings
from parley.server.websocket.denial import refuse_with_message
from parley.server.websocket.draining import OPEN_SOCKET, SHUTTING_DOWN, ServedSocket, ServedSockets
from parley.server.websocket.limits import SocketLimits
from parley.server.websocket.origins import AllowedOrigins, OriginNotAllowed

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
