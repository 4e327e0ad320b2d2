"""Open WebSockets when the server drains: each is closed once its answers are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.types import Send

OPEN_SOCKET = "parley.socket"
"""The extension of a scope with the ``ServedSocket``, which learns that the server drains."""

SERVICE_RESTART = 1012
"""The code that tells a client to connect again: to another replica, or to the next process."""

SHUTTING_DOWN = "the server is shutting down"


class ServedSocket:
    """A WebSocket under way, which is told to end when the server drains.

    What answers it sets ``on_drain``. One that does not is closed at once.
    """

    __slots__ = ("_send", "is_draining", "on_drain")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_draining = False
        self.on_drain: Callable[[], None] | None = None

    async def close(self) -> None:
        """Close it, if it is open."""
        with suppress(OSError, RuntimeError):  # closed by then, or never accepted
            await self._send(
                {"type": "websocket.close", "code": SERVICE_RESTART, "reason": SHUTTING_DOWN}
            )


class ServedSockets:
    """The open WebSockets of a server, drained together."""

    def __init__(self) -> None:
        self._open: set[ServedSocket] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, socket: ServedSocket) -> None:
        """Add a socket, until ``discard``."""
        self._open.add(socket)

    def discard(self, socket: ServedSocket) -> None:
        """Remove a socket that has ended."""
        self._open.discard(socket)

    def drain(self) -> None:
        """Have all sockets end: their clients connect again, to another replica."""
        for socket in list(self._open):
            socket.is_draining = True
            if socket.on_drain is not None:
                socket.on_drain()
            else:
                self.close(socket)

    def close(self, socket: ServedSocket) -> None:
        """Close a socket without waiting for it."""
        task = asyncio.get_running_loop().create_task(socket.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
