"""How an HTTP connection becomes a WebSocket.

The connection reads the head of a request as always. Where ``Upgrades.takes`` says that the request
asks for a WebSocket, the connection gives its transport away with ``hand_over``, and is no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Scope

from parley.server.websocket.handshake import asks_for_socket
from parley.server.websocket.serving import Handed, SocketServing


class Upgrades:
    """Makes WebSockets of the requests that ask for one, where ``takes`` says so of their scope."""

    def __init__(self, serving: SocketServing, takes: Callable[[Scope], bool]) -> None:
        self._serving = serving
        self._takes = takes

    def takes(self, scope: Scope) -> bool:
        """Return whether a request, given as its HTTP scope, is for a WebSocket."""
        headers = scope["headers"]
        is_asked = asks_for_socket(scope["method"], scope["http_version"], headers)
        return is_asked and self._takes(scope)

    def hand_over(self, transport: asyncio.Transport, handed: Handed) -> None:
        """Make a connection a WebSocket: shake hands, and call the app."""
        # Imported here: servers without sockets do not pay for websockets.
        from parley.server.websocket.connection import SocketConnection

        SocketConnection(self._serving, transport).begin(handed)
