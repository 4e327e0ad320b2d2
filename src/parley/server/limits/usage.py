"""Usage: what callers asked for and used, counted in memory and added to the store in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from parley.security.rates.limit import DAY_MS
from parley.store.protocols.errors import StoreError
from parley.store.protocols.tables import USAGE_KEPT_DAYS, UsageQuery, UsageRow, UsageStore
from parley.store.tables import COUNTED, OTHERS, UsageKey, added, usage_key, usage_row

log = logging.getLogger("parley.server")

FLUSH_SECONDS = 2.0
"""How often usage is added to the store: what a killed process loses at most."""

MOST_ROWS = 10_000
"""How many callers, tenants and skills are told apart between two flushes. Of further ones callers
are told apart, up to as many again; the rest count together.
"""

MOST_TENANTS = 10_000
"""How many tenants of one caller are told apart on a day; further ones count as none."""

MOST_TOTALS = 10_000
PRUNE_SECONDS = 3600.0
_PLACE = {name: index for index, name in enumerate(COUNTED)}

Whose = tuple[int, str | None, str | None, str | None]
"""A day, and the agent, tenant and caller that count; ``None`` is all."""


class UsageReader(Protocol):
    """Reads usage, for metrics and pages."""

    async def read(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Return what was used, what is not in the store yet among it. Raises ``StoreError``."""
        ...

    @property
    def totals(self) -> Mapping[str, int]:
        """What this process counted since it started, by the names of the columns."""
        ...


class _Total(msgspec.Struct):
    stored: list[int]
    own: list[int]
    read_at: int


class UsageMeter:
    """Counts usage. ``now`` returns ms. Nothing here costs a request a write."""

    def __init__(self, store: UsageStore, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now
        self._pending: dict[UsageKey, list[int]] = {}
        self._writing: dict[UsageKey, list[int]] = {}
        self._totals: dict[Whose, _Total] = {}
        self._tenants: dict[tuple[str, str], set[str]] = {}
        self._tenants_of = 0
        self._all = [0] * len(COUNTED)
        self._flushing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._pruned_at = 0
        self._is_failing = False

    @property
    def totals(self) -> Mapping[str, int]:
        """What this process counted since it started."""
        return dict(zip(COUNTED, self._all, strict=True))

    def count(
        self, what: str, agent: str, tenant: str, caller: str, skill: str = "", amount: int = 1
    ) -> None:
        """Add to a column."""
        place = _PLACE[what]
        day = self._now() // DAY_MS
        key = (day, agent, tenant, caller, skill)
        counts = self._pending.get(key)
        if counts is None:
            counts = self._row(self._told_apart(key))
        counts[place] += amount
        self._all[place] += amount
        if self._totals:
            for whose in _budgets_of(day, agent, tenant, caller):
                if (total := self._totals.get(whose)) is not None:
                    total.own[place] += amount

    def _told_apart(self, key: UsageKey) -> UsageKey:
        """Return a key, without its tenant if its caller, who may invent them, named too many."""
        day, agent, tenant, caller, skill = key
        if not tenant:
            return key
        if self._tenants_of != day:
            self._tenants, self._tenants_of = {}, day
        named = self._tenants.setdefault((agent, caller), set())
        if tenant not in named and len(named) >= MOST_TENANTS:
            return (day, agent, "", caller, skill)
        named.add(tenant)
        return key

    def _row(self, key: UsageKey) -> list[int]:
        """Return what is pending of a key, or of a wider one if there is too much."""
        day, agent, _, caller, _ = key
        if key not in self._pending and len(self._pending) >= MOST_ROWS:
            key = (day, agent, "", caller, "")
        if key not in self._pending and len(self._pending) >= 2 * MOST_ROWS:
            key = (day, agent, "", OTHERS, "")
        return self._pending.setdefault(key, [0] * len(COUNTED))

    def known(self, what: str, whose: Whose) -> int | None:
        """Return what was used of a column, ``None`` if the store has to be asked again."""
        total = self._totals.get(whose)
        if total is None or self._now() - total.read_at > FLUSH_SECONDS * 1000:
            return None
        return total.stored[_PLACE[what]] + total.own[_PLACE[what]]

    async def used(self, what: str, whose: Whose) -> int:
        """Return what was used of a column; of a store that fails, what was known last."""
        found = self.known(what, whose)
        if found is not None:
            return found
        try:
            async with self._flushing:  # what is being added would count twice
                stored = await self._sum(whose)
                own = self._sum_pending(whose)
        except StoreError as error:
            self._failed(error)
            total = self._totals.pop(whose, None) or _Total(
                [0] * len(COUNTED), [0] * len(COUNTED), 0
            )
            total.read_at = self._now()
        else:
            self._totals.pop(whose, None)
            total = _Total(stored, own, self._now())
        if len(self._totals) >= MOST_TOTALS:
            del self._totals[next(iter(self._totals))]
        self._totals[whose] = total
        return total.stored[_PLACE[what]] + total.own[_PLACE[what]]

    async def _sum(self, whose: Whose) -> list[int]:
        day, agent, tenant, caller = whose
        query = UsageQuery(since=day, until=day, agent=agent, tenant=tenant, caller=caller)
        total = await self._store.sum_usage(query)
        return [getattr(total, name) for name in COUNTED]

    def _sum_pending(self, whose: Whose) -> list[int]:
        found = [0] * len(COUNTED)
        for pending in (self._pending, self._writing):
            for key, counts in pending.items():
                if all(
                    want is None or want == has for want, has in zip(whose, key[:4], strict=True)
                ):
                    found = [a + b for a, b in zip(found, counts, strict=True)]
        return found

    async def read(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Return what was used, what is not in the store yet among it."""
        rows = {usage_key(row): row for row in await self._store.usage(query)}
        for pending in (self._pending, self._writing):
            for key, counts in pending.items():
                row = usage_row((*key, *counts))
                if (
                    query.since <= row.day <= query.until
                    and query.agent in (None, row.agent)
                    and query.tenant in (None, row.tenant)
                    and query.caller in (None, row.caller)
                ):
                    rows[key] = added(rows[key], row) if key in rows else row
        return sorted(rows.values(), key=lambda row: (-row.day, *usage_key(row)[1:]))

    # -- flushing ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to add to the store from time to time."""
        self._task = asyncio.create_task(self._flush_now_and_then())

    async def close(self) -> None:
        """Add what is left, and end."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        try:
            await self.flush()
        except StoreError as error:
            log.warning("the usage of the last seconds is lost: %s", error)

    async def flush(self) -> None:
        """Add what was counted to the store. Raises ``StoreError``; nothing is lost then."""
        async with self._flushing:
            if not self._pending:
                return
            self._writing, self._pending = self._pending, {}
            rows = [usage_row((*key, *counts)) for key, counts in self._writing.items()]
            try:
                await asyncio.shield(self._store.add_usage(rows))
            except StoreError:
                for key, counts in self._writing.items():
                    row = self._row(key)
                    row[:] = [a + b for a, b in zip(counts, row, strict=True)]
                raise
            finally:
                self._writing = {}
            self._is_failing = False

    async def _flush_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self._flush_once()

    async def _flush_once(self) -> None:
        now = self._now()
        try:
            await self.flush()
            if now - self._pruned_at > PRUNE_SECONDS * 1000:
                self._pruned_at = now
                await self._store.prune_usage(now // DAY_MS - USAGE_KEPT_DAYS, now)
        except StoreError as error:
            self._failed(error)

    def _failed(self, error: StoreError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("usage is counted, and cannot be stored for now: %s", error)


def _budgets_of(day: int, agent: str, tenant: str, caller: str) -> tuple[Whose, ...]:
    """Return whose budgets an addition counts for."""
    return tuple(
        [
            (day, each_agent, each_tenant, each_caller)
            for each_agent in (None, agent)
            for each_tenant in (None, tenant)
            for each_caller in (None, caller)
        ]
    )
