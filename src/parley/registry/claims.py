"""Work shared by several processes: each claims a part of the due work, and runs it in tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from parley.database.errors import StoreUnavailable
from parley.model.concurrency import Periodic

log = logging.getLogger("parley.registry")

ROUNDS = 8
"""The number of claims in succession that may admit no piece before other tasks get a turn."""

T = TypeVar("T")


class ClaimedWork(Generic[T]):
    """Claims due pieces of work, and runs up to ``most`` of them concurrently, each in a task.

    ``claim`` returns at most so many pieces. ``admit`` says whether a piece runs now, and postpones
    it otherwise. ``label`` names a piece in the log. More work is claimed at the end of each piece,
    and at least every ``seconds``.
    """

    def __init__(
        self,
        claim: Callable[[int], Awaitable[Sequence[T]]],
        admit: Callable[[T], Awaitable[bool]],
        do: Callable[[T], Awaitable[object]],
        label: Callable[[T], str],
        *,
        most: int,
        seconds: float,
    ) -> None:
        self._claim = claim
        self._admit = admit
        self._do = do
        self._label = label
        self._most = most
        self._seconds = seconds
        self.running: dict[asyncio.Task[None], T] = {}
        self._looks = Periodic(
            "claiming due work", self._step, seconds, log=log, expected=StoreUnavailable
        )

    def start(self) -> None:
        """Start claiming work. Idempotent."""
        self._looks.start()

    async def stop(self) -> list[T]:
        """Stop, and return the cancelled pieces. Idempotent."""
        await self._looks.stop()
        running = dict(self.running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return [piece for task, piece in running.items() if task.cancelled()]

    async def begin(self) -> bool:
        """Start the due work; return whether there may be more. Raises ``StoreUnavailable``."""
        for _ in range(ROUNDS):
            free = self._most - len(self.running)
            claimed = await self._claim(free) if free > 0 else ()
            before = len(self.running)
            for piece in claimed:
                if await self._admit(piece):
                    name = f"parley {self._label(piece)[:100]}"
                    task = asyncio.create_task(self._work(piece), name=name)
                    self.running[task] = piece
                    task.add_done_callback(self.running.pop)
            if len(self.running) > before or len(claimed) < free or free <= 0:
                break
        return bool(claimed)

    async def _work(self, piece: T) -> None:
        try:
            await self._do(piece)
        except StoreUnavailable as error:
            log.warning("%s could not be stored: %s", self._label(piece), error)
        except Exception:
            log.exception("%s failed", self._label(piece))

    async def _step(self) -> bool:
        """Start the due work; return whether to claim again at once."""
        is_found = await self.begin()
        if self.running and not (is_found and len(self.running) < self._most):
            await asyncio.wait(
                self.running, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED
            )
            return True
        return is_found
