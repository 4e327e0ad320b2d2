"""Usage of the agents by day, and the amounts of limits that replicas take together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

USAGE_KEPT_DAYS = 400
"""How many days of usage a store keeps."""

MOST_USAGE_ROWS = 10_000
"""How many rows one reading returns at most, the latest days first."""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller used of an agent's skill on a day (days of UTC since 1970).

    ``caller`` is the key of the caller (``Caller.owner``), empty for those without proof of who
    they are. Requests and refusals of other operations than messages have no ``skill``.
    """

    day: int
    agent: str
    tenant: str = ""
    caller: str = ""
    skill: str = ""
    requests: int = 0
    refusals: int = 0
    messages: int = 0
    tasks: int = 0
    output_bytes: int = 0
    run_ms: int = 0


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects usage: ``None`` is any agent, tenant or caller. Days are inclusive."""

    since: int = 0
    until: int = 2**31
    agent: str | None = None
    tenant: str | None = None
    caller: str | None = None
    limit: int = MOST_USAGE_ROWS


class QuotaAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for up to ``wanted`` of an amount, of which slots from ``oldest`` on count.

    A negative number gives back what was taken in ``slot``. ``ends_at`` (ms) is when the slot
    no longer counts.
    """

    key: str
    slot: int
    oldest: int
    amount: int
    wanted: int
    ends_at: int


class QuotaGrant(msgspec.Struct, frozen=True):
    """How much was given, how much is taken now in all, and the oldest slot with some of it."""

    given: int
    taken: int
    first: int


class UsageStore(Protocol):
    """Counts that are added up over replicas. They are never exported: another store counts anew.

    - Exact: all replicas together are never given more of an amount than there is.
    - At most once: what is added counts once, or not at all if the call fails.
    """

    async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        """Take from amounts, one after another. Durable when it returns."""
        ...

    async def add_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add to what was used. The keys of the rows differ."""
        ...

    async def usage(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Return what was used, the latest days first."""
        ...

    async def sum_usage(self, query: UsageQuery) -> UsageRow:
        """Return the sum of all rows that are selected, without their keys; no ``limit`` holds."""
        ...

    async def prune_usage(self, before_day: int, now: int) -> None:
        """Remove the usage of days before one, and slots that no longer count at a time (ms)."""
        ...
