"""What one replica hears of others: by the bus, and by looking into the store for what it lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from parley.store.bus.subscriptions import Bus, LocalHints
from parley.store.ending import end
from parley.store.events import LoggedEvent
from parley.store.task_store import StoreError, TaskStore

logger = logging.getLogger(__name__)

CHUNK = 1000
"""How many tasks one question to the store is about."""

FASTER = 4
"""How many times as often the store is asked while no bus brings hints."""

_GONE = 0
"""Stands for the place of a task that the store does not have."""


class BusPoller:
    """Passes hints on between a store, those in this process who care, and a bus.

    On a store that other replicas use too, it asks every ``poll`` seconds where all tasks stand
    that anybody here cares about, ``FASTER`` times as often without a bus, and at once when the
    bus is back: one question for ``CHUNK`` tasks, and only news is passed on. So a lost hint costs
    a moment. An embedded store tells of everything itself: then nothing is asked, and no bus is
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
        # What was last heard from the store of each task that is watched: a hash of its place.
        self._known: dict[str, int] = {}
        self._at_once: set[str] = set()
        self._everything = False
        self._asked = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._is_failing = False

    def committed(self, records: Sequence[LoggedEvent]) -> None:
        """Tell everybody of one append. This is what the store is opened with."""
        self._hints.publish(records)
        if self._bus is not None and records:
            self._bus.tell(records)

    def work(self, agent: str) -> None:
        """Tell everybody that there is unclaimed work of an agent."""
        self._hints.work(agent)
        if self._bus is not None:
            self._bus.work(agent)

    async def start(self) -> None:
        """Begin to hear of others, now that the store is open."""
        if not self._store.is_shared:
            self._bus = None
            return
        self._hints.look = self._look
        if self._bus is not None:
            self._hints.interest = self._bus.watch
            await self._bus.open(self._hints, self._store.replica)
            for task_id in self._hints.watched:
                self._bus.watch(task_id, True)
        self._polling = asyncio.create_task(self._run(), name="parley-relay")

    async def stop(self) -> None:
        """Hear of nothing any more. Idempotent."""
        self._hints.look = self._hints.interest = None
        polling, self._polling = self._polling, None
        try:
            if polling is not None:
                await end([polling])
        finally:
            if self._bus is not None:
                await self._bus.close()

    def _look(self, task_id: str | None) -> None:
        if task_id is None:
            self._everything = True
        else:
            self._at_once.add(task_id)
        self._asked.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        left: list[str] = []  # of this round
        due = pause = 0.0
        hurry = False
        while True:
            self._asked.clear()
            now = loop.time()
            if self._everything:
                self._everything = False
                left, hurry = self._watched(), True
            elif not left and now >= due:
                left = self._watched()
                pause = self._interval() / max(1, -(-len(left) // CHUNK))
            try:
                if self._at_once:
                    asked, self._at_once = self._at_once, set()
                    await self._ask([task for task in asked if self._hints.is_watched(task)])
                if hurry or now >= due:
                    chunk, left = left[:CHUNK], left[CHUNK:]
                    await self._ask(chunk)
                    self._heard()
                    due = loop.time() + (self._interval() if hurry else pause)
                    hurry = hurry and bool(left)
            except StoreError as error:
                self._failed(error)
                left, hurry, due = [], False, loop.time() + self._interval()
            except Exception:
                logger.exception("looking for what other replicas did failed")
                left, due = [], loop.time() + self._interval()
            if not hurry:
                await self._pause(due)

    def _watched(self) -> list[str]:
        """Return all tasks that are watched, and forget what is known of others."""
        watched = list(self._hints.watched)
        if len(self._known) > len(watched):
            known = self._known
            self._known = {task: known[task] for task in watched if task in known}
        return watched

    def _interval(self) -> float:
        return self._poll if self._bus is not None and self._bus.is_up else self._poll / FASTER

    async def _pause(self, until: float) -> None:
        """Wait until a moment of the loop's clock, or until somebody wants to know at once."""
        try:
            async with asyncio.timeout_at(until):
                await self._asked.wait()
        except TimeoutError:
            pass

    async def _ask(self, task_ids: Sequence[str]) -> None:
        """Ask the store about some tasks, and pass on what is new."""
        if not task_ids:
            return
        known = self._known
        missing = set(task_ids)
        for place in await self._store.positions(task_ids):
            task_id = place.task_id
            missing.discard(task_id)
            now = hash(place) or 1
            if known.get(task_id) != now:
                known[task_id] = now
                self._hints.moved(place)
        for task_id in missing:
            if known.get(task_id) != _GONE:
                known[task_id] = _GONE
                self._hints.gone(task_id)

    def _heard(self) -> None:
        if self._is_failing:
            self._is_failing = False
            logger.warning("the store can be asked again what other replicas did")

    def _failed(self, error: StoreError) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning("the store cannot be asked what other replicas did: %s", error)
