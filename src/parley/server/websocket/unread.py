"""The messages of a WebSocket that its app has not read yet."""

from __future__ import annotations

import asyncio
from collections import deque

# Beyond so many messages, or bytes of them, nothing more is taken.
_MAX_MESSAGES = 32
_MAX_BYTES = 64 * 1024
# What a message costs besides its bytes.
_OVERHEAD = 256


class UnreadMessages:
    """A queue between a connection and its app, which is full at a bound; an idle one is small."""

    __slots__ = ("_bytes", "_messages", "_reader", "is_discarding")

    def __init__(self) -> None:
        self._messages: deque[str | bytes] | None = None
        self._bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self.is_discarding = False

    @property
    def is_full(self) -> bool:
        """Whether the client has to wait."""
        messages = self._messages
        return messages is not None and (
            len(messages) >= _MAX_MESSAGES or self._bytes >= _MAX_BYTES
        )

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return 0 if self._messages is None else self._bytes + len(self._messages) * _OVERHEAD

    def put(self, message: str | bytes) -> None:
        """Add a message, unless nobody will read it."""
        if self.is_discarding:
            return
        if self._messages is None:
            self._messages = deque()
        self._messages.append(message)
        self._bytes += len(message)
        self.wake()

    def get(self) -> str | bytes | None:
        """Take the first message; ``None`` if there is none."""
        if self._messages is None:
            return None
        message = self._messages.popleft()
        self._bytes -= len(message)
        if not self._messages:
            self._messages = None
        return message

    def discard(self) -> None:
        """Drop what is here, and what else comes."""
        self.is_discarding = True
        self._messages, self._bytes = None, 0

    async def changed(self) -> None:
        """Wait for a message, or to be woken."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def wake(self) -> None:
        """Wake the app, if it waits."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
