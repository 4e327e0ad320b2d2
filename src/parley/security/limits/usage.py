"""The usage of callers, counted in memory and added to the store in batches.

The store also keeps the counts of limits that replicas share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import astuple

from parley.model.bounded import Bounded
from parley.model.concurrency import Periodic
from parley.model.errors import StoreError
from parley.model.service import group_key
from parley.security.api_keys import ApiKeyRecord
from parley.security.limits.declaration import DAY_MS

log = logging.getLogger("parley.server")

# -- the store --------------------------------------------------------------------------------

USAGE_KEPT_DAYS = 400
"""The number of days for which a store keeps usage."""

MOST_USAGE_ROWS = 10_000
"""The maximum number of rows in one result, the latest days first."""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of an agent's skill by a caller on a day (days of UTC since 1970).

    ``caller`` is the key of the caller (``Caller.owner``), empty for unauthenticated callers. Rows
    for requests and rejections of other operations than messages have no ``skill``.
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
    """A filter for usage. ``None`` selects every agent, tenant or caller. Days are inclusive."""

    since: int = 0
    until: int = 2**31
    agent: str | None = None
    tenant: str | None = None
    caller: str | None = None
    limit: int = MOST_USAGE_ROWS


class QuotaAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A request for up to ``wanted`` units of an amount, counting the slots from ``oldest`` on.

    A negative number gives units of ``slot`` back. ``ends_at`` (ms) is the time when the slot
    expires.
    """

    key: str
    slot: int
    oldest: int
    amount: int
    wanted: int
    ends_at: int


class QuotaGrant(msgspec.Struct, frozen=True):
    """The result: the units granted, the units in use, and the oldest slot with units in use."""

    given: int
    taken: int
    first: int


class SecurityStore(Protocol):
    """Secrets, API keys and counts in the server's store, which replicas share.

    - Exact: all replicas together never get more than an amount.
    - At most once: an addition counts once, or not at all if the call fails.
    - Bounded: usage is kept for ``USAGE_KEPT_DAYS``, and a slot until it expires.

    Every call may raise ``StoreError``.
    """

    @property
    def has_operators(self) -> bool:
        """True if ``parley keys`` can change the store while a server has it open."""
        ...

    def now(self) -> int:
        """Return the time in ms."""
        ...

    async def secret(self, name: str) -> bytes:
        """Return the secret with this name."""
        ...

    def listen_api_keys(self, changed: Callable[[str], None]) -> None:
        """Call ``changed`` with the id of each key that this process adds or revokes."""
        ...

    async def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store a key."""
        ...

    async def api_key(self, id: str) -> ApiKeyRecord | None:
        """Return a key, expired and revoked keys included."""
        ...

    async def api_keys(self, owner: str = "") -> Sequence[ApiKeyRecord]:
        """Return all keys, or the keys of one owner."""
        ...

    async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        """Use units of amounts, in this order. Durable when it returns."""
        ...

    async def add_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add to the usage. Each row must have a different key."""
        ...

    async def usage(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Return the usage, the latest days first."""
        ...

    async def sum_usage(self, query: UsageQuery) -> UsageRow:
        """Return the sum of all selected rows, without their keys. ``limit`` is ignored."""
        ...


UsageKey = tuple[int, str, str, str, str]

OTHERS = group_key("others")
"""The caller key under which the usage of further callers is summed when there are too many.

No caller has this key.
"""

COUNTED = ("requests", "refusals", "messages", "tasks", "output_bytes", "run_ms")
"""The columns of a row that are summed."""


def usage_key(row: UsageRow) -> UsageKey:
    """Return the key of a row: the columns that are not summed."""
    return (row.day, row.agent, row.tenant, row.caller, row.skill)


def usage_row(values: Sequence[Any]) -> UsageRow:
    """Return a row from its key and counts."""
    day, agent, tenant, caller, skill, *counts = values
    counted = dict(zip(COUNTED, counts, strict=True))
    return UsageRow(day=day, agent=agent, tenant=tenant, caller=caller, skill=skill, **counted)


def counts_of(row: UsageRow) -> tuple[int, ...]:
    """Return the counts of a row, in the order of ``COUNTED``."""
    return astuple(row)[5:]


def added(first: UsageRow, second: UsageRow) -> UsageRow:
    """Return the sum of two rows with the key of the first."""
    counts = [a + b for a, b in zip(counts_of(first), counts_of(second), strict=True)]
    return usage_row((*usage_key(first), *counts))


NO_USAGE = usage_row((0, "", "", "", "", *[0] * len(COUNTED)))
"""The sum of an empty list of rows."""


# -- the meter --------------------------------------------------------------------------------

FLUSH_SECONDS = 2.0
"""The interval of writes to the store: a killed process loses this much usage."""

MOST_ROWS = 10_000
"""The maximum number of keys between two writes. Beyond it usage is counted per caller only, for as
many again, and after that in one sum.
"""

MOST_TENANTS = 10_000
"""The maximum number of tenants per caller and day; usage of further tenants has no tenant."""

MOST_TOTALS = 10_000
_PLACE = {name: index for index, name in enumerate(COUNTED)}

Whose = tuple[int, str | None, str | None, str | None]
"""A day, and the agent, tenant and caller to sum for; ``None`` is all."""


class _Total(msgspec.Struct):
    stored: list[int]
    own: list[int]
    read_at: int


class UsageMeter:
    """Counts usage in memory; no request waits for a write. ``now`` returns ms."""

    def __init__(self, store: SecurityStore, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now
        self._pending: dict[UsageKey, list[int]] = {}
        self._writing: dict[UsageKey, list[int]] = {}
        self._totals: Bounded[Whose, _Total] = Bounded(MOST_TOTALS)
        self._tenants: dict[tuple[str, str], set[str]] = {}
        self._tenants_of = 0
        self._all = [0] * len(COUNTED)
        self._flushing = asyncio.Lock()
        self._flushes = Periodic(
            "usage", self._flush_once, FLUSH_SECONDS, log=log, waits_first=True
        )
        self._is_failing = False

    @property
    def totals(self) -> Mapping[str, int]:
        """The counts of this process since its start, by column name."""
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
            counts = self._row(self._with_known_tenant(key))
        counts[place] += amount
        self._all[place] += amount
        if self._totals:
            for whose in _budgets_of(day, agent, tenant, caller):
                if (total := self._totals.get(whose)) is not None:
                    total.own[place] += amount

    def _with_known_tenant(self, key: UsageKey) -> UsageKey:
        """Return a key, without its tenant if its caller named too many: callers can invent
        tenants."""
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
        """Return the pending counts of a key, or of a coarser key if there are too many."""
        day, agent, _, caller, _ = key
        if key not in self._pending and len(self._pending) >= MOST_ROWS:
            key = (day, agent, "", caller, "")
        if key not in self._pending and len(self._pending) >= 2 * MOST_ROWS:
            key = (day, agent, "", OTHERS, "")
        return self._pending.setdefault(key, [0] * len(COUNTED))

    async def used(self, what: str, whose: Whose) -> int:
        """Return the usage in a column, or the last known usage while the store fails."""
        total = self._totals.get(whose)
        if total is None or self._now() - total.read_at > FLUSH_SECONDS * 1000:
            total = self._totals[whose] = await self._read_total(whose, total)
        place = _PLACE[what]
        return total.stored[place] + total.own[place]

    async def _read_total(self, whose: Whose, known: _Total | None) -> _Total:
        try:
            async with self._flushing:  # counts of a running write would count twice
                return _Total(await self._sum(whose), self._sum_pending(whose), self._now())
        except StoreError as error:
            self._failed(error)
            total = known or _Total([0] * len(COUNTED), [0] * len(COUNTED), 0)
            total.read_at = self._now()
            return total

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
        """Return the usage, including counts that are not stored yet. Raises ``StoreError``."""
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
        """Begin to write to the store regularly."""
        self._flushes.start()

    async def close(self) -> None:
        """Write the remaining counts, and stop."""
        await self._flushes.stop()
        try:
            await self.flush()
        except StoreError as error:
            log.warning("the usage of the last seconds is lost: %s", error)

    async def flush(self) -> None:
        """Write the counts to the store. Raises ``StoreError``, and keeps the counts."""
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

    async def _flush_once(self) -> None:
        try:
            await self.flush()
        except StoreError as error:
            self._failed(error)

    def _failed(self, error: StoreError) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("usage is counted, but cannot be stored now: %s", error)


def _budgets_of(day: int, agent: str, tenant: str, caller: str) -> tuple[Whose, ...]:
    """Return the keys of all budgets to which an addition belongs."""
    return tuple(
        [
            (day, each_agent, each_tenant, each_caller)
            for each_agent in (None, agent)
            for each_tenant in (None, tenant)
            for each_caller in (None, caller)
        ]
    )
