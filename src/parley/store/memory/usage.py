"""Usage and the amounts of limits in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from parley.store.protocols.usage import QuotaAsk, QuotaGrant, UsageQuery, UsageRow
from parley.store.usage import UsageKey, added, granted, sum_of, usage_key


class MemoryCounts:
    """What replicas that share memory count together."""

    def __init__(self) -> None:
        self.usage: dict[UsageKey, UsageRow] = {}
        self.quotas: dict[str, tuple[dict[int, int], int]] = {}


class MemoryUsage(ABC):
    """The part of a memory store that counts."""

    _counts: MemoryCounts

    @abstractmethod
    def _opened(self) -> object:
        """Raise ``StoreUnavailable`` unless the store is open."""

    async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        """Take from amounts of limits."""
        self._opened()
        grants = []
        for ask in asks:
            slots, ends_at = self._counts.quotas.get(ask.key, ({}, 0))
            grants.append(granted(ask, slots))
            self._counts.quotas[ask.key] = slots, max(ends_at, ask.ends_at)
        return grants

    async def add_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add to what was used."""
        self._opened()
        usage = self._counts.usage
        for row in rows:
            key = usage_key(row)
            usage[key] = added(usage[key], row) if key in usage else row

    async def usage(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Return what was used, the latest days first."""
        found = self._selected(query)
        return sorted(found, key=lambda row: (-row.day, *usage_key(row)[1:]))[: query.limit]

    async def sum_usage(self, query: UsageQuery) -> UsageRow:
        """Return the sum of all rows that are selected."""
        return sum_of(self._selected(query))

    def _selected(self, query: UsageQuery) -> list[UsageRow]:
        self._opened()
        return [
            row
            for row in self._counts.usage.values()
            if query.since <= row.day <= query.until
            and query.agent in (None, row.agent)
            and query.tenant in (None, row.tenant)
            and query.caller in (None, row.caller)
        ]

    async def prune_usage(self, before_day: int, now: int) -> None:
        """Remove old usage, and slots that no longer count."""
        self._opened()
        for key in [key for key in self._counts.usage if key[0] < before_day]:
            del self._counts.usage[key]
        quotas = self._counts.quotas
        for name in [name for name, (_, ends_at) in quotas.items() if ends_at <= now]:
            del quotas[name]
