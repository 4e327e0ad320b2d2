"""Fair scheduling of deliveries: many at once, shared between callers and between their origins.

``PushDispatcher`` submits jobs. A job returns its own delay; nothing here knows the work of a job.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import msgspec

from parley.model.backoff import uniform
from parley.model.bounded import Bounded
from parley.security.egress import lookup_caller, on_dial, site_of

OPENS_AFTER = 5
"""How many failures in a row open a circuit."""

HANGS_AFTER = 0.5
"""The seconds without an answer after which a call hangs, and others need not wait for it."""


class Circuit:
    """The circuit breaker of a destination. Closed: deliveries go through. Open: none do.

    After failures in a row over all of its webhooks a destination gets one probe at a time, until
    it answers (half-open). A destination is one caller's at one origin, so no caller's failing
    webhooks hold up another's.

    A failure is no answer, or an answer of a server that is unable (5xx, 429). A refusal of one
    webhook (another 4xx) is an answer. Times are by the loop's clock.

    Where calls hang, the fault may be in their webhooks and not in the origin. So a job that has
    not hung need not wait there: it is the probe at once, also in place of a probe that hangs.
    """

    __slots__ = ("failures", "hangs", "opened", "probe", "reason", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.probe: DeliveryJob | None = None
        self.hangs = False  # whether it opened because calls hang
        self.opened = 0  # how often since it was closed
        self.until = 0.0
        self.reason = ""

    @property
    def is_open(self) -> bool:
        """Whether it is open or half-open."""
        return self.opened > 0

    def remaining(self, now: float) -> float:
        """Return how many seconds until the next probe, 0 if one is due or none is needed."""
        return max(0.0, self.until - now) if self.opened else 0.0

    def wait(self, who: DeliveryJob, now: float, patience: float) -> float:
        """Return how many seconds to wait before asking again, 0 to send now.

        Who gets 0 from an open circuit is its probe, until ``released``. Others wait for it, for
        ``patience`` at most.
        """
        if not self.opened or self.probe is who:
            return 0.0
        if self.hangs and not who.has_hung:
            if self.probe is not None and not self.probe.has_hung:
                return HANGS_AFTER * uniform(1.0, 2.0)
            self.probe = who
            return 0.0
        if self.probe is not None:
            return patience * uniform(0.5, 1.0)
        if now < self.until:
            # The waiting jobs do not all come back at once.
            return (self.until - now) * uniform(1.0, 1.1)
        self.probe = who
        return 0.0

    def succeeded(self) -> bool:
        """Note an answer. Return whether it closed the circuit."""
        was_open, self.opened = self.opened > 0, 0
        self.failures, self.probe, self.reason = 0, None, ""
        return was_open

    def failed(self, who: DeliveryJob, reason: str) -> bool:
        """Note a failure. Return whether it opens the circuit, again or for the first time.

        Jobs that were under way when the circuit opened change nothing.
        """
        self.failures += 1
        if self.failures < OPENS_AFTER or (self.opened and self.probe is not who):
            return False
        self.probe = None
        self.opened += 1
        self.hangs, self.reason = who.has_hung, reason
        return True

    def released(self, who: DeliveryJob) -> None:
        """Note that a job, which may be the probe, sends nothing more."""
        if self.probe is who:
            self.probe = None


class CapGate:
    """The cap of one host or address, and the destinations that wait for it.

    Requests are spaced by a virtual schedule (GCRA): ``due`` is when the next one would be due
    without bursts. It has one ``part``-th of the cap.
    """

    __slots__ = ("active", "due", "part", "timer", "waiting")

    def __init__(self, part: int = 1) -> None:
        self.part = part
        self.active = 0
        self.due = 0.0
        # By caller, so that callers take turns.
        self.waiting: OrderedDict[str, OrderedDict[Destination, None]] = OrderedDict()
        self.timer: asyncio.TimerHandle | None = None


class Destination:
    """The webhooks of one caller at one origin: their queued jobs, and how the origin answers.

    Jobs whose last call hung are queued apart (``queued_hung``), so that they delay no others.
    Of ``active`` calls, ``hanging`` are theirs, or hang now.

    ``is_quick``: the last answer was good and quick. ``is_slow``: it was not. Neither holds before
    the first call. ``waits_at`` is the cap that it waits for.
    """

    __slots__ = (
        "__weakref__", "active", "backing_off", "caller", "circuit", "hanging", "has_recovered",
        "host", "is_exempt", "is_quick", "is_slow", "queued", "queued_hung", "queued_in",
        "waits_at",
    )  # fmt: skip

    def __init__(self, caller: str, origin: str = "") -> None:
        self.caller = caller
        self.host = urlsplit(origin).hostname or origin
        self.circuit = Circuit()
        self.is_exempt: bool | None = None
        self.waits_at: CapGate | None = None
        self.is_quick = self.is_slow = self.has_recovered = False
        self.active = self.hanging = 0
        self.queued_in: OrderedDict[Destination, None] | None = None
        # Created on demand: there may be very many idle destinations.
        self.queued: deque[DeliveryJob] | None = None
        self.queued_hung: deque[DeliveryJob] | None = None
        self.backing_off: dict[DeliveryJob, None] | None = None

    def answered(self, *, well: bool) -> None:
        """Record an answer; ``well`` says that it was good and quick."""
        self.has_recovered = self.has_recovered or (well and self.is_slow)
        self.is_quick, self.is_slow = well, not well


class DeliveryJob:
    """A job that delivers to one webhook, a batch for each call of ``work``.

    ``work`` returns the delay in seconds before the next call, or ``None`` until the job is
    submitted again. It asks ``DestinationCaps.permit`` before each request. With
    ``may_retry_early`` the delay ends as soon as another job finds that the destination answers
    again, and ``retried_early`` is set. A job that ``is_finished`` never runs again.
    ``has_hung``: its last call did, or its current one does. ``is_hanging``: it counts so.
    """

    __slots__ = (
        "destination", "gates", "has_hung", "has_request", "is_finished", "is_hanging",
        "may_retry_early", "retried_early", "task", "timer", "work",
    )  # fmt: skip

    def __init__(
        self, destination: Destination, work: Callable[[], Coroutine[Any, Any, float | None]]
    ) -> None:
        self.destination = destination
        self.work = work
        self.gates: list[CapGate] = []
        self.has_request = self.has_hung = self.is_hanging = False
        self.is_finished = self.may_retry_early = self.retried_early = False
        self.task: asyncio.Task[float | None] | None = None
        self.timer: asyncio.TimerHandle | None = None


MINUTE = 60.0

ADDRESSES_KEPT = 4
"""How many of the addresses that were dialled for a host count for its next requests."""

GATES_KEPT = 10_000
"""How many idle destinations are kept in memory, with their last requests."""


class DestinationCap(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests one host or address gets from all callers and replicas together.

    ``per_minute`` is held in every minute; a quarter of it may come at once. ``concurrent`` is how
    many are under way. Live replicas that share a store have equal parts of both, one at least.

    Raises ``ValueError`` for less than 1.
    """

    per_minute: int = 6000
    concurrent: int = 128

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")

    def among(self, replicas: int) -> DestinationCap:
        """Return the part of each of so many replicas."""
        return DestinationCap(
            per_minute=max(1, self.per_minute // replicas),
            concurrent=max(1, self.concurrent // replicas),
        )


TOKENS_PART, CALLERS_PART = 4, 16
"""A token endpoint gets a quarter of a cap from all callers, and a sixteenth from each of them."""


class DestinationBusy(OSError):
    """A host or an address got as many requests as it may."""


class DestinationCaps:
    """Applies a cap to every host and address, over all callers together.

    A destination is a host, and each address that is dialled for one, so neither many webhooks,
    many callers nor many names of one machine get more. ``PushScheduler`` asks before it starts a
    job, and a job before each further request.

    ``wake`` is called with a destination that waited and may try again. Hosts that are ``exempt``
    have no cap.
    """

    def __init__(
        self,
        cap: DestinationCap | None,
        wake: Callable[[Destination], None],
        *,
        exempt: Callable[[str], bool] = lambda host: False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._whole = cap
        self._cap = cap
        self._wake = wake
        self._exempt = exempt
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._gates: OrderedDict[str, CapGate] = OrderedDict()
        self._addresses: Bounded[str, Bounded[str, None]] = Bounded(GATES_KEPT)

    def share(self, replicas: int) -> None:
        """Apply this replica's part of the cap, of so many that are alive."""
        if self._whole is not None:
            self._cap = self._whole.among(max(1, replicas))

    def admit(self, job: DeliveryJob) -> bool:
        """Take a request of a job's destination, or have the destination wait for its turn."""
        if self._cap is None:
            return True
        destination = job.destination
        if destination.is_exempt is None:
            destination.is_exempt = self._exempt(destination.host)
        if destination.is_exempt:
            return True
        gates = self._gates_of(destination.host)
        for gate in gates:
            wait = self._wait(gate, is_new=True)
            if wait > 0:
                self._park(gate, destination, wait)
                return False
        self._take(gates, is_new=True)
        job.gates = gates
        job.has_request = True
        return True

    def permit(self, job: DeliveryJob) -> bool:
        """Take the next request of a job that runs. It gets none while others wait."""
        if not job.gates:
            return True
        if job.has_request:
            job.has_request = False
            return True
        if any([gate.waiting or self._wait(gate) > 0 for gate in job.gates]):
            return False
        self._take(job.gates)
        return True

    def release(self, job: DeliveryJob) -> None:
        """Note the end of a job. A request that it did not make is given back."""
        gates, job.gates = job.gates, []
        for gate in gates:
            gate.active -= 1
            if job.has_request:
                gate.due -= self._pace(gate)[1]
            self._wake_next(gate)
        job.has_request = False

    def give_back(self, job: DeliveryJob) -> None:
        """Note that a request that was permitted was not made: it is the job's next one."""
        job.has_request = True

    def dial(self, job: DeliveryJob, address: str) -> None:
        """Take a request of an address that a job dials. Raises ``DestinationBusy``."""
        if not job.gates:
            return
        network = site_of(address)
        gate = self._gate(f"={network}")
        self._note_address(job.destination.host, network)
        if gate in job.gates:
            return
        if gate.waiting or self._wait(gate, is_new=True) > 0:
            raise DestinationBusy("the address gets as many requests as it may")
        self._take([gate], is_new=True)
        job.gates.append(gate)

    @contextmanager
    def token_request(self, caller: str, host: str) -> Generator[None]:
        """Take a request of a token endpoint, until it is answered. Raises ``DestinationBusy``.

        These are counted apart from webhooks: a caller whose webhooks keep a host busy keeps
        nobody's tokens from being renewed there, and no token endpoint holds up webhooks.
        """
        if self._cap is None or self._exempt(host):
            yield
            return
        name = f"token {host}"
        own = self._gate(f"{name}\0{caller}", CALLERS_PART)
        gates = [
            self._gate(name, TOKENS_PART),
            *(self._gate(f"token={each}", TOKENS_PART) for each in self._addresses.get(name, ())),
        ]
        if self._wait(own) > 0 or any([self._wait(gate, is_new=True) > 0 for gate in gates]):
            raise DestinationBusy("it gets as many requests as it may")
        self._take([own])
        self._take(gates, is_new=True)
        before = on_dial.set(partial(self._dial_for_token, name, gates))
        try:
            yield
        finally:
            on_dial.reset(before)
            for gate in gates:
                gate.active -= 1

    def _dial_for_token(self, name: str, gates: list[CapGate], address: str) -> None:
        network = site_of(address)
        gate = self._gate(f"token={network}", TOKENS_PART)
        self._note_address(name, network)
        if gate in gates:
            return
        if self._wait(gate, is_new=True) > 0:
            raise DestinationBusy("the address gets as many requests as it may")
        self._take([gate], is_new=True)
        gates.append(gate)

    def _note_address(self, name: str, network: str) -> None:
        """Remember an address that was dialled for a host."""
        self._addresses.setdefault(name, Bounded(ADDRESSES_KEPT))[network] = None

    def forget(self, destination: Destination) -> None:
        """Have a destination wait no more."""
        gate, destination.waits_at = destination.waits_at, None
        if gate is not None and (others := gate.waiting.get(destination.caller)) is not None:
            others.pop(destination, None)
            if not others:
                del gate.waiting[destination.caller]

    def close(self) -> None:
        """Wake nobody any more."""
        for gate in self._gates.values():
            if gate.timer is not None:
                gate.timer.cancel()
                gate.timer = None

    # -- one gate --------------------------------------------------------------------------------

    def _pace(self, gate: CapGate) -> tuple[int, float]:
        """Return how many requests may come at once, and the seconds between two of them, such
        that a minute has no more with those that come at once.
        """
        assert self._cap is not None
        most = max(1, self._cap.per_minute // gate.part)
        burst = max(1, most // 4)
        return burst, MINUTE / (most - burst + 1)

    def _wait(self, gate: CapGate, *, is_new: bool = False) -> float:
        """Return how many seconds until a gate has a request, infinity until a job ends."""
        assert self._cap is not None
        if is_new and gate.active >= max(1, self._cap.concurrent // gate.part):
            return math.inf
        burst, interval = self._pace(gate)
        return gate.due - (burst - 1) * interval - self._clock()

    def _take(self, gates: Iterable[CapGate], *, is_new: bool = False) -> None:
        now = self._clock()
        for gate in gates:
            gate.due = max(gate.due, now) + self._pace(gate)[1]
            gate.active += is_new

    def _gates_of(self, host: str) -> list[CapGate]:
        return [
            self._gate(host),
            *(self._gate(f"={each}") for each in self._addresses.get(host, ())),
        ]

    def _gate(self, key: str, part: int = 1) -> CapGate:
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = CapGate(part)
            if len(self._gates) > GATES_KEPT:
                self._drop_idle()
        else:
            self._gates.move_to_end(key)
        return gate

    def _drop_idle(self) -> None:
        """Forget some of the gates that were used longest ago and have nothing to remember."""
        now = self._clock()
        for key in list(self._gates)[: GATES_KEPT // 10]:
            gate = self._gates[key]
            if not gate.active and not gate.waiting and gate.due <= now:
                del self._gates[key]

    def _park(self, gate: CapGate, destination: Destination, wait: float) -> None:
        destination.waits_at = gate
        gate.waiting.setdefault(destination.caller, OrderedDict())[destination] = None
        if wait < math.inf:
            self._wake_at(gate, wait)

    def _wake_at(self, gate: CapGate, wait: float) -> None:
        if gate.timer is None:
            loop = asyncio.get_running_loop()
            gate.timer = loop.call_later(wait, self._timed, gate)

    def _timed(self, gate: CapGate) -> None:
        gate.timer = None
        self._wake_next(gate)

    def _wake_next(self, gate: CapGate) -> None:
        """Wake the destination of the next caller, if there is a request for it."""
        if not gate.waiting:
            return
        wait = self._wait(gate, is_new=True)
        if wait > 0:
            if wait < math.inf:
                self._wake_at(gate, wait)
            return
        caller, destinations = gate.waiting.popitem(last=False)
        destination, _ = destinations.popitem(last=False)
        if destinations:
            gate.waiting[caller] = destinations
        destination.waits_at = None
        if gate.waiting:
            self._wake_at(gate, 0)
        self._wake(destination)


class CallRequests:
    """The requests that one call of a job makes: to its webhook, and to a token endpoint."""

    def __init__(self, caps: DestinationCaps, job: DeliveryJob) -> None:
        self.caller = job.destination.caller
        self._caps = caps
        self._job = job

    def repeat(self) -> bool:
        """Return whether the call may be made once more."""
        return self._caps.permit(self._job)

    def token(self, host: str) -> AbstractContextManager[None]:
        """Take a request of a token endpoint. Raises ``DestinationBusy``."""
        return self._caps.token_request(self.caller, host)


# -- the scheduler ----------------------------------------------------------------------------


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
    def calling(self, job: DeliveryJob) -> Generator[CallRequests]:
        """Watch a call of a job: its addresses count, and one that hangs lets others start."""
        timer = asyncio.get_running_loop().call_later(HANGS_AFTER, self._hangs, job)
        job.has_hung = False
        dialled, looked_up = on_dial.get(), lookup_caller.get()
        on_dial.set(partial(self.caps.dial, job))
        lookup_caller.set(job.destination.caller)
        try:
            yield CallRequests(self.caps, job)
        finally:
            timer.cancel()
            on_dial.set(dialled)
            lookup_caller.set(looked_up)

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
