"""A registry removes long-withdrawn entries automatically."""

from __future__ import annotations

import pytest

from parley.registry.app.registry import DAY_MS, KEPT_DAYS, RegistryCare
from parley.registry.index.sqlite import SqliteRegistryIndex
from parley.registry.publishing.callers import CallerRates, PublishingLimits
from parley.security.egress import Egress
from tests.kit.waiting import Clock, until
from tests.registry.index.making import CATALOG, draft, identifier, standings

pytestmark = pytest.mark.anyio


async def test_old_withdrawn_entries_are_removed_in_pieces() -> None:
    clock = Clock(1_000_000)
    index = SqliteRegistryIndex(clock=clock)
    await index.open()
    await index.put([draft(f"n{n}") for n in range(5)])
    await index.withdraw(CATALOG, [identifier("n0")], "gone")
    care = RegistryCare(index, CallerRates(PublishingLimits()), egress=Egress())
    clock.now += KEPT_DAYS * DAY_MS
    assert await care.prune(at_once=2) == 0
    clock.now += 1
    assert await care.prune(at_once=2) == 4
    assert await standings(index, "n0") == {CATALOG: "listed"}
    assert await standings(index, "n1") == {}
    await index.close()


async def test_a_running_registry_removes_them() -> None:
    clock = Clock(1_000_000)
    index = SqliteRegistryIndex(clock=clock)
    await index.open()
    await index.put([draft("one", type="application/mcp-server-card+json")])
    await index.withdraw(CATALOG, [], "gone")
    clock.now += KEPT_DAYS * DAY_MS + 1
    care = RegistryCare(index, CallerRates(PublishingLimits()), egress=Egress())
    await care.start()

    async def is_removed() -> bool:
        return await standings(index, "one") == {}

    await until(is_removed, 10)
    await care.stop()
    await care.stop()
    await index.close()
