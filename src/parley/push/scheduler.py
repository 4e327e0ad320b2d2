"""Fair scheduling of deliveries: concurrent, shared between callers and between their origins.

``PushDispatcher`` submits jobs. A job returns its own delay; the scheduler does not know its work.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import msgspec

from parley.model.backoff import uniform
from parley.model.bounded import Bounded
from parley.security.egress import lookup_caller, on_dial, site_of

OPENS_AFTER = 5
"""The number of consecutive failures that open a circuit."""

HANGS_AFTER = 0.5
"""The seconds without an answer after which a call counts as hanging, so that others can start."""


class DestinationQueue:
    """Destinations waiting for a slot or a cap: callers take turns, and destinations of each."""

    __slots__ = ("_callers",)

    def __init__(self) -> None:
        self._callers: OrderedDict[str, OrderedDict[Destination, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._callers)

    def add(self, destination: Destination) -> None:
        """Append a destination to its caller's."""
        self._callers.setdefault(destination.caller, OrderedDict())[destination] = None
        destination.waits_in = self

    def remove(self, destination: Destination) -> None:
        """Have a destination wait no more."""
        destination.waits_in = None
        mine = self._callers[destination.caller]
        del mine[destination]
        if not mine:
            del self._callers[destination.caller]

    def next(self, may: Callable[[str], bool] = lambda caller: True) -> Destination | None:
        """Remove and return the next destination, of the next caller that ``may`` have a turn."""
        for _ in range(len(self._callers)):
            caller = next(iter(self._callers))
            self._callers.move_to_end(caller)
            if may(caller):
                found = next(iter(self._callers[caller]))
                self.remove(found)
                return found
        return None


class CapGate:
    """The cap of one host or address, and the destinations that wait for it.

    Requests are spaced by a virtual schedule (GCRA): ``due`` is the time of the next request
    without bursts. It has one ``part``-th of the cap.
    """

    __slots__ = ("active", "due", "part", "timer", "waiting")

    def __init__(self, part: int) -> None:
        self.part = part
        self.active = 0
        self.due = 0.0
        self.waiting = DestinationQueue()
        self.timer: asyncio.TimerHandle | None = None


class Destination:
    """The webhooks of one caller at one origin: their queued jobs, and the state of the origin.

    Jobs whose last call hung are queued separately (``queued_hung``), so that they delay no others.
    Of the ``active`` calls, ``hanging`` are calls of such jobs, or hang now. ``is_quick``: the last
    answer was good and quick. ``is_slow``: it was not. Both are false before the first call.
    ``waits_in`` is its queue, ``is_capped`` is true if that waits for a cap.

    It has a circuit breaker. Closed: deliveries are sent. Open: none are. After ``failures``
    consecutive failures of all its webhooks it sends one ``probe`` at a time, until there is an
    answer (half-open). So a caller's failing webhooks do not delay another caller's. A failure is a
    missing answer, or an answer of an overloaded server (5xx, 429). A rejection by one webhook
    (another 4xx) is an answer. ``opened`` counts the openings since it was closed, ``until`` is the
    loop time of the next probe.

    If calls hang (``opened_by_hang``), the fault may be in their webhooks and not in the origin. So
    a job that has not hung need not wait: it becomes the probe at once, replacing a probe that
    hangs.
    """

    __slots__ = (
        "__weakref__", "active", "backing_off", "caller", "failures", "hanging", "has_recovered",
        "host", "is_capped", "is_quick", "is_slow", "opened", "opened_by_hang", "probe", "queued",
        "queued_hung", "reason", "until", "waits_in",
    )  # fmt: skip

    def __init__(self, caller: str, origin: str = "") -> None:
        self.caller = caller
        self.host = urlsplit(origin).hostname or origin
        self.waits_in: DestinationQueue | None = None
        self.is_capped = self.is_quick = self.is_slow = self.has_recovered = False
        self.active = self.hanging = self.failures = self.opened = 0
        self.opened_by_hang = False
        self.until = 0.0
        self.reason = ""
        self.probe: DeliveryJob | None = None
        # Created on demand, since there may be very many idle destinations.
        self.queued: deque[DeliveryJob] | None = None
        self.queued_hung: deque[DeliveryJob] | None = None
        self.backing_off: dict[DeliveryJob, None] | None = None

    def answered(self, *, well: bool) -> None:
        """Record an answer; ``well`` is true if it was good and quick."""
        self.has_recovered = self.has_recovered or (well and self.is_slow)
        self.is_quick, self.is_slow = well, not well

    @property
    def is_open(self) -> bool:
        """True if its circuit is open or half-open."""
        return self.opened > 0

    def remaining(self, now: float) -> float:
        """Return the seconds until the next probe, 0 if one is due or none is needed."""
        return max(0.0, self.until - now) if self.opened else 0.0

    def wait(self, who: DeliveryJob, now: float, patience: float) -> float:
        """Return the seconds to wait before asking again, 0 to send now.

        A job that gets 0 from an open circuit is its probe, until ``released``. Others wait for it,
        for at most ``patience``.
        """
        if not self.opened or self.probe is who:
            return 0.0
        if self.opened_by_hang and not who.has_hung:
            if self.probe is not None and not self.probe.has_hung:
                return HANGS_AFTER * uniform(1.0, 2.0)
            self.probe = who
            return 0.0
        if self.probe is not None:
            return patience * uniform(0.5, 1.0)
        if now < self.until:
            # Spread the waiting jobs, so that they do not all return at once.
            return (self.until - now) * uniform(1.0, 1.1)
        self.probe = who
        return 0.0

    def succeeded(self) -> bool:
        """Record an answer. Return whether it closed the circuit."""
        was_open, self.opened = self.opened > 0, 0
        self.failures, self.probe, self.reason = 0, None, ""
        return was_open

    def failed(self, who: DeliveryJob, reason: str) -> bool:
        """Record a failure. Return whether it opens the circuit, again or for the first time.

        Calls that were running when the circuit opened change nothing.
        """
        self.failures += 1
        if self.failures < OPENS_AFTER or (self.opened and self.probe is not who):
            return False
        self.probe = None
        self.opened += 1
        self.opened_by_hang, self.reason = who.has_hung, reason
        return True

    def released(self, who: DeliveryJob) -> None:
        """Record that a job, which may be the probe, sends nothing more."""
        if self.probe is who:
            self.probe = None


class DeliveryJob:
    """A job that delivers to one webhook, a batch for each call of ``work``.

    ``work`` returns the delay in seconds before the next call, or ``None`` until the job is
    submitted again. It asks its ``delivery`` before each request. With ``may_retry_early`` the
    delay ends as soon as another job finds that the destination answers again, and
    ``retried_early`` is set. A job that ``is_finished`` never runs again. ``has_hung``: its last or
    current call hangs. ``is_hanging``: it is counted as hanging.
    """

    __slots__ = (
        "delivery", "destination", "has_hung", "is_finished", "is_hanging", "may_retry_early",
        "retried_early", "task", "timer", "work",
    )  # fmt: skip

    def __init__(
        self, destination: Destination, work: Callable[[], Coroutine[Any, Any, float | None]]
    ) -> None:
        self.destination = destination
        self.work = work
        self.has_hung = self.is_hanging = False
        self.is_finished = self.may_retry_early = self.retried_early = False
        self.delivery: DeliveryCall
        self.task: asyncio.Task[float | None] | None = None
        self.timer: asyncio.TimerHandle | None = None


MINUTE = 60.0

ADDRESSES_KEPT = 4
"""The number of a host's recent addresses that are counted for its next requests."""

GATES_KEPT = 10_000
"""The number of idle destinations in memory, with their last requests."""


class DestinationCap(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum number of requests to one host or address, from all callers and replicas.

    ``per_minute`` applies to every minute; a quarter of it may be sent at once. ``concurrent`` is
    the number of simultaneous requests. Live replicas that share a store have equal parts of both,
    at least one.

    Raises ``ValueError`` for less than 1.
    """

    per_minute: int = 6000
    concurrent: int = 128

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1, not {getattr(self, name)}")

    def among(self, replicas: int) -> DestinationCap:
        """Return the part of each of this many replicas."""
        return DestinationCap(
            per_minute=max(1, self.per_minute // replicas),
            concurrent=max(1, self.concurrent // replicas),
        )


TOKENS_PART, CALLERS_PART = 4, 16
"""A token endpoint gets a quarter of a cap from all callers, and a sixteenth from each of them."""


class DestinationBusy(OSError):
    """The limit of requests to a host or an address is reached."""


class DeliveryCall:
    """The permission for one call of a job to its destination: each request counts at ``gates``.

    There are none for an exempt host. ``has_request``: a request was acquired, and not sent yet.
    """

    __slots__ = ("_caps", "_key", "_kind", "_part", "caller", "gates", "has_request")

    def __init__(
        self, caps: DestinationCaps, caller: str, host: str, kind: str = "", part: int = 1
    ) -> None:
        self.caller = caller
        self.gates: list[CapGate] = []
        self.has_request = False
        self._caps = caps
        self._key = f"{kind}{host}"
        self._kind = kind
        self._part = part

    def enter(self) -> tuple[CapGate, float] | None:
        """Acquire the first request, or return the gate that has none, and the seconds to wait."""
        caps, names = self._caps, [self._key]
        names += [f"{self._kind}={each}" for each in caps.addresses.get(self._key, ())]
        gates = [caps.gate(name, self._part) for name in names]
        for gate in gates:
            if (wait := caps.wait(gate, is_new=True)) > 0:
                return gate, wait
        caps.take(gates, is_new=True)
        self.gates, self.has_request = gates, True
        return None

    def permit(self) -> bool:
        """Acquire the next request. There is none while others wait."""
        if self.has_request or not self.gates:
            self.has_request = False
            return True
        if any([gate.waiting or self._caps.wait(gate) > 0 for gate in self.gates]):
            return False
        self._caps.take(self.gates)
        return True

    def dial(self, address: str) -> None:
        """Acquire a request for an address to connect to. Raises ``DestinationBusy``."""
        if not self.gates:
            return
        caps, network = self._caps, site_of(address)
        caps.addresses.setdefault(self._key, Bounded(ADDRESSES_KEPT))[network] = None
        gate = caps.gate(f"{self._kind}={network}", self._part)
        if gate in self.gates:
            return
        if gate.waiting or caps.wait(gate, is_new=True) > 0:
            raise DestinationBusy("the address's limit of requests is reached")
        caps.take([gate], is_new=True)
        self.gates.append(gate)

    def token(self, host: str) -> AbstractContextManager[None]:
        """Acquire a request for a token endpoint. Raises ``DestinationBusy``."""
        return self._caps.token_request(self.caller, host)

    def end(self) -> None:
        """End the call. A request that was not sent is returned."""
        gates, self.gates = self.gates, []
        for gate in gates:
            self._caps.leave(gate, gives_back=self.has_request)


class DestinationCaps:
    """Applies a cap to every host and address, over all callers together.

    A destination is a host, and each of its addresses, so neither many webhooks, many callers nor
    many names of one machine get more.

    ``wake`` is called with a waiting destination that may try again. Hosts that are ``exempt`` have
    no cap.
    """

    def __init__(
        self,
        cap: DestinationCap,
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
        self.addresses: Bounded[str, Bounded[str, None]] = Bounded(GATES_KEPT)

    def share(self, replicas: int) -> None:
        """Set this replica's part of the cap, given the number of live replicas."""
        self._cap = self._whole.among(max(1, replicas))

    def admit(self, destination: Destination) -> DeliveryCall | None:
        """Acquire a request for a destination, or let it wait for its turn."""
        delivery = DeliveryCall(self, destination.caller, destination.host)
        if self._exempt(destination.host):
            return delivery
        if (full := delivery.enter()) is None:
            return delivery
        gate, wait = full
        gate.waiting.add(destination)
        destination.is_capped = True
        self._wake_at(gate, wait)
        return None

    @contextmanager
    def token_request(self, caller: str, host: str) -> Generator[None]:
        """Hold a request for a token endpoint until it is answered. Raises ``DestinationBusy``.

        These are counted separately from webhooks: busy webhooks of a caller do not keep other
        callers' tokens from being renewed, and token endpoints do not delay webhooks.
        """
        request = DeliveryCall(self, caller, host, "token ", TOKENS_PART)
        if not self._exempt(host):
            own = self.gate(f"token {host}\0{caller}", CALLERS_PART)
            if self.wait(own) > 0 or request.enter() is not None:
                raise DestinationBusy("its limit of requests is reached")
            self.take([own])
            request.has_request = False
        before = on_dial.set(request.dial)
        try:
            yield
        finally:
            on_dial.reset(before)
            request.end()

    def close(self) -> None:
        """Stop waking destinations."""
        for gate in self._gates.values():
            if gate.timer is not None:
                gate.timer.cancel()
                gate.timer = None

    # -- one gate --------------------------------------------------------------------------------

    def gate(self, key: str, part: int) -> CapGate:
        """Return the gate of a host or an address, or a new one."""
        gate = self._gates.setdefault(key, CapGate(part))
        self._gates.move_to_end(key)
        if len(self._gates) > GATES_KEPT:
            now = self._clock()
            # The least recently used gates, if they have no state.
            for each in list(self._gates)[: GATES_KEPT // 10]:
                old = self._gates[each]
                if not old.active and not old.waiting and old.due <= now:
                    del self._gates[each]
        return gate

    def wait(self, gate: CapGate, *, is_new: bool = False) -> float:
        """Return the seconds until a gate has a request, infinity until a job ends."""
        if is_new and gate.active >= max(1, self._cap.concurrent // gate.part):
            return math.inf
        burst, interval = self._pace(gate)
        return gate.due - (burst - 1) * interval - self._clock()

    def take(self, gates: Iterable[CapGate], *, is_new: bool = False) -> None:
        """Acquire a request of each gate; with ``is_new`` also a concurrent one."""
        now = self._clock()
        for gate in gates:
            gate.due = max(gate.due, now) + self._pace(gate)[1]
            gate.active += is_new

    def leave(self, gate: CapGate, *, gives_back: bool) -> None:
        """Record the end of a call; with ``gives_back`` its request was not sent."""
        gate.active -= 1
        if gives_back:
            gate.due -= self._pace(gate)[1]
        self._wake_next(gate)

    def _pace(self, gate: CapGate) -> tuple[int, float]:
        """Return the burst size, and the seconds between two requests.

        A minute with a burst in it does not exceed the cap.
        """
        most = max(1, self._cap.per_minute // gate.part)
        burst = max(1, most // 4)
        return burst, MINUTE / (most - burst + 1)

    def _wake_at(self, gate: CapGate, wait: float) -> None:
        if gate.timer is None and wait < math.inf:
            loop = asyncio.get_running_loop()
            gate.timer = loop.call_later(max(0.0, wait), self._timed, gate)

    def _timed(self, gate: CapGate) -> None:
        gate.timer = None
        self._wake_next(gate)

    def _wake_next(self, gate: CapGate) -> None:
        """Wake the destination of the next caller, if there is a request for it."""
        if not gate.waiting:
            return
        destination = None
        if (wait := self.wait(gate, is_new=True)) <= 0:
            destination = gate.waiting.next()
        if gate.waiting:
            self._wake_at(gate, wait)
        if destination is not None:
            destination.is_capped = False
            self._wake(destination)


# -- the scheduler ----------------------------------------------------------------------------


class DeliveryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of concurrent calls of webhooks. All are at least 1.

    ``slots`` are for origins whose last answer was good and quick, or that were not called yet;
    origins that failed or were slow share ``slow_slots``. A caller uses at most as many of each as
    remain free: half when it is alone. An origin uses up to ``per_origin`` for each caller, and up
    to ``per_quick_origin`` while it answers well; more than one only while its caller uses less
    than a quarter of the free slots. Hanging calls do not count there, until an origin has
    ``hanging_per_origin`` of them; jobs that have hung use up to ``per_origin`` separate slots.
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


class _Slots:
    """A number of slots, and the destinations that wait for one: without any slot yet (``first``),
    or with some (``more``).
    """

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.active: Counter[str] = Counter()  # by caller
        self.first, self.more = DestinationQueue(), DestinationQueue()

    def next(self) -> Destination | None:
        """Return the destination that gets the next slot, if any.

        Each skipped caller has at least a quarter as many slots as are free, so few are skipped.
        """
        free, active = self.free, self.active
        if free <= 0:
            return None
        return self.first.next(lambda caller: active[caller] < free) or self.more.next(
            lambda caller: active[caller] < free / 4
        )

    def take(self, caller: str, count: int = 1) -> None:
        """Acquire a slot for a caller, or return it with a ``count`` of -1."""
        self.free -= count
        self.active[caller] += count
        if not self.active[caller]:
            del self.active[caller]


class PushScheduler:
    """Runs jobs: callers in turn, origins of each in turn, and the jobs of an origin in order."""

    def __init__(
        self,
        limits: DeliveryLimits,
        cap: DestinationCap = DestinationCap(),  # noqa: B008
        *,
        exempt: Callable[[str], bool] = lambda host: False,
    ) -> None:
        self._limits = limits
        self.caps = DestinationCaps(cap, self._wake, exempt=exempt)
        self._destinations = WeakValueDictionary[tuple[str, str], Destination]()
        self._pools = {False: _Slots(limits.slots), True: _Slots(limits.slow_slots)}
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
        """Return the queue whose next job may start now; jobs that have hung come last."""
        limits, hanging = self._limits, destination.hanging
        most = limits.per_quick_origin if destination.is_quick else limits.per_origin
        is_free = destination.active - hanging < most and hanging < limits.hanging_per_origin
        if destination.queued and is_free:
            return destination.queued
        return destination.queued_hung if hanging < limits.per_origin else None

    def _requeue(self, destination: Destination) -> None:
        """Queue a destination for a slot by its present state, if it needs one."""
        if destination.is_capped:
            return  # until it is woken
        wanted = None
        if self._queue_of(destination):
            pool = self._pools[destination.is_slow]
            wanted = pool.more if destination.active else pool.first
        if destination.waits_in is not wanted:
            if destination.waits_in is not None:
                destination.waits_in.remove(destination)
            if wanted is not None:
                wanted.add(destination)

    def _start_jobs(self) -> None:
        for pool in () if self._is_closed else self._pools.values():
            while (destination := pool.next()) is not None:
                while (queue := self._queue_of(destination)) and queue[0].is_finished:
                    queue.popleft()
                if queue and (delivery := self.caps.admit(destination)) is not None:
                    self._start(queue.popleft(), delivery, pool)
                destination.queued = destination.queued or None
                destination.queued_hung = destination.queued_hung or None
                self._requeue(destination)

    def _start(self, job: DeliveryJob, delivery: DeliveryCall, pool: _Slots) -> None:
        destination = job.destination
        job.delivery = delivery
        destination.active += 1
        job.is_hanging = job.has_hung
        destination.hanging += job.is_hanging
        pool.take(destination.caller)
        task = job.task = asyncio.create_task(job.work())
        self._running.add(task)

        def ended(task: asyncio.Task[float | None]) -> None:
            self._running.discard(task)
            destination.active -= 1
            destination.hanging -= job.is_hanging
            job.is_hanging = False
            pool.take(destination.caller, -1)
            delivery.end()
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
    def calling(self, job: DeliveryJob) -> Generator[DeliveryCall]:
        """Watch a call of a job: its addresses count, and other jobs start while it hangs."""
        timer = asyncio.get_running_loop().call_later(HANGS_AFTER, self._hangs, job)
        job.has_hung = False
        dialled, looked_up = on_dial.get(), lookup_caller.get()
        on_dial.set(job.delivery.dial)
        lookup_caller.set(job.destination.caller)
        try:
            yield job.delivery
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
        """End the backoff of a destination's jobs, because it answers again."""
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
        """Run jobs for ``grace`` more seconds, then cancel the rest."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while self._running and (left := deadline - loop.time()) > 0:
            await asyncio.wait(self._running, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # lets the next jobs start
        self._is_closed = True
        self.caps.close()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
