"""Probes and heartbeats: claimed, stored, and kept apart."""

from __future__ import annotations

import asyncio

import pytest

from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import AgentHealth, EntryStanding, Observed
from tests.kit.waiting import Clock
from tests.registry.index.making import CATALOG, draft, identifier, short

pytestmark = pytest.mark.anyio

MEASURED = Observed(
    health=AgentHealth.DEGRADED,
    reason="slow",
    probed_at=7,
    probes=3,
    availability=0.5,
    error_rate=0.25,
    latency_p50=1.5,
    latency_p95=2.5,
)


async def claimed(index: RegistryIndex, limit: int = 10, lease: float = 60.0) -> list[str]:
    return [short(entry.identifier) for entry in await index.claim_probes(limit, lease)]


async def test_what_is_not_listed_any_more_is_not_probed(
    index: RegistryIndex, clock: Clock
) -> None:
    one, two = await index.put([draft("one"), draft("two")])
    await index.decide(one.key, EntryStanding.HELD, "", "op")
    await index.put([draft("two", type="application/mcp-server-card+json")])
    assert await claimed(index) == []
    await index.end_probe(two.key, MEASURED, 0)
    assert await claimed(index) == []
    await index.decide(one.key, EntryStanding.LISTED, "", "op")
    assert await claimed(index) == ["one"]
    await index.withdraw(CATALOG, [], "gone")
    clock.now += 60_000
    assert await claimed(index) == []


async def test_many_heartbeats_at_once_are_all_kept(index: RegistryIndex) -> None:
    await index.put([draft(f"n{n}", owner="me") for n in range(30)])
    beats = [index.beat(identifier(f"n{n}"), "me", n + 1, {}) for n in range(30)]
    assert all(await asyncio.gather(*beats))
    assert len(await index.overdue_beats(99, 99)) == 30
