"""Slots for verifications that take long: a few run at once, and a bounded number wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from parley.model.errors import OverloadedError

MAX_WAITING = 100


class Slots:
    """``count`` slots for each event loop: a scheme may be used by several servers."""

    def __init__(self, count: int, *, waiting: int = MAX_WAITING) -> None:
        self._count = count
        self._most = count + waiting
        self._taken = 0
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it. Raises ``OverloadedError`` if too many wait."""
        if self._taken >= self._most:
            raise OverloadedError("too many credentials wait to be verified", retry_after=1)
        loop = asyncio.get_running_loop()
        slots = self._loops.get(loop)
        if slots is None:
            slots = self._loops[loop] = asyncio.Semaphore(self._count)
        self._taken += 1
        try:
            async with slots:
                yield
        finally:
            self._taken -= 1
