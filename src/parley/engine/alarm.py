"""Wakes sleeping tasks when they are due."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Protocol

from parley.engine.executor import AgentExecutor
from parley.model import backoff
from parley.store.protocols.tables import NEVER
from parley.store.task_store import TaskStore

POLL_SECONDS = 1.0
"""How often a store that other processes use is asked for the next due time while a task sleeps,
and how soon a store that failed is asked again.
"""

LONGEST_WAIT = 5.0
"""How often a store that other processes use is asked while no task sleeps. Also the longest time
between two looks at the clock of an embedded store while a task sleeps: the clock may be set, and a
machine may be suspended.
"""

WAKE_BATCH = 500
"""How many tasks of an agent are woken at a time."""


class Try(Protocol):
    """Awaits work, and handles its failure: the result is then ``None``."""

    async def __call__(self, work: Awaitable[bool], /) -> bool | None:
        """Return the result of ``work``, ``None`` if it failed."""
        ...


class Alarm:
    """Waits for the next due time, and makes the tasks that are due claimable.

    An embedded store is asked nothing while no task sleeps. What this process puts to sleep, and
    events that are completed in it, are heard of at once (``listen_timers``); what other processes
    do is polled for.
    """

    def __init__(
        self, store: TaskStore, executors: Mapping[str, AgentExecutor], attempt: Try
    ) -> None:
        self._store = store
        self._executors = executors
        self._try = attempt
        self._agents = [agent for agent, each in executors.items() if each.runs_turns]
        self._next: int | None = None
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Look at the store's clock and at the store now."""
        self._next = 0
        self._rung.set()

    def changed(self, wakes_at: int) -> None:
        """Take note that a task of this process sleeps until a time (ms)."""
        if self._next is None or wakes_at < self._next:
            self._next = wakes_at
            self._rung.set()

    async def run(self) -> None:
        """Wake tasks for ever, beginning with those that are due already."""
        if not self._agents:
            return
        self._store.listen_timers(self.changed)
        self._next = 0
        while True:
            self._rung.clear()
            is_due = self._next is not None and self._next <= self._store.now()
            is_known = True
            if is_due or self._store.is_shared:
                is_known = bool(await self._try(self._wake_due()))
                if not is_known:
                    self._next = 0  # look again, whatever was heard of meanwhile
            await self._wait(is_known=is_known)

    async def _wait(self, *, is_known: bool) -> None:
        """Wait until the next time to look, or until it rings."""
        longest = LONGEST_WAIT
        if not is_known or (self._store.is_shared and self._next is not None):
            longest = POLL_SECONDS * backoff.uniform(0.8, 1.2)
        elif not self._store.is_shared and self._next in (None, NEVER):
            await self._rung.wait()
            return
        if is_known and self._next is not None:
            longest = min(longest, max(0, self._next - self._store.now()) / 1000)
        if longest > 0:
            try:
                async with asyncio.timeout(longest):
                    await self._rung.wait()
            except TimeoutError:
                pass

    async def _wake_due(self) -> bool:
        """Wake what is due. Return whether the next due time is known. Raises ``StoreError``."""
        while True:
            self._next = NEVER
            found = await self._store.next_wake(self._agents)
            heard, now = self._next, self._store.now()
            if found is not None and found <= now:
                self._next = found
                woken = [await self._executors[a].wake_due(now, WAKE_BATCH) for a in self._agents]
                if not any(woken):
                    return False  # another replica is waking them
            elif heard > now:  # it did not ring meanwhile
                next_wake = min(heard, NEVER if found is None else found)
                self._next = None if found is None and heard == NEVER else next_wake
                return True
