"""Claims an agent's unclaimed tasks: queued ones, and those of dead replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from parley.model.concurrency import end
from parley.store.protocols.claims import Claimed
from parley.store.protocols.errors import StoreError

log = logging.getLogger("parley.engine")

BATCH = 100
"""The largest number of tasks in one claim."""


class Claimer:
    """Claims tasks batch by batch while there are any and the executor has capacity.

    ``capacity`` says how many more turns may run; ``claim`` claims so many tasks in the store,
    ``start`` runs them, ``exhausted`` is called when the store has no more, ``failed`` when the
    store failed. ``is_wanted``: there may be unclaimed tasks. ``reserved`` is the capacity that a
    claim in flight may use.
    """

    def __init__(
        self,
        *,
        capacity: Callable[[], int],
        claim: Callable[[int], Awaitable[Sequence[Claimed]]],
        start: Callable[[Sequence[Claimed]], None],
        exhausted: Callable[[], None],
        failed: Callable[[StoreError], object],
    ) -> None:
        self.is_wanted = False
        self.reserved = 0
        self._capacity = capacity
        self._claim = claim
        self._start = start
        self._exhausted = exhausted
        self._failed = failed
        self._running: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether a claim is in flight: the store may count tasks as held that no runner has."""
        return self._running is not None

    def wake(self) -> None:
        """Claim what there is; whoever learns of unclaimed tasks calls this."""
        self.is_wanted = True
        if self._running is None and self._capacity() > 0:
            self._running = asyncio.create_task(self._run())

    async def wait(self, timeout: float) -> None:
        """Wait until the claim in flight is done, for ``timeout`` seconds at most."""
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=timeout)

    async def stop(self) -> None:
        """Cancel the claim in flight; the store releases its tasks when it is closed."""
        if self._running is not None:
            await end([self._running])

    async def _run(self) -> None:
        try:
            while self.is_wanted and (capacity := self._capacity()) > 0:
                self.is_wanted = False  # until the next wake-up
                self.reserved = wanted = min(capacity, BATCH)
                tasks = await self._claim(wanted)
                self.reserved = 0
                self._start(tasks)
                if len(tasks) == wanted:
                    self.is_wanted = True
                elif not self.is_wanted:
                    self._exhausted()
        except StoreError as error:
            self.is_wanted = True
            self._failed(error)
            log.error("claiming tasks failed: %s", error)
        finally:
            self.reserved = 0
            self._running = None
