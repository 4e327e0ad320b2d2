"""Failed authentications as entries of the audit, few however many there are.

Failures from one address within ``WINDOW`` seconds are one entry with counts. So many addresses
have entries of their own in a window and in an hour; the others share one entry in each window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from parley.store.protocols.audit import AuditEntry

WINDOW = 60.0

ADDRESSES_PER_WINDOW = 32

ADDRESSES_PER_HOUR = 240

MAX_REASONS = 5

KIND = "auth.failed"

OTHERS = "others"
"""Stands for the addresses that share an entry."""


class _Count(msgspec.Struct):
    first: int
    last: int
    refused: int = 0
    throttled: int = 0
    reasons: set[str] = msgspec.field(default_factory=set)
    schemes: set[str] = msgspec.field(default_factory=set)


class FailureSummary:
    """Counts failures by address, and records the counts of each window at its end.

    ``now`` returns ms by the store's clock.
    """

    def __init__(self, record: Callable[[AuditEntry], None], now: Callable[[], int]) -> None:
        self._record = record
        self._now = now
        self._counts: dict[str, _Count] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._hour = 0
        self._own = 0

    def note(self, address: str, scheme: str, reason: str) -> None:
        """Count a failure; one without a ``reason`` was refused because of those before it."""
        now = self._now()
        count = self._counts.get(address)
        if count is None:
            name = address if self._has_room(now) else OTHERS
            count = self._counts.setdefault(name, _Count(now, now))
        count.last = now
        if not reason:
            count.throttled += 1
        else:
            count.refused += 1
            if len(count.reasons) < MAX_REASONS:
                count.reasons.add(reason)
            if scheme and len(count.schemes) < MAX_REASONS:
                count.schemes.add(scheme)
        if self._timer is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # recorded with the next one, or at the end
            self._timer = loop.call_later(WINDOW, self.summarize)

    def summarize(self) -> None:
        """Record what was counted, and begin another window."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        for address, count in counts.items():
            details = {
                "refused": count.refused,
                "throttled": count.throttled,
                "reasons": sorted(count.reasons),
                "schemes": sorted(count.schemes),
                "from": count.first,
                "to": count.last,
            }
            entry = AuditEntry(
                kind=KIND, at=count.last, address=address, outcome="refused", details=details
            )
            self._record(entry)

    def _has_room(self, now: int) -> bool:
        hour = now // 3_600_000
        if hour != self._hour:
            self._hour, self._own = hour, 0
        if len(self._counts) >= ADDRESSES_PER_WINDOW or self._own >= ADDRESSES_PER_HOUR:
            return False
        self._own += 1
        return True
