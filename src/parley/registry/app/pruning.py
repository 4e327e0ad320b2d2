"""Removal of entries that were withdrawn long ago: a registry does not grow for ever."""

from __future__ import annotations

import asyncio
import logging

from parley.database.errors import StoreUnavailable
from parley.registry.index.registry_index import RegistryIndex

log = logging.getLogger("parley.registry")

DAY_MS = 24 * 3600 * 1000
KEPT_DAYS = 90
"""How long a withdrawn entry is kept, with the versions of its card and the keys of its pin."""

AT_ONCE = 200
"""How many entries one transaction removes: others wait for it."""

POLL_SECONDS = 3600.0


class WithdrawnPruner:
    """Removes entries ``kept_days`` after they were withdrawn. Decisions of operators stay."""

    def __init__(
        self, index: RegistryIndex, *, kept_days: float = KEPT_DAYS, at_once: int = AT_ONCE
    ) -> None:
        self._index = index
        self._at_once = at_once
        self._kept_ms = round(kept_days * DAY_MS)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to remove what is old. Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="parley-registry-pruner")

    async def stop(self) -> None:
        """Stop it. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def prune(self) -> int:
        """Remove what is old; return how many entries. Raises ``StoreUnavailable``."""
        removed = 0
        while count := await self._index.forget(self._index.now() - self._kept_ms, self._at_once):
            removed += count
        return removed

    async def _run(self) -> None:
        while True:
            try:
                if removed := await self.prune():
                    log.info("%d entries that were withdrawn long ago were removed", removed)
            except StoreUnavailable as error:
                log.warning("withdrawn entries cannot be removed: %s", error)
            except Exception:
                log.exception("removing withdrawn entries failed")
            await asyncio.sleep(POLL_SECONDS)
