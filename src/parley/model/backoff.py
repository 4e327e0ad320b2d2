"""The delay before the next attempt, from the number of failures or a ``Retry-After`` header."""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime

import msgspec

_chance = random.Random()
if hasattr(os, "register_at_fork"):
    # Without a new seed, all workers of one process would wait for the same times.
    os.register_at_fork(after_in_child=_chance.seed)

uniform = _chance.uniform
"""Return a random number between two others, so that replicas and callers spread their requests.

The generator is not Python's own, which an agent may seed. Simulations replace it.
"""


class Backoff(msgspec.Struct, frozen=True):
    """Delays that grow from ``first`` seconds by ``factor`` up to ``longest``.

    Each delay is multiplied by a random number between the two of ``jitter``.
    """

    first: float
    longest: float
    factor: float = 2.0
    jitter: tuple[float, float] = (1.0, 1.0)

    def delay(self, failures: int) -> float:
        """Return the delay in seconds after this number of consecutive failures (1 or more)."""
        full = min(self.longest, self.first * self.factor ** min(failures - 1, 32))
        return full * uniform(*self.jitter)


def seconds_of(retry_after: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds of a ``Retry-After`` header, which may be a date."""
    if retry_after is None:
        return None
    value = retry_after.strip()
    if value.isascii() and value.isdigit():
        return float(value[:10])  # a longer number means for ever too
    from email.utils import parsedate_to_datetime  # slow to import, rarely needed

    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - (now or datetime.now(UTC))).total_seconds())
