"""Which webhook is called next: so many at once, and no host in the way of another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakValueDictionary

import msgspec


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """How many webhooks are called at once.

    ``quick`` of the places are kept for hosts that answered well and soon the last time, of which
    each takes up to ``per_quick_host``; all others share the rest, with ``per_host`` for each. So
    hosts that do not answer hold up each other at worst.
    """

    quick: int = 32
    others: int = 32
    per_quick_host: int = 8
    per_host: int = 2


class Destination:
    """A host that webhooks are at: who waits for a call to it, and how it answered last."""

    __slots__ = ("__weakref__", "active", "is_queued", "is_quick", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_quick = False
        self.is_queued = False
        self.active = 0
        self.waiting: deque[Call] = deque()


class Call:
    """Something to be done about a webhook, a little at a time: ``work``, in its turn.

    What ``work`` returns says in how many seconds there is more to do, and ``None`` that there is
    nothing until it is put again.
    """

    __slots__ = ("destination", "is_over", "task", "timer", "work")

    def __init__(
        self, destination: Destination, work: Callable[[], Coroutine[Any, Any, float | None]]
    ) -> None:
        self.destination = destination
        self.work = work
        self.is_over = False
        self.task: asyncio.Task[float | None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class PushQueue:
    """Does calls: those to one host in the order in which they came, hosts in turns."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._destinations: WeakValueDictionary[str, Destination] = WeakValueDictionary()
        self._turns: dict[bool, deque[Destination]] = {True: deque(), False: deque()}
        self._active = {True: 0, False: 0}
        self._running: set[asyncio.Task[float | None]] = set()
        self._is_closed = False

    def destination(self, name: str) -> Destination:
        """Return the host of a name: one and the same for all who ask while it is in use."""
        known = self._destinations.get(name)
        if known is None:
            known = self._destinations[name] = Destination(name)
        return known

    def put(self, call: Call) -> None:
        """Have a call done when it is its turn."""
        call.destination.waiting.append(call)
        self._queue(call.destination)
        self._fill()

    def _queue(self, destination: Destination) -> None:
        if destination.waiting and not destination.is_queued:
            destination.is_queued = True
            self._turns[destination.is_quick].append(destination)

    def _fill(self) -> None:
        if self._is_closed:
            return
        for is_quick, places in ((True, self._room.quick), (False, self._room.others)):
            turns = self._turns[is_quick]
            most = self._room.per_quick_host if is_quick else self._room.per_host
            while turns and self._active[is_quick] < places:
                destination = turns.popleft()
                destination.is_queued = False
                if destination.active >= most:
                    continue  # one that ends puts it back
                while destination.waiting:
                    call = destination.waiting.popleft()
                    if not call.is_over:
                        self._start(call, is_quick)
                        break
                self._queue(destination)

    def _start(self, call: Call, is_quick: bool) -> None:
        destination = call.destination
        destination.active += 1
        self._active[is_quick] += 1
        task = call.task = asyncio.create_task(call.work())
        self._running.add(task)

        def ended(task: asyncio.Task[float | None]) -> None:
            self._running.discard(task)
            destination.active -= 1
            self._active[is_quick] -= 1
            if call.task is task:
                call.task = None
            if not task.cancelled():
                self._again(call, task.result())
            self._queue(destination)
            self._fill()

        task.add_done_callback(ended)

    def _again(self, call: Call, delay: float | None) -> None:
        if delay is None or call.is_over:
            return
        if delay:
            call.timer = asyncio.get_running_loop().call_later(delay, self.put, call)
        else:
            call.destination.waiting.append(call)

    async def drop(self, call: Call) -> None:
        """Have a call done no more, and wait until what is under way has ended."""
        call.is_over = True
        if call.timer is not None:
            call.timer.cancel()
        if call.task is not None:
            call.task.cancel()
            await asyncio.wait({call.task})

    async def close(self, grace: float) -> None:
        """Give what there is to do ``grace`` seconds, then end the rest."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while self._running and (left := deadline - loop.time()) > 0:
            await asyncio.wait(self._running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # for what follows them to begin
        self._is_closed = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
