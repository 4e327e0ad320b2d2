"""The order of REQUESTs: by priority for each caller, and callers in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from itertools import count

import msgspec

from parley.envelope.messages import DeadlineExceeded, Priority
from parley.model.errors import OverloadedError

RANKS = {Priority.URGENT: 0, Priority.HIGH: 1, Priority.NORMAL: 2, Priority.LOW: 3}
"""The order of priorities. An unknown priority counts as normal."""


class QueueLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of running and waiting REQUESTs.

    ``total`` run at once: ``in_flight`` of each connection, and ``share`` of all for each caller.
    ``waiting`` more of each caller wait. An eighth of ``in_flight`` is reserved for REQUESTs
    without turns, so that a task can be canceled while the agent works on many.
    """

    total: int = 10_000
    in_flight: int = 64
    waiting: int = 256
    share: float = 0.5


class QueuedConnection:
    """The REQUESTs of one connection that run: how many, and how many of them wait for a turn."""

    __slots__ = ("caller", "running", "slow")

    def __init__(self, caller: _Caller) -> None:
        self.caller = caller
        self.running = self.slow = 0


class _Caller:
    """The connections of one caller, its REQUESTs that run, and its slots that wait."""

    __slots__ = ("connections", "key", "running", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.connections = self.running = 0
        self.waiting: list[Slot] = []


class Slot:
    """The right of one REQUEST to run, from ``RequestQueue.acquire`` to ``release``."""

    __slots__ = ("_queue", "connection", "granted", "is_quick", "is_running", "order")

    def __init__(
        self,
        queue: RequestQueue,
        connection: QueuedConnection,
        order: tuple[int, int],
        is_quick: bool,
    ) -> None:
        self._queue = queue
        self.connection = connection
        self.order = order
        self.is_quick = is_quick
        self.is_running = False
        self.granted: asyncio.Future[None] | None = None

    def release(self) -> None:
        """Let the next one run; a waiting REQUEST leaves the queue. Idempotent."""
        self._queue.release(self)


class RequestQueue:
    """Lets REQUESTs run within the limits of a server.

    A caller's waiting REQUESTs run by priority, then in the order of their arrival. Callers take
    turns: however many REQUESTs a caller has, and of whatever priority, another caller's next
    REQUEST waits for a single REQUEST at most.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._caller_limit = max(1, int(limits.total * limits.share))
        self._slow_limit = max(1, limits.in_flight - limits.in_flight // 8)
        self._running = 0
        self._arrivals = count()
        self._callers: dict[Hashable, _Caller] = {}
        self._turns: dict[_Caller, None] = {}  # callers with a REQUEST that may run, the next first

    @property
    def load(self) -> float:
        """The load from 0 to 1."""
        return min(1.0, self._running / self._limits.total)

    def open(self, caller: Hashable) -> QueuedConnection:
        """Register a new connection. ``caller`` is ``None`` for an unknown caller."""
        key = object() if caller is None else caller
        known = self._callers.get(key)
        if known is None:
            known = self._callers[key] = _Caller(key)
        known.connections += 1
        return QueuedConnection(known)

    def close(self, connection: QueuedConnection) -> None:
        """Remove a connection once it has no running or waiting REQUEST."""
        caller = connection.caller
        caller.connections -= 1
        if not caller.connections:
            self._callers.pop(caller.key, None)

    def enter(self, connection: QueuedConnection, priority: str, *, is_quick: bool = False) -> Slot:
        """Return the slot of a REQUEST that runs now, or once ``granted`` is done.

        ``is_quick``: it waits for no turn. Raises ``OverloadedError`` when too many wait.
        """
        rank = RANKS.get(priority, RANKS[Priority.NORMAL])  # type: ignore[call-overload]
        slot = Slot(self, connection, (rank, next(self._arrivals)), is_quick)
        caller = connection.caller
        if not self._turns and self._fits(slot):
            self._count(slot, 1)
            return slot
        if len(caller.waiting) >= self._limits.waiting:
            raise OverloadedError(
                f"{caller.running} requests of this caller are under way and "
                f"{len(caller.waiting)} wait, which is as many as may; send this one again later",
                retry_after=1,
            )
        slot.granted = asyncio.get_running_loop().create_future()
        caller.waiting.append(slot)
        self._grant(caller)
        return slot

    async def acquire(self, slot: Slot, until: float | None = None) -> None:
        """Wait until a slot is granted. A cancelled task leaves the queue.

        Raises ``DeadlineExceeded`` at ``until``, a time of the event loop.
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

    def release(self, slot: Slot) -> None:
        """End the turn of a REQUEST, or its wait."""
        caller = slot.connection.caller
        if slot.is_running:
            self._count(slot, -1)
            self._grant(caller)
        elif slot in caller.waiting:
            caller.waiting.remove(slot)
            assert slot.granted is not None
            slot.granted.cancel()

    def _fits(self, slot: Slot) -> bool:
        connection, caller = slot.connection, slot.connection.caller
        return (
            self._running < self._limits.total
            and caller.running < self._caller_limit
            and connection.running < self._limits.in_flight
            and (slot.is_quick or connection.slow < self._slow_limit)
        )

    def _count(self, slot: Slot, change: int) -> None:
        slot.is_running = change > 0
        self._running += change
        slot.connection.caller.running += change
        slot.connection.running += change
        slot.connection.slow += 0 if slot.is_quick else change

    def _grant(self, changed: _Caller) -> None:
        """Start waiting REQUESTs while there is capacity, in turns of the callers.

        A caller whose REQUESTs do not fit has no turn until its own REQUEST ends.
        """
        if changed.waiting:
            self._turns.setdefault(changed)
        while self._turns and self._running < self._limits.total:
            caller = next(iter(self._turns))
            del self._turns[caller]
            fitting = [each for each in caller.waiting if self._fits(each)]
            if not fitting:
                continue
            slot = min(fitting, key=lambda each: each.order)
            caller.waiting.remove(slot)
            self._count(slot, 1)
            assert slot.granted is not None
            if not slot.granted.done():
                slot.granted.set_result(None)
            if caller.waiting:
                self._turns[caller] = None  # behind the others
