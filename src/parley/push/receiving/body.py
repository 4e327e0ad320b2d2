"""Reads the bodies of requests, within limits for each and for all together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from parley.push.receiving.handling import FULL_SECONDS
from parley.push.receiving.request import NotificationRefused

if TYPE_CHECKING:
    from starlette.requests import Request


class BodyReads:
    """The bodies that arrive or are verified. With what is ``queued`` they have ``max_bytes``.

    Nobody is known before the body is there. So when there is no room, the largest incomplete body
    is refused: slow senders of large bodies do not keep out everybody else.
    """

    def __init__(self, max_bytes: int, queued: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._queued = queued
        self._incomplete: dict[asyncio.Timeout, int] = {}
        self.bytes = 0

    async def read(self, request: Request, max_bytes: int, seconds: float) -> bytes:
        """Return a body, which counts until ``done``. Raises ``NotificationRefused``."""
        from starlette.requests import ClientDisconnect

        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdecimal() and len(declared) < 19:
            _check_size(int(declared), max_bytes)
        chunks, reading = list[bytes](), asyncio.timeout(seconds)
        self._incomplete[reading] = 0
        is_complete = False
        try:
            async with reading:
                async for chunk in request.stream():
                    self._count(reading, len(chunk), max_bytes)
                    chunks.append(chunk)
            is_complete = reading in self._incomplete
        except TimeoutError:
            if reading in self._incomplete:
                raise NotificationRefused(408, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise NotificationRefused(400, "the sender hung up") from None
        finally:
            size = self._incomplete.pop(reading, 0)
            if not is_complete:
                self.bytes -= size
        if not is_complete:
            raise _full()
        return b"".join(chunks)

    def done(self, body: bytes) -> None:
        """Note that a body is queued or refused."""
        self.bytes -= len(body)

    def _count(self, reading: asyncio.Timeout, more: int, max_bytes: int) -> None:
        """Count bytes that arrived. Raises ``NotificationRefused``."""
        if reading not in self._incomplete:
            raise _full()
        _check_size(self._incomplete[reading] + more, max_bytes)
        self._incomplete[reading] += more
        self.bytes += more
        while self.bytes + self._queued() > self._max_bytes:
            largest = max(self._incomplete, key=self._incomplete.__getitem__)
            if largest is reading:
                raise _full()
            self.bytes -= self._incomplete.pop(largest)
            if not largest.expired():
                largest.reschedule(asyncio.get_running_loop().time())


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise NotificationRefused(413, f"a body of more than {max_bytes} bytes")


def _full() -> NotificationRefused:
    return NotificationRefused(503, "the queue is full of bytes", retry_after=FULL_SECONDS)
