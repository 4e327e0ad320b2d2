"""How replicas that share a store tell one another that they are alive."""

from __future__ import annotations

import msgspec

LEASE_SECONDS = 15.0
SHORTEST_LEASE = 0.5
LONGEST_BEAT = 5.0


class Lease(msgspec.Struct, frozen=True):
    """How long a replica that is not heard of keeps its tasks, in seconds.

    Within ``seconds`` of a replica's last sign of life another has taken its tasks: it counts as
    dead after ``time_to_live``, and that is looked for at every beat. Raises ``ValueError``.
    """

    seconds: float = LEASE_SECONDS

    def __post_init__(self) -> None:
        if not SHORTEST_LEASE <= self.seconds <= 3600:
            raise ValueError(
                f"a lease is {SHORTEST_LEASE} to 3600 seconds, not {self.seconds!r}: as long as a "
                "replica may be silent before others take its tasks"
            )

    @property
    def beat(self) -> float:
        """Seconds between two signs of life."""
        return min(self.seconds / 10, LONGEST_BEAT)

    @property
    def time_to_live(self) -> float:
        """Seconds after its last sign of life at which a replica counts as dead."""
        return self.seconds * 0.8


class LivenessGate:
    """Whether a replica has been in touch with the store long enough to judge others.

    One that was not may be looking at the trace of a pause of the store itself, after which all
    others look dead. Moments are in seconds, of any clock that does not jump.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._since: float | None = None
        self._last = 0.0

    def felt(self, now: float) -> bool:
        """Note a sign of life that the store took; return whether others may be judged now."""
        if self._since is None or now - self._last > self._lease.time_to_live / 2:
            self._since = now
        self._last = now
        return now - self._since >= self._lease.time_to_live

    def lost(self) -> None:
        """Note that the store could not be reached."""
        self._since = None
