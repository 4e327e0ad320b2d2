"""Counters of limits: rates in this process or in Redis, and amounts of a day in the store.

Replicas that share a database but no Redis split each rate evenly. If a shared counter fails, each
process counts on its own, so that a limit still works and never stops the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from parley.model.bounded import Bounded
from parley.model.concurrency import Periodic
from parley.model.errors import OverloadedError, StoreError
from parley.security.limits.declaration import DAY_MS, Rate
from parley.security.limits.usage import QuotaAsk, QuotaGrant, SecurityStore

if TYPE_CHECKING:
    from limits import RateLimitItem

log = logging.getLogger("parley.server")

SLOTS = 60
"""The number of slots in a span. An amount is free again up to one slot late."""


class Window:
    """The amounts used in a span, by slot. Memory is bounded by the number of slots.

    An amount counts until its whole slot is older than the span, so no span of that length ever
    exceeds the limit. With a single slot, spans follow one another.
    """

    __slots__ = ("_before", "_slot_ms", "_slots", "total")

    def __init__(self, period_ms: int, before: int = SLOTS) -> None:
        self._slot_ms = -(-period_ms // max(1, before))
        self._before = before
        self._slots: deque[list[int]] = deque()  # slot and used amount; the oldest first
        self.total = 0

    def take(self, now: int, amount: int, wanted: int = 1) -> int:
        """Use up to ``wanted`` of the free amount. Return the amount used."""
        slot = self._advance(now)
        given = max(0, min(wanted, amount - self.total))
        if given:
            if self._slots and self._slots[-1][0] >= slot:  # the clock may have been set back
                self._slots[-1][1] += given
            else:
                self._slots.append([slot, given])
            self.total += given
        return given

    def give_back(self, count: int = 1) -> None:
        """Undo the last use."""
        while count and self._slots:
            last = self._slots[-1]
            undone = min(count, last[1])
            last[1] -= undone
            self.total -= undone
            count -= undone
            if not last[1]:
                self._slots.pop()

    def wait(self, now: int) -> int:
        """Return the ms until some of the amount is free again; 0 if none is in use."""
        self._advance(now)
        if not self._slots:
            return 0
        return max(0, (self._slots[0][0] + self._before + 1) * self._slot_ms - now)

    def _advance(self, now: int) -> int:
        slot = now // self._slot_ms
        while self._slots and self._slots[0][0] < slot - self._before:
            self.total -= self._slots.popleft()[1]
        return slot


# -- counters ---------------------------------------------------------------------------------

MOST_KEYS = 100_000
"""The number of keys (callers, addresses ...) that one process counts: the most recent ones."""

SHARE_SECONDS = 5.0
"""The interval between counts of the replicas that share the rates."""

FAILURE_LOG_SECONDS = 60.0
"""The minimum time between two log lines about failures of the store or of Redis."""

FALLBACK_SECONDS = 1.0
"""The time for which a process counts alone after a failure of the store or of Redis."""


class Taken(NamedTuple):
    """The result of a counter. ``reset`` is in seconds."""

    allowed: bool
    remaining: int
    reset: float


class LocalCounters:
    """Counts in this process, which gets an equal share of each rate. ``now`` returns ms."""

    def __init__(self, now: Callable[[], int], *, most_keys: int = MOST_KEYS) -> None:
        self._now = now
        self._windows: Bounded[str, Window] = Bounded(most_keys)
        self._replicas = 1

    def share(self, replicas: int) -> None:
        """Set the number of live replicas among which the rates are split."""
        self._replicas = max(1, replicas)

    def try_take(self, key: str, rate: Rate) -> Taken:
        """Use one unit."""
        window = self._windows.use(key)
        if window is None:
            window = Window(rate.period_ms, 0) if rate.is_daily else Window(rate.period_ms)
            self._windows[key] = window
        now, amount = self._now(), self._part_of(rate)
        allowed = window.take(now, amount) == 1
        return Taken(allowed, amount - window.total, window.wait(now) / 1000)

    async def peek(self, key: str, rate: Rate) -> Taken | None:
        """Return the remaining amount."""
        window, amount = self._windows.get(key), self._part_of(rate)
        if window is None:
            return Taken(True, amount, 0.0)
        wait = window.wait(self._now())
        return Taken(window.total < amount, amount - window.total, wait / 1000)

    def give_back(self, key: str, rate: Rate) -> None:
        """Undo the last use."""
        if (window := self._windows.get(key)) is not None:
            window.give_back()

    def _part_of(self, rate: Rate) -> int:
        return max(1, rate.amount // self._replicas)


def shared_by(
    counters: LocalCounters, replicas: Callable[[], Awaitable[Sequence[Any]]]
) -> Periodic:
    """Return the background task that updates the share of ``counters`` from the live replicas."""

    async def share() -> None:
        counters.share(len([each for each in await replicas() if each.alive]))

    return Periodic("the shares of limits", share, SHARE_SECONDS, log=log, expected=StoreError)


class SharedCounters(ABC):
    """Counts together with other processes. After a failure it counts in this process for a
    while."""

    what = ""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._alone = LocalCounters(now)
        self._alone_until = self._logged = -math.inf

    def try_take(self, key: str, rate: Rate) -> Taken | None:
        """Use one unit, or return ``None`` if that needs I/O."""
        return self._alone.try_take(key, rate) if self.is_alone else None

    @abstractmethod
    async def take(self, key: str, rate: Rate) -> Taken:
        """Use one unit."""

    async def peek(self, key: str, rate: Rate) -> Taken | None:
        """Return the remaining amount, ``None`` if it is unknown here. Uses nothing."""
        return None

    def give_back(self, key: str, rate: Rate) -> None:
        """Undo the last use, if it was counted in this process."""
        if self.is_alone:
            self._alone.give_back(key, rate)

    @abstractmethod
    async def close(self) -> None:
        """Cancel the requests in progress, and disconnect."""

    @property
    def is_alone(self) -> bool:
        """True if the last failure is recent."""
        return time.monotonic() < self._alone_until

    def _take_alone(self, key: str, rate: Rate, error: Exception) -> Taken:
        """Use one unit in this process, and switch to counting here for a while."""
        now = time.monotonic()
        self._alone_until = now + FALLBACK_SECONDS
        if now - self._logged >= FAILURE_LOG_SECONDS:
            self._logged = now
            log.warning(
                "%s cannot count limits now, so each process counts on its own: %r",
                self.what,
                error,
            )
        return self._alone.try_take(key, rate)


Counters = LocalCounters | SharedCounters

SPENT_SECONDS = 1.0
"""The time for which a process rejects requests for a used-up amount without asking the store."""


class DailyCounters(SharedCounters):
    """Counts the messages and tasks of a day in the store, exactly, over all replicas and restarts.

    Each count updates one row. Requests that arrive during an update are combined into the next
    one.
    """

    what = "the store"

    def __init__(self, store: SecurityStore, now: Callable[[], int]) -> None:
        super().__init__(now)
        self._store = store
        self._asked: list[QuotaAsk] = []
        self._next: asyncio.Task[Sequence[QuotaGrant]] | None = None
        self._under_way: asyncio.Task[Sequence[QuotaGrant]] | None = None
        self._spent: Bounded[str, int] = Bounded(MOST_KEYS)

    def try_take(self, key: str, rate: Rate) -> Taken | None:
        """Reject if the amount is known to be used up, else return ``None``: the store has to be
        asked."""
        if self._now() < self._spent.get(key, 0):
            return Taken(False, 0, self._reset())
        return super().try_take(key, rate)

    async def take(self, key: str, rate: Rate) -> Taken:
        """Use one unit in the store."""
        try:
            grant = await self._answer(key, rate, 1)
        except StoreError as error:
            return self._take_alone(key, rate, error)
        reset = self._reset()
        if not grant.given:
            self._spent[key] = self._now() + round(1000 * min(SPENT_SECONDS, reset))
        return Taken(bool(grant.given), max(0, rate.amount - grant.taken), reset)

    async def peek(self, key: str, rate: Rate) -> Taken | None:
        """Return the remaining amount in the store."""
        try:
            grant = await self._answer(key, rate, 0)
        except StoreError:
            return None
        return Taken(True, max(0, rate.amount - grant.taken), self._reset())

    def give_back(self, key: str, rate: Rate) -> None:
        """Undo the last use, together with the next request to the store."""
        if self.is_alone:
            self._alone.give_back(key, rate)
        else:
            self._ask(key, rate, -1)

    async def close(self) -> None:
        """Wait for the store's answers."""
        while asking := self._next or self._under_way:
            await asyncio.wait({asking})

    def _reset(self) -> float:
        return (DAY_MS - self._now() % DAY_MS) / 1000

    async def _answer(self, key: str, rate: Rate, wanted: int) -> QuotaGrant:
        asking, place = self._ask(key, rate, wanted)
        return (await asyncio.shield(asking))[place]

    def _ask(
        self, key: str, rate: Rate, wanted: int
    ) -> tuple[asyncio.Task[Sequence[QuotaGrant]], int]:
        """Return the task that asks the store, and the index of the grant in its result."""
        day = self._now() // DAY_MS
        ask = QuotaAsk(
            key=key,
            slot=day,
            oldest=day,
            amount=rate.amount,
            wanted=wanted,
            ends_at=(day + 1) * DAY_MS,
        )
        self._asked.append(ask)
        if self._next is None:
            self._next = asyncio.create_task(self._ask_all(self._under_way))
            self._next.add_done_callback(_retrieve)  # no request waits for a unit to be given back
        return self._next, len(self._asked) - 1

    async def _ask_all(
        self, before: asyncio.Task[Sequence[QuotaGrant]] | None
    ) -> Sequence[QuotaGrant]:
        """Ask the store for all waiting requests in one call, after the call before."""
        if before is not None:
            await asyncio.wait({before})
        await asyncio.sleep(0)  # combine the requests of one iteration of the event loop
        asked, self._asked = self._asked, []
        self._under_way, self._next = self._next, None
        try:
            return await self._store.take_quotas(asked)
        finally:
            if self._under_way is asyncio.current_task():
                self._under_way = None


def _retrieve(asking: asyncio.Task[Sequence[QuotaGrant]]) -> None:
    if not asking.cancelled():
        asking.exception()


def short_key(*parts: str) -> str:
    """Return a short key for the store, in which ids and addresses cannot be read."""
    key = "\0".join(parts)  # NUL is in no id
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


EXACT_UP_TO = 1000
"""The largest amount for which Redis keeps every request of a rate. Larger rates keep two numbers,
and are estimates: they assume that the requests of the previous window were spread evenly.
"""

REDIS_TIMEOUT_SECONDS = 1.0

REDIS_CONNECTIONS = 50
"""The number of concurrent requests to Redis, each on a connection; others wait."""


class RedisCounters(SharedCounters):
    """Counts together with all processes that use the same Redis."""

    what = "Redis"

    def __init__(self, url: str, prefix: str, now: Callable[[], int]) -> None:
        super().__init__(now)
        self._url = url
        self._prefix = prefix
        self._free = asyncio.Semaphore(REDIS_CONNECTIONS)
        self._storage: Any = None
        self._exact: Any = None
        self._errors: tuple[type[Exception], ...] = ()
        self._estimate: Any = None
        self._items: dict[tuple[int, int], RateLimitItem] = {}

    async def take(self, key: str, rate: Rate) -> Taken:
        """Use one unit."""
        if self._storage is None:
            self._open()
        async with self._free:
            if self.is_alone:  # Redis failed recently
                return self._alone.try_take(key, rate)
            try:
                return await self._take(key, rate)
            except self._errors as error:
                return self._take_alone(key, rate, error)

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

        self._errors = (RedisError, OSError, RuntimeError)  # uvloop raises RuntimeError

        self._storage = storage_from_string(
            f"async+{self._url}",
            implementation="redispy",
            key_prefix=self._prefix,
            socket_timeout=REDIS_TIMEOUT_SECONDS,
            socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
            # A retry would count twice, and would open a connection that Redis accepts too late.
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

    async def close(self) -> None:
        """Disconnect."""
        storage, self._storage = self._storage, None
        if storage is not None:
            await storage.bridge.storage.aclose()


# -- names ------------------------------------------------------------------------------------

SLACK_MS = 60_000
"""The extra time for which a name is kept, since the clocks of replicas may differ."""


class StoredNames:
    """Names that can each be claimed once, over all replicas and restarts.

    A name is an amount of one in the store: exact, durable before ``take`` returns, and removed
    when it expires. Nothing is kept in memory.
    """

    def __init__(self, store: SecurityStore) -> None:
        self._store = store

    async def take(self, *names: str, until: int) -> bool:
        """Claim a name until a time (ms). Return ``False`` if it was claimed already.

        Raises ``StoreError``.
        """
        ask = QuotaAsk(
            key=short_key(*names), slot=0, oldest=0, amount=1, wanted=1, ends_at=until + SLACK_MS
        )
        granted = await self._store.take_quotas([ask])
        return bool(granted[0].given)


class AgentNames:
    """The names of one agent and one extension, for ``CallContext.once``."""

    def __init__(self, names: StoredNames, agent: str) -> None:
        self._names = names
        self._agent = agent

    async def take(self, extension: str, name: str, until: int) -> bool:
        """Claim a name: see ``Once``. Raises ``OverloadedError`` while the store is unavailable."""
        try:
            return await self._names.take("once", self._agent, extension, name, until=until)
        except StoreError as error:
            raise OverloadedError(
                "the server cannot check now that this message is new; send it again", retry_after=1
            ) from error
