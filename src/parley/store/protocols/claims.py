"""Claims: leases of replicas on tasks, with a fencing token, and the length of a lease."""

from __future__ import annotations

import msgspec

MAX_COUNTED = 100_000
"""``unclaimed`` counts no further."""


class Claimed(msgspec.Struct, frozen=True):
    """A claimed task, the epoch for writing, and its key in the queue."""

    task_id: str
    epoch: int
    queue_key: int = 0


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses a store: its last heartbeat (ms, by the store's clock), whether it counts
    as alive, and the number of its task leases.
    """

    id: str
    seen_at: int
    alive: bool
    holds: int


LEASE_SECONDS = 15.0
SHORTEST_LEASE = 0.5
LONGEST_BEAT = 5.0


class Lease(msgspec.Struct, frozen=True):
    """The time in seconds for which a replica keeps its tasks without a heartbeat.

    Within ``seconds`` of a replica's last heartbeat another has claimed its tasks: it counts as
    dead after ``time_to_live``, and each replica checks at every beat. Raises ``ValueError``.
    """

    seconds: float = LEASE_SECONDS

    def __post_init__(self) -> None:
        if not SHORTEST_LEASE <= self.seconds <= 3600:
            raise ValueError(
                f"a lease is {SHORTEST_LEASE} to 3600 seconds, not {self.seconds!r}: the time "
                "that a replica may be silent before others claim its tasks"
            )

    @property
    def beat(self) -> float:
        """Seconds between two heartbeats."""
        return min(self.seconds / 10, LONGEST_BEAT)

    @property
    def time_to_live(self) -> float:
        """Seconds after its last heartbeat at which a replica counts as dead."""
        return self.seconds * 0.8


class LivenessGate:
    """Decides whether a replica has reached the store long enough to expire others.

    After a pause of the store itself all replicas look dead, so a replica that has just reached it
    again waits first. Times are in seconds, by any clock that does not jump.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._since: float | None = None
        self._last = 0.0

    def felt(self, now: float) -> bool:
        """Record an accepted heartbeat; return whether others may be expired now."""
        if self._since is None or now - self._last > self._lease.time_to_live / 2:
            self._since = now
        self._last = now
        return now - self._since >= self._lease.time_to_live

    def lost(self) -> None:
        """Record that the store could not be reached."""
        self._since = None
