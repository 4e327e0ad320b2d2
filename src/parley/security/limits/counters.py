"""Counters of limits: rates in this process or in Redis, and amounts of a day in the store.

Replicas that share a database without Redis have equal parts of a rate. What is shared may fail;
then each process counts on its own, so a limit never stops working and never stops the server.
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
"""The slots of a span: an amount comes back up to one of them late."""


class Window:
    """The amounts taken in a span, by slot. Memory is bounded by the number of slots.

    An amount counts until all of its slot is older than the span, so no span of that length ever
    has more than the limit. Without slots before the current one, spans follow one another.
    """

    __slots__ = ("_before", "_slot_ms", "_slots", "total")

    def __init__(self, period_ms: int, before: int = SLOTS) -> None:
        self._slot_ms = -(-period_ms // max(1, before))
        self._before = before
        self._slots: deque[list[int]] = deque()  # slot, taken; the oldest first
        self.total = 0

    def take(self, now: int, amount: int, wanted: int = 1) -> int:
        """Take up to ``wanted`` of the free amount, and return the amount taken."""
        slot = self._advance(now)
        given = max(0, min(wanted, amount - self.total))
        if given:
            if self._slots and self._slots[-1][0] >= slot:  # a clock may go back
                self._slots[-1][1] += given
            else:
                self._slots.append([slot, given])
            self.total += given
        return given

    def give_back(self, count: int = 1) -> None:
        """Undo the last taking."""
        while count and self._slots:
            last = self._slots[-1]
            undone = min(count, last[1])
            last[1] -= undone
            self.total -= undone
            count -= undone
            if not last[1]:
                self._slots.pop()

    def wait(self, now: int) -> int:
        """Return the ms until some of the amount is free again; 0 if none is taken."""
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
"""How many keys (callers, addresses ...) one process counts: the most recent ones."""

SHARE_SECONDS = 5.0
"""How often the replicas are counted that have parts of the rates."""

FAILURE_LOG_SECONDS = 60.0
"""How often a failure of the store or of Redis is logged."""

FALLBACK_SECONDS = 1.0
"""How long a process counts alone after a failure of the store or of Redis."""


class Taken(NamedTuple):
    """The answer of a counter: ``reset`` is in seconds."""

    allowed: bool
    remaining: int
    reset: float


class LocalCounters:
    """Counts in this process, which has an equal part of each rate. ``now`` returns ms."""

    def __init__(self, now: Callable[[], int], *, most_keys: int = MOST_KEYS) -> None:
        self._now = now
        self._windows: Bounded[str, Window] = Bounded(most_keys)
        self._replicas = 1

    def share(self, replicas: int) -> None:
        """Count this process as one of so many that are alive."""
        self._replicas = max(1, replicas)

    def try_take(self, key: str, rate: Rate) -> Taken:
        """Take one."""
        window = self._windows.use(key)
        if window is None:
            window = Window(rate.period_ms, 0) if rate.is_daily else Window(rate.period_ms)
            self._windows[key] = window
        now, amount = self._now(), self._part_of(rate)
        allowed = window.take(now, amount) == 1
        return Taken(allowed, amount - window.total, window.wait(now) / 1000)

    async def peek(self, key: str, rate: Rate) -> Taken | None:
        """Return how much is left."""
        window, amount = self._windows.get(key), self._part_of(rate)
        if window is None:
            return Taken(True, amount, 0.0)
        wait = window.wait(self._now())
        return Taken(window.total < amount, amount - window.total, wait / 1000)

    def give_back(self, key: str, rate: Rate) -> None:
        """Undo the last taking."""
        if (window := self._windows.get(key)) is not None:
            window.give_back()

    def _part_of(self, rate: Rate) -> int:
        return max(1, rate.amount // self._replicas)


def shared_by(
    counters: LocalCounters, replicas: Callable[[], Awaitable[Sequence[Any]]]
) -> Periodic:
    """Return the task that gives ``counters`` their part, of the ``replicas`` of a store."""

    async def share() -> None:
        counters.share(len([each for each in await replicas() if each.alive]))

    return Periodic("the shares of limits", share, SHARE_SECONDS, log=log, expected=StoreError)


class SharedCounters(ABC):
    """Counts together with other processes, or in this one for a while after a failure."""

    what = ""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._alone = LocalCounters(now)
        self._alone_until = self._logged = -math.inf

    def try_take(self, key: str, rate: Rate) -> Taken | None:
        """Take one, or return ``None`` if that has to be awaited."""
        return self._alone.try_take(key, rate) if self.is_alone else None

    @abstractmethod
    async def take(self, key: str, rate: Rate) -> Taken:
        """Take one."""

    async def peek(self, key: str, rate: Rate) -> Taken | None:
        """Return the remainder, without taking any; ``None`` if it is unknown here."""
        return None

    def give_back(self, key: str, rate: Rate) -> None:
        """Undo the last taking, if that was in this process."""
        if self.is_alone:
            self._alone.give_back(key, rate)

    @abstractmethod
    async def close(self) -> None:
        """End what is under way, and disconnect."""

    @property
    def is_alone(self) -> bool:
        """Whether the last failure is recent."""
        return time.monotonic() < self._alone_until

    def _take_alone(self, key: str, rate: Rate, error: Exception) -> Taken:
        """Take one in this process, and the next ones for a while."""
        now = time.monotonic()
        self._alone_until = now + FALLBACK_SECONDS
        if now - self._logged >= FAILURE_LOG_SECONDS:
            self._logged = now
            log.warning(
                "%s does not count limits now, so each process counts on its own: %r",
                self.what,
                error,
            )
        return self._alone.try_take(key, rate)


Counters = LocalCounters | SharedCounters

SPENT_SECONDS = 1.0
"""How long a process refuses what is spent without asking the store again."""


class DailyCounters(SharedCounters):
    """Counts the messages and tasks of a day in the store: exactly, over all replicas and restarts.

    Each costs a change of one row. What is asked while a change is under way goes with the next.
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
        """Refuse what is known to be spent, or return ``None`` to ask the store."""
        if self._now() < self._spent.get(key, 0):
            return Taken(False, 0, self._reset())
        return super().try_take(key, rate)

    async def take(self, key: str, rate: Rate) -> Taken:
        """Take one in the store."""
        try:
            grant = await self._answer(key, rate, 1)
        except StoreError as error:
            return self._take_alone(key, rate, error)
        reset = self._reset()
        if not grant.given:
            self._spent[key] = self._now() + round(1000 * min(SPENT_SECONDS, reset))
        return Taken(bool(grant.given), max(0, rate.amount - grant.taken), reset)

    async def peek(self, key: str, rate: Rate) -> Taken | None:
        """Return the remainder, which the store knows."""
        try:
            grant = await self._answer(key, rate, 0)
        except StoreError:
            return None
        return Taken(True, max(0, rate.amount - grant.taken), self._reset())

    def give_back(self, key: str, rate: Rate) -> None:
        """Undo the last taking, with the next question to the store."""
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
        """Return the task that asks the store, and the place of the grant in its result."""
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
            self._next.add_done_callback(_retrieve)  # nobody waits for what is given back
        return self._next, len(self._asked) - 1

    async def _ask_all(
        self, before: asyncio.Task[Sequence[QuotaGrant]] | None
    ) -> Sequence[QuotaGrant]:
        """Ask the store for all that wait in one call, after the call before."""
        if before is not None:
            await asyncio.wait({before})
        await asyncio.sleep(0)  # questions of one pass of the event loop go together
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
    """Return the store's key of some parts: short, and without ids and addresses."""
    key = "\0".join(parts)  # which no id contains
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


EXACT_UP_TO = 1000
"""Rates up to this amount keep every request; larger ones keep two numbers, and are estimates that
assume that the requests of the window before were spread evenly.
"""

REDIS_TIMEOUT_SECONDS = 1.0

REDIS_CONNECTIONS = 50
"""How many requests ask Redis at the same time, each on a connection; others wait."""


class RedisCounters(SharedCounters):
    """Counts together with all processes that name the same Redis."""

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
        """Take one."""
        if self._storage is None:
            self._open()
        async with self._free:
            if self.is_alone:  # Redis failed an earlier request
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

        self._errors = (RedisError, OSError, RuntimeError)  # uvloop raises the last of them

        self._storage = storage_from_string(
            f"async+{self._url}",
            implementation="redispy",
            key_prefix=self._prefix,
            socket_timeout=REDIS_TIMEOUT_SECONDS,
            socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
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

    async def close(self) -> None:
        """Disconnect."""
        storage, self._storage = self._storage, None
        if storage is not None:
            await storage.bridge.storage.aclose()


# -- names ------------------------------------------------------------------------------------

SLACK_MS = 60_000
"""How much longer a name is kept than needed: the clocks of replicas may differ."""


class StoredNames:
    """Names that are each taken once, by all replicas together and over restarts.

    A name is an amount of one in the store: exact, durable before ``take`` returns, and removed
    when it no longer counts. Nothing is kept in memory.
    """

    def __init__(self, store: SecurityStore) -> None:
        self._store = store

    async def take(self, *names: str, until: int) -> bool:
        """Take a name, and return whether it was free. It is taken until a time (ms).

        Raises ``StoreError``.
        """
        ask = QuotaAsk(
            key=short_key(*names), slot=0, oldest=0, amount=1, wanted=1, ends_at=until + SLACK_MS
        )
        granted = await self._store.take_quotas([ask])
        return bool(granted[0].given)


class AgentNames:
    """Names of one agent and one extension, for ``CallContext.once``."""

    def __init__(self, names: StoredNames, agent: str) -> None:
        self._names = names
        self._agent = agent

    async def take(self, extension: str, name: str, until: int) -> bool:
        """Take a name: see ``Once``. Raises ``OverloadedError`` while the store cannot tell."""
        try:
            return await self._names.take("once", self._agent, extension, name, until=until)
        except StoreError as error:
            raise OverloadedError(
                "the server cannot check now that this message is new; send it again", retry_after=1
            ) from error
