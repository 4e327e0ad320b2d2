"""Several hosts of one agent on one store, in one process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from parley import CallContext, Execution, Task, TaskState, Turn
from parley.agent.agent import Agent
from parley.host.host import Host, placed
from parley.host.options import Role, ServerOptions
from parley.model.operations import GetTaskRequest, SubscribeToTaskRequest
from parley.model.service import StreamItem
from parley.model.tasks import TaskStatusUpdateEvent
from parley.security.egress import Egress
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import LoggedEvent
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.protocols.errors import StoreUnavailable
from parley.store.task_store import TaskStore
from tests.engine.talk import Talk
from tests.kit.waiting import let_time_pass


class Network:
    """The connection between the buses of a fleet. ``loses`` decides whether a hint gets lost."""

    def __init__(self, loses: Callable[[], bool]) -> None:
        self.loses = loses
        self.buses: list[MemoryBus] = []


class MemoryBus:
    """A bus within one process: it passes every hint to all other hosts, except lost hints."""

    is_up = True

    def __init__(self, network: Network) -> None:
        self._network = network
        self._hints: LocalHints | None = None

    async def open(self, hints: LocalHints, replica: str) -> None:
        self._hints = hints
        self._network.buses.append(self)

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        self._pass_on(lambda hints: hints.publish(records))

    def publish_work(self, agent: str) -> None:
        self._pass_on(lambda hints: hints.notify_work(agent))

    def watch(self, task_id: str, is_watched: bool) -> None:
        pass

    def _pass_on(self, hint: Callable[[LocalHints], None]) -> None:
        for bus in self._network.buses:
            if bus is not self and bus._hints is not None and not self._network.loses():
                asyncio.get_running_loop().call_soon(hint, bus._hints)

    async def close(self) -> None:
        self._hints = None
        if self in self._network.buses:
            self._network.buses.remove(self)


class MortalStore(MemoryTaskStore):
    """One replica's connection to a memory store; a test can cut it for a while or for good."""

    is_down = False

    def _opened(self) -> MemoryLogs:
        if self.is_down:
            raise StoreUnavailable("the store is down")
        return super()._opened()

    def fall_silent(self) -> None:
        """Stop the heartbeat."""
        assert self._heartbeat is not None
        self._heartbeat.cancel()

    def die(self) -> None:
        """Stop all work at once, without a notice to the other replicas."""
        self.fall_silent()
        self._loop = None


class Replica(Talk):
    """A host of the fleet, and a caller of it."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.services[""], host)

    @property
    def name(self) -> str:
        """The replica's name in the store."""
        return self.host.store.replica

    def fall_silent(self) -> None:
        """Stop the heartbeat and the search for work, but continue the turns in progress."""
        assert isinstance(self.store, MortalStore)
        self.host._maintenance.end()
        self.executor.runs_turns = False
        self.store.fall_silent()

    def die(self) -> None:
        """Stop as a killed process does: nothing is written, and no lease is released."""
        assert isinstance(self.store, MortalStore)
        self.store.die()
        for executor in self.host.executors.values():
            for runner in list(executor._active):
                assert runner._main is not None
                runner._main.cancel()


class Fleet:
    """Replicas of one agent. ``loses`` is the share of hints that the bus loses."""

    loses = 0.0

    def __init__(self, new_replica: Callable[[], TaskStore]) -> None:
        self.new_replica = new_replica
        generator = random.Random(7)
        self._network = Network(lambda: generator.random() < self.loses)
        self.replicas: list[Replica] = []

    async def add(
        self, agent: Agent, *, role: Role = "both", drain: float = 0.0, poll: float = 0.1
    ) -> Replica:
        """Start a further replica."""
        store, bus = self.new_replica(), MemoryBus(self._network)
        host = Host(
            placed(agent),
            store,
            ServerOptions(drain=drain, role=role, egress=Egress.allowing(True)),
            bus=bus,
            poll_interval=poll,
        )
        await host.start()
        replica = Replica(host)
        self.replicas.append(replica)
        return replica

    async def stop(self, replica: Replica) -> None:
        """Drain a replica and stop it."""
        self.replicas.remove(replica)
        await replica.host.stop()

    async def kill(self, replica: Replica) -> None:
        """Stop a replica as a killed process stops."""
        replica.die()
        await replica.host.poller.stop()

    async def close(self) -> None:
        """Stop all remaining replicas."""
        for replica in list(self.replicas):
            await self.stop(replica)


def where(turn: Any) -> str:
    """Return the store's name for the replica that runs a turn."""
    return str(turn._attempt.runner.store.replica)


async def get(replica: Replica, task_id: str) -> Task:
    return await replica.service.get_task(GetTaskRequest(id=task_id), replica.context)


async def collect(items: AsyncIterator[StreamItem]) -> list[StreamItem]:
    return [item async for item in items]


async def events_of(replica: Replica, task_id: str) -> list[StreamItem]:
    """Return all events of a task, to its end."""
    request = SubscribeToTaskRequest(id=task_id)
    stream = replica.service.subscribe_to_task(request, CallContext(last_event_id="0"))
    return await asyncio.wait_for(collect(stream), 20)


def states(items: list[StreamItem]) -> list[TaskState]:
    events = [item.event for item in items]
    return [event.status.state for event in events if isinstance(event, TaskStatusUpdateEvent)]


async def until_state(replica: Replica, task_id: str, state: TaskState) -> Task:
    async with asyncio.timeout(20):
        while (task := await get(replica, task_id)).state is not state:
            await let_time_pass(0.005)
    return task


class Gate:
    """An agent whose turns wait for the gate to open, and record their replica."""

    def __init__(self, **options: Any) -> None:
        self.agent = Agent("Gate", execution=Execution(cancel_grace=0.1, **options))
        self.runs: list[tuple[str, int, str]] = []
        self.open = asyncio.Event()
        self.only: str | None = None

        @self.agent.skill(replies="task")
        async def wait(turn: Turn) -> str:
            self.runs.append((turn.text, turn.attempt, where(turn)))
            await turn.working(f"attempt {turn.attempt}")
            while not self.open.is_set() or (self.only and where(turn) != self.only):
                await asyncio.sleep(0.005)
            return turn.text

        @self.agent.skill(replies="message")
        async def quick(turn: Turn) -> str:
            return f"quick {turn.text}"
