"""Starlette's ``BaseHTTPMiddleware`` around WebSockets: it sees the request that asks for one.

By itself it passes over all that is no request, so what guards requests with it would not guard
sockets. Its ``dispatch`` gets the handshake, a GET: a response refuses the socket, and what
``call_next`` returns there has status 101.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.server.websocket.denial import as_http, refusing

if TYPE_CHECKING:
    from starlette.middleware.base import BaseHTTPMiddleware

_HANDSHAKE = "parley.handshake"
_OF_KINDS = ("type", "method", "scheme", "extensions")


class HandshakeMiddleware:
    """Middleware for requests, which was made of ``app``, around its WebSockets too."""

    def __init__(self, app: ASGIApp, middleware: BaseHTTPMiddleware) -> None:
        self._app = app
        self._middleware = middleware
        middleware.app = self._inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request through, or the handshake of a WebSocket before that."""
        if scope["type"] != "websocket":
            await self._middleware(scope, receive, send)
            return
        first = await receive()
        if first["type"] != "websocket.connect":
            return
        admitted: list[Scope] = []
        asked = as_http(scope)
        asked["extensions"] = {**(scope.get("extensions") or {}), _HANDSHAKE: admitted}
        answer = refusing(scope, send)

        async def request() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def refused(message: Message) -> None:
            # Whoever changes the answer of call_next into another one refuses after all.
            if message["type"] == "http.response.start":
                if message["status"] == 101:
                    return
                admitted.clear()
                is_refused.append(True)
            if is_refused:
                await answer(message)

        is_refused: list[bool] = []
        await self._middleware(asked, request, refused)
        if not admitted:
            return
        # What the middleware has put into the scope: users, sessions, state.
        found = {name: value for name, value in admitted[0].items() if name not in _OF_KINDS}
        is_received = False

        async def receiving() -> Message:
            nonlocal is_received
            if is_received:
                return await receive()
            is_received = True
            return first

        await self._app({**scope, **found}, receiving, send)

    async def _inner(self, scope: Scope, receive: Receive, send: Send) -> None:
        admitted = (scope.get("extensions") or {}).get(_HANDSHAKE)
        if admitted is None:
            await self._app(scope, receive, send)
            return
        admitted.append(scope)
        await send({"type": "http.response.start", "status": 101, "headers": []})
        await send({"type": "http.response.body", "body": b""})
