"""What looks after agents, put together: probes, heartbeats, the removal of old entries."""

from __future__ import annotations

from parley.registry.app.heartbeats_routes import HeartbeatRoutes
from parley.registry.app.operations import Operation
from parley.registry.app.pruning import WithdrawnPruner
from parley.registry.health.heartbeats import Heartbeats
from parley.registry.health.prober import Prober
from parley.registry.health.probing import AgentProbe
from parley.registry.health.settings import HealthSettings
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.publishing.quotas import CallerRates
from parley.security.egress import Egress


class RegistryCare:
    """The parts that go on by themselves. Start it once the index is open, stop it before that
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
        self.pruner = WithdrawnPruner(index)

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The rows of REST."""
        return HeartbeatRoutes(self.heartbeats).operations

    async def start(self) -> None:
        """Begin to look after agents. Idempotent."""
        await self.heartbeats.start()
        await self.prober.start()
        await self.pruner.start()

    async def stop(self) -> None:
        """Stop. Idempotent."""
        await self.pruner.stop()
        await self.prober.stop()
        await self.heartbeats.stop()
