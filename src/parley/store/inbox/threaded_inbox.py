"""An inbox in a SQL database: each operation is one job of one thread."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from parley.store.inbox.inbox import InboxAnswer

R = TypeVar("R")

PRUNE_SECONDS = 60.0
"""How often what has expired is removed."""


class ThreadedInbox(ABC):
    """Runs the operations of an inbox in its thread, which has the one connection."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "parley-inbox")
        self._pruned_at = 0.0

    async def open(self) -> None:
        """Connect, and create what is missing."""
        await self._run(self._connect)

    async def admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer:
        """Take the lane, unless the id was handled or another holds it."""
        return await self._run(lambda: self._admit(id, lane, holder, lease))

    async def finish(self, id: str, lane: str, holder: str, *, keep: float, last: bool) -> None:
        """Remember an id as handled. What has expired is removed now and then."""
        now = time.monotonic()
        prunes = now - self._pruned_at >= PRUNE_SECONDS
        if prunes:
            self._pruned_at = now
        await self._run(lambda: self._finish(id, lane if last else "", holder, keep, prunes))

    async def release(self, lane: str, holder: str) -> None:
        """Release a lane."""
        await self._run(lambda: self._release(lane, holder))

    async def renew(self, lanes: Collection[str], holder: str, lease: float) -> None:
        """Hold lanes for longer."""
        await self._run(lambda: self._renew(list(lanes), holder, lease))

    async def close(self) -> None:
        """Disconnect."""
        await self._run(self._disconnect)

    async def _run(self, job: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    @abstractmethod
    def _connect(self) -> None: ...

    @abstractmethod
    def _admit(self, id: str, lane: str, holder: str, lease: float) -> InboxAnswer: ...

    @abstractmethod
    def _finish(self, id: str, lane: str, holder: str, keep: float, prunes: bool) -> None:
        """Remember an id, and release ``lane`` unless it is empty."""

    @abstractmethod
    def _release(self, lane: str, holder: str) -> None: ...

    @abstractmethod
    def _renew(self, lanes: list[str], holder: str, lease: float) -> None: ...

    @abstractmethod
    def _disconnect(self) -> None: ...
