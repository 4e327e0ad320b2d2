"""Taking over tasks that nobody works on, as far as there is room for them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from parley.store.ending import end
from parley.store.task_store import StoreError

if TYPE_CHECKING:
    from parley.engine.executor import AgentExecutor

log = logging.getLogger("parley.agent")

BATCH = 100
"""How many tasks are adopted at once at most."""


class Claimer:
    """Adopts an agent's tasks, batch by batch, while there are any and its executor has room.

    ``is_wanted`` says that there may be some. ``reserved`` is for how many there is a place kept
    while the store is asked for them.
    """

    def __init__(self, executor: AgentExecutor) -> None:
        self.is_wanted = False
        self.reserved = 0
        self._executor = executor
        self._running: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether tasks are on their way here of which no lane knows yet."""
        return self._running is not None

    def go_on(self) -> None:
        """Adopt what there is; called by whoever learns that there may be something."""
        self.is_wanted = True
        executor = self._executor
        if executor.works and not executor.closing and self._running is None and executor.has_room:
            self._running = asyncio.create_task(self._run())

    async def over(self, timeout: float) -> None:
        """Wait until what is on its way has come, for so many seconds at most."""
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=timeout)

    async def end(self) -> None:
        """Adopt nothing more. What is on its way is let go of when the store is closed."""
        if self._running is not None:
            await end([self._running])

    async def _run(self) -> None:
        executor = self._executor
        try:
            while self.is_wanted and executor.has_room and not executor.closing:
                self.is_wanted = False  # until somebody says so again, meanwhile or later
                room = executor.options.max_running - executor.running
                self.reserved = wanted = min(room, BATCH)
                tasks = await executor.store.claim_batch(executor.agent, wanted)
                self.reserved = 0
                executor.adopted(tasks)
                if len(tasks) == wanted:
                    self.is_wanted = True
                elif not self.is_wanted:
                    executor.line.is_empty()
        except StoreError as error:
            self.is_wanted = True
            executor.unavailable(error)
            log.error("adopting tasks failed: %s", error)
        finally:
            self.reserved = 0
            self._running = None
