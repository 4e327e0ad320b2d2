"""What is being asked just now: so that a search that comes back is not passed on again.

A registry of Parley's tells by the header (``Hops``). One of others does not send it on, so a
search that is the same as one under way here may have come from it: it asks nobody, and takes what
the first one has got after a moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from parley.model.bounded import Bounded
from parley.registry.federation.upstream import UpstreamPage

MEMORY_SECONDS = 60.0
MAX_REMEMBERED = 10_000
PATIENCE = 0.4
"""The part of its time that a search waits for the results of the first one that is the same."""


class SharedSearch:
    """The answers of other registries to one search, as they come."""

    def __init__(self) -> None:
        self.pages: dict[str, UpstreamPage] = {}
        self.ended = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait until all have answered, or for some time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ended.wait()


class RunningQueries:
    """The searches that are passed on now, by what they ask; and the ids of the last ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[str, SharedSearch] = {}
        self._known: Bounded[str, float] = Bounded(MAX_REMEMBERED)

    def is_new(self, query: str) -> bool:
        """Return whether a search is seen for the first time here, and remember it."""
        now = self._clock()
        seen_at = self._known.get(query)
        if seen_at is not None and now - seen_at < MEMORY_SECONDS:
            return False
        self._known[query] = now
        return True

    def running(self, asked: str) -> SharedSearch | None:
        """Return the same search, if it is under way."""
        return self._running.get(asked)

    def begin(self, asked: str) -> SharedSearch:
        """Note that a search is passed on. It must be given to ``end``."""
        shared = self._running[asked] = SharedSearch()
        return shared

    def end(self, asked: str) -> None:
        """Note that all have answered, or that the time is over."""
        shared = self._running.pop(asked, None)
        if shared is not None:
            shared.ended.set()
