"""Turns at hosts that entries name as interfaces of agents, and that may be of somebody else."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from parley.model.bounded import Bounded

MAX_HOSTS = 10_000


class ProbePostponed(Exception):
    """A host that a probe would call is called enough already: the probe comes later."""


class HostTurns:
    """Bounds the calls of each host over all probes: ``most`` probes at a time, and a pause of
    ``seconds`` for each of their calls. ``clock`` returns seconds.
    """

    def __init__(
        self, most: int, seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._free_at: Bounded[str, float] = Bounded(MAX_HOSTS)

    @contextmanager
    def at(self, hosts: Collection[str]) -> Iterator[None]:
        """Have a turn at hosts, each as often as it is called. Raises ``ProbePostponed``."""
        calls, now = Counter(hosts), self._clock()
        for host in calls:
            if self._running[host] >= self._most or now < self._free_at.get(host, now):
                raise ProbePostponed(host)
        for host, count in calls.items():
            self._running[host] += 1
            self._free_at[host] = now + self._seconds * count
        try:
            yield
        finally:
            for host in calls:
                self._running[host] -= 1
                if not self._running[host]:
                    del self._running[host]
