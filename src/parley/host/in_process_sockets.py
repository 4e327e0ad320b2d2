"""WebSockets to apps of this process, without a network."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.types import Message

from parley.client.bindings.websocket import HandshakeRefused, OpenSocket, SocketRefused
from parley.client.errors import ClientError, Disconnected, ResponseTooLarge
from parley.model.backoff import seconds_of

WAITING_TEXTS = 64
"""The number of messages that one side may be ahead of the other before it waits."""

_GOING_AWAY = 1001
_ABNORMAL = 1006


class TextQueue:
    """A bounded queue of messages in one direction, which ends when either side leaves."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()
        self._changed = asyncio.Event()
        self.is_over = False

    async def put(self, text: str) -> bool:
        """Add a message once there is room. Return ``False`` if the queue has ended."""
        while len(self._texts) >= WAITING_TEXTS and not self.is_over:
            await self._next_change()
        if not self.is_over:
            self._texts.append(text)
            self._changed.set()
        return not self.is_over

    async def get(self) -> str | None:
        """Return the next message; ``None`` after the end."""
        while not self._texts:
            if self.is_over:
                return None
            await self._next_change()
        self._changed.set()
        return self._texts.popleft()

    def end(self) -> None:
        """Accept no more messages."""
        self.is_over = True
        self._changed.set()

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class InProcessSocket(OpenSocket):
    """A WebSocket between a client and an app: a client socket, and the app's ASGI callables."""

    def __init__(self, url: str, *, max_message: int) -> None:
        self.subprotocol = ""
        self.close_code: int | None = None
        self.close_reason = ""
        self.task: asyncio.Task[None] | None = None
        self.failure: ClientError | None = None
        self.refusal: tuple[int, list[tuple[bytes, bytes]], bytes] | None = None
        self._url = url
        self._max_message = max_message
        self._to_app, self._to_client = TextQueue(), TextQueue()
        self._is_connected = self._is_open = False
        self._answered = asyncio.Event()
        self._code_for_app = _ABNORMAL

    # -- the app's side ------------------------------------------------------------------------

    async def app_receive(self) -> Message:
        """Return the next ASGI message for the app."""
        if not self._is_connected:
            self._is_connected = True
            return {"type": "websocket.connect"}
        text = await self._to_app.get()
        if text is None:
            return {"type": "websocket.disconnect", "code": self._code_for_app, "reason": ""}
        return {"type": "websocket.receive", "text": text}

    async def app_send(self, message: Any) -> None:
        """Accept an ASGI message of the app. Raises ``OSError`` if the client has left."""
        kind = message["type"]
        if self._to_client.is_over:
            raise OSError("the client has closed the WebSocket")
        if kind == "websocket.accept":
            self.subprotocol = message.get("subprotocol") or ""
            self._is_open = True
            self._answered.set()
        elif kind == "websocket.send":
            text = message.get("text")
            if text is None:
                self._over(1003, "messages are text")
            elif not await self._to_client.put(text):
                raise OSError("the client has closed the WebSocket")
        elif kind == "websocket.close" and self._is_open:
            self._over(message.get("code") or 1000, message.get("reason") or "")
        elif kind == "websocket.close":
            self._refused(403, [], b"")
        elif kind == "websocket.http.response.start":
            self.refusal = message["status"], list(message.get("headers") or ()), b""
        elif kind == "websocket.http.response.body" and self.refusal is not None:
            status, headers, body = self.refusal
            self.refusal = status, headers, body + (message.get("body") or b"")
            if not message.get("more_body"):
                self._refused(*self.refusal)

    def ended(self) -> None:
        """Record that the app has returned."""
        if self._is_open:
            self._over(1000, "")
        elif self.refusal is None:
            self._refused(500, [], b"")

    def _refused(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.refusal = status, headers, body
        self._over(_ABNORMAL, "")
        self._answered.set()

    def _over(self, code: int, reason: str) -> None:
        """End both directions. Messages that have arrived can still be read."""
        if self.close_code is None:
            self.close_code, self.close_reason = code, reason[:200]
        self._code_for_app = code
        self._to_client.end()
        self._to_app.end()

    # -- the client's side ---------------------------------------------------------------------

    async def opened(self, subprotocol: str) -> None:
        """Wait until the app has accepted. Raises the errors of a handshake over a network."""
        await self._answered.wait()
        if self.failure is not None:
            raise self.failure
        if self.refusal is not None:
            raise _refusal(self._url, *self.refusal)
        if self.subprotocol != subprotocol:
            self.abort()
            raise SocketRefused(
                f"{self._url} opens WebSockets, but does not support {subprotocol} over them",
                status=101,
            )

    async def send(self, text: str) -> None:
        """Send a message, once there is room. Raises ``Disconnected``."""
        if not await self._to_app.put(text):
            raise self.failure or Disconnected(f"the socket of {self._url} is closed")

    async def receive(self) -> str:
        """Return the next message. Raises ``Disconnected``, ``ResponseTooLarge``."""
        text = await self._to_client.get()
        if text is None:
            said = f" ({self.close_code} {self.close_reason})".replace(" )", ")")
            raise self.failure or Disconnected(f"{self._url} closed the socket{said}")
        if len(text.encode()) > self._max_message:
            self._over(1009, "")
            raise ResponseTooLarge(
                f"a message of {self._url} is larger than the limit of this client"
            )
        return text

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the socket. Idempotent."""
        self._over(code, reason)

    def abort(self) -> None:
        """Drop the connection at once. Idempotent."""
        self._over(_ABNORMAL, "")

    def fail(self, failure: ClientError) -> None:
        """Break the connection. Messages that have arrived can still be read."""
        if self.close_code is None:
            self.failure = failure
        self._over(_GOING_AWAY, "")
        self._answered.set()


def _refusal(url: str, status: int, given: list[tuple[bytes, bytes]], body: bytes) -> ClientError:
    """Return the error for an app that rejects the handshake."""
    headers: Mapping[str, str] = {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in given
    }
    if status in (401, 403):
        words = "wants credentials" if status == 401 else "rejects these credentials"
        challenge = headers.get("www-authenticate", "")
        refused = HandshakeRefused(f"{url} {words}", status=status, challenge=challenge)
        refused.body = body
        return refused
    retry_after = None
    with suppress(ValueError):
        retry_after = seconds_of(headers.get("retry-after"))
    message = f"{url} rejects the WebSocket: it answered {status}"
    return SocketRefused(message, status=status, retry_after=retry_after)
