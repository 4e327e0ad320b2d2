"""Counters of rates: in this process, or together with other replicas in the store or in Redis.

A window is cut into slots. An amount counts until all of its slot is older than the span, so no
span of that length ever has more than the limit, and an amount comes back up to one slot late. A
day of a budget is one slot that nothing before it counts in.

A counter answers at once where it can; else the caller awaits it. When the store or Redis fails,
each process counts alone, so a limit never stops working and never stops the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from parley.model.errors import OverloadedError, StoreError
from parley.security.limits.declaration import Rate
from parley.security.limits.usage import QuotaAsk, UsageStore

if TYPE_CHECKING:
    from limits import RateLimitItem

LOCAL_SLOTS = 60
"""The slots of a span that one process counts."""

SHARED_SLOTS = 10
"""The slots of a span that replicas count together: a replica spends a lease within a slot."""


class Grid(msgspec.Struct, frozen=True):
    """Slots of ``slot_ms``: the current one and ``before`` others make up a window."""

    slot_ms: int
    before: int

    @classmethod
    def of(cls, period_ms: int, *, is_daily: bool = False, slots: int = LOCAL_SLOTS) -> Grid:
        """Return the grid of a span; a day has one slot."""
        if is_daily:
            return cls(period_ms, 0)
        slots = min(slots, max(1, period_ms // 10))
        return cls(-(-period_ms // slots), slots)

    def slot(self, now: int) -> int:
        """Return the slot of a time (ms)."""
        return now // self.slot_ms

    def free_at(self, slot: int) -> int:
        """Return when (ms) the amounts of a slot no longer count."""
        return (slot + self.before + 1) * self.slot_ms


class Window:
    """The amounts taken, by slot. Memory is bounded by the number of slots."""

    __slots__ = ("_slots", "total")

    def __init__(self) -> None:
        self._slots: deque[list[int]] = deque()  # slot, taken; the oldest first
        self.total = 0

    def take(self, grid: Grid, now: int, amount: int, wanted: int = 1) -> int:
        """Take up to ``wanted`` of the free amount, and return the amount taken."""
        slot = self._advance(grid, now)
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

    def wait(self, grid: Grid, now: int) -> int:
        """Return the ms until some of the amount is free again; 0 if none is taken."""
        self._advance(grid, now)
        return max(0, grid.free_at(self._slots[0][0]) - now) if self._slots else 0

    def is_empty(self, grid: Grid, now: int) -> bool:
        """Return whether nothing counts any more."""
        self._advance(grid, now)
        return not self._slots

    def _advance(self, grid: Grid, now: int) -> int:
        slot = grid.slot(now)
        oldest = slot - grid.before
        while self._slots and self._slots[0][0] < oldest:
            self.total -= self._slots.popleft()[1]
        return slot


# -- counters ---------------------------------------------------------------------------------

log = logging.getLogger("parley.server")

MOST_KEYS = 100_000
"""How many keys (callers, addresses ...) one process counts: the most recent ones."""

LARGEST_LEASE = 100
"""The most of an amount that a replica takes at once from the store."""

FAILURE_LOG_SECONDS = 60.0
"""How often a failure of the store or of Redis is logged."""

FALLBACK_SECONDS = 1.0
"""How long a process counts alone after a failure of the store or of Redis."""


class Taken(NamedTuple):
    """The answer of a counter: ``reset`` is in seconds."""

    allowed: bool
    remaining: int
    reset: float


class Counters(Protocol):
    """Counts the use of rates, by key."""

    def try_take(self, key: str, rate: Rate) -> Taken | None:
        """Take one, or return ``None`` if that has to be awaited."""
        ...

    async def take(self, key: str, rate: Rate) -> Taken:
        """Take one."""
        ...

    def peek(self, key: str, rate: Rate) -> Taken | None:
        """Return the remainder, without taking any; ``None`` if it is unknown here."""
        ...

    def give_back(self, key: str, rate: Rate) -> None:
        """Undo the last taking, as far as that is possible at once."""
        ...

    async def close(self) -> None:
        """Give back unspent leases, and disconnect."""
        ...


class LocalCounters:
    """Counts in this process. ``now`` returns ms."""

    def __init__(self, now: Callable[[], int], *, most_keys: int = MOST_KEYS) -> None:
        self._now = now
        self._most_keys = most_keys
        self._windows: dict[str, Window] = {}
        self._grids: dict[tuple[int, bool], Grid] = {}

    def try_take(self, key: str, rate: Rate) -> Taken:
        """Take one."""
        now = self._now()
        grid = self._grid(rate)
        window = self._windows.pop(key, None)
        if window is None:
            window = Window()
            if len(self._windows) >= self._most_keys:
                del self._windows[next(iter(self._windows))]
        self._windows[key] = window  # the most recent key is forgotten last
        allowed = window.take(grid, now, rate.amount) == 1
        return Taken(allowed, rate.amount - window.total, window.wait(grid, now) / 1000)

    async def take(self, key: str, rate: Rate) -> Taken:
        """Take one."""
        return self.try_take(key, rate)

    def peek(self, key: str, rate: Rate) -> Taken:
        """Return how much is left."""
        window = self._windows.get(key)
        if window is None:
            return Taken(True, rate.amount, 0.0)
        wait = window.wait(self._grid(rate), self._now())
        return Taken(window.total < rate.amount, rate.amount - window.total, wait / 1000)

    def give_back(self, key: str, rate: Rate) -> None:
        """Undo the last taking."""
        if (window := self._windows.get(key)) is not None:
            window.give_back()

    async def close(self) -> None:
        """Do nothing."""

    def _grid(self, rate: Rate) -> Grid:
        kind = rate.period_ms, rate.is_daily
        grid = self._grids.get(kind)
        if grid is None:
            grid = Grid.of(rate.period_ms, is_daily=rate.is_daily, slots=LOCAL_SLOTS)
            self._grids[kind] = grid
        return grid


class _Lease(msgspec.Struct):
    """The share of this replica of an amount within a slot, and the use by all replicas."""

    grid: Grid
    slot: int = -1
    left: int = 0
    spent: int = 0
    block: int = 1
    taken: int = 0
    exhausted_until: int = 0
    waiters: int = 0


class _Asked:
    """The question to the store for one key, and the number of callers that wait for the answer.

    ``late`` is an amount that arrived after its slot had passed: only the waiters may spend it.
    """

    __slots__ = ("asks", "done", "late", "waiters")

    def __init__(self, asks: list[QuotaAsk]) -> None:
        self.asks = asks
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.late = 0
        self.waiters = 0


class StoreCounters:
    """Counts together with all replicas that share a store.

    A replica leases some of an amount, and spends that within a slot without asking the store:
    one at first, then twice as much whenever a lease is spent, and never more than an eighth of
    the remainder. So all replicas together never admit more than the amount, and a replica that
    stops without giving back its leases withholds at most its leases.
    """

    def __init__(
        self, store: UsageStore, now: Callable[[], int], *, most_keys: int = MOST_KEYS
    ) -> None:
        self._store = store
        self._now = now
        self._most_keys = most_keys
        self._leases: dict[str, _Lease] = {}
        self._asks: dict[str, _Asked] = {}
        self._returns: list[QuotaAsk] = []
        self._asking: asyncio.Task[None] | None = None
        self._fallback = Fallback("the store", now)

    def try_take(self, key: str, rate: Rate) -> Taken | None:
        """Take one from the lease, or return ``None`` to ask the store."""
        if self._fallback.is_used:
            return self._fallback.counters.try_take(key, rate)
        lease = self._leases.get(key)
        if lease is None:
            return None
        now = self._now()
        if lease.exhausted_until > now:
            return Taken(False, 0, (lease.exhausted_until - now) / 1000)
        if lease.slot == lease.grid.slot(now) and lease.left:
            lease.left -= 1
            lease.spent += 1
            reset = lease.grid.free_at(lease.slot) - now
            return Taken(True, max(0, rate.amount - lease.taken + lease.left), reset / 1000)
        return None

    async def take(self, key: str, rate: Rate) -> Taken:
        """Take one, after asking the store if needed."""
        while (taken := self.try_take(key, rate)) is None:
            if await self._ask(key, rate):
                return Taken(True, 0, rate.period_ms / 1000)
        return taken

    def peek(self, key: str, rate: Rate) -> Taken | None:
        """Return the remainder by the store's last answer, if it was in this slot."""
        lease, now = self._leases.get(key), self._now()
        if lease is None or lease.slot != lease.grid.slot(now):
            return None
        reset = lease.grid.free_at(lease.slot) - now
        return Taken(True, max(0, rate.amount - lease.taken + lease.left), reset / 1000)

    def give_back(self, key: str, rate: Rate) -> None:
        """Return one to the lease."""
        lease = self._leases.get(key)
        if lease is not None and lease.slot == lease.grid.slot(self._now()):
            lease.left += 1
            lease.spent -= 1

    async def close(self) -> None:
        """Give back the leases."""
        if self._asking is not None:
            await asyncio.wait({self._asking})
        asks = [ask for key, lease in self._leases.items() if (ask := _undo(key, lease))]
        asks += self._returns
        self._leases.clear()
        self._returns.clear()
        if asks:
            try:
                await self._store.take_quotas(asks)
            except StoreError as error:
                log.warning("leases of limits were not given back: %s", error)

    async def _ask(self, key: str, rate: Rate) -> bool:
        """Ask the store, and return whether it granted one that no other caller may spend."""
        lease = self._leases.pop(key, None)
        if lease is None:
            if len(self._leases) >= self._most_keys:
                self._forget(next(iter(self._leases)))
            grid = Grid.of(rate.period_ms, is_daily=rate.is_daily, slots=SHARED_SLOTS)
            lease = _Lease(grid)
        self._leases[key] = lease  # the most recent key is forgotten last
        lease.waiters += 1
        try:
            asked = self._asks.get(key)
            if asked is None:
                asked = self._asks[key] = _Asked(self._asks_of(key, rate, lease))
                if self._asking is None:
                    self._asking = asyncio.create_task(self._ask_all())
            asked.waiters += 1
            await asyncio.shield(asked.done)
        finally:
            lease.waiters -= 1
        asked.late -= 1
        return asked.late >= 0

    def _forget(self, key: str) -> None:
        """Forget a lease; the next question gives its rest back."""
        if undo := _undo(key, self._leases.pop(key)):
            self._returns.append(undo)

    def _asks_of(self, key: str, rate: Rate, lease: _Lease) -> list[QuotaAsk]:
        """Return the questions of a key; the rest of an earlier slot is given back first."""
        now = self._now()
        slot = lease.grid.slot(now)
        asks = []
        if lease.slot != slot:
            if undo := _undo(key, lease):
                asks.append(undo)
            lease.block = max(1, lease.spent // 2)
            lease.slot, lease.left, lease.spent = slot, 0, 0
        else:
            lease.block *= 2
        remaining = rate.amount - lease.taken
        most = max(1, min(LARGEST_LEASE, remaining // 8))
        lease.block = min(lease.block, most)
        asks.append(
            QuotaAsk(
                key=key,
                slot=slot,
                oldest=slot - lease.grid.before,
                amount=rate.amount,
                wanted=max(lease.block, min(lease.waiters, most)),
                ends_at=lease.grid.free_at(slot),
            )
        )
        return asks

    async def _ask_all(self) -> None:
        """Ask the store for all waiters in one call, until no caller waits."""
        asked: dict[str, _Asked] = {}
        try:
            while self._asks:
                await asyncio.sleep(0)  # questions of one pass of the event loop go together
                asked, self._asks = self._asks, {}
                await self._ask_for(asked)
                for each in asked.values():
                    each.done.set_result(None)
        except Exception as error:  # a bug: the waiters get it
            for each in (*asked.values(), *self._asks.values()):
                if not each.done.done():
                    each.done.set_exception(error)
        finally:
            self._asking = None
            for each in (*asked.values(), *self._asks.values()):
                each.done.cancel()  # unless it is done
            self._asks = {}

    async def _ask_for(self, asked: dict[str, _Asked]) -> None:
        returns, self._returns = self._returns, []
        asks = [*returns, *[ask for each in asked.values() for ask in each.asks]]
        try:
            grants = await self._store.take_quotas(asks)
        except StoreError as error:
            self._fallback.failed(error)
            return
        for ask, grant in zip(asks, grants, strict=True):
            if ask.wanted < 0:
                continue
            lease = self._leases.get(ask.key)
            if lease is None or not ask.slot == lease.slot == lease.grid.slot(self._now()):
                self._granted_late(asked[ask.key], ask, grant.given)
            elif grant.given:
                lease.left += grant.given
            if lease is not None:
                lease.taken = grant.taken
                if not grant.given:
                    lease.exhausted_until = lease.grid.free_at(grant.first)

    def _granted_late(self, asked: _Asked, ask: QuotaAsk, given: int) -> None:
        """Let the waiters have an amount whose slot has passed; give the rest back."""
        asked.late = min(given, asked.waiters)
        if given > asked.late:
            self._returns.append(msgspec.structs.replace(ask, wanted=asked.late - given))


def _undo(key: str, lease: _Lease) -> QuotaAsk | None:
    """Return the question that gives back the rest of a lease."""
    if not lease.left:
        return None
    return QuotaAsk(
        key=key,
        slot=lease.slot,
        oldest=lease.slot - lease.grid.before,
        amount=0,
        wanted=-lease.left,
        ends_at=lease.grid.free_at(lease.slot),
    )


class Fallback:
    """Counts in this process for a while after a failure of the store or of Redis."""

    def __init__(self, what: str, now: Callable[[], int]) -> None:
        self._what = what
        self._until = 0.0
        self._logged: float | None = None
        self.counters = LocalCounters(now)

    @property
    def is_used(self) -> bool:
        """Whether the last failure is recent."""
        return bool(self._until) and time.monotonic() < self._until

    def failed(self, error: Exception) -> None:
        """Count here for a while."""
        now = time.monotonic()
        self._until = now + FALLBACK_SECONDS
        if self._logged is None or now - self._logged >= FAILURE_LOG_SECONDS:
            self._logged = now
            log.warning(
                "%s does not count limits now, so each process counts on its own: %r",
                self._what,
                error,
            )


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


class RedisCounters:
    """Counts together with all processes that name the same Redis."""

    def __init__(self, url: str, prefix: str, now: Callable[[], int]) -> None:
        self._url = url
        self._prefix = prefix
        self._fallback = Fallback("Redis", now)
        self._free = asyncio.Semaphore(REDIS_CONNECTIONS)
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
            if self._fallback.is_used:  # Redis failed an earlier request
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


# -- names ------------------------------------------------------------------------------------

SLACK_MS = 60_000
"""How much longer a name is kept than needed: the clocks of replicas may differ."""


class StoredNames:
    """Names that are each taken once, by all replicas together and over restarts.

    A name is an amount of one in the store: exact, durable before ``take`` returns, and removed
    when it no longer counts. Nothing is kept in memory.
    """

    def __init__(self, store: UsageStore) -> None:
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
