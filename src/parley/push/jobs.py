"""The jobs that deliver to webhooks, their destinations, and the caps that these wait for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from parley.push.circuit import Circuit


class CapGate:
    """The cap of one host or address, and the destinations that wait for it.

    Requests are spaced by a virtual schedule (GCRA): ``due`` is when the next one would be due
    without bursts. It has one ``part``-th of the cap.
    """

    __slots__ = ("active", "due", "part", "timer", "waiting")

    def __init__(self, part: int = 1) -> None:
        self.part = part
        self.active = 0
        self.due = 0.0
        # By caller, so that callers take turns.
        self.waiting: OrderedDict[str, OrderedDict[Destination, None]] = OrderedDict()
        self.timer: asyncio.TimerHandle | None = None


class Destination:
    """The webhooks of one caller at one origin: their queued jobs, and how the origin answers.

    ``is_quick``: the last answer was good and quick. ``is_slow``: it was not. Neither holds before
    the first call. ``waits_at`` is the cap that it waits for.
    """

    __slots__ = (
        "__weakref__", "active", "backing_off", "caller", "circuit", "has_recovered", "host",
        "is_exempt", "is_quick", "is_slow", "queued", "queued_in", "waits_at",
    )  # fmt: skip

    def __init__(self, caller: str, origin: str = "") -> None:
        self.caller = caller
        self.host = urlsplit(origin).hostname or origin
        self.circuit = Circuit()
        self.is_exempt: bool | None = None
        self.waits_at: CapGate | None = None
        self.is_quick = self.is_slow = self.has_recovered = False
        self.active = 0
        self.queued_in: OrderedDict[Destination, None] | None = None
        # Created on demand: there may be very many idle destinations.
        self.queued: deque[DeliveryJob] | None = None
        self.backing_off: dict[DeliveryJob, None] | None = None

    def answered(self, *, well: bool) -> None:
        """Record an answer; ``well`` is one that was good and quick."""
        self.has_recovered = self.has_recovered or (well and self.is_slow)
        self.is_quick, self.is_slow = well, not well


class DeliveryJob:
    """A job that delivers to one webhook, a batch for each call of ``work``.

    ``work`` returns the delay in seconds before the next call, or ``None`` until the job is
    submitted again. It asks ``DestinationCaps.permit`` before each request. With
    ``may_retry_early`` the delay ends as soon as another job finds that the destination answers
    again, and ``retried_early`` is set. One that ``is_finished`` never runs again.
    """

    __slots__ = (
        "destination", "gates", "has_request", "is_finished", "is_held_back", "may_retry_early",
        "retried_early", "task", "timer", "work",
    )  # fmt: skip

    def __init__(
        self, destination: Destination, work: Callable[[], Coroutine[Any, Any, float | None]]
    ) -> None:
        self.destination = destination
        self.work = work
        self.gates: list[CapGate] = []
        self.has_request = self.is_held_back = False
        self.is_finished = self.may_retry_early = self.retried_early = False
        self.task: asyncio.Task[float | None] | None = None
        self.timer: asyncio.TimerHandle | None = None
