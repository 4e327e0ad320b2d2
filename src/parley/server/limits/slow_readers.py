"""A budget for answers that slow readers have not read: how many bytes, and for how long."""

from __future__ import annotations

import asyncio
from typing import Protocol

from parley.model.errors import OverloadedError
from parley.server.limits.byte_budget import ByteBudget
from parley.server.settings import Settings


class UnreadAnswer(Protocol):
    """An answer, or a part of one, that its reader has not read yet."""

    def unsent(self) -> int:
        """Return how many bytes are unsent."""
        ...

    def abort(self) -> None:
        """End it, and the connection that carries it."""
        ...


class UnsentBytes:
    """The bytes of unread answers: at most ``max_unsent_bytes`` together.

    When they exceed that, the answers without progress for longest are aborted. An answer without
    progress for ``timeout`` seconds is aborted too, after at most twice that time. Answers that
    cannot be aborted (gRPC) are refused instead, also when one address has used up its share.
    """

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_unsent_bytes
        # The unsent bytes of each answer and the time of its last progress, the oldest first.
        self._unread: dict[UnreadAnswer, tuple[int, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._address_limit = int(self._limit * settings.address_share)
        self.by_address = ByteBudget("unread answers", self._address_limit)
        self.total = 0

    def add(self, answer: UnreadAnswer, timeout: float) -> None:
        """Watch an unread answer until ``discard``. All answers have the same ``timeout``."""
        self.discard(answer)
        size = answer.unsent()
        loop = asyncio.get_running_loop()
        self._unread[answer] = size, loop.time()
        self.total += size
        if self.total > self._limit:
            self._make_room(0)
        if self._timer is None and self._unread:
            self._timer = loop.call_later(timeout, self._abort_stalled, timeout)

    def discard(self, answer: UnreadAnswer) -> None:
        """Stop watching an answer, if it is watched."""
        if answer in self._unread:
            self.total -= self._unread.pop(answer)[0]
            if not self._unread and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    @property
    def is_small(self) -> bool:
        """Return whether there is room for an answer to any address."""
        return self.total < self._address_limit

    def check(self, address: str) -> None:
        """Raise ``OverloadedError`` when there is no room for any answer to an address."""
        if self.total >= self._limit:
            self._make_room(1)
        if self.total >= self._limit:
            raise self._overloaded()
        self.by_address.check(address, 1)

    def reserve(self, address: str, size: int) -> None:
        """Reserve room for an answer that cannot be aborted, until ``release``.

        An answer of any size passes when it is the only one. Raises ``OverloadedError``.
        """
        if self.total + size > self._limit:
            self._make_room(size)
        if self.total and self.total + size > self._limit:
            raise self._overloaded()
        self.by_address.check(address, size)
        self.by_address.add(address, size)
        self.total += size

    def release(self, address: str, size: int) -> None:
        """Release reserved room."""
        self.total -= size
        self.by_address.subtract(address, size)

    def _overloaded(self) -> OverloadedError:
        return OverloadedError(
            f"{self.total} bytes of unread answers are here, of which this server holds "
            f"{self._limit}",
            retry_after=1,
        )

    def _make_room(self, size: int) -> None:
        """Abort unread answers until there is room for ``size`` bytes.

        With no ``size``, one answer stays: the only one may be as large as it is.
        """
        self._measure()
        while self.total + size > self._limit and len(self._unread) > (not size):
            self._abort(next(iter(self._unread)))

    def _measure(self) -> None:
        """Measure all unread answers, and note which have made progress."""
        now = asyncio.get_running_loop().time()
        for answer, (before, _) in list(self._unread.items()):
            size = answer.unsent()
            if size < before:
                del self._unread[answer]
                self._unread[answer] = size, now
                self.total -= before - size

    def _abort_stalled(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        self._measure()
        now = loop.time()
        for answer, (_, since) in list(self._unread.items()):
            if now - since < timeout:
                break
            self._abort(answer)
        self._timer = None
        if self._unread:
            self._timer = loop.call_later(timeout, self._abort_stalled, timeout)

    def _abort(self, answer: UnreadAnswer) -> None:
        self.discard(answer)
        answer.abort()
