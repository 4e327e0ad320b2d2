"""Answers that wait for their readers: how many bytes, and for how long."""

from __future__ import annotations

import asyncio
from typing import Protocol

from parley.model.errors import OverloadedError
from parley.server.byte_budget import ByteBudget
from parley.server.settings import Settings


class Waiting(Protocol):
    """An answer, or a part of one, that its reader has not taken yet."""

    def unsent(self) -> int:
        """How many bytes still wait."""
        ...

    def give_up(self) -> None:
        """End it, and what it is sent on."""
        ...


class UnsentBytes:
    """The answers that wait for their readers: together at most ``max_unsent_bytes``.

    Where they would be more, those end of which nothing was read for longest. One of which nothing
    is read for ``patience`` seconds ends too, at the latest after twice that time. Those that
    nobody can end (gRPC) are refused instead, also when one address has its share of them.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_unsent_bytes
        # How many bytes of each wait, and when that last became less: longest ago first.
        self._waiting: dict[Waiting, tuple[int, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._each = int(self._most * settings.address_share)
        self.shares = ByteBudget("unread answers", self._each)
        self.total = 0

    def add(self, one: Waiting, patience: float) -> None:
        """Watch what begins to wait, until ``discard``. The ``patience`` is one for all."""
        self.discard(one)
        size = one.unsent()
        loop = asyncio.get_running_loop()
        self._waiting[one] = size, loop.time()
        self.total += size
        if self.total > self._most:
            self._make_room(0)
        if self._timer is None and self._waiting:
            self._timer = loop.call_later(patience, self._end_the_unread, patience)

    @property
    def is_small(self) -> bool:
        """Whether so little waits that there is room for anybody's answer."""
        return self.total < self._each

    def check(self, address: str) -> None:
        """Raise ``OverloadedError`` when there is no room for any answer to an address."""
        if self.total >= self._most:
            self._make_room(1)
        if self.total >= self._most:
            raise OverloadedError(
                f"{self.total} bytes of unread answers are here, of which this server holds "
                f"{self._most}",
                retry_after=1,
            )
        self.shares.check(address, 1)

    def take(self, address: str, size: int) -> None:
        """Count an answer that cannot be ended, until ``give_back``.

        One is taken whatever its size when there is no other. Raises ``OverloadedError``.
        """
        if self.total + size > self._most:
            self._make_room(size)
        if self.total and self.total + size > self._most:
            raise OverloadedError(
                f"{self.total} bytes of unread answers are here, of which this server holds "
                f"{self._most}",
                retry_after=1,
            )
        self.shares.check(address, size)
        self.shares.add(address, size)
        self.total += size

    def give_back(self, address: str, size: int) -> None:
        """Count it no more."""
        self.total -= size
        self.shares.take_off(address, size)

    def discard(self, one: Waiting) -> None:
        """Watch it no more, if it was."""
        if one in self._waiting:
            self.total -= self._waiting.pop(one)[0]
            if not self._waiting and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _make_room(self, size: int) -> None:
        """End what nobody reads until there is room for so many bytes more.

        One is left where that is none: the only answer may be as large as it is.
        """
        self._look_around()
        while self.total + size > self._most and len(self._waiting) > (not size):
            self._end(next(iter(self._waiting)))

    def _look_around(self) -> None:
        now = asyncio.get_running_loop().time()
        for one, (before, _) in list(self._waiting.items()):
            size = one.unsent()
            if size < before:
                del self._waiting[one]
                self._waiting[one] = size, now
                self.total -= before - size

    def _end_the_unread(self, patience: float) -> None:
        loop = asyncio.get_running_loop()
        self._look_around()
        now = loop.time()
        for one, (_, since) in list(self._waiting.items()):
            if now - since < patience:
                break
            self._end(one)
        self._timer = None
        if self._waiting:
            self._timer = loop.call_later(patience, self._end_the_unread, patience)

    def _end(self, one: Waiting) -> None:
        self.discard(one)
        one.give_up()
