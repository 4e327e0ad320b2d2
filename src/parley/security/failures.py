"""Failed authentications: counted and slowed down per address and per claimed id.

Every failure uses up one unit of the allowance of the client's address, and one of the allowance of
the id in the credentials (a user, a key). Both allowances refill evenly within a minute. Requests
from an address without allowance are rejected before verification. For an id without allowance,
only addresses that failed within the last minute are rejected: the owner of the id, who calls from
another address, is not affected. Successes refill nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from parley.model.bounded import Bounded
from parley.model.errors import TooManyRequestsError
from parley.security.networks import client_address, network_of

log = logging.getLogger("parley.security")

PER_MINUTE = 30
"""The number of failures per minute that an address may have."""

WINDOW = 60.0

MAX_TRACKED = 10_000
"""The number of addresses, and of ids, that are tracked: the latest failures."""

FailureListener = Callable[[str, str, str], None]
"""Called with the network, the scheme and the reason of rejected credentials. The reason is empty
for a request that was rejected because of earlier failures.
"""

LINES_PER_MINUTE = 10
"""The number of rejected credentials per minute that are logged; further ones are counted."""


class Failures:
    """Counts rejected credentials, and rejects further requests for a while.

    ``per_minute`` is the allowance of an address and of an id; 0 rejects nothing, but counts.
    ``trust_proxy`` reads addresses from ``X-Forwarded-For``. ``now`` returns monotonic seconds.
    ``refused`` is the number of rejected credentials so far, ``throttled`` the number of requests
    rejected because of earlier failures. ``listener`` is called for each of them.
    """

    def __init__(
        self,
        per_minute: int = PER_MINUTE,
        *,
        trust_proxy: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused = 0
        self.throttled = 0
        self.listener: FailureListener | None = None
        self._now = now
        self._trust_proxy = trust_proxy
        self._addresses = _Allowances(per_minute)
        self._ids = _Allowances(per_minute)
        self._limits = per_minute > 0
        self._reported = (0, 0)
        self._lines = 0
        self._begun: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def any_recent(self) -> bool:
        """True if requests may have to be rejected. If false, no request needs a check."""
        return self._limits and bool(self._addresses)

    def check(self, scope: Mapping[str, Any], claims: Iterable[Hashable] = ()) -> None:
        """Reject a request with credentials while its address has failed too often.

        ``claims`` are the ids in its credentials. Raises ``TooManyRequestsError``.
        """
        if not self.any_recent:
            return
        now = self._now()
        network = self._network(scope)
        wait = self._addresses.wait(network, now)
        if not wait and self._addresses.has_failed(network, now):
            wait = max([self._ids.wait(hash(claim), now) for claim in claims], default=0.0)
        if wait:
            self.throttled += 1
            self._begin_report()
            if self.listener is not None:
                self.listener(network, "", "")
            seconds = math.ceil(wait)
            raise TooManyRequestsError(
                "too many credentials from your address were rejected recently; wait "
                f"{seconds} second{'' if seconds == 1 else 's'}, and send valid ones",
                retry_after=seconds,
            )

    def note(
        self,
        scope: Mapping[str, Any],
        claims: Iterable[Hashable] = (),
        *,
        scheme: str = "",
        reason: str = "",
    ) -> None:
        """Count rejected credentials and log them. ``reason`` contains no part of the
        credentials."""
        now = self._now()
        network = self._network(scope)
        self.refused += 1
        self._begin_report()
        if self._limits:
            self._addresses.take(network, now)
            for claim in claims:
                self._ids.take(hash(claim), now)
        if self.listener is not None:
            self.listener(network, scheme, reason or "refused")
        if self._lines < LINES_PER_MINUTE:
            self._lines += 1
            log.warning(
                "credentials rejected from %s: %s (%s)", network or "no address", reason, scheme
            )

    def report(self) -> None:
        """Log the number of rejections since the last report, if there were any."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._begun, lines = None, None, self._lines
        refused, throttled = self.refused - self._reported[0], self.throttled - self._reported[1]
        self._reported, self._lines = (self.refused, self.throttled), 0
        now = self._now()
        self._addresses.forget_old(now)
        self._ids.forget_old(now)
        if throttled or refused > lines:
            log.warning(
                "within a minute %d credentials were rejected, and %d requests from addresses that "
                "had failed too often%s",
                refused,
                throttled,
                "" if self._trust_proxy else "; if these came through a proxy, set trust_proxy",
            )

    async def close(self) -> None:
        """Log the rest of the report."""
        self.report()

    def _network(self, scope: Mapping[str, Any]) -> str:
        return network_of(client_address(scope, trust_proxy=self._trust_proxy))

    def _begin_report(self) -> None:
        """Schedule the report for this minute."""
        now = self._now()
        if self._begun is not None and now - self._begun >= WINDOW:
            self.report()
        if self._begun is None:
            self._begun = now
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # reported with the first failure after this minute
            self._timer = loop.call_later(WINDOW, self.report)


class _Allowances:
    """The remaining allowance of each key: ``limit`` at once, refilled evenly over the window."""

    def __init__(self, limit: int) -> None:
        self._step = WINDOW / limit if limit else 0.0
        self._full = WINDOW - self._step
        # The time when a key's allowance is full again, and the time of its last failure.
        self._taken: Bounded[Hashable, tuple[float, float]] = Bounded(MAX_TRACKED)

    def __len__(self) -> int:
        return len(self._taken)

    def wait(self, key: Hashable, now: float) -> float:
        """Return the seconds until a key has allowance again."""
        found = self._taken.get(key)
        return 0.0 if found is None else max(0.0, found[0] - now - self._full)

    def has_failed(self, key: Hashable, now: float) -> bool:
        """Return whether a key has failed within the window."""
        found = self._taken.get(key)
        return found is not None and now - found[1] < WINDOW

    def forget_old(self, now: float) -> None:
        """Forget the keys whose last failure is older than the window."""
        for key in [key for key in self._taken if not self.has_failed(key, now)]:
            del self._taken[key]

    def take(self, key: Hashable, now: float) -> None:
        """Use up one unit of a key. If there is no room, the key that failed longest ago is
        dropped."""
        whole_at, _ = self._taken.get(key, (now, now))
        # The debt is at most one window: after a minute without failures it is gone.
        self._taken[key] = (min(max(whole_at, now) + self._step, now + WINDOW), now)
