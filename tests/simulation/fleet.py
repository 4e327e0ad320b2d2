"""The replicas of a simulation: start, end, and requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from parley.engine.service.service import AgentService
from parley.host.host import Host
from parley.host.options import ServerOptions
from parley.model.errors import A2AError
from parley.store.protocols.claims import Lease
from parley.store.protocols.errors import StoreError
from tests.simulation.bus import SimulatedBus, Wire
from tests.simulation.checks import LogChecker
from tests.simulation.compositions import agents_of
from tests.simulation.database import Database, SimulatedStore
from tests.simulation.loop import Process
from tests.simulation.programs import Programs
from tests.simulation.world import World

WINDOW = 8
"""Maximum number of unread events on a connection."""


class Cut(Exception):
    """The connection to a replica was refused, or broke."""


class Replica:
    """One life of a server process."""

    def __init__(self, fleet: Fleet, place: int, life: int) -> None:
        plan, world = fleet.world.plan, fleet.world
        self.fleet = fleet
        self.place = place
        self.process = Process(world.loop, f"replica{place}.{life}", skew=plan.skews[place])
        self.store = SimulatedStore(
            fleet.database, lease=Lease(plan.lease), is_shared=not plan.is_embedded
        )
        self.bus = SimulatedBus(fleet.wire, self.process) if plan.has_bus else None
        self.host: Host | None = None
        self.is_listening = False
        self.is_stopping = False
        self.has_drained = False
        self.requests: dict[int, asyncio.Task[Any]] = {}

    def __repr__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def is_alive(self) -> bool:
        return not self.process.is_dead

    async def run(self) -> None:
        """Start serving. Exits when the store does not work, as a server does."""
        plan, world = self.fleet.world.plan, self.fleet.world
        programs = Programs(world, self.fleet.checker, self.fleet.database.complete_later)
        self.host = Host(
            agents_of(programs),
            self.store,
            ServerOptions(drain=plan.drain, role=plan.roles[self.place]),
            bus=None if plan.is_embedded else self.bus,
        )
        try:
            await self.host.start()
        except StoreError as error:
            world.trace("cannot start", error)
            self.process.after(0, self.fleet.kill, self)
            return
        world.trace("serves")
        self.is_listening = plan.roles[self.place] != "worker"

    async def stop(self) -> None:
        """Drain and end, as after SIGTERM."""
        world = self.fleet.world
        if self.host is None or self.is_stopping:
            return
        world.trace("drains")
        self.is_stopping = self.has_drained = True
        self.is_listening = False
        self.host.drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.fleet.world.plan.drain + 1
        while self.requests and loop.time() < end:
            await asyncio.sleep(0.05)
        for request in list(self.requests.values()):
            request.cancel()
        await asyncio.sleep(0)
        try:
            await self.host.stop()
        except StoreError as error:
            world.trace("stops badly", error)
        world.trace("ended")
        self.fleet.world.loop.world.after(0, self.fleet.kill, self)


class Fleet:
    """All replicas. Each has a slot, which a later replica gets when the first one ends."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checker = LogChecker(world)
        self.database = Database(world, self.checker)
        self.wire = Wire(world)
        self.replicas: dict[int, Replica] = {}
        self.everyone: list[Replica] = []
        self.connections: dict[int, Connection] = {}
        self._lives = 0
        self._requests = 0

    def begin(self, place: int) -> Replica:
        """Start a replica in a slot."""
        self._lives += 1
        replica = self.replicas[place] = Replica(self, place, self._lives)
        self.everyone.append(replica)
        replica.process.spawn(replica.run())
        return replica

    def kill(self, replica: Replica) -> None:
        """End a replica, as SIGKILL does."""
        if replica.process.is_dead:
            return
        self.world.trace("dies", replica)
        replica.is_listening = False
        replica.process.kill()
        if self.replicas.get(replica.place) is replica:
            del self.replicas[replica.place]

    def reachable(self) -> list[Replica]:
        """Return the replicas to which a load balancer would send a request."""
        return [replica for replica in self.replicas.values() if replica.is_listening]

    def open_connections(self) -> list[Connection]:
        """Return the open requests."""
        return list(self.connections.values())

    # -- requests ------------------------------------------------------------------------------

    async def ask(
        self,
        replica: Replica,
        path: str,
        work: Callable[[AgentService], Awaitable[Any]],
        timeout: float,
    ) -> Any:
        """Call a replica over the network. Raises ``Cut``, ``A2AError``, ``TimeoutError``."""

        async def answers(service: AgentService, send: Callable[[Any], None]) -> None:
            send(await work(service))

        connection = Connection(self, replica, path, answers)
        try:
            async with asyncio.timeout(timeout):
                return await connection.receive()
        finally:
            connection.hang_up()

    def stream(
        self, replica: Replica, path: str, work: Callable[[AgentService], AsyncIterator[Any]]
    ) -> Connection:
        """Open a stream from a replica; read it with ``receive`` until that returns ``None``."""

        async def answers(service: AgentService, send: Callable[[Any], None]) -> None:
            async with aclosing(work(service)) as items:  # type: ignore[type-var]
                async for item in items:
                    send(item)
                    await connection.room()
            send(None)

        connection = Connection(self, replica, path, answers)
        return connection


class Connection:
    """A request and its ordered responses, until either end is gone."""

    def __init__(
        self,
        fleet: Fleet,
        replica: Replica,
        path: str,
        answers: Callable[[AgentService, Callable[[Any], None]], Awaitable[None]],
    ) -> None:
        self._fleet = fleet
        self._world = fleet.world
        self._replica = replica
        self._path = path
        here = fleet.world.here
        assert here is not None
        self._client = here
        fleet._requests += 1
        self._number = fleet._requests
        fleet.connections[self._number] = self
        self._answers = answers
        self._came: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._last = 0.0
        self._unread = 0
        self._room: asyncio.Future[None] | None = None
        self._is_over = False
        self._task: asyncio.Task[None] | None = None
        replica.process.on_death.append(self._broken)
        if replica.is_alive:
            replica.process.after(self._delay(), self._arrive)
        else:
            self._send(Cut("refused"))

    def _delay(self) -> float:
        return self._world.delay(self._world.plan.net_delay)

    # -- the server's end ----------------------------------------------------------------------

    def _arrive(self) -> None:
        replica = self._replica
        if self._is_over:
            return
        if not replica.is_listening or replica.host is None:
            self._send(Cut("refused"))
            return
        self._task = replica.process.spawn(self._serve(replica.host.services[self._path]))
        replica.requests[self._number] = self._task

    async def _serve(self, service: AgentService) -> None:
        try:
            await self._answers(service, self._send)
        except A2AError as error:
            self._send(error)
        except asyncio.CancelledError:
            self._send(Cut("ended by the server"))
        except Exception as error:
            self._world.problem(f"a request raised {type(error).__name__}: {error}")
            self._send(Cut("failed"))
        finally:
            self._replica.requests.pop(self._number, None)

    def _send(self, what: Any) -> None:
        loop = self._world.loop
        self._last = max(self._last, loop.time() + self._delay()) + 1e-6
        self._unread += 1
        self._client.after(self._last - loop.time(), self._receive, what)

    async def room(self) -> None:
        """Wait until the client has fewer unread events."""
        while self._unread > WINDOW:
            self._room = self._world.loop.create_future()
            await self._room

    def _has_room(self) -> None:
        self._unread -= 1
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _broken(self) -> None:
        """The replica died: its end of the connection is reset."""
        self._send(Cut("reset"))

    def reset(self) -> None:
        """Break the connection in the middle."""
        self._world.trace("connection reset", self._client, self._replica.name)
        self._send(Cut("reset"))
        self._replica.process.after(self._delay(), self._gone)

    def _gone(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()

    # -- the client's end ----------------------------------------------------------------------

    def _receive(self, what: Any) -> None:
        self._came.append(what)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> Any:
        """Return the next response. Raises the server's errors, and ``Cut``."""
        while not self._came:
            self._waiter = self._world.loop.create_future()
            await self._waiter
        what = self._came.popleft()
        self._replica.process.after(self._delay(), self._has_room)
        if isinstance(what, Exception):
            raise what
        return what

    def hang_up(self) -> None:
        """Disconnect. The server notices after a while."""
        if self._is_over:
            return
        self._is_over = True
        if self._broken in self._replica.process.on_death:
            self._replica.process.on_death.remove(self._broken)
        self._fleet.connections.pop(self._number, None)
        self._replica.process.after(self._delay(), self._gone)
