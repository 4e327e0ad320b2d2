"""Reads requests to become a WebSocket (RFC 6455 §4.2): which are, and whether they are right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from starlette.types import Scope

from parley.server.websocket.denial import DENIAL

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
    """What a right request asks for: ``accept`` answers its key, in the order of its preference."""

    accept: bytes
    subprotocols: tuple[str, ...]


def asks_for_socket(method: str, http_version: str, headers: Headers) -> bool:
    """Return whether a request asks for a WebSocket, in a right or in a wrong way.

    Only a GET without a body of HTTP/1.1 can. Others that name ``Upgrade`` are answered as if they
    did not (RFC 9110 §7.8).
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
    """Return what a request asks for. Raises ``BadHandshake``."""
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
    """Return the scope of a WebSocket, from that of the request which asked for it."""
    made = {name: value for name, value in scope.items() if name != "method"}
    made["type"] = "websocket"
    made["asgi"] = {**scope["asgi"], "spec_version": "2.4"}
    made["scheme"] = "wss" if scope["scheme"] == "https" else "ws"
    made["subprotocols"] = list(handshake.subprotocols)
    made["extensions"] = {**(scope.get("extensions") or {}), DENIAL: {}}
    return made
