"""The admission of a WebSocket: origin, start, limits, handler; rejection and draining.

Browsers let any page open a WebSocket, with the cookies and from the network of its user, so the
server checks the page's origin (RFC 6455 §10.2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.model.errors import A2AError, OverloadedError
from parley.security.networks import client_address
from parley.server.address import BadAddress, server_address
from parley.server.lifecycle import Lifecycle
from parley.server.limits import SocketLimits
from parley.server.settings import Settings

# -- rejection --------------------------------------------------------------------------------

DENIAL = "websocket.http.response"
"""The extension of ASGI for an HTTP answer to a handshake."""

_POLICY_VIOLATION = 1008
_MAX_REASON = 123  # bytes, of a close frame (RFC 6455 §5.5)


async def refuse_with(
    scope: Scope,
    send: Send,
    status: int,
    body: bytes,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    reason: str = "",
) -> None:
    """Reject a WebSocket that is not open yet.

    A server without the extension of ASGI sends status 403 instead.
    """
    if DENIAL not in (scope.get("extensions") or ()):
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": short(reason)})
        return
    length = (b"content-length", b"%d" % len(body))
    await send({"type": f"{DENIAL}.start", "status": status, "headers": [length, *headers]})
    await send({"type": f"{DENIAL}.body", "body": body})


async def refuse_with_message(
    scope: Scope,
    receive: Receive,
    send: Send,
    status: int,
    message: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Reject a WebSocket from which nothing was received yet, with a message for a person."""
    if (await receive())["type"] == "websocket.connect":
        body = msgspec.json.encode({"error": message})
        headers = [
            (b"content-type", b"application/json"), (b"cache-control", b"no-store"), *headers
        ]  # fmt: skip
        await refuse_with(scope, send, status, body, headers, reason=message)


def refused_by(handler: ASGIApp) -> ASGIApp:
    """Return an app that rejects a WebSocket with the answer of ``handler`` to a GET."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        is_received = False

        async def requested() -> Message:
            nonlocal is_received
            if is_received:
                return await receive()
            is_received = True
            return {"type": "http.request", "body": b"", "more_body": False}

        await handler(as_http(scope), requested, refusing(scope, send))

    return refuse


def refusing(scope: Scope, send: Send) -> Send:
    """Return a ``send`` that also accepts an HTTP answer, which rejects the WebSocket.

    Middleware for requests rejects sockets with it.
    """
    has_extension = DENIAL in (scope.get("extensions") or ())

    async def sending(message: Message) -> None:
        kind = message["type"]
        if not kind.startswith("http.response."):
            await send(message)
        elif has_extension:
            await send({**message, "type": f"websocket.{kind}"})
        elif kind == "http.response.start":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})

    return sending


def as_http(scope: Scope) -> Scope:
    """Return the scope of the GET that asked for a WebSocket."""
    scheme = "https" if scope.get("scheme") in ("wss", "https") else "http"
    return {**scope, "type": "http", "method": "GET", "scheme": scheme}


def short(reason: str) -> str:
    """Return the reason of a close frame, within its bytes."""
    return reason.encode()[:_MAX_REASON].decode(errors="ignore")


# -- draining ---------------------------------------------------------------------------------

OPEN_SOCKET = "parley.socket"
"""The extension of a scope with the ``ServedSocket``, which is notified when the server drains."""

SERVICE_RESTART = 1012
"""The code that tells a client to connect again: to another replica, or to the next process."""

SHUTTING_DOWN = "the server is shutting down"


class ServedSocket:
    """An open WebSocket, which ends when the server drains.

    Its handler sets ``on_drain``; without it the socket is closed at once.
    """

    __slots__ = ("_send", "is_draining", "on_drain")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_draining = False
        self.on_drain: Callable[[], None] | None = None

    async def close(self) -> None:
        """Close it, if it is open."""
        with suppress(OSError, RuntimeError):  # already closed, or never accepted
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


# -- origins ----------------------------------------------------------------------------------

_ANY = "*"
_DEFAULT_PORTS = {"http": 80, "https": 443}


class OriginNotAllowed(Exception):
    """The page that asks is of another origin."""


class AllowedOrigins:
    """The origins whose pages may open sockets: the server's own, and ``cors_origins``.

    Clients other than browsers send no origin, and are accepted.
    """

    def __init__(self, allowed: Iterable[str], *, url: str | None, trust_proxy: bool) -> None:
        self._allowed = {_origin(each) for each in allowed if each != _ANY}
        self._is_open = _ANY in allowed
        self._own = None if url is None else _origin(url)
        self._trust_proxy = trust_proxy

    def check(self, scope: Scope) -> None:
        """Raise ``OriginNotAllowed`` for a page of another origin."""
        given = [value for name, value in scope["headers"] if name == b"origin"]
        if not given or self._is_open:
            return
        origin = _origin(given[0].decode("latin-1")) if len(given) == 1 else ""
        if origin and (origin in self._allowed or origin == self._own or origin == self._of(scope)):
            return
        raise OriginNotAllowed(
            "pages of this origin may not open a WebSocket here; if they are meant to, add the "
            "origin to cors_origins (parley.Settings), or, behind a proxy, have the server know "
            "its public address (url, or trust_proxy)"
        )

    def _of(self, scope: Scope) -> str:
        """Return the origin that the request was sent to."""
        try:
            return _origin(server_address(scope, trust_proxy=self._trust_proxy))
        except BadAddress:
            return ""


def _origin(address: str) -> str:
    """Return the canonical origin of an address, empty if it has none (``null``)."""
    try:
        parts = urlsplit(address)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return ""
    if not parts.hostname or port is None:
        return ""
    return f"{parts.scheme}://{parts.hostname}:{port}"


# -- admission --------------------------------------------------------------------------------

NOTHING_HERE = "no WebSocket can be opened at this address"


class TakesSockets:
    """Marks a handler that accepts WebSockets in addition to HTTP requests."""

    takes_sockets = True

    def __init__(self, handler: ASGIApp) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request or a WebSocket on."""
        await self._handler(scope, receive, send)


def takes_sockets(handler: ASGIApp) -> bool:
    """Return whether a handler accepts WebSockets, by its attribute ``takes_sockets``."""
    return bool(getattr(handler, "takes_sockets", False))


class SocketAdmission:
    """Passes WebSockets to the handlers of their paths, and rejects others with an HTTP answer.

    ``handler`` returns the handler of the path of a scope.
    """

    def __init__(
        self,
        handler: Callable[[Scope], ASGIApp],
        *,
        settings: Settings,
        url: str | None,
        lifecycle: Lifecycle,
        limits: SocketLimits,
    ) -> None:
        self._handler = handler
        self._lifecycle = lifecycle
        self._limits = limits
        self._trust_proxy = settings.trust_proxy
        self._takes_any = settings.max_sockets > 0
        self._origins = AllowedOrigins(
            settings.cors_origins, url=url, trust_proxy=settings.trust_proxy
        )
        self._open = ServedSockets()
        lifecycle.on_drain(self._open.drain)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one WebSocket, from its handshake to its end."""
        handler = self._handler(scope)
        if not (self._takes_any and takes_sockets(handler)):
            await refuse_with_message(scope, receive, send, 404, NOTHING_HERE)
            return
        try:
            self._origins.check(scope)
        except OriginNotAllowed as error:
            await refuse_with_message(scope, receive, send, 403, str(error))
            return
        address = client_address(scope, trust_proxy=self._trust_proxy)
        try:
            await self._start()
            self._limits.acquire(address)
        except A2AError as error:
            retry = (b"retry-after", b"%d" % (error.retry_after or 1))
            status, message = error.http_status, error.message
            await refuse_with_message(scope, receive, send, status, message, [retry])
            return
        # No context managers, and no copy of the scope: they would live as long as the socket.
        socket = ServedSocket(send)
        self._open.add(socket)
        scope["extensions"] = {**(scope.get("extensions") or {}), OPEN_SOCKET: socket}
        try:
            await handler(scope, receive, send)
        finally:
            self._open.discard(socket)
            self._limits.release(address)

    async def _start(self) -> None:
        """Start the agents, if the outer app did not. Raises ``OverloadedError``."""
        if self._lifecycle.draining:
            raise OverloadedError(SHUTTING_DOWN, retry_after=1)
        if not self._lifecycle.started:
            try:
                await self._lifecycle.start_late()
            except Exception as error:  # the lifecycle has logged it
                raise OverloadedError("the server cannot start; its log says why") from error
