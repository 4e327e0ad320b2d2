"""Counters of rates in Redis or Valkey, by the library ``limits``: one script for each request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from parley.security.rates.limit import Rate
from parley.server.limits.counters import Fallback, Taken

if TYPE_CHECKING:
    from limits import RateLimitItem

EXACT_UP_TO = 1000
"""Rates up to this amount keep every request; larger ones keep two numbers, and are estimates that
assume that the requests of the window before were spread evenly.
"""

TIMEOUT_SECONDS = 1.0

AT_ONCE = 50
"""How many requests ask Redis at once, each on a connection; others wait for their turn."""


class RedisCounters:
    """Counts together with all processes that name the same Redis."""

    def __init__(self, url: str, prefix: str, now: Callable[[], int]) -> None:
        self._url = url
        self._prefix = prefix
        self._fallback = Fallback("Redis", now)
        self._free = asyncio.Semaphore(AT_ONCE)
        self._storage: Any = None
        self._exact: Any = None
        self._errors: tuple[type[Exception], ...] = ()
        self._estimate: Any = None
        self._items: dict[tuple[int, int], RateLimitItem] = {}

    def try_take(self, key: str, rate: Rate) -> Taken | None:
        """Return ``None``: Redis has to be asked, unless it has just failed."""
        return self._fallback.counters.try_take(key, rate) if self._fallback.is_used else None

    async def take(self, key: str, rate: Rate) -> Taken:
        """Take one."""
        if self._storage is None:
            self._open()
        async with self._free:
            if self._fallback.is_used:  # Redis failed those who asked before
                return self._fallback.counters.try_take(key, rate)
            try:
                return await self._take(key, rate)
            except self._errors as error:
                self._fallback.failed(error)
                return self._fallback.counters.try_take(key, rate)

    async def _take(self, key: str, rate: Rate) -> Taken:
        strategy = self._exact if rate.amount <= EXACT_UP_TO else self._estimate
        item = self._item(rate)
        allowed = await strategy.hit(item, key)
        reset_at, remaining = await strategy.get_window_stats(item, key)
        return Taken(bool(allowed), int(remaining), max(0.0, float(reset_at) - time.time()))

    def _open(self) -> None:
        from limits.aio.strategies import MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
        from limits.storage import storage_from_string
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError

        self._errors = (RedisError, OSError, RuntimeError)  # uvloop raises the last of them

        self._storage = storage_from_string(
            f"async+{self._url}",
            implementation="redispy",
            key_prefix=self._prefix,
            socket_timeout=TIMEOUT_SECONDS,
            socket_connect_timeout=TIMEOUT_SECONDS,
            # A retry takes twice from a rate, and opens a connection that Redis accepts later.
            retry=Retry(NoBackoff(), 0),  # type: ignore[arg-type]
        )
        self._exact = MovingWindowRateLimiter(self._storage)
        self._estimate = SlidingWindowCounterRateLimiter(self._storage)

    def _item(self, rate: Rate) -> RateLimitItem:
        from limits import RateLimitItemPerSecond

        kind = rate.amount, rate.period_ms
        if kind not in self._items:
            self._items[kind] = RateLimitItemPerSecond(rate.amount, rate.period_ms // 1000)
        return self._items[kind]

    def peek(self, key: str, rate: Rate) -> Taken | None:
        """Return ``None``: Redis is not asked."""
        return None

    def give_back(self, key: str, rate: Rate) -> None:
        """Do nothing: a request that another limit refuses counts here."""

    async def close(self) -> None:
        """Disconnect."""
        storage, self._storage = self._storage, None
        if storage is not None:
            await storage.bridge.storage.aclose()
