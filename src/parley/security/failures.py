"""Failed authentications: counted, and slowed down for each address and each claimed id.

Every failure takes one from the allowance of the client's address, and one from that of the id
that the credentials claim (a user, a key). Both are restored evenly over a minute. An address
without allowance is refused before anything is verified. An id without allowance is refused to
addresses that failed within the last minute: its owner, who calls from elsewhere, is not affected.
Successes restore nothing.
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
"""How many failures a minute an address may have."""

WINDOW = 60.0

MAX_TRACKED = 10_000
"""How many addresses, and how many ids, are tracked: the last that failed."""

FailureListener = Callable[[str, str, str], None]
"""Called with the network, the scheme and the reason of refused credentials. The reason is empty
for a request that was refused because of failures before it.
"""

LINES_PER_MINUTE = 10
"""How many refused credentials of a minute get a line in the log; the others are counted."""


class Failures:
    """Counts refused credentials, and refuses further ones for a while.

    ``per_minute`` is the allowance of an address and of an id; 0 refuses nothing, but counts.
    ``trust_proxy`` takes addresses from ``X-Forwarded-For``. ``now`` returns seconds that never
    go back. ``refused`` is how many credentials were refused so far, ``throttled`` how many
    requests were refused because of failures before them. ``listener`` hears of each.
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
        """Whether a request may have to be refused: if not, nothing needs to be checked."""
        return self._limits and bool(self._addresses)

    def check(self, scope: Mapping[str, Any], claims: Iterable[Hashable] = ()) -> None:
        """Refuse a request with credentials while its address has failed too often.

        ``claims`` are the ids that its credentials claim. Raises ``TooManyRequestsError``.
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
                "too many credentials from your address were refused lately; wait "
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
        """Count refused credentials, and log them. ``reason`` has no part of the credentials."""
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
                "credentials refused from %s: %s (%s)", network or "no address", reason, scheme
            )

    def report(self) -> None:
        """Log how much was refused since the last report, if anything was."""
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
                "within a minute %d credentials were refused, and %d requests of addresses that "
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
        """Have this minute reported at its end."""
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
    """What each key may still do: ``limit`` at once, restored evenly over the window."""

    def __init__(self, limit: int) -> None:
        self._step = WINDOW / limit if limit else 0.0
        self._full = WINDOW - self._step
        # When a key's allowance is whole again, and when it was last taken from.
        self._taken: Bounded[Hashable, tuple[float, float]] = Bounded(MAX_TRACKED)

    def __len__(self) -> int:
        return len(self._taken)

    def wait(self, key: Hashable, now: float) -> float:
        """Return how many seconds pass until a key may do one more thing."""
        found = self._taken.get(key)
        return 0.0 if found is None else max(0.0, found[0] - now - self._full)

    def has_failed(self, key: Hashable, now: float) -> bool:
        """Return whether a key was taken from within the window."""
        found = self._taken.get(key)
        return found is not None and now - found[1] < WINDOW

    def forget_old(self, now: float) -> None:
        """Forget the keys whose last failure is older than the window."""
        for key in [key for key in self._taken if not self.has_failed(key, now)]:
            del self._taken[key]

    def take(self, key: Hashable, now: float) -> None:
        """Take one from a key. The key that failed longest ago makes room."""
        whole_at, _ = self._taken.get(key, (now, now))
        # No more is owed than a window: after a pause of a minute all is forgiven.
        self._taken[key] = (min(max(whole_at, now) + self._step, now + WINDOW), now)
