"""The poller: receives hints from the bus, and polls the store for lost hints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from parley.model.concurrency import Periodic
from parley.store.bus.subscriptions import Bus, LocalHints
from parley.store.events import LoggedEvent
from parley.store.protocols.errors import StoreError
from parley.store.task_store import TaskStore

logger = logging.getLogger(__name__)

CHUNK = 1000
"""The number of tasks in one query."""

FASTER = 4
"""The factor of the polling frequency while no bus delivers hints."""

_DELETED = 0
"""The position of a task that the store does not have."""


class BusPoller:
    """Passes hints on between the store, the subscribers in this process, and the bus.

    On a store that other replicas share it queries the positions of all watched tasks, every
    ``poll`` seconds, ``FASTER`` times as often without a bus, and at once when the bus is back:
    ``CHUNK`` tasks per query, and only changes are passed on. So a lost hint only causes a delay.
    An embedded store publishes everything itself: it is not polled, and no bus is opened.
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
        self._left: list[str] = []  # of this round
        self._due = self._pause = 0.0
        self._hurries = False
        self._polling = Periodic(
            "polling for changes of other replicas", self._look, self._interval, log=logger
        )
        self._is_failing = False

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        """Pass on the records of one append. The store is opened with this as ``committed``."""
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
        self._polling.start()

    async def stop(self) -> None:
        """Stop polling and close the bus. Idempotent."""
        self._hints.on_lookup = self._hints.on_interest = None
        try:
            await self._polling.stop()
        finally:
            if self._bus is not None:
                await self._bus.close()

    def _look_up(self, task_id: str | None) -> None:
        """Request an immediate look-up of a task, or of all."""
        if task_id is None:
            self._all_next = True
        else:
            self._next.add(task_id)
        self._wake.set()

    async def _look(self) -> bool:
        """Look up the due tasks, and wait until others are due."""
        loop = asyncio.get_running_loop()
        self._wake.clear()
        now = loop.time()
        left, hurries, due = self._left, self._hurries, self._due
        if self._all_next:
            self._all_next = False
            left, hurries = self._watched(), True
        elif not left and now >= due:
            left = self._watched()
            self._pause = self._interval() / max(1, -(-len(left) // CHUNK))
        self._left, self._hurries = [], False  # if the store fails
        try:
            if self._next:
                asked, self._next = self._next, set()
                await self._ask([task for task in asked if self._hints.is_watched(task)])
            if hurries or now >= due:
                await self._ask(left[:CHUNK])
                self._succeeded()
                left = left[CHUNK:]
                self._due = loop.time() + (self._interval() if hurries else self._pause)
            self._left, self._hurries = left, hurries and bool(left)
        except StoreError as error:
            self._failed(error)
            self._due = loop.time() + self._interval()
        if not self._hurries:
            await self._wait(self._due)
        return True

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
        """Wait until a loop time, or until an immediate look-up is requested."""
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
            logger.warning("the store can be polled for changes of other replicas again")

    def _failed(self, error: StoreError) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning("the store cannot be polled for changes of other replicas: %s", error)
