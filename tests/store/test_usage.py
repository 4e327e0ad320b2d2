"""Usage and the amounts of limits, in every store."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from parley.security.limits.declaration import DAY_MS
from parley.security.limits.usage import USAGE_KEPT_DAYS, QuotaAsk, UsageQuery, UsageRow
from parley.store.tables import QUOTA_SLACK_MS
from parley.store.task_store import TaskStore
from tests.store.conftest import Clock

pytestmark = pytest.mark.anyio

ASK = QuotaAsk(key="k", slot=7, oldest=5, amount=10, wanted=4, ends_at=1_100_000)
ROW = UsageRow(day=20_000, agent="a", tenant="t", caller="ada", skill="s", requests=1, run_ms=5)


async def test_an_amount_is_given_once(store: TaskStore) -> None:
    asks = [store.take_quotas([ASK]) for _ in range(5)]
    given = [grants[0].given for grants in await asyncio.gather(*asks)]
    assert sorted(given) == [0, 0, 2, 4, 4]
    [last] = await store.take_quotas([replace(ASK, wanted=1)])
    assert (last.given, last.taken, last.first) == (0, 10, 7)


async def test_one_call_takes_of_one_amount_twice(store: TaskStore) -> None:
    grants = await store.take_quotas([ASK, replace(ASK, key="other"), replace(ASK, wanted=9)])
    assert [grant.given for grant in grants] == [4, 4, 6]


async def test_slots_that_are_too_old_do_not_count(store: TaskStore) -> None:
    await store.take_quotas([replace(ASK, slot=5, wanted=10)])
    assert (await store.take_quotas([ASK]))[0].given == 0
    assert (await store.take_quotas([replace(ASK, slot=8, oldest=6)]))[0].given == 4


async def test_what_is_given_back_is_there_again(store: TaskStore) -> None:
    await store.take_quotas([replace(ASK, wanted=10)])
    [back] = await store.take_quotas([replace(ASK, wanted=-3)])
    assert back.taken == 7
    assert (await store.take_quotas([replace(ASK, wanted=9)]))[0].given == 3


async def test_no_more_is_given_back_than_was_taken(store: TaskStore) -> None:
    await store.take_quotas([ASK])
    await store.take_quotas([replace(ASK, wanted=-50)])
    assert (await store.take_quotas([replace(ASK, wanted=50)]))[0].given == 10


async def test_usage_adds_up(store: TaskStore) -> None:
    await store.add_usage([ROW, replace(ROW, skill="")])
    await store.add_usage([replace(ROW, requests=2, output_bytes=10**12)])
    found = await store.usage(UsageQuery())
    assert found == [
        replace(ROW, skill=""),
        replace(ROW, requests=3, run_ms=10, output_bytes=10**12),
    ]


async def test_usage_is_selected(store: TaskStore) -> None:
    other = replace(ROW, day=20_001, agent="b", caller="")
    await store.add_usage([ROW, other])
    assert await store.usage(UsageQuery(since=20_001)) == [other]
    assert await store.usage(UsageQuery(until=20_000)) == [ROW]
    assert await store.usage(UsageQuery(agent="a")) == [ROW]
    assert await store.usage(UsageQuery(caller="")) == [other]
    assert await store.usage(UsageQuery(tenant="x")) == []
    assert await store.usage(UsageQuery(limit=1)) == [other]


async def test_a_sum_is_of_all_rows_that_are_selected(store: TaskStore) -> None:
    rows = [replace(ROW, tenant=f"t{n}") for n in range(30)]
    await store.add_usage(rows)
    await store.add_usage([replace(ROW, day=ROW.day + 1)])
    total = await store.sum_usage(UsageQuery(since=ROW.day, until=ROW.day, limit=3))
    assert (total.requests, total.output_bytes) == (30 * ROW.requests, 30 * ROW.output_bytes)
    assert (await store.sum_usage(UsageQuery(caller="nobody"))).requests == 0


async def test_old_usage_and_slots_are_removed(store: TaskStore, clock: Clock) -> None:
    await store.add_usage([ROW, replace(ROW, day=20_001)])
    await store.take_quotas([replace(ASK, wanted=10)])
    clock.now = ASK.ends_at + QUOTA_SLACK_MS - 1  # the clock of another replica may be late
    assert (await store.take_quotas([ASK]))[0].given == 0
    clock.now += 1
    assert (await store.take_quotas([ASK]))[0].given == 4
    clock.now = (ROW.day + 1 + USAGE_KEPT_DAYS) * DAY_MS
    assert [row.day for row in await store.usage(UsageQuery())] == [20_001]
