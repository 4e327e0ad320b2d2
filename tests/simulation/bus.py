"""The bus of a simulation: it loses, repeats, delays and reorders hints."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parley.store.bus.subscriptions import LocalHints
from parley.store.events import LoggedEvent
from tests.simulation.loop import Process
from tests.simulation.world import World


class Wire:
    """Connects the buses of all replicas."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ends: list[SimulatedBus] = []


class SimulatedBus:
    """One replica's end of the bus (``Bus``). ``is_up`` is the replica's view of its connection."""

    def __init__(self, wire: Wire, process: Process) -> None:
        self._wire = wire
        self._world = wire.world
        self._process = process
        self._hints: LocalHints | None = None
        self._watched: set[str] = set()
        self.is_up = True
        self.is_cut = False

    async def open(self, hints: LocalHints, replica: str) -> None:
        self._hints = hints
        self._wire.ends.append(self)
        self._process.on_death.append(self._leave)

    async def close(self) -> None:
        self._leave()

    def _leave(self) -> None:
        self._hints = None
        if self in self._wire.ends:
            self._wire.ends.remove(self)

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        if not records:
            return
        task_id = records[0].task_id

        def pass_on(end: SimulatedBus) -> None:
            if end._hints is None or task_id not in end._watched:
                return
            end._hints.publish(records)

        self._spread(pass_on)

    def publish_work(self, agent: str) -> None:
        def pass_on(end: SimulatedBus) -> None:
            if end._hints is not None:
                end._hints.notify_work(agent)

        self._spread(pass_on)

    def cut(self, *, is_noticed: bool) -> None:
        """Drop everything; ``is_noticed`` says whether the replica knows."""
        self.is_cut, self.is_up = True, not is_noticed

    def mend(self) -> None:
        """Transmit everything again."""

        def is_back() -> None:
            if self._hints is not None and not self.is_up:
                self.is_up = True
                self._hints.notify_lost()

        self.is_cut = False
        self._process.after(0, is_back)

    def watch(self, task_id: str, is_watched: bool) -> None:
        def changed() -> None:
            if is_watched:
                self._watched.add(task_id)
            else:
                self._watched.discard(task_id)

        # The bus notices after a delay; hints until then are lost.
        self._process.after(self._world.delay(self._world.plan.hint_delay), changed)

    def _spread(self, pass_on: Callable[[SimulatedBus], None]) -> None:
        world, plan = self._world, self._world.plan
        for end in self._wire.ends:
            if end is self or self.is_cut or end.is_cut:
                continue
            while world.random.random() >= plan.hints_lost:
                end._process.after(world.delay(plan.hint_delay), pass_on, end)
                if world.random.random() >= plan.hints_repeated:
                    break
