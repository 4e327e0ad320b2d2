"""Counters of rates: in this process, or together with other replicas through the store.

A counter answers at once where it can; else it is asked again, and awaited. When the store or Redis
fails, each process counts on its own, so a limit never stops working and never stops the server.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from parley.security.rates.limit import Rate
from parley.security.rates.window import LOCAL_SLOTS, SHARED_SLOTS, Grid, Window
from parley.store.protocols.errors import StoreError
from parley.store.protocols.tables import QuotaAsk, UsageStore

log = logging.getLogger("parley.server")

MOST_KEYS = 100_000
"""How many callers, addresses and so on one process counts apart: those that asked last."""

LARGEST_LEASE = 100
"""The most of an amount that a replica takes at once from the store."""

PRUNE_MS = 600_000
"""How often slots that no longer count are removed from the store."""

QUIET_SECONDS = 60.0
"""How often a failure of what replicas share is logged."""

PAUSE_SECONDS = 1.0
"""How long it is not asked again after a failure."""


class Taken(NamedTuple):
    """The answer of a counter: ``reset`` is in seconds."""

    allowed: bool
    remaining: int
    reset: float


class Counters(Protocol):
    """Counts what is taken of rates, by key."""

    def try_take(self, key: str, rate: Rate) -> Taken | None:
        """Take one, or return ``None`` if that has to be awaited."""
        ...

    async def take(self, key: str, rate: Rate) -> Taken:
        """Take one."""
        ...

    def peek(self, key: str, rate: Rate) -> Taken | None:
        """Return how much is left, without taking any; ``None`` if that is not known here."""
        ...

    def give_back(self, key: str, rate: Rate) -> None:
        """Undo the last taking, as far as that is possible at once."""
        ...

    async def close(self) -> None:
        """Give back what is left, and disconnect."""
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
        self._windows[key] = window  # the last that asked is the last to be forgotten
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
    """What this replica may spend of an amount within a slot, and what it knows of all replicas."""

    grid: Grid
    slot: int = -1
    left: int = 0
    spent: int = 0
    block: int = 1
    taken: int = 0
    exhausted_until: int = 0
    waiters: int = 0


class _Asked:
    """What the store is asked for one key, for those who wait for that.

    ``late`` is what was granted after its slot had passed: only those who wait may spend it.
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
    what remains. So all replicas together never admit more than the amount, and a replica that
    stops without giving back its leases withholds at most what it had leased.
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
        self._pruned_at = now()
        self._fallback = Fallback("the store", now)

    def try_take(self, key: str, rate: Rate) -> Taken | None:
        """Take one of what is leased, or return ``None`` to ask the store."""
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
        """Return how much was left when the store was asked last, if that was in this slot."""
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
        """Give back what is leased."""
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
        """Ask the store, and return whether one was granted that nobody else may spend."""
        lease = self._leases.pop(key, None)
        if lease is None:
            if len(self._leases) >= self._most_keys:
                self._forget(next(iter(self._leases)))
            grid = Grid.of(rate.period_ms, is_daily=rate.is_daily, slots=SHARED_SLOTS)
            lease = _Lease(grid)
        self._leases[key] = lease  # the last that asked is the last to be forgotten
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
        """Forget a lease; what is left of it is given back with what is asked next."""
        if undo := _undo(key, self._leases.pop(key)):
            self._returns.append(undo)

    def _asks_of(self, key: str, rate: Rate, lease: _Lease) -> list[QuotaAsk]:
        """Return what to ask for, after what is left of an earlier slot."""
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
        """Ask the store for all who wait, in one go, until nobody does."""
        asked: dict[str, _Asked] = {}
        try:
            while self._asks:
                await asyncio.sleep(0)  # those of this pass of the event loop go together
                asked, self._asks = self._asks, {}
                await self._ask_for(asked)
                for each in asked.values():
                    each.done.set_result(None)
        except Exception as error:  # a bug: whoever waits has to learn of it
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
            if self._now() - self._pruned_at > PRUNE_MS:
                self._pruned_at = self._now()
                await self._store.prune_usage(0, self._pruned_at)
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
        """Let those who wait have what counts in a slot that has passed; give the rest back."""
        asked.late = min(given, asked.waiters)
        if given > asked.late:
            self._returns.append(msgspec.structs.replace(ask, wanted=asked.late - given))


def _undo(key: str, lease: _Lease) -> QuotaAsk | None:
    """Return what gives back the rest of a lease."""
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
    """Counts in this process for a while after what replicas share has failed."""

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
        self._until = now + PAUSE_SECONDS
        if self._logged is None or now - self._logged >= QUIET_SECONDS:
            self._logged = now
            log.warning(
                "%s does not count limits now, so each process counts on its own: %r",
                self._what,
                error,
            )


def short_key(*parts: str) -> str:
    """Return a key of parts as a store keeps it: short, and without ids and addresses."""
    key = "\0".join(parts)  # which no id contains
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
