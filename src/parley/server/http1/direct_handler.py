"""Handlers that know requests in whose answers nothing but their exchange has a say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from starlette.types import ASGIApp, Scope

from parley.server.http.exchange import Exchange


class DirectRequests(Protocol):
    """The requests that have one head, and that their exchange answers itself."""

    @property
    def scope(self) -> Scope:
        """The ASGI scope of all of them: its Content-Length is that of one."""
        ...

    def takes(self, length: int) -> bool:
        """Whether one whose body has so many bytes is answered so, now."""
        ...

    def exchange(self) -> Exchange:
        """Return the exchange of one."""
        ...


class DirectHandler(ABC):
    """An ASGI app that may leave out ASGI: a binding, or what is around one."""

    @abstractmethod
    def direct(self, scope: Scope) -> DirectRequests | None:
        """Return the requests with the head of a scope, if their exchange answers them itself.

        ``None`` for those that the handler does more with, such as to find out who calls.
        """


def direct_requests(handler: ASGIApp, scope: Scope) -> DirectRequests | None:
    """Return what ``direct`` of a handler returns; ``None`` for any other ASGI app."""
    return handler.direct(scope) if isinstance(handler, DirectHandler) else None
