"""Which webhook is called next: many at once, and no origin or caller in the way of another."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakValueDictionary

import msgspec


class DeliveryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many webhooks are called at once. All are at least 1.

    ``places`` are for origins that answered well and soon the last time, or were not called yet;
    those that failed or took long have ``slow`` others. Of both a caller takes at most as many as
    it leaves free: half when it is alone. An origin takes up to ``per_origin`` for each caller, and
    up to ``per_quick_origin`` while it answers well; more than one only while its caller takes less
    than a quarter of what is free.
    """

    places: int = 3072
    slow: int = 512
    per_origin: int = 2
    per_quick_origin: int = 8

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")

    def within(self, connections: int) -> DeliveryLimits:
        """Return these limits, scaled down to a number of open connections."""
        part = min(1.0, connections / (self.places + self.slow))
        places, slow = max(1, int(self.places * part)), max(1, int(self.slow * part))
        return msgspec.structs.replace(self, places=places, slow=slow)


class Destination:
    """What a caller's webhooks at one origin have in common: who waits, and how it answers.

    ``is_quick`` is that it answered well and soon the last time, ``is_slow`` that it did not;
    neither holds for one that was not called yet.
    """

    __slots__ = (
        "__weakref__", "active", "caller", "has_recovered", "is_quick", "is_slow", "queued_in",
        "resting", "waiting",
    )  # fmt: skip

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.is_quick = self.is_slow = self.has_recovered = False
        self.active = 0
        self.queued_in: OrderedDict[Destination, None] | None = None
        # Made when they are needed: there may be very many destinations with nothing to tell.
        self.waiting: deque[DeliveryJob] | None = None
        self.resting: dict[DeliveryJob, None] | None = None

    def answered(self, *, well: bool) -> None:
        """Note how it answered."""
        self.has_recovered = self.has_recovered or (well and self.is_slow)
        self.is_quick, self.is_slow = well, not well


class DeliveryJob:
    """Something to be done about a webhook, a little at a time: ``work``, in its turn.

    What ``work`` returns says in how many seconds there is more to do, and ``None`` that there is
    nothing until it is put again. One that ``may_wake`` is done before that when another call finds
    that its destination answers again; ``was_woken`` then.
    """

    __slots__ = ("destination", "is_over", "may_wake", "task", "timer", "was_woken", "work")

    def __init__(
        self, destination: Destination, work: Callable[[], Coroutine[Any, Any, float | None]]
    ) -> None:
        self.destination = destination
        self.work = work
        self.is_over = self.may_wake = self.was_woken = False
        self.task: asyncio.Task[float | None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class _Share:
    """What one caller has of some places, and its destinations that wait for one: those without any
    yet, and those that have some.
    """

    __slots__ = ("active", "first", "more")

    def __init__(self) -> None:
        self.active = 0
        self.first: OrderedDict[Destination, None] = OrderedDict()
        self.more: OrderedDict[Destination, None] = OrderedDict()

    def next(self, free: int) -> Destination | None:
        """Return the destination whose turn it is, when so many places are free."""
        if self.first and self.active < free:
            return self.first.popitem(last=False)[0]
        if self.more and self.active < free / 4:
            return self.more.popitem(last=False)[0]
        return None


class _Places:
    """So many places, who has some, and who waits for one: callers in turns."""

    def __init__(self, places: int) -> None:
        self.free = places
        self.shares: dict[str, _Share] = {}
        self.turns: OrderedDict[str, _Share] = OrderedDict()

    def queue(self, destination: Destination) -> OrderedDict[Destination, None]:
        """Put a destination into its caller's queue, and return that."""
        share = self.shares.setdefault(destination.caller, _Share())
        queue = share.more if destination.active else share.first
        queue[destination] = None
        self.turns.setdefault(destination.caller, share)
        return queue

    def next(self) -> Destination | None:
        """Return the destination whose turn it is, if there is room for it.

        The callers that it passes over have at least a quarter as many places as are free each, so
        they are few.
        """
        for _ in range(len(self.turns) if self.free > 0 else 0):
            caller, share = self.turns.popitem(last=False)
            destination = share.next(self.free)
            if share.first or share.more:
                self.turns[caller] = share
            elif not share.active and destination is None:
                del self.shares[caller]
            if destination is not None:
                return destination
        return None

    def take(self, caller: str, count: int) -> None:
        """Let a caller have so many places more."""
        share = self.shares.setdefault(caller, _Share())
        share.active += count
        self.free -= count
        if not (share.active or share.first or share.more):
            del self.shares[caller]


class PushScheduler:
    """Does calls: callers in turns, their origins in turns, and those to one origin in order."""

    def __init__(self, room: DeliveryLimits) -> None:
        self._room = room
        self._destinations: WeakValueDictionary[tuple[str, str], Destination] = (
            WeakValueDictionary()
        )
        self._places = {False: _Places(room.places), True: _Places(room.slow)}
        self._running: set[asyncio.Task[float | None]] = set()
        self._is_closed = False

    def destination(self, caller: str, origin: str) -> Destination:
        """Return the one of a caller's webhooks at an origin: the same while it is in use."""
        known = self._destinations.get((caller, origin))
        if known is None:
            known = self._destinations[caller, origin] = Destination(caller)
        return known

    def put(self, call: DeliveryJob) -> None:
        """Have a call done when it is its turn."""
        self._wait(call)
        self._fill()

    def _wait(self, call: DeliveryJob) -> None:
        destination = call.destination
        if destination.resting is not None:
            destination.resting.pop(call, None)
        call.timer = None
        if destination.waiting is None:
            destination.waiting = deque()
        destination.waiting.append(call)
        self._queue(destination)

    def _queue(self, destination: Destination) -> None:
        """Let a destination wait for a place where it belongs by now, if it needs one."""
        room = self._room
        most = room.per_quick_origin if destination.is_quick else room.per_origin
        before, destination.queued_in = destination.queued_in, None
        if destination.waiting and destination.active < most:
            destination.queued_in = self._places[destination.is_slow].queue(destination)
        if before is not None and before is not destination.queued_in:
            before.pop(destination, None)

    def _fill(self) -> None:
        if self._is_closed:
            return
        for places in self._places.values():
            while (destination := places.next()) is not None:
                destination.queued_in = None
                while destination.waiting:
                    call = destination.waiting.popleft()
                    if not call.is_over:
                        self._start(call, places)
                        break
                if not destination.waiting:
                    destination.waiting = None
                self._queue(destination)

    def _start(self, call: DeliveryJob, places: _Places) -> None:
        destination = call.destination
        destination.active += 1
        places.take(destination.caller, 1)
        task = call.task = asyncio.create_task(call.work())
        self._running.add(task)

        def ended(task: asyncio.Task[float | None]) -> None:
            self._running.discard(task)
            destination.active -= 1
            places.take(destination.caller, -1)
            if call.task is task:
                call.task = None
            if not task.cancelled():
                self._again(call, task.result())
            if destination.has_recovered:
                self._wake(destination)
            self._queue(destination)
            self._fill()

        task.add_done_callback(ended)

    def _again(self, call: DeliveryJob, delay: float | None) -> None:
        if delay is None or call.is_over:
            return
        if not delay:
            self._wait(call)
            return
        call.timer = asyncio.get_running_loop().call_later(delay, self.put, call)
        if call.may_wake:
            if call.destination.resting is None:
                call.destination.resting = {}
            call.destination.resting[call] = None

    def _wake(self, destination: Destination) -> None:
        """Have done at once what waits until a destination may answer again: it does."""
        destination.has_recovered = False
        resting, destination.resting = destination.resting or {}, None
        for call in resting:
            if call.timer is not None and not call.is_over:
                call.timer.cancel()
                call.was_woken = True
                self._wait(call)

    async def drop(self, call: DeliveryJob) -> None:
        """Have a call done no more, and wait until what is under way has ended."""
        call.is_over = True
        if call.destination.resting is not None:
            call.destination.resting.pop(call, None)
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
