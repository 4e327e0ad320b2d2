"""The poller: gets hints from the bus, and asks the store for lost hints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from parley.model.concurrency import end
from parley.store.bus.subscriptions import Bus, LocalHints
from parley.store.events import LoggedEvent
from parley.store.protocols.errors import StoreError
from parley.store.task_store import TaskStore

logger = logging.getLogger(__name__)

CHUNK = 1000
"""How many tasks one query is about."""

FASTER = 4
"""How many times as often the store is polled while no bus brings hints."""

_DELETED = 0
"""Stands for the position of a task that the store does not have."""


class BusPoller:
    """Passes hints on between the store, the subscribers in this process, and the bus.

    On a store that other replicas share it asks for the positions of all watched tasks, every
    ``poll`` seconds, ``FASTER`` times as often without a bus, and at once when the bus is back:
    ``CHUNK`` tasks a query, and only changes are passed on. So a lost hint costs a delay and
    nothing else. An embedded store publishes everything itself: it is not polled, and no bus is
    opened.
    """

    def __init__(
        self, store: TaskStore, hints: LocalHints, bus: Bus | None, *, poll: float = 1.0
    ) -> None:
        if poll <= 0:
            raise ValueError(f"poll is a number of seconds above 0, not {poll}")
        self._store = store
        self._hints = hints
        self._bus = bus
        self._poll = poll
        # A hash of the last known position of each watched task.
        self._known: dict[str, int] = {}
        self._next: set[str] = set()
        self._all_next = False
        self._wake = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._is_failing = False

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        """Pass on the records of one append. The store is opened with this."""
        self._hints.publish(records)
        if self._bus is not None and records:
            self._bus.publish(records)

    def publish_work(self, agent: str) -> None:
        """Pass on that an agent has unclaimed work."""
        self._hints.notify_work(agent)
        if self._bus is not None:
            self._bus.publish_work(agent)

    async def start(self) -> None:
        """Open the bus and begin to poll, now that the store is open."""
        if not self._store.is_shared:
            self._bus = None
            return
        self._hints.on_lookup = self._look_up
        if self._bus is not None:
            self._hints.on_interest = self._bus.watch
            await self._bus.open(self._hints, self._store.replica)
            for task_id in self._hints.watched:
                self._bus.watch(task_id, True)
        self._polling = asyncio.create_task(self._run(), name="parley-bus-poller")

    async def stop(self) -> None:
        """Stop polling and close the bus. Idempotent."""
        self._hints.on_lookup = self._hints.on_interest = None
        polling, self._polling = self._polling, None
        try:
            if polling is not None:
                await end([polling])
        finally:
            if self._bus is not None:
                await self._bus.close()

    def _look_up(self, task_id: str | None) -> None:
        """Have a task, or all, looked up at once."""
        if task_id is None:
            self._all_next = True
        else:
            self._next.add(task_id)
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        left: list[str] = []  # of this round
        due = pause = 0.0
        hurry = False
        while True:
            self._wake.clear()
            now = loop.time()
            if self._all_next:
                self._all_next = False
                left, hurry = self._watched(), True
            elif not left and now >= due:
                left = self._watched()
                pause = self._interval() / max(1, -(-len(left) // CHUNK))
            try:
                if self._next:
                    asked, self._next = self._next, set()
                    await self._ask([task for task in asked if self._hints.is_watched(task)])
                if hurry or now >= due:
                    chunk, left = left[:CHUNK], left[CHUNK:]
                    await self._ask(chunk)
                    self._succeeded()
                    due = loop.time() + (self._interval() if hurry else pause)
                    hurry = hurry and bool(left)
            except StoreError as error:
                self._failed(error)
                left, hurry, due = [], False, loop.time() + self._interval()
            except Exception:
                logger.exception("looking for what other replicas did failed")
                left, due = [], loop.time() + self._interval()
            if not hurry:
                await self._wait(due)

    def _watched(self) -> list[str]:
        """Return all watched tasks, and forget the positions of others."""
        watched = list(self._hints.watched)
        if len(self._known) > len(watched):
            known = self._known
            self._known = {task: known[task] for task in watched if task in known}
        return watched

    def _interval(self) -> float:
        return self._poll if self._bus is not None and self._bus.is_up else self._poll / FASTER

    async def _wait(self, until: float) -> None:
        """Wait until a time of the loop's clock, or until something is to be looked up at once."""
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _ask(self, task_ids: Sequence[str]) -> None:
        """Ask the store for the positions of tasks, and pass on the changes."""
        if not task_ids:
            return
        known = self._known
        missing = set(task_ids)
        for position in await self._store.positions(task_ids):
            task_id = position.task_id
            missing.discard(task_id)
            now = hash(position) or 1
            if known.get(task_id) != now:
                known[task_id] = now
                self._hints.notify_position(position)
        for task_id in missing:
            if known.get(task_id) != _DELETED:
                known[task_id] = _DELETED
                self._hints.notify_deleted(task_id)

    def _succeeded(self) -> None:
        if self._is_failing:
            self._is_failing = False
            logger.warning("the store can be asked again what other replicas did")

    def _failed(self, error: StoreError) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning("the store cannot be asked what other replicas did: %s", error)
