"""Usage and the amounts of limits in a SQLite store: each operation adds to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parley.store.protocols.usage import QuotaAsk, QuotaGrant, UsageRow
from parley.store.sqlite.batch import SqliteBatch
from parley.store.usage import granted, usage_values


def take(
    batch: SqliteBatch, asks: Sequence[QuotaAsk]
) -> tuple[Sequence[QuotaGrant], Sequence[Any]]:
    """Take from amounts. The result is what was given."""
    grants = []
    for ask in asks:
        slots = batch.quota_slots(ask.key, ask.oldest)
        grant = granted(ask, slots)
        if grant.given:
            batch.add("put_quota_slot", (ask.key, ask.slot, slots[ask.slot], ask.ends_at))
        grants.append(grant)
    return grants, ()


def add(batch: SqliteBatch, rows: Sequence[UsageRow]) -> tuple[None, Sequence[Any]]:
    """Add to what was used."""
    for row in rows:
        batch.add("add_usage", usage_values(row))
    return None, ()


def prune(batch: SqliteBatch, before_day: int, now: int) -> tuple[None, Sequence[Any]]:
    """Remove old usage, and slots that no longer count."""
    batch.add("prune_usage", {"before_day": before_day})
    batch.add("prune_quota_slots", {"now": now})
    return None, ()
