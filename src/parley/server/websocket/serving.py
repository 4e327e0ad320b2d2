"""What the WebSockets of a server share, and what connections give away that become one."""

from __future__ import annotations

import asyncio
from collections.abc import MutableSet
from typing import Any, Protocol

import msgspec
from starlette.types import ASGIApp, Scope

from parley.server.limits.byte_budget import ByteReservation
from parley.server.limits.slow_readers import UnsentBytes
from parley.server.settings import Settings
from parley.server.websocket.timeouts import SharedTimeouts

CLOSE_TIMEOUT = 10.0
"""How long a client has to confirm that a socket is closed, and to read what was sent before."""

_LINGER = 2.0
# How long a client may go on sending after its socket failed, so that it can read why.


class TimedSocket(Protocol):
    """A WebSocket as timeouts see it."""

    def ping(self) -> None:
        """Ask whether the client is there."""
        ...

    def expect_pong(self) -> None:
        """Give up a client that has not answered."""
        ...

    def expect_message(self) -> None:
        """Give up a message that takes too long."""
        ...

    def end_lingering(self) -> None:
        """Wait no longer for the end of a failed socket."""
        ...

    def abort(self) -> None:
        """Abort the connection."""
        ...


class Handed(msgspec.Struct, frozen=True):
    """What a connection gives away with its transport.

    ``app`` answers, ``rest`` came behind the head. ``connections`` and ``tasks`` are those that the
    server waits for at its end.
    """

    scope: Scope
    rest: bytes
    app: ASGIApp
    connections: MutableSet[Any]
    tasks: MutableSet[asyncio.Task[None]]
    logs_access: bool


class SocketServing:
    """What the WebSockets of a server share: limits, budgets, and one timer for each kind of wait.

    ``unread_timeout`` is how long a client may read nothing. ``closes``: sockets are closed when
    the server ends; an app that drains them itself does it better.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        request_bytes: ByteReservation,
        unsent_bytes: UnsentBytes,
        unread_timeout: float,
        closes: bool,
    ) -> None:
        self.max_message = settings.max_socket_message_bytes or settings.max_body_bytes
        self.message_timeout = settings.body_timeout
        self.request_bytes = request_bytes
        self.unsent_bytes = unsent_bytes
        self.unread_timeout = unread_timeout
        self.closes = closes
        interval, timeout = settings.socket_ping_interval, settings.socket_ping_timeout
        self.pings = SharedTimeouts[TimedSocket](interval, lambda each: each.ping())
        self.pongs = SharedTimeouts[TimedSocket](timeout, lambda each: each.expect_pong())
        self.messages = SharedTimeouts[TimedSocket](
            self.message_timeout, lambda each: each.expect_message()
        )
        self.closings = SharedTimeouts[TimedSocket](CLOSE_TIMEOUT, lambda each: each.abort())
        self.lingering = SharedTimeouts[TimedSocket](_LINGER, lambda each: each.end_lingering())
