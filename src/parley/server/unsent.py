"""Answers that wait for their readers: how many bytes, and for how long."""

from __future__ import annotations

import asyncio
from typing import Protocol

from parley.server.settings import Settings


class Waiting(Protocol):
    """An answer, or a part of one, that its reader has not taken yet."""

    def unsent(self) -> int:
        """How many bytes still wait."""
        ...

    def give_up(self) -> None:
        """End it, and what it is sent on."""
        ...


class Unsent:
    """The answers that wait for their readers: together at most ``max_unsent_bytes``.

    Where they would be more, those end of which nothing was read for longest. One of which nothing
    is read for ``patience`` seconds ends too, at the latest after twice that time.
    """

    def __init__(self, settings: Settings) -> None:
        self._most = settings.max_unsent_bytes
        # How many bytes of each wait, and when that last became less: longest ago first.
        self._waiting: dict[Waiting, tuple[int, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.total = 0

    def add(self, one: Waiting, patience: float) -> None:
        """Watch what begins to wait, until ``discard``. The ``patience`` is one for all."""
        self.discard(one)
        size = one.unsent()
        loop = asyncio.get_running_loop()
        self._waiting[one] = size, loop.time()
        self.total += size
        if self.total > self._most:
            self._look_around()
            while self.total > self._most:
                self._end(next(iter(self._waiting)))
        if self._timer is None and self._waiting:
            self._timer = loop.call_later(patience, self._end_the_unread, patience)

    def discard(self, one: Waiting) -> None:
        """Watch it no more, if it was."""
        if one in self._waiting:
            self.total -= self._waiting.pop(one)[0]
            if not self._waiting and self._timer is not None:
                self._timer.cancel()
                self._timer = None

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
