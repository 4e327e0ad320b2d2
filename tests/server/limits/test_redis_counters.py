"""Rates in Redis, under a flood."""

from __future__ import annotations

import asyncio

import pytest

from parley.security.limits.declaration import Rate
from tests.kit.services.redis import RedisServer
from tests.kit.waiting import until

pytest.importorskip("limits")
pytestmark = pytest.mark.anyio

RATE = Rate(text="", name="n", amount=100, period_ms=3_600_000)


async def test_a_flood_is_counted_in_redis_on_few_connections(redis: RedisServer) -> None:
    """More connections than the client opens would be an error, and counting begin anew here."""
    from parley.security.limits.counters import REDIS_CONNECTIONS, RedisCounters

    before = redis.ask("CLIENT", "LIST").count(" addr=")
    counters = RedisCounters(redis.url, "flood:limits", lambda: 0)
    try:
        taken = await asyncio.gather(*[counters.take("k", RATE) for _ in range(500)])
        assert sum(each.allowed for each in taken) == 100
        assert not counters.is_alone
        # Redis learns of a closed connection when it has the time.
        await until(
            lambda: redis.ask("CLIENT", "LIST").count(" addr=") <= before + REDIS_CONNECTIONS
        )
    finally:
        await counters.close()


async def test_each_request_that_times_out_opens_one_connection_and_closes_it(monkeypatch) -> None:
    """A retry would open more connections while Redis hangs, and take twice from the rate."""
    from parley.security.limits import counters as redis_counters
    from parley.security.limits.counters import REDIS_CONNECTIONS, RedisCounters

    monkeypatch.setattr(redis_counters, "REDIS_TIMEOUT_SECONDS", 0.2)
    opened, closed = 0, 0

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened, closed
        opened += 1
        await reader.read()
        closed += 1
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    counters = RedisCounters(f"redis://127.0.0.1:{port}", "hung:limits", lambda: 0)
    taken = await asyncio.gather(*[counters.take("k", RATE) for _ in range(500)])
    assert sum(each.allowed for each in taken) == 100  # counted in this process
    assert 0 < opened <= REDIS_CONNECTIONS
    await until(lambda: closed == opened)
    await counters.close()
    server.close()
    await server.wait_closed()
