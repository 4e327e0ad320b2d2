"""Rates in Redis, under a flood."""

from __future__ import annotations

import asyncio

import pytest

from parley.security.rates.limit import Rate
from tests.services.redis import RedisServer

pytest.importorskip("limits")
pytestmark = pytest.mark.anyio


async def test_a_flood_is_counted_in_redis_on_few_connections(redis: RedisServer) -> None:
    """More connections than the client opens would be an error, and counting begin anew here."""
    from parley.server.limits.redis_counters import AT_ONCE, RedisCounters

    counters = RedisCounters(redis.url, "flood:limits", lambda: 0)
    rate = Rate(text="", name="n", amount=100, period_ms=3_600_000)
    taken = await asyncio.gather(*[counters.take("k", rate) for _ in range(500)])
    assert sum(each.allowed for each in taken) == 100
    assert not counters._fallback.is_used
    assert redis.ask("CLIENT", "LIST").count("addr=") // 2 <= AT_ONCE + 2
    await counters.close()
