"""Usage: what is told apart, how much memory that takes, and what the store is asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parley.security.limits import usage
from parley.security.limits.declaration import DAY_MS
from parley.security.limits.usage import OTHERS, UsageMeter, UsageQuery, UsageRow
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.errors import StoreUnavailable

pytestmark = pytest.mark.anyio

DAY = 20_000


class CountedStore(MemoryTaskStore):
    """Counts what is asked of it, and fails if a test says so."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: DAY * DAY_MS)
        self.writes = 0
        self.fails = False

    async def add_usage(self, rows: Sequence[UsageRow]) -> None:
        self.writes += 1
        if self.fails:
            raise StoreUnavailable("away")
        await super().add_usage(rows)

    async def usage(self, query: UsageQuery) -> Sequence[UsageRow]:
        if self.fails:
            raise StoreUnavailable("away")
        return await super().usage(query)


@pytest.fixture
async def store() -> CountedStore:
    store = CountedStore()
    await store.open(lambda records: None)
    return store


@pytest.fixture
def meter(store: CountedStore) -> UsageMeter:
    return UsageMeter(store, lambda: DAY * DAY_MS)


async def test_tenants_that_a_caller_invents_are_not_told_apart_without_end(
    store: CountedStore, meter: UsageMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MOST_TENANTS", 3)
    for number in range(10):
        meter.count("requests", "shop", f"t{number}", "ada")
    meter.count("requests", "shop", "t9", "eve")
    await meter.flush()
    found = {(row.caller, row.tenant): row.requests for row in await store.usage(UsageQuery())}
    assert found == {
        ("ada", "t0"): 1,
        ("ada", "t1"): 1,
        ("ada", "t2"): 1,
        ("ada", ""): 7,
        ("eve", "t9"): 1,
    }


async def test_memory_stays_bounded_while_the_store_is_away(
    store: CountedStore, meter: UsageMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MOST_ROWS", 10)
    monkeypatch.setattr(meter._totals, "most", 10)
    store.fails = True
    for batch in range(10):
        for number in range(10):
            caller = f"caller {batch} {number}"
            meter.count("requests", "shop", "", caller)
            await meter.used("output_bytes", (DAY, None, None, caller))
        with pytest.raises(StoreUnavailable):
            await meter.flush()
    assert len(meter._pending) <= 21
    assert len(meter._totals) <= 10
    store.fails = False
    await meter.flush()
    assert sum(row.requests for row in await store.usage(UsageQuery())) == 100


async def test_a_caller_whose_id_is_others_has_its_own_usage(
    store: CountedStore, meter: UsageMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MOST_ROWS", 1)
    for caller in ("others", "ada", "eve"):
        meter.count("requests", "shop", "", caller)
    await meter.flush()
    found = {row.caller: row.requests for row in await store.usage(UsageQuery())}
    assert found == {"others": 1, "ada": 1, OTHERS: 1}


async def test_asking_for_a_budget_writes_nothing(store: CountedStore, meter: UsageMeter) -> None:
    for number in range(20):
        meter.count("output_bytes", "shop", "", f"caller {number}", amount=7)
        whose = (DAY, "shop", None, f"caller {number}")
        assert await meter.used("output_bytes", whose) == 7
    assert store.writes == 0
    await meter.flush()
    assert await meter.used("output_bytes", (DAY, "shop", None, None)) == 140
