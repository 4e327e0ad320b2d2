"""Single flight: many who wait for the same thing, which is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress


class SingleFlight:
    """Does something once for all who ask meanwhile. It raises nothing, and outlives who asked.

    Each event loop has its own.
    """

    def __init__(self, do: Callable[[], Awaitable[None]]) -> None:
        self._do = do
        self._tasks: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    def begin(self) -> asyncio.Task[None]:
        """Begin, unless it is under way."""
        loop = asyncio.get_running_loop()
        task = self._tasks.get(loop)
        if task is None or task.done():
            task = self._tasks[loop] = loop.create_task(self._run(loop))
        return task

    async def join(self) -> None:
        """Begin, or join what is under way, and return at its end."""
        await asyncio.shield(self.begin())

    async def close(self) -> None:
        """Cancel what is under way in this event loop."""
        task = self._tasks.pop(asyncio.get_running_loop(), None)
        if task is not None and not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            await self._do()
        finally:
            if self._tasks.get(loop) is asyncio.current_task():
                del self._tasks[loop]
