"""Handles notifications in order: one at a time of each lane, several lanes at once.

A lane is a task. Within it, notifications are handled in the order in which they arrived; those of
one configuration that wait together are ordered by the number in their ids.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable

from parley.push.receiving.notification import PushNotification, number_of


class Arrival:
    """A notification that waits or is handled.

    ``id`` and ``lane`` are those of the inbox: of one length, and others for each sender.
    ``accepted`` says whether the inbox lets it be handled; ``done`` ends with the handler, with its
    error if it raised one.
    """

    __slots__ = ("accepted", "done", "id", "lane", "notification", "number", "prefix", "size")

    def __init__(
        self, notification: PushNotification, lane: str, size: int, *, sender: str = ""
    ) -> None:
        loop = asyncio.get_running_loop()
        self.notification = notification
        self.id = _key(sender, notification.id) if notification.id else ""
        self.lane = _key(sender, lane)
        self.size = size
        self.prefix, self.number = number_of(notification.id)
        self.accepted: asyncio.Future[bool] = loop.create_future()
        self.done: asyncio.Future[BaseException | None] = loop.create_future()


def _key(sender: str, name: str) -> str:
    text = f"{sender}\x1f{name}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


class Lane:
    """The notifications of one task. ``lock`` orders what the inbox is asked about it."""

    __slots__ = ("arrivals", "current", "is_scheduled", "lock")

    def __init__(self) -> None:
        self.arrivals: deque[Arrival] = deque()
        self.current: Arrival | None = None
        self.is_scheduled = False
        self.lock = asyncio.Lock()

    def add(self, arrival: Arrival) -> None:
        """Put a notification in its place."""
        index = len(self.arrivals)
        if arrival.number is not None:
            for at, other in enumerate(self.arrivals):
                if other.prefix == arrival.prefix and (other.number or 0) > arrival.number:
                    index = at
                    break
        self.arrivals.insert(index, arrival)

    def has_others(self, arrival: Arrival) -> bool:
        """Return whether there are notifications besides one that are not refused."""
        return any(
            each is not arrival and not (each.accepted.done() and not each.accepted.result())
            for each in (*self.arrivals, *([self.current] if self.current else ()))
        )


class Lanes:
    """Runs ``handle`` for notifications; ``concurrency`` of them at once, each of another lane."""

    def __init__(self, handle: Callable[[Arrival], Awaitable[None]], concurrency: int) -> None:
        self._handle = handle
        self._concurrency = concurrency
        self._lanes: dict[str, Lane] = {}
        self._ready: deque[str] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopped = False
        self.count = 0
        self.bytes = 0

    @property
    def names(self) -> list[str]:
        """The lanes that have notifications."""
        return list(self._lanes)

    def lane(self, name: str) -> Lane:
        """Return a lane that has notifications."""
        return self._lanes[name]

    def put(self, arrival: Arrival) -> Lane:
        """Queue a notification. It is handled once ``accepted`` is true."""
        lane = self._lanes.get(arrival.lane)
        if lane is None:
            lane = self._lanes[arrival.lane] = Lane()
        lane.add(arrival)
        self.count += 1
        self.bytes += arrival.size
        self._idle.clear()
        self._schedule(arrival.lane, lane)
        return lane

    async def drain(self) -> None:
        """Wait until nothing is queued."""
        await self._idle.wait()

    async def stop(self) -> int:
        """Cancel what runs, drop what waits, and return how many notifications that were."""
        left, self._is_stopped = self.count, True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in self._lanes.values():
            for arrival in lane.arrivals:
                arrival.done.cancel()
        self._lanes.clear()
        self._ready.clear()
        self.count = self.bytes = 0
        self._idle.set()
        return left

    def _schedule(self, name: str, lane: Lane) -> None:
        if not lane.is_scheduled and lane.arrivals:
            lane.is_scheduled = True
            self._ready.append(name)
        while self._ready and len(self._tasks) < self._concurrency and not self._is_stopped:
            following = self._ready.popleft()
            task = asyncio.create_task(self._run(following), name="parley-push-receiver")
            self._tasks.add(task)

    async def _run(self, name: str) -> None:
        """Handle the next notification of a lane, then let another lane run."""
        lane = self._lanes[name]
        arrival = lane.current = lane.arrivals.popleft()
        try:
            if await arrival.accepted:
                await self._handle(arrival)
        finally:
            if not arrival.done.done():
                arrival.done.cancel()
            lane.current = None
            lane.is_scheduled = False
            self.count -= 1
            self.bytes -= arrival.size
            current = asyncio.current_task()
            if current is not None:
                self._tasks.discard(current)
            if not lane.arrivals and self._lanes.get(name) is lane:
                del self._lanes[name]
            if not self._lanes:
                self._idle.set()
            self._schedule(name, lane)
