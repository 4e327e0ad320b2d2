"""The order of REQUESTs that wait: callers take turns, one caller's own run by priority."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Hashable, Iterator
from itertools import count

import msgspec

from parley.envelope.errors import DeadlineExceeded
from parley.envelope.messages import Priority
from parley.model.errors import OverloadedError

RANKS = {Priority.URGENT: 0, Priority.HIGH: 1, Priority.NORMAL: 2, Priority.LOW: 3}
"""The order of priorities. One that version 1.0 does not have counts as normal."""

_Waiting = tuple[int, int, "Slot"]


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many REQUESTs run and wait.

    ``total`` run at once, of which each connection may have ``in_flight``, and each caller
    ``share`` of all; ``waiting`` more of each caller wait. An eighth of ``in_flight`` is kept for
    those that wait for no turn, so that a task can be canceled while many are worked on.
    """

    total: int = 10_000
    in_flight: int = 64
    waiting: int = 256
    share: float = 0.5


class Slot:
    """The right of one REQUEST to run, from ``RequestQueue.acquire`` to ``release``."""

    __slots__ = ("_lane", "_queue", "granted", "is_quick", "is_running")

    def __init__(self, queue: RequestQueue, lane: RequestLane, *, is_quick: bool) -> None:
        self._queue = queue
        self._lane = lane
        self.is_quick = is_quick
        self.is_running = False
        self.granted: asyncio.Future[None] | None = None

    def release(self) -> None:
        """Let the next one run; one that still waits leaves the queue. Idempotent."""
        if self.is_running:
            self.is_running = False
            self._queue.ended(self._lane, self)
        elif self.granted is not None and not self.granted.done():
            self._queue.leave(self._lane, self)
            self.granted.cancel()


class RequestLane:
    """The REQUESTs of one connection."""

    __slots__ = ("caller", "quick", "slow", "waiting_quick", "waiting_slow")

    def __init__(self, caller: _Caller) -> None:
        self.caller = caller
        self.quick = self.slow = 0
        self.waiting_quick: list[_Waiting] = []
        self.waiting_slow: list[_Waiting] = []

    @property
    def running(self) -> int:
        """How many run."""
        return self.quick + self.slow


class _Caller:
    """The connections of one caller."""

    __slots__ = ("key", "lanes", "running", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.lanes: set[RequestLane] = set()
        self.running = self.waiting = 0


class RequestQueue:
    """Lets REQUESTs run within the limits of a server.

    Of one caller's that wait, the one of highest priority runs first, then the one that came first.
    Callers take turns: however many REQUESTs one has, and of whatever priority, each other caller's
    next one waits for one of them at most.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._caller_limit = max(1, int(limits.total * limits.share))
        self._slow_limit = max(1, limits.in_flight - limits.in_flight // 8)
        self._running = 0
        self._arrivals = count()
        self._callers: dict[Hashable, _Caller] = {}
        self._turns: dict[_Caller, None] = {}  # those who wait, the next one first

    def open(self, caller: Hashable) -> RequestLane:
        """Return the lane of a new connection. ``caller`` is ``None`` for one that is unknown."""
        key = object() if caller is None else caller
        known = self._callers.get(key)
        if known is None:
            known = self._callers[key] = _Caller(key)
        lane = RequestLane(known)
        known.lanes.add(lane)
        return lane

    def close(self, lane: RequestLane) -> None:
        """Forget a lane once nothing of it runs or waits."""
        caller = lane.caller
        caller.lanes.discard(lane)
        if not caller.lanes:
            self._callers.pop(caller.key, None)

    @property
    def load(self) -> float:
        """How full it is: from 0 to 1."""
        return min(1.0, self._running / self._limits.total)

    def enter(self, lane: RequestLane, priority: str, *, is_quick: bool = False) -> Slot:
        """Return the slot of a REQUEST that runs now, or once ``granted`` is done.

        ``is_quick``: it waits for no turn. Raises ``OverloadedError`` when too many wait.
        """
        slot, caller = Slot(self, lane, is_quick=is_quick), lane.caller
        heap = lane.waiting_quick if is_quick else lane.waiting_slow
        if not heap and self._has_room(lane, is_quick=is_quick) and not self._turns:
            self._start(lane, slot)
            return slot
        if caller.waiting >= self._limits.waiting:
            raise OverloadedError(
                f"{caller.running} requests of this caller are under way and {caller.waiting} "
                "wait, which is as many as may; send this one again later",
                retry_after=1,
            )
        slot.granted = asyncio.get_running_loop().create_future()
        rank = RANKS.get(priority, RANKS[Priority.NORMAL])  # type: ignore[call-overload]
        heapq.heappush(heap, (rank, next(self._arrivals), slot))
        caller.waiting += 1
        self._turns.setdefault(caller)
        self._grant()
        return slot

    async def acquire(self, slot: Slot, until: float | None = None) -> None:
        """Wait until a slot is granted; a caller that is cancelled leaves the queue.

        So does one at ``until``, a time of the event loop. Raises ``DeadlineExceeded`` then.
        """
        if slot.granted is None:
            return
        try:
            async with asyncio.timeout_at(until):
                await asyncio.shield(slot.granted)
        except TimeoutError:
            slot.release()
            raise DeadlineExceeded(
                "the timeout of the request was over before there was room for it"
            ) from None
        except asyncio.CancelledError:
            slot.release()
            raise

    def ended(self, lane: RequestLane, slot: Slot) -> None:
        """Note that a REQUEST ended, and let others run."""
        self._running -= 1
        lane.caller.running -= 1
        if slot.is_quick:
            lane.quick -= 1
        else:
            lane.slow -= 1
        if lane.caller.waiting:
            self._turns.setdefault(lane.caller)
        if self._turns:
            self._grant()

    def _has_room(self, lane: RequestLane, *, is_quick: bool) -> bool:
        if self._running >= self._limits.total or lane.caller.running >= self._caller_limit:
            return False
        if lane.running >= self._limits.in_flight:
            return False
        return is_quick or lane.slow < self._slow_limit

    def _start(self, lane: RequestLane, slot: Slot) -> None:
        slot.is_running = True
        self._running += 1
        lane.caller.running += 1
        if slot.is_quick:
            lane.quick += 1
        else:
            lane.slow += 1

    def _grant(self) -> None:
        """Let those run for which there is room, one of each caller at a time."""
        while self._turns and self._running < self._limits.total:
            caller = next(iter(self._turns))
            del self._turns[caller]
            if self._grant_one(caller) and caller.waiting:
                self._turns[caller] = None  # behind the others

    def _grant_one(self, caller: _Caller) -> bool:
        """Let one REQUEST of a caller run; return whether there was one that may.

        If there is none, the caller waits for the end of one of its own, and has no turn until
        then.
        """
        heads = [(heap[0], lane, heap) for lane in caller.lanes for heap in self._eligible(lane)]
        if not heads:
            return False
        _, lane, heap = min(heads, key=lambda head: head[0][:2])
        slot = heapq.heappop(heap)[2]
        caller.waiting -= 1
        self._start(lane, slot)
        assert slot.granted is not None
        if not slot.granted.done():
            slot.granted.set_result(None)
        return True

    def _eligible(self, lane: RequestLane) -> Iterator[list[_Waiting]]:
        if lane.waiting_quick and self._has_room(lane, is_quick=True):
            yield lane.waiting_quick
        if lane.waiting_slow and self._has_room(lane, is_quick=False):
            yield lane.waiting_slow

    def leave(self, lane: RequestLane, slot: Slot) -> None:
        """Take a REQUEST that waits out of the queue."""
        heap = lane.waiting_quick if slot.is_quick else lane.waiting_slow
        for index, waiting in enumerate(heap):
            if waiting[2] is slot:
                del heap[index]
                heapq.heapify(heap)
                lane.caller.waiting -= 1
                if not lane.caller.waiting:
                    self._turns.pop(lane.caller, None)
                return
