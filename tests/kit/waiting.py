"""Time in tests: waiting for a condition, letting time pass, a clock. No other test code sleeps.

``tests/house/test_sleeps.py`` checks that; agents under test may sleep to simulate work.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

INTERVAL = 0.005
"""Seconds between two checks of a condition."""

SECONDS = 60.0
"""The default timeout of a condition, in seconds; tests have tighter timeouts."""


async def until(
    holds: Callable[[], object], seconds: float = SECONDS, interval: float = INTERVAL
) -> None:
    """Wait until ``holds()`` is true, or the awaitable that it returns is.

    Raises ``TimeoutError`` after ``seconds``.
    """
    async with asyncio.timeout(seconds):
        while True:
            value = holds()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return
            await asyncio.sleep(interval)


def wait_until(
    holds: Callable[[], object], seconds: float = SECONDS, interval: float = INTERVAL
) -> None:
    """Block until ``holds()`` is true. Raises ``TimeoutError`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"it did not hold within {seconds} seconds")
        time.sleep(interval)


def let_time_pass(seconds: float) -> Awaitable[None]:
    """Wait without a condition: where time is under test, where an event must not happen meanwhile,
    where a fault strikes at a random moment, or between two checks of a loop.
    """
    return asyncio.sleep(seconds)


def block_thread(seconds: float) -> None:
    """Block the thread, as ``let_time_pass`` blocks a coroutine."""
    time.sleep(seconds)


class Clock:
    """A clock that stands still until a test moves it, in the unit of ``now``."""

    def __init__(self, now: Any) -> None:
        self.now = now

    def __call__(self) -> Any:
        return self.now
