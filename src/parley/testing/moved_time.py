"""The time of a test, and how it is moved: in order, and until everything has settled."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import count

from parley.testing.clock import Clock
from parley.testing.deployment import Deployment
from parley.testing.loop import SimulatedLoop
from parley.testing.processes import PROCESS

EXACT_STEPS = 1000
"""How many moments of one move of time are told apart, however close they are."""

STEPS = 500
"""The parts of a move of time that are told apart after that."""


class TestTime:
    """The time of everything under test. It flows as real time does, and ``advance`` moves it.

    It drives everything that the agents wait for by time: ``asyncio.sleep`` and timeouts in their
    functions, deadlines, sleeping turns, retention, the backoff of webhooks. ``time.time()`` and
    ``datetime.now()`` still return the machine's time.
    """

    __test__ = False  # no test class, for pytest

    def __init__(self, clock: Clock, simulated: SimulatedLoop) -> None:
        self._clock = clock
        self._simulated = simulated
        self._moving = asyncio.Lock()
        self._deployments: list[Deployment] = []

    @property
    def now(self) -> datetime:
        """The time by the stores' clock, in UTC."""
        return self._clock.now()

    def watch(self, deployment: Deployment) -> None:
        """Move the time of an agent too."""
        self._deployments.append(deployment)

    async def advance(self, span: timedelta | float) -> None:
        """Move the time by a span (seconds, if it is a number), and wait until all has settled.

        Timers fire in order, each at its own time: a function that sleeps a day five times wakes up
        five times. After a thousand timers of one move, those that are less than a 500th of it
        apart may fire together.
        Raises ``ValueError`` for a negative span.
        """
        seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
        if seconds < 0:
            raise ValueError(f"time goes forward: advance by 0 or more, not {span}")
        self.refuse_inside("advance")
        clock = self._clock
        async with self._moving:
            await self._settle()
            end = clock.time() + seconds
            for number in count():
                left = end - clock.time()
                if left <= 0:
                    break
                due = await self._next(0.0 if number < EXACT_STEPS else seconds / STEPS, end)
                clock.move(max(0.0, due - clock.time()))
                await self._settle()
                await self._wake()
            await self._wake()

    async def advance_to(self, moment: datetime) -> None:
        """Move the time to a moment. Raises ``ValueError`` for one in the past."""
        if moment.tzinfo is None:
            raise ValueError("a moment has a time zone: datetime(2026, 1, 1, tzinfo=UTC)")
        left = moment - self.now
        if left < timedelta(0):
            raise ValueError(f"time goes forward: it is {self.now.astimezone(UTC)} already")
        await self.advance(left)

    async def settle(self) -> None:
        """Wait until everything has settled, without moving the time."""
        self.refuse_inside("settle")
        async with self._moving:
            await self._settle()

    async def _next(self, span: float, end: float) -> float:
        """Return the time of what is due next: a timer, a sleeping task, or the end of the move."""
        wakes = [await deployment.next_wake() for deployment in self._deployments]
        return min([end, self._clock.upcoming(span, end) or end, *[w for w in wakes if w]])

    async def _wake(self) -> None:
        """Have the hosts do what they do from time to time, and wait until it is done."""
        for deployment in self._deployments:
            deployment.wake()
        await self._settle()

    async def _settle(self) -> None:
        deployments = self._deployments
        await self._simulated.settle(
            [deployment.is_busy for deployment in deployments],
            [deployment.is_in_threads for deployment in deployments],
        )

    def refuse_inside(self, what: str) -> None:
        """Raise ``RuntimeError`` in a function of an agent."""
        if PROCESS.get() is not None:
            raise RuntimeError(
                f"{what} waits until the agents are at rest, so they cannot wait for it: call it "
                "in the test"
            )
