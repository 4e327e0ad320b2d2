"""Usage and the amounts of limits: rows of a store, and the arithmetic of memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import asdict, astuple

from parley.model.service import group_key
from parley.store.protocols.usage import QuotaAsk, QuotaGrant, UsageQuery, UsageRow

UsageKey = tuple[int, str, str, str, str]

OTHERS = group_key("others")
"""The caller under whom what is too much to be told apart is counted; no caller has this key."""

NO_KEY: UsageKey = (0, "", "", "", "")
"""The key of a sum, which is about nothing alone."""

COUNTED = ("requests", "refusals", "messages", "tasks", "output_bytes", "run_ms")
"""The columns of a row that are added up."""


def usage_key(row: UsageRow) -> UsageKey:
    """Return what a row is about."""
    return (row.day, row.agent, row.tenant, row.caller, row.skill)


def usage_values(row: UsageRow) -> dict[str, Any]:
    """Return a row as the columns of a table."""
    return asdict(row)


def usage_row(values: Sequence[Any]) -> UsageRow:
    """Return the usage in a row of the table."""
    day, agent, tenant, caller, skill, *counts = values
    counted = dict(zip(COUNTED, counts, strict=True))
    return UsageRow(day=day, agent=agent, tenant=tenant, caller=caller, skill=skill, **counted)


def query_values(query: UsageQuery) -> dict[str, Any]:
    """Return a query as the values of the statement."""
    return asdict(query)


def added(first: UsageRow, second: UsageRow) -> UsageRow:
    """Return the sum of two rows about the same."""
    counts = [a + b for a, b in zip(astuple(first)[5:], astuple(second)[5:], strict=True)]
    return usage_row((*usage_key(first), *counts))


def sum_of(rows: Iterable[UsageRow]) -> UsageRow:
    """Return the sum of rows, without a key."""
    total = usage_row((*NO_KEY, *[0] * len(COUNTED)))
    for row in rows:
        total = added(total, row)
    return total


def granted(ask: QuotaAsk, slots: dict[int, int]) -> QuotaGrant:
    """Return what an ask is given of an amount, of which ``slots`` were taken, and take it."""
    for slot in [slot for slot in slots if slot < ask.oldest]:
        del slots[slot]
    taken = sum(slots.values())
    given = min(ask.wanted, max(0, ask.amount - taken))
    if given < 0:
        given = -min(-given, slots.get(ask.slot, 0))
    if given:
        slots[ask.slot] = slots.get(ask.slot, 0) + given
    return QuotaGrant(given, taken + given, min(slots, default=ask.slot))
