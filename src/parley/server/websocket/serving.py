"""The upgrade of an HTTP connection to a WebSocket, and the shared state of a server's WebSockets.

The connection reads the head of a request. If ``Upgrades.takes`` finds that the request asks for a
WebSocket, the connection hands its transport over, and ends (RFC 6455 §4.2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, MutableSet
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import ASGIApp, Scope

from parley.server.limits import ByteReservation, SharedTimeouts, UnsentBytes
from parley.server.settings import Settings
from parley.server.websocket.admission import DENIAL

if TYPE_CHECKING:
    from parley.server.websocket.connection import SocketConnection

# -- handshake --------------------------------------------------------------------------------

Headers = list[tuple[bytes, bytes]]

VERSION = b"13"
"""The version of the WebSocket protocol; there is no later one."""

_KEY = b"sec-websocket-key"
_VERSION = b"sec-websocket-version"
_PROTOCOL = b"sec-websocket-protocol"


class BadHandshake(Exception):
    """The request asks for a WebSocket in a wrong way. ``status`` and ``headers`` are for HTTP."""

    def __init__(self, message: str, status: int = 400, headers: Iterable[Any] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.headers: Headers = [*headers]


class Handshake(msgspec.Struct, frozen=True):
    """A valid handshake: ``accept`` answers its key; subprotocols are in preference order."""

    accept: bytes
    subprotocols: tuple[str, ...]


def asks_for_socket(method: str, http_version: str, headers: Headers) -> bool:
    """Return whether a request asks for a WebSocket, correctly or not.

    Only a GET without a body over HTTP/1.1 can. Other requests with ``Upgrade`` are answered as if
    they had none (RFC 9110 §7.8).
    """
    if method != "GET" or http_version != "1.1":
        return False
    upgrade: list[bytes] = []
    options: set[bytes] = set()
    for name, value in headers:
        if name == b"upgrade":
            upgrade.append(value.strip().lower())
        elif name == b"connection":
            options.update(option.strip().lower() for option in value.split(b","))
        elif name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0")):
            return False
    return upgrade == [b"websocket"] and b"upgrade" in options


def read_handshake(scope: Mapping[str, Any]) -> Handshake:
    """Return the handshake in a request. Raises ``BadHandshake``."""
    from websockets.datastructures import Headers as TheirHeaders
    from websockets.http11 import Request
    from websockets.server import ServerProtocol

    headers: Headers = scope["headers"]
    versions = [value.strip() for name, value in headers if name == _VERSION]
    if versions != [VERSION]:
        raise BadHandshake(
            "this server speaks version 13 of the WebSocket protocol: send Sec-WebSocket-Version: "
            "13, once",
            426,
            [(_VERSION, VERSION), (b"upgrade", b"websocket"), (b"connection", b"Upgrade")],
        )
    if sum(name == _KEY for name, _ in headers) != 1:
        raise BadHandshake("a WebSocket handshake has one Sec-WebSocket-Key")
    given = TheirHeaders()
    for name, value in headers:
        given[name.decode("latin-1")] = value.decode("latin-1")
    protocol = ServerProtocol()
    response = protocol.accept(Request("/", given))
    if response.status_code != 101:
        why = str(protocol.handshake_exc or "it is malformed")
        raise BadHandshake(f"the WebSocket handshake is not valid: {why}")
    offered = b",".join(value for name, value in headers if name == _PROTOCOL).decode("latin-1")
    subprotocols = tuple(filter(None, (each.strip() for each in offered.split(","))))
    return Handshake(response.headers["Sec-WebSocket-Accept"].encode(), subprotocols)


def socket_scope(scope: Scope, handshake: Handshake) -> Scope:
    """Return the scope of a WebSocket, made from the scope of its request."""
    made = {name: value for name, value in scope.items() if name != "method"}
    made["type"] = "websocket"
    made["asgi"] = {**scope["asgi"], "spec_version": "2.4"}
    made["scheme"] = "wss" if scope["scheme"] == "https" else "ws"
    made["subprotocols"] = list(handshake.subprotocols)
    made["extensions"] = {**(scope.get("extensions") or {}), DENIAL: {}}
    return made


# -- serving ----------------------------------------------------------------------------------


CLOSE_TIMEOUT = 10.0
"""The time for a client to confirm the close of a socket, and to read the last messages."""

_LINGER = 2.0
# The time that a client may still send after its socket failed, so that it can read the reason.


class Handed(msgspec.Struct, frozen=True):
    """The request of a connection that hands its transport over.

    ``app`` answers, ``rest`` came after the head. At its end the server waits for ``connections``
    and ``tasks``.
    """

    scope: Scope
    rest: bytes
    app: ASGIApp
    connections: MutableSet[Any]
    tasks: MutableSet[asyncio.Task[None]]
    logs_access: bool


class SocketServing:
    """The shared parts of a server's WebSockets: limits, budgets, a timer for each kind of wait.

    ``unread_timeout`` is the time that a client may go without reading. ``closes``: sockets are
    closed when the server ends, unless an app drains them itself.
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

        def timeouts(
            seconds: float, expired: Callable[[SocketConnection], None]
        ) -> SharedTimeouts[SocketConnection]:
            return SharedTimeouts(seconds, expired)

        self.pings = timeouts(interval, lambda each: each.ping())
        self.pongs = timeouts(timeout, lambda each: each.expect_pong())
        self.messages = timeouts(self.message_timeout, lambda each: each.expect_message())
        self.closings = timeouts(CLOSE_TIMEOUT, lambda each: each.abort())
        self.lingering = timeouts(_LINGER, lambda each: each.end_lingering())
