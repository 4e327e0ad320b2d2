"""The care for agents: probes, heartbeats, and the removal of entries withdrawn long ago."""

from __future__ import annotations

import logging

from parley.database.errors import StoreUnavailable
from parley.model.concurrency import Periodic
from parley.registry.app.heartbeats_routes import HeartbeatRoutes
from parley.registry.app.operations import Operation
from parley.registry.health.heartbeats import Heartbeats
from parley.registry.health.prober import Prober
from parley.registry.health.probing import AgentProbe
from parley.registry.health.settings import HealthSettings
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.publishing.quotas import CallerRates
from parley.security.egress import Egress

log = logging.getLogger("parley.registry")

DAY_MS = 24 * 3600 * 1000
KEPT_DAYS = 90
"""How long a withdrawn entry is kept, with the versions of its card and the keys of its pin."""

REMOVED_PER_TRANSACTION = 200
PRUNE_SECONDS = 3600.0


class RegistryCare:
    """The background work of a registry. Start it once the index is open, stop it before that
    closes.
    """

    def __init__(
        self,
        index: RegistryIndex,
        rates: CallerRates,
        *,
        egress: Egress,
        settings: HealthSettings | None = None,
    ) -> None:
        settings = settings or HealthSettings()
        self.heartbeats = Heartbeats(index, rates, settings)
        self.prober = Prober(index, AgentProbe(egress, settings), settings)
        self._index = index
        self._prunes = Periodic(
            "removing withdrawn entries",
            self.prune,
            PRUNE_SECONDS,
            log=log,
            expected=StoreUnavailable,
        )

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The rows of REST."""
        return HeartbeatRoutes(self.heartbeats).operations

    async def start(self) -> None:
        """Begin to look after agents. Idempotent."""
        await self.heartbeats.start()
        await self.prober.start()
        self._prunes.start()

    async def stop(self) -> None:
        """Stop. Idempotent."""
        await self._prunes.stop()
        await self.prober.stop()
        await self.heartbeats.stop()

    async def prune(self, at_once: int = REMOVED_PER_TRANSACTION) -> int:
        """Remove entries that were withdrawn long ago; return how many. Decisions of operators
        stay. Raises ``StoreUnavailable``.
        """
        removed = 0
        before = self._index.now() - KEPT_DAYS * DAY_MS
        while count := await self._index.forget(before, at_once):
            removed += count
        if removed:
            log.info("%d entries that were withdrawn long ago were removed", removed)
        return removed
