"""ASGI middleware around the app: ``parley.asgi(..., middleware=[...])``.

Starlette's ``BaseHTTPMiddleware`` ignores WebSockets, so a guard of requests would not guard
sockets. Here its ``dispatch`` gets the handshake, a GET: a response rejects the socket, and the
answer of ``call_next`` has status 101.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeGuard

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.server.websocket.admission import as_http, refusing

if TYPE_CHECKING:
    from starlette.middleware.base import BaseHTTPMiddleware

AnyMiddleware = Middleware | Callable[[ASGIApp], ASGIApp]
"""Starlette's ``Middleware(cls, ...)``, or a function that takes an app and returns one."""

_EXPECTED = "Starlette's Middleware(cls, ...), or a function that takes an ASGI app and returns one"


def middleware_of(given: Iterable[AnyMiddleware]) -> tuple[AnyMiddleware, ...]:
    """Return a list of middleware, checked. Raises ``TypeError`` with the right form."""
    if isinstance(given, Middleware) or callable(given) or not isinstance(given, Iterable):
        raise TypeError(f"middleware is a list: write middleware=[{_named(given)}]")
    checked = tuple(given)
    for each in checked:
        if not isinstance(each, Middleware) and not callable(each):
            raise TypeError(f"a middleware is {_EXPECTED}, not {each!r}")
    return checked


def wrapped(app: ASGIApp, middleware: Iterable[AnyMiddleware]) -> ASGIApp:
    """Return ``app`` with middleware around it, the first outermost.

    Raises ``TypeError`` for a middleware that does not return an app.
    """
    for each in reversed(tuple(middleware)):
        try:
            if isinstance(each, Middleware):
                made: object = each.cls(app, *each.args, **each.kwargs)
            else:
                made = each(app)
        except TypeError as error:
            raise TypeError(
                f"the middleware {_named(each)} cannot be made: {error}. It is {_EXPECTED}; a "
                "function of a request and call_next goes as "
                "Middleware(BaseHTTPMiddleware, dispatch=...)"
            ) from error
        if inspect.iscoroutine(made):
            made.close()
        if not callable(made):
            raise TypeError(f"the middleware {_named(each)} returned {made!r}; it is {_EXPECTED}")
        app = HandshakeMiddleware(app, made) if _is_for_requests(made) else made
    return app


def _is_for_requests(made: object) -> TypeGuard[BaseHTTPMiddleware]:
    base = sys.modules.get("starlette.middleware.base")  # imported only by such a middleware
    return base is not None and isinstance(made, base.BaseHTTPMiddleware)


def _named(middleware: object) -> str:
    if isinstance(middleware, Middleware):
        return f"Middleware({getattr(middleware.cls, '__name__', middleware.cls)}, ...)"
    return getattr(middleware, "__name__", None) or repr(middleware)


# -- sockets ----------------------------------------------------------------------------------

_HANDSHAKE = "parley.handshake"
_OF_KINDS = ("type", "method", "scheme", "extensions")


class HandshakeMiddleware:
    """Middleware for requests, made for ``app``, that also handles its WebSockets."""

    def __init__(self, app: ASGIApp, middleware: BaseHTTPMiddleware) -> None:
        self._app = app
        self._middleware = middleware
        middleware.app = self._inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or first the handshake of a WebSocket."""
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
            # A changed answer of call_next rejects the socket after all.
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
        # Additions of the middleware to the scope: users, sessions, state.
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
