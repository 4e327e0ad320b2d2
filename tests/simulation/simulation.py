"""One simulation: replicas and callers, faults, and the final result."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec

from parley.engine.turn.task_runner import TaskRunner
from parley.host import host
from parley.model import backoff
from parley.push import dispatcher
from parley.store.bus import subscriptions
from tests.simulation.clients import Client
from tests.simulation.fleet import Fleet, Replica
from tests.simulation.loop import Process, Stuck, numbered
from tests.simulation.mutations import NONE, Mutation
from tests.simulation.observations import Observations
from tests.simulation.plan import Plan
from tests.simulation.webhooks import Webhooks
from tests.simulation.world import Violation, World, listening

REST = 600.0
"""Maximum time, in seconds, until no work is left after the faults have ended."""


class Outcome(msgspec.Struct, kw_only=True):
    """The result of a simulation. ``failure`` is empty after a success."""

    seed: int
    failure: str
    digest: str
    plan: Plan
    trace: list[str] = []
    steps: int = 0
    commits: int = 0
    seconds: float = 0.0


def simulate(
    seed: int, *, plan: Plan | None = None, mutation: Mutation = NONE, keep: bool = False
) -> Outcome:
    """Run the simulation of a seed. ``keep`` keeps its trace also after a success."""
    world = World(seed, plan=plan, mutation=mutation)
    begun = _clock()
    failure = ""
    simulation = Simulation(world)
    with _replaced(simulation), listening(world), mutation.applied():
        try:
            world.loop.run(simulation.run())
        except Violation as violation:
            failure = str(violation)
        except Stuck as stuck:
            failure = f"stuck: {stuck}"
        except Exception:
            failure = f"the simulation failed:\n{traceback.format_exc()}"
        problems = world.problems + world.loop.problems
        if problems and not failure:
            failure = problems[0]
        digest = world.digest()
        world.loop.close()
    return Outcome(
        seed=seed,
        failure=failure,
        digest=digest,
        plan=world.plan,
        trace=list(world.lines()) if keep or failure else [],
        steps=world.loop.steps,
        commits=sum(len(kept.snapshots) for kept in simulation.fleet.checker.tasks.values()),
        seconds=_clock() - begun,
    )


class Simulation:
    """One simulation at work."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.fleet = Fleet(world)
        self.seen = Observations(world, self.fleet.checker)
        self.webhooks = Webhooks(world, self.fleet.checker)
        self.clients = [
            Client(self.fleet, self.seen, number) for number in range(world.plan.clients)
        ]
        self._absent: dict[int, float] = {}
        self._chaos = Process(world.loop, "chaos")

    async def run(self) -> None:
        """Run with faults for a while, then check that no work is left."""
        world, plan = self.world, self.world.plan
        world.trace("plan", plan)
        places = range(len(plan.roles))
        for place in places:
            self.fleet.begin(place)
        keeper = self._chaos.spawn(self._keep())
        chaos = [self._chaos.spawn(self._go_wrong(kind, at)) for kind, at in plan.faults.items()]
        talks = [client.process.spawn(client.run()) for client in self.clients]
        await asyncio.sleep(plan.seconds)
        for fault in chaos:
            fault.cancel()
        await asyncio.gather(*chaos, return_exceptions=True)
        self._calm()
        world.trace("nothing goes wrong any more")
        try:
            async with asyncio.timeout(20 * REST):
                await asyncio.gather(*talks)
        except TimeoutError:
            world.violated("E2", "a caller waits for ever")
        await self._rest()
        keeper.cancel()
        self.fleet.checker.finish()
        self.seen.finish()
        await self._look_at_all()

    async def _rest(self) -> None:
        end = self.world.loop.time() + REST
        while restless := self._restless():
            if self.world.loop.time() > end:
                self.world.violated("E5", "not at rest:", "; ".join(restless))
            await asyncio.sleep(0.5)

    def _restless(self) -> list[str]:
        restless = self.fleet.checker.at_rest() + self.webhooks.at_rest()
        for replica in self.fleet.replicas.values():
            if replica.host is None:
                restless.append(f"{replica.name} has not begun")
                continue
            for executor in replica.host.executors.values():
                if executor.running:
                    tasks = [self.world.name("t", runner.task_id) for runner in executor._active]
                    restless.append(f"{replica.name} still runs {', '.join(tasks)}")
            for task_id in sorted(replica.host.hints.watched):
                log = self.fleet.checker.logs.get(task_id)
                if log is not None and log.pushes and log.head.ended_at is None:
                    continue  # for its webhooks
                name = self.world.name("t", task_id)
                restless.append(f"{replica.name} has readers of {name}")
        return restless

    async def _look_at_all(self) -> None:
        for client in self.clients:
            for replica in self.fleet.reachable():
                await client.process.spawn(client.look_at_all(replica))

    # -- faults ----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Start a replica in each empty slot, after a while."""
        while True:
            await asyncio.sleep(0.1)
            for place in range(len(self.world.plan.roles)):
                due = self._absent.get(place, 0.0)
                if place not in self.fleet.replicas and due <= self.world.loop.time():
                    self._absent[place] = self.world.loop.time() + 0.5
                    self.fleet.begin(place)

    async def _go_wrong(self, kind: str, mean: float) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(1 / mean))
            replicas = list(self.fleet.replicas.values())
            if not replicas:
                continue
            replica = self.random.choice(replicas)
            self.world.unavailable_reason()
            await getattr(self, "_" + kind.replace(" ", "_"))(replica)
            self.world.unavailable_reason()

    async def _crash(self, replica: Replica) -> None:
        self._absent[replica.place] = self.world.loop.time() + self.random.uniform(0.05, 6)
        self.fleet.kill(replica)

    async def _pause(self, replica: Replica, seconds: float | None = None) -> None:
        seconds = seconds or self.random.uniform(0.1, 2.5) * self.world.plan.lease
        self.world.trace("pauses", replica.name, f"{seconds:.3f}")
        self.world.unavailable_reason(seconds)
        replica.process.is_paused = True

        def go_on() -> None:
            self.world.trace("goes on", replica.name)
            replica.process.is_paused = False

        self._chaos.after(seconds, go_on)

    async def _hiccup(self, replica: Replica) -> None:
        await self._pause(replica, self.random.choice([0.001, 0.02, 0.3]))

    async def _drain(self, replica: Replica) -> None:
        if replica.is_stopping or replica.process.is_paused or replica.host is None:
            return
        replica.process.spawn(replica.stop())
        if not self.world.plan.is_embedded and self.random.random() < 0.6:
            # A deployment: the next replica starts before this one has ended.
            self.fleet.begin(replica.place)

    async def _cut(self, replica: Replica) -> None:
        self.world.trace("cut off", replica.name)
        replica.store.is_cut = True
        await asyncio.sleep(self.random.uniform(0.05, 2) * self.world.plan.lease)
        replica.store.is_cut = False
        self.world.trace("back", replica.name)

    async def _down(self, replica: Replica) -> None:
        self.world.trace("the database is down")
        self.fleet.database.is_up = False
        await asyncio.sleep(self.random.uniform(0.1, 2) * self.world.plan.lease)
        self.fleet.database.is_up = True
        self.world.trace("the database is up")

    async def _slow(self, replica: Replica) -> None:
        self.fleet.database.slow = self.random.choice([5, 50])
        await asyncio.sleep(self.random.uniform(0.1, 3))
        self.fleet.database.slow = 1.0

    async def _bus(self, replica: Replica) -> None:
        bus = replica.bus
        if bus is None:
            return
        bus.cut(is_noticed=self.random.random() < 0.5)
        await asyncio.sleep(self.random.uniform(0.1, 5))
        bus.mend()

    async def _hang_up(self, replica: Replica) -> None:
        connections = self.fleet.open_connections()
        if connections:
            self.random.choice(connections).reset()

    def _calm(self) -> None:
        """Repair all faults."""
        self.world.is_quiet = True
        self.world.unavailable_reason()
        self.fleet.database.is_up = True
        self.fleet.database.slow = 1.0
        for replica in [*self.fleet.replicas.values(), *self.fleet.everyone]:
            replica.process.is_paused = False
            replica.store.is_cut = False
            if replica.bus is not None:
                replica.bus.mend()


_clock = time.perf_counter


class _NoWatchdog:
    """Replaces the watchdog, which is a thread."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


@contextmanager
def _replaced(simulation: Simulation) -> Iterator[None]:
    """Replace clocks, ids and randomness by the simulation's within the context."""
    world = simulation.world
    seconds = lambda: world.milliseconds() / 1000  # noqa: E731
    changes: list[tuple[Any, str, Any]] = [
        (time, "time", seconds),
        (time, "monotonic", world.loop.time),
        (time, "time_ns", lambda: world.milliseconds() * 1_000_000),
        (os, "urandom", world.random.randbytes),
        (backoff, "uniform", world.random.uniform),
        (host, "LoopWatchdog", _NoWatchdog),
        (dispatcher, "HttpSender", simulation.webhooks.sender),
        (subscriptions, "Subscription", _Subscription),
        (asyncio.Timeout, "__hash__", numbered),
        (TaskRunner, "__hash__", numbered),
    ]
    names: dict[str, Any] = {"new_id": world.new_id}
    names["uuid4"] = lambda: SimpleNamespace(hex=world.opening)
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if name.startswith("parley."):
            changes += [(module, key, names[key]) for key in names if key in vars(module)]
    before = [
        (where, name, where.__dict__[name]) for where, name, _ in changes if name in vars(where)
    ]
    missing = [(where, name) for where, name, _ in changes if name not in vars(where)]
    for where, name, what in changes:
        setattr(where, name, what)
    try:
        yield
    finally:
        for where, name, what in reversed(before):
            setattr(where, name, what)
        for where, name in missing:
            delattr(where, name)


class _Subscription(subscriptions.Subscription):
    """A subscription whose order in a set does not depend on its address."""

    __hash__ = numbered
