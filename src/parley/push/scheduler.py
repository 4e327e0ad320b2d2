"""Fair scheduling of deliveries: many at once, shared between callers and between their origins.

``PushDispatcher`` submits jobs. A job returns its own delay; nothing here knows the work of a job.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from weakref import WeakValueDictionary

import msgspec

from parley.push.jobs import HANGS_AFTER, DeliveryJob, Destination, DestinationCap, DestinationCaps


class DeliveryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many webhooks are called at once. All are at least 1.

    ``slots`` are for origins whose last answer was good and quick, or that were not called yet;
    origins that failed or were slow share ``slow_slots``. Of both a caller takes at most as many as
    it leaves free: half when it is alone. An origin takes up to ``per_origin`` for each caller, and
    up to ``per_quick_origin`` while it answers well; more than one only while its caller takes less
    than a quarter of the free slots. Calls that hang do not count there, until an origin has
    ``hanging_per_origin`` of them; jobs that have hung take up to ``per_origin`` of their own.
    """

    slots: int = 3072
    slow_slots: int = 512
    per_origin: int = 2
    per_quick_origin: int = 8
    hanging_per_origin: int = 16

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")

    def within(self, connections: int) -> DeliveryLimits:
        """Return these limits, scaled down to a number of open connections."""
        part = min(1.0, connections / (self.slots + self.slow_slots))
        slots, slow_slots = max(1, int(self.slots * part)), max(1, int(self.slow_slots * part))
        return msgspec.structs.replace(self, slots=slots, slow_slots=slow_slots)


class _CallerShare:
    """The slots that one caller has, and its destinations that wait for one: without any slot yet
    (``first``), or with some (``more``).
    """

    __slots__ = ("active", "first", "more")

    def __init__(self) -> None:
        self.active = 0
        self.first: OrderedDict[Destination, None] = OrderedDict()
        self.more: OrderedDict[Destination, None] = OrderedDict()

    def next(self, free: int) -> Destination | None:
        """Return the caller's next destination, if its share of the free slots allows one."""
        if self.first and self.active < free:
            return self.first.popitem(last=False)[0]
        if self.more and self.active < free / 4:
            return self.more.popitem(last=False)[0]
        return None


class _SlotPool:
    """A number of slots, given to callers in round-robin order."""

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.shares: dict[str, _CallerShare] = {}
        self.round_robin: OrderedDict[str, _CallerShare] = OrderedDict()

    def enqueue(self, destination: Destination) -> OrderedDict[Destination, None]:
        """Append a destination to its caller's queue, and return that queue."""
        share = self.shares.setdefault(destination.caller, _CallerShare())
        queue = share.more if destination.active else share.first
        queue[destination] = None
        self.round_robin.setdefault(destination.caller, share)
        return queue

    def next(self) -> Destination | None:
        """Return the destination that gets the next slot, if any.

        Each caller that is passed over has at least a quarter as many slots as are free, so there
        are few of them.
        """
        for _ in range(len(self.round_robin) if self.free > 0 else 0):
            caller, share = self.round_robin.popitem(last=False)
            destination = share.next(self.free)
            if share.first or share.more:
                self.round_robin[caller] = share
            elif not share.active and destination is None:
                del self.shares[caller]
            if destination is not None:
                return destination
        return None

    def acquire(self, caller: str) -> None:
        """Take a slot for a caller, until ``release``."""
        self.shares.setdefault(caller, _CallerShare()).active += 1
        self.free -= 1

    def release(self, caller: str) -> None:
        """Return a slot of a caller."""
        share = self.shares[caller]
        share.active -= 1
        self.free += 1
        if not (share.active or share.first or share.more):
            del self.shares[caller]


class PushScheduler:
    """Runs jobs: callers in turn, origins of each in turn, and the jobs of an origin in order."""

    def __init__(
        self,
        limits: DeliveryLimits,
        cap: DestinationCap | None = None,
        *,
        exempt: Callable[[str], bool] = lambda host: False,
    ) -> None:
        self._limits = limits
        self.caps = DestinationCaps(cap, self._wake, exempt=exempt)
        self._destinations = WeakValueDictionary[tuple[str, str], Destination]()
        self._pools = {False: _SlotPool(limits.slots), True: _SlotPool(limits.slow_slots)}
        self._running: set[asyncio.Task[float | None]] = set()
        self._is_closed = False

    def destination(self, caller: str, origin: str) -> Destination:
        """Return the destination of a caller's webhooks at an origin, the same while in use."""
        known = self._destinations.get((caller, origin))
        if known is None:
            known = self._destinations[caller, origin] = Destination(caller, origin)
        return known

    def submit(self, job: DeliveryJob) -> None:
        """Queue a job, and start it once it gets a slot."""
        self._enqueue(job)
        self._start_jobs()

    def _enqueue(self, job: DeliveryJob) -> None:
        destination = job.destination
        if destination.backing_off is not None:
            destination.backing_off.pop(job, None)
        job.timer = None
        if job.has_hung:
            queue = destination.queued_hung = destination.queued_hung or deque()
        else:
            queue = destination.queued = destination.queued or deque()
        queue.append(job)
        self._requeue(destination)

    def _queue_of(self, destination: Destination) -> deque[DeliveryJob] | None:
        """Return the queue whose next job may start now: who has hung waits behind who has not."""
        limits, hanging = self._limits, destination.hanging
        most = limits.per_quick_origin if destination.is_quick else limits.per_origin
        is_free = destination.active - hanging < most and hanging < limits.hanging_per_origin
        if destination.queued and is_free:
            return destination.queued
        return destination.queued_hung if hanging < limits.per_origin else None

    def _requeue(self, destination: Destination) -> None:
        """Queue a destination for a slot where its state puts it now, if it needs one."""
        before, destination.queued_in = destination.queued_in, None
        if destination.waits_at is not None:
            pass  # until it is woken
        elif self._queue_of(destination):
            destination.queued_in = self._pools[destination.is_slow].enqueue(destination)
        if before is not None and before is not destination.queued_in:
            before.pop(destination, None)

    def _start_jobs(self) -> None:
        if self._is_closed:
            return
        for pool in self._pools.values():
            while (destination := pool.next()) is not None:
                destination.queued_in = None
                while queue := self._queue_of(destination):
                    job = queue.popleft()
                    if job.is_finished:
                        continue
                    if self.caps.admit(job):
                        self._start(job, pool)
                    else:
                        queue.appendleft(job)
                    break
                destination.queued = destination.queued or None
                destination.queued_hung = destination.queued_hung or None
                self._requeue(destination)

    def _start(self, job: DeliveryJob, pool: _SlotPool) -> None:
        destination = job.destination
        destination.active += 1
        job.is_hanging = job.has_hung
        destination.hanging += job.is_hanging
        pool.acquire(destination.caller)
        task = job.task = asyncio.create_task(job.work())
        self._running.add(task)

        def ended(task: asyncio.Task[float | None]) -> None:
            self._running.discard(task)
            destination.active -= 1
            destination.hanging -= job.is_hanging
            job.is_hanging = False
            pool.release(destination.caller)
            if job.gates:
                self.caps.release(job)
            if job.task is task:
                job.task = None
            if not task.cancelled():
                self._reschedule(job, task.result())
            if destination.has_recovered:
                self._retry_early(destination)
            self._requeue(destination)
            self._start_jobs()

        task.add_done_callback(ended)

    @contextmanager
    def calling(self, job: DeliveryJob) -> Generator[None]:
        """Watch a call of a job: one that hangs lets others start."""
        timer = asyncio.get_running_loop().call_later(HANGS_AFTER, self._hangs, job)
        job.has_hung = False
        try:
            yield
        finally:
            timer.cancel()

    def _hangs(self, job: DeliveryJob) -> None:
        job.has_hung = True
        if not job.is_hanging:
            job.is_hanging = True
            job.destination.hanging += 1
            self._requeue(job.destination)
            self._start_jobs()

    def _wake(self, destination: Destination) -> None:
        """Queue a destination that waited for its cap."""
        self._requeue(destination)
        self._start_jobs()

    def _reschedule(self, job: DeliveryJob, delay: float | None) -> None:
        if delay is None or job.is_finished:
            return
        if not delay:
            self._enqueue(job)
            return
        job.timer = asyncio.get_running_loop().call_later(delay, self.submit, job)
        if job.may_retry_early:
            if job.destination.backing_off is None:
                job.destination.backing_off = {}
            job.destination.backing_off[job] = None

    def _retry_early(self, destination: Destination) -> None:
        """End the backoff of a destination's jobs: it answers again."""
        destination.has_recovered = False
        jobs, destination.backing_off = destination.backing_off or {}, None
        for job in jobs:
            if job.timer is not None and not job.is_finished:
                job.timer.cancel()
                job.retried_early = True
                self._enqueue(job)

    async def cancel(self, job: DeliveryJob) -> None:
        """Cancel a job, and wait until a call that runs has ended."""
        job.is_finished = True
        if job.destination.backing_off is not None:
            job.destination.backing_off.pop(job, None)
        if job.timer is not None:
            job.timer.cancel()
        if job.task is not None:
            job.task.cancel()
            await asyncio.wait({job.task})

    async def close(self, grace: float) -> None:
        """Run jobs for ``grace`` seconds more, then cancel the rest."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while self._running and (left := deadline - loop.time()) > 0:
            await asyncio.wait(self._running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # lets the jobs that follow them start
        self._is_closed = True
        self.caps.close()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
