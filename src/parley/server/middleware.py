"""ASGI middleware around the app: ``parley.asgi(..., middleware=[...])``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeGuard

from starlette.middleware import Middleware
from starlette.types import ASGIApp

from parley.server.websocket.http_middleware import HandshakeMiddleware

if TYPE_CHECKING:
    from starlette.middleware.base import BaseHTTPMiddleware

AnyMiddleware = Middleware | Callable[[ASGIApp], ASGIApp]
"""Starlette's ``Middleware(cls, ...)``, or what takes an app and returns one."""

_EXPECTED = "Starlette's Middleware(cls, ...), or a function that takes an ASGI app and returns one"


def middleware_of(given: Iterable[AnyMiddleware]) -> tuple[AnyMiddleware, ...]:
    """Return a list of middleware, checked. Raises ``TypeError`` with what would be right."""
    if isinstance(given, Middleware) or callable(given) or not isinstance(given, Iterable):
        raise TypeError(f"middleware is a list: write middleware=[{_named(given)}]")
    checked = tuple(given)
    for each in checked:
        if not isinstance(each, Middleware) and not callable(each):
            raise TypeError(f"a middleware is {_EXPECTED}, not {each!r}")
    return checked


def wrapped(app: ASGIApp, middleware: Iterable[AnyMiddleware]) -> ASGIApp:
    """Return ``app`` with middleware around it, the first outermost.

    Raises ``TypeError`` for one that makes no app.
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
    base = sys.modules.get("starlette.middleware.base")  # not imported where nobody has one
    return base is not None and isinstance(made, base.BaseHTTPMiddleware)


def _named(middleware: object) -> str:
    if isinstance(middleware, Middleware):
        return f"Middleware({getattr(middleware.cls, '__name__', middleware.cls)}, ...)"
    return getattr(middleware, "__name__", None) or repr(middleware)
