"""How much a caller may publish, prove and beat, so that none takes what is for all."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

import msgspec

from parley.model.errors import an
from parley.registry.publishing.refusals import TooMuch
from parley.security.limits.counters import Grid, Window

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
MAX_COUNTED = 20_000
"""How many callers and acts are counted at most; then those that were seen longest ago go."""

Act = Literal["publish", "withdraw", "challenge", "prove", "beat"]


class PublishingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may do at most; rates are counted in one process. Sizes are in bytes, times in
    seconds.
    """

    entries: int = 1_000
    """The entries of a caller,"""
    withdrawn: int = 2_000
    """and those that it withdrew, as long as the index has them."""
    entries_at_once: int = 1_000
    document_bytes: int = 8 * 1024 * 1024
    domains: int = 50
    publishes_per_minute: int = 30
    publishes_at_once: int = 4
    """Catalogs of a caller that are read or wait for that."""
    withdrawals_per_minute: int = 120
    challenges_per_hour: int = 30
    proofs_per_minute: int = 10
    beats_per_minute: int = 2_000
    """Agents whose heartbeats a caller sends."""
    publish_seconds: float = 45.0
    """How long a push may read cards; the rest is read later, and listed then."""
    challenge_seconds: float = 24 * 3600.0
    """How long a token may take to be shown."""
    claim_seconds: float = 7 * 24 * 3600.0
    """How long a proof counts. It is looked for again every day before."""
    renewal_seconds: float = 24 * 3600.0
    refresh_seconds: float = 6 * 3600.0
    """How often the cards of pushed entries are read again."""

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} is more than 0, not {getattr(self, field.name)}")
        if self.renewal_seconds * 2 > self.claim_seconds:
            raise ValueError(
                f"renewal_seconds ({self.renewal_seconds:g}) is at most half of claim_seconds "
                f"({self.claim_seconds:g}): a proof that cannot be seen once must not end a claim"
            )


class CallerRates:
    """Counts what callers do. ``clock`` returns seconds."""

    def __init__(
        self, limits: PublishingLimits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rates: dict[Act, tuple[int, int]] = {
            "publish": (limits.publishes_per_minute, MINUTE_MS),
            "withdraw": (limits.withdrawals_per_minute, MINUTE_MS),
            "challenge": (limits.challenges_per_hour, HOUR_MS),
            "prove": (limits.proofs_per_minute, MINUTE_MS),
            "beat": (limits.beats_per_minute, MINUTE_MS),
        }
        self._clock = clock
        self._windows: OrderedDict[tuple[str, Act], Window] = OrderedDict()

    def take(self, owner: str, act: Act, count: int = 1) -> None:
        """Count acts of a caller. Raises ``TooMuch``, and counts none of them then."""
        amount, period = self._rates[act]
        grid, now = Grid.of(period), round(self._clock() * 1000)
        window = self._windows.setdefault((owner, act), Window())
        self._windows.move_to_end((owner, act))
        if len(self._windows) > MAX_COUNTED:
            self._windows.popitem(last=False)
        given = window.take(grid, now, amount, count)
        if given == count:
            return
        window.give_back(given)
        span = "minute" if period == MINUTE_MS else "hour"
        raise TooMuch(
            f"that is more than {amount:,} times '{act}' in {an(span)} for one caller; wait",
            retry_after=max(1.0, window.wait(grid, now) / 1000),
        )
