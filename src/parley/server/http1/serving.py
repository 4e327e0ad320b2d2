"""What the HTTP connections of a server share: its app, their limits, and who is connected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from starlette.types import ASGIApp

from parley.server.http1.direct import AnswersDirectly
from parley.server.http1.proxies import KnownProxies
from parley.server.limits.byte_budget import ByteReservation
from parley.server.limits.slow_readers import UnsentBytes
from parley.server.websocket.upgrade import Upgrades


class Connected(Protocol):
    """A connection, as its server sees it."""

    def shutdown(self) -> None:
        """Close the connection after the answer under way."""
        ...

    def abort(self) -> None:
        """Abort the connection."""
        ...


M = TypeVar("M")


class Members(set[M]):
    """A set that tells when its last member has gone."""

    def __init__(self, on_empty: Callable[[], None]) -> None:
        super().__init__()
        self._on_empty = on_empty

    def discard(self, member: object) -> None:
        """Remove a member, if it is one."""
        super().discard(member)
        if not self:
            self._on_empty()


class HttpServing:
    """The app of a server, the limits of each connection, and the budgets that all share.

    ``head_timeout`` is in seconds from the first byte of a request to the end of its headers.
    ``body_timeout`` is for the body, extended with what arrives, and for each pause in it.
    ``idle_timeout`` is for the time between requests, and for a client that does not read.
    ``request_bytes`` bounds unanswered input, ``unsent_bytes`` unread output. ``proxies`` are those
    whose headers say who the sender is; ``None`` believes nobody. ``upgrades`` makes WebSockets of
    the requests that ask for one; without it nothing does. ``state`` is what the app's lifespan
    gives to its requests. ``direct`` knows the requests that need no ASGI.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_connections: int,
        head_timeout: float,
        body_timeout: float,
        idle_timeout: float,
        request_bytes: ByteReservation,
        unsent_bytes: UnsentBytes,
        proxies: KnownProxies | None = None,
        upgrades: Upgrades | None = None,
        logs_access: bool = False,
        direct: AnswersDirectly | None = None,
    ) -> None:
        self.app = app
        self.max_connections = max_connections
        self.head_timeout = head_timeout
        self.body_timeout = body_timeout
        self.idle_timeout = idle_timeout
        self.request_bytes = request_bytes
        self.unsent_bytes = unsent_bytes
        self.proxies = proxies
        self.upgrades = upgrades
        self.logs_access = logs_access
        self.direct = direct
        self.state: dict[str, Any] = {}
        self._ended = asyncio.Event()
        self.connections: Members[Connected] = Members(self._check_ended)
        self.tasks: Members[asyncio.Task[None]] = Members(self._check_ended)

    def _check_ended(self) -> None:
        if not (self.connections or self.tasks):
            self._ended.set()

    async def wait_ended(self) -> None:
        """Wait until there is no connection and no task."""
        while self.connections or self.tasks:
            self._ended.clear()
            await self._ended.wait()
