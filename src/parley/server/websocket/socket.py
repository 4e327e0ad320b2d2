"""A binding's view of a WebSocket, under any ASGI server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from starlette.types import Receive, Scope, Send

from parley.server.websocket.admission import (
    OPEN_SOCKET,
    SERVICE_RESTART,
    SHUTTING_DOWN,
    ServedSocket,
    refuse_with,
    short,
)

_UNSUPPORTED_DATA = 1003
_ABNORMAL_CLOSURE = 1006


class SocketClosed(ConnectionError):
    """The WebSocket is closed: nothing can be sent any more."""


class ServerSocket:
    """A WebSocket of one client, which carries text messages.

    Accept or reject it first, once. Many tasks may send at the same time; a whole message is sent
    before the next. ``send`` waits while the client does not read. One task receives: until
    ``receive`` is called again, further messages wait, and so does the client.

    ``close_code`` is the client's: 1006 if the connection broke.

    When the server drains, the socket is closed once nothing is within ``answering``; ``on_drain``
    is called before. From then on ``is_draining`` is true, and new work must be rejected.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.subprotocols: tuple[str, ...] = tuple(scope.get("subprotocols") or ())
        self.subprotocol: str | None = None
        self.close_code: int | None = None
        self._receive = receive
        self._send = send
        self._is_connected = self._is_open = self._is_refused = False
        self._answers = 0
        self._on_drain: Callable[[], None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._server: ServedSocket | None = (scope.get("extensions") or {}).get(OPEN_SOCKET)
        if self._server is not None:
            self._server.on_drain = self._drain

    @property
    def is_open(self) -> bool:
        """True if messages can be sent."""
        return self._is_open

    @property
    def is_draining(self) -> bool:
        """True if the server ends: open requests are answered, new ones are not begun."""
        return self._server is not None and self._server.is_draining

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the server begins to drain, or now if it is draining."""
        self._on_drain = callback
        if self.is_draining:
            callback()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Keep the socket open while the context lasts, though the server drains."""
        self._answers += 1
        try:
            yield
        finally:
            self._answers -= 1
            self._close_if_drained()

    async def accept(
        self, subprotocol: str | None = None, headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Open the socket, with one of ``subprotocols`` or none. Raises ``SocketClosed``."""
        await self._connect()
        await self._sent(
            {"type": "websocket.accept", "subprotocol": subprotocol, "headers": [*headers]}
        )
        self.subprotocol = subprotocol
        self._is_open = True
        self._close_if_drained()

    async def refuse(
        self, status: int, headers: Iterable[tuple[bytes, bytes]] = (), body: bytes = b""
    ) -> None:
        """Answer the handshake with an HTTP response instead. The client may have left."""
        try:
            await self._connect()
            self._is_refused = True
            await refuse_with(self.scope, self._send, status, body, headers)
        except OSError:
            self._is_open = False

    async def receive(self) -> str | None:
        """Return the next message, ``None`` once the socket is closed.

        A binary message is not supported: it closes the socket (1003).
        """
        while self._is_connected and not self._is_refused and self.close_code is None:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self._disconnected(message.get("code"))
            elif message["type"] == "websocket.receive":
                text: str | None = message.get("text")
                if text is not None:
                    return text
                await self.close(_UNSUPPORTED_DATA, "this endpoint accepts text messages only")
        return None

    async def send(self, text: str | bytes) -> None:
        """Send a text message, given as str or UTF-8. Raises ``SocketClosed``."""
        if not self._is_open:
            raise SocketClosed("the WebSocket is closed")
        if not isinstance(text, str):
            text = bytes(text).decode()
        await self._sent({"type": "websocket.send", "text": text})

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close an open socket. ``receive`` returns ``None`` once the client has confirmed it."""
        if self._is_open:
            self._is_open = False
            with suppress(SocketClosed):
                await self._sent({"type": "websocket.close", "code": code, "reason": short(reason)})

    async def _connect(self) -> None:
        """Receive the beginning. Raises ``SocketClosed``."""
        if not self._is_connected:
            message = await self._receive()
            self._is_connected = True
            if message["type"] != "websocket.connect":
                self._disconnected(message.get("code"))
                raise SocketClosed("the client has gone before the WebSocket was open")

    async def _sent(self, message: dict[str, object]) -> None:
        try:
            await self._send(message)
        except OSError as error:
            self._is_open = False
            raise SocketClosed("the client has closed the WebSocket") from error

    def _disconnected(self, code: int | None) -> None:
        self._is_open = False
        self.close_code = _ABNORMAL_CLOSURE if code is None else code

    def _drain(self) -> None:
        if self._on_drain is not None:
            self._on_drain()
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._is_open and self._answers == 0 and self._closing is None and self.is_draining:
            self._closing = asyncio.get_running_loop().create_task(self._close_drained())

    async def _close_drained(self) -> None:
        with suppress(RuntimeError):  # the handler has returned meanwhile, which closes it too
            await self.close(SERVICE_RESTART, SHUTTING_DOWN)
