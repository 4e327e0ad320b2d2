"""Claims: leases of replicas on tasks, with a fencing token, and how long a lease lasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

MAX_COUNTED = 100_000
"""``unclaimed`` counts no further."""


class Claimed(msgspec.Struct, frozen=True):
    """A task that was claimed, the epoch to write in, and the key that ordered it in the queue."""

    task_id: str
    epoch: int
    queue_key: int = 0


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses a store: its last heartbeat (ms, by the store's clock), whether it
    counts as alive, and how many task leases it holds.
    """

    id: str
    seen_at: int
    alive: bool
    holds: int


class Replicas(Protocol):
    """The processes that use the store. Each sends heartbeats from ``open`` to ``close``.

    The leases of a replica without a heartbeat expire, at the latest after ``Lease.seconds``. An
    embedded store has one user at a time, so the leases of all earlier ones expire when it opens.
    """

    @property
    def replica(self) -> str:
        """The id of this user of the store, another at each ``open``: the owner of its leases."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether other replicas may use the store at the same time."""
        ...

    async def replicas(self) -> Sequence[Replica]:
        """Return the replicas that the store knows, this one among them."""
        ...


class Claims(Replicas, Protocol):
    """Leases on tasks, and the queue of tasks that are not claimed.

    - Exclusive: a task has at most one lease owner; of claims at once, one succeeds.
    - Fenced: each claim, and each lease that expires, raises the task's epoch. The epoch is the
      *fencing token*: appends with an older one raise ``Fenced``, however late they arrive.
    - Ordered: ``claim_batch`` takes the lowest ``queue_key`` first, among equals the oldest task.
      A task whose lease expired has key 0.
    """

    async def claim(self, task_id: str) -> int:
        """Take the task's lease for a new executor; return the new epoch. Fences earlier ones.

        Raises ``UnknownTask``, ``TaskEnded``, and ``LeaseHeld`` when another live replica has it.
        """
        ...

    async def claim_batch(self, agent: str, limit: int) -> Sequence[Claimed]:
        """Claim up to ``limit`` of the agent's tasks that have work left and no lease owner.

        Work left is a turn under way, messages waiting, or an unfinished cancellation.
        """
        ...

    async def unclaimed(self) -> Mapping[str, int]:
        """Return how many tasks there are to claim, by agent; counts ``MAX_COUNTED`` at most."""
        ...

    async def first_queued(self, agent: str) -> int:
        """Return the lowest ``queue_key`` above 0 among the agent's tasks to claim, or 0.

        The cost does not depend on how many there are.
        """
        ...

    async def held_tasks(self) -> Sequence[str]:
        """Return the ids of the tasks with work left whose lease this replica holds."""
        ...


LEASE_SECONDS = 15.0
SHORTEST_LEASE = 0.5
LONGEST_BEAT = 5.0


class Lease(msgspec.Struct, frozen=True):
    """How long a replica keeps its tasks without a heartbeat, in seconds.

    Within ``seconds`` of a replica's last heartbeat another has claimed its tasks: it counts as
    dead after ``time_to_live``, and each replica checks at every beat. Raises ``ValueError``.
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
        """Seconds between two heartbeats."""
        return min(self.seconds / 10, LONGEST_BEAT)

    @property
    def time_to_live(self) -> float:
        """Seconds after its last heartbeat at which a replica counts as dead."""
        return self.seconds * 0.8


class LivenessGate:
    """Whether a replica has reached the store long enough to expire others.

    After a pause of the store itself all replicas look dead, so a replica that has just reached it
    again waits first. Times are in seconds, of any clock that does not jump.
    """

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._since: float | None = None
        self._last = 0.0

    def felt(self, now: float) -> bool:
        """Record a heartbeat that the store took; return whether others may be expired now."""
        if self._since is None or now - self._last > self._lease.time_to_live / 2:
            self._since = now
        self._last = now
        return now - self._since >= self._lease.time_to_live

    def lost(self) -> None:
        """Record that the store could not be reached."""
        self._since = None
