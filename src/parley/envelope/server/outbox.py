"""What waits to be sent over one socket: answers and HEARTBEATs before EVENTs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

MAX_BYTES = 1024 * 1024
MAX_MESSAGES = 256
"""How much may wait before no further message of the sender is read: it does not read either."""

_Waiting = tuple[bytes, "asyncio.Future[None] | None"]


class OutboxClosed(Exception):
    """The socket is closed: nothing is sent any more."""


class Outbox:
    """Sends messages one after another, each RESPONSE and HEARTBEAT before EVENTs that wait.

    ``event`` waits until the message is sent, so that a stream gives its next event only when its
    reader has room. EVENTs of several streams go in the order in which they came.

    It has a task only while it has something to send, and no events or deques: most sockets are
    idle most of the time, and thousands are open.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._urgent: list[_Waiting] = []
        self._events: list[_Waiting] = []
        self._size = 0
        self._sending: asyncio.Task[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self.is_closed = False

    def post(self, data: bytes) -> None:
        """Send a message soon, and do not wait for that. After ``close`` it is dropped."""
        if not self.is_closed:
            self._put(self._urgent, data, None)

    async def send(self, data: bytes) -> None:
        """Send a RESPONSE, before all EVENTs. Raises ``OutboxClosed``."""
        await self._sent(self._urgent, data)

    async def event(self, data: bytes) -> None:
        """Send an EVENT. Raises ``OutboxClosed``."""
        await self._sent(self._events, data)

    async def room(self) -> None:
        """Wait while too much waits to be sent."""
        while self._is_full and not self.is_closed:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)

    async def flushed(self) -> None:
        """Wait until everything is sent."""
        if self._sending is not None:
            await asyncio.wait({self._sending})

    def close(self) -> None:
        """Drop what waits; whoever waits for it is told."""
        self.is_closed = True
        for waiting in (*self._urgent, *self._events):
            _give_up(waiting[1])
        self._urgent.clear()
        self._events.clear()
        self._wake()

    async def aclose(self) -> None:
        """Close it, and send no more."""
        self.close()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})

    @property
    def _is_full(self) -> bool:
        return self._size >= MAX_BYTES or len(self._urgent) >= MAX_MESSAGES

    async def _run(self) -> None:
        """Send what waits, until that is all or the socket is closed."""
        sent: asyncio.Future[None] | None = None
        try:
            while waiting := self._urgent or self._events:
                data, sent = waiting.pop(0)
                await self._send(data)
                self._size -= len(data)
                if not self._is_full:
                    self._wake()
                if sent is not None and not sent.done():
                    sent.set_result(None)
        except OSError:
            self.close()  # how the other side's end is reported
        except BaseException:
            self.close()
            raise
        finally:
            self._sending = None
            _give_up(sent)

    def _wake(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    async def _sent(self, queue: list[_Waiting], data: bytes) -> None:
        if self.is_closed:
            raise OutboxClosed
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._put(queue, data, waiter)
        await waiter

    def _put(self, queue: list[_Waiting], data: bytes, waiter: asyncio.Future[None] | None) -> None:
        queue.append((data, waiter))
        self._size += len(data)
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._run())


def _give_up(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_exception(OutboxClosed())
        waiter.exception()  # whoever waits may have been cancelled
