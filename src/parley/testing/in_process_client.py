"""``client``: the real client on the real app, in one process, with a clock that tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from inspect import Parameter, signature
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from msgspec import UNSET, UnsetType

from parley.agent.agent import Agent
from parley.client.answer import Answer
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.calls.service import Unopened
from parley.client.card.resolver import CardResolver, ResolvedCard
from parley.client.connection import Connection
from parley.client.connection import connect as connect_to
from parley.client.errors import ClientError, Disconnected
from parley.client.origin import Origin
from parley.client.remote_agent import RemoteAgent
from parley.client.retry import Retry
from parley.host.complete import complete
from parley.host.connecting import ADDRESS, refuse_for_local
from parley.host.in_process import InProcessExchange, InProcessTransport, Site
from parley.host.options import Identify
from parley.model.cards import AgentExtension
from parley.model.extensions import Extension
from parley.model.service import Caller
from parley.model.tasks import Task
from parley.push.delivery import RetryPolicy
from parley.security.authorization import Authorization
from parley.server.middleware import AnyMiddleware
from parley.server.settings import Settings
from parley.store.task_store import TaskStore
from parley.testing.deployment import CALLER, DEFAULT_CALLER, Deployment
from parley.testing.loop import PROCESS, Clock, SimulatedLoop
from parley.testing.webhooks import WEBHOOK, Deliveries

if TYPE_CHECKING:
    from parley.host.in_process_sockets import InProcessSocket


EXACT_STEPS = 1000
"""The number of timers of one ``advance`` that fire at their exact times."""

STEPS = 500
"""The number of equal steps in which an ``advance`` fires the timers after ``EXACT_STEPS``."""


class TestTime:
    """The time of the agents under test. It flows as real time does, and ``advance`` moves it.

    It drives every timer of the agents: ``asyncio.sleep`` and timeouts in their functions,
    deadlines, sleeping turns, retention, the backoff of webhooks. ``time.time()`` and
    ``datetime.now()`` still return the machine's time.
    """

    __test__ = False  # pytest must not collect this class

    def __init__(self, clock: Clock, simulated: SimulatedLoop) -> None:
        self._clock = clock
        self._simulated = simulated
        self._moving = asyncio.Lock()
        self._deployments: list[Deployment] = []

    @property
    def now(self) -> datetime:
        """The time on the stores' clock, in UTC."""
        return self._clock.now()

    def watch(self, deployment: Deployment) -> None:
        """Move the time of this agent as well."""
        self._deployments.append(deployment)

    async def advance(self, span: timedelta | float) -> None:
        """Move the time by a span (seconds, if it is a number), and wait until all agents are idle.

        Timers fire in order, each at its own time: a function that sleeps a day five times wakes up
        five times. After the first thousand timers of one move, timers closer together than a 500th
        of the move may fire together. Raises ``ValueError`` for a negative span.
        """
        seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
        if seconds < 0:
            raise ValueError(f"time goes forward: advance by 0 or more, not {span}")
        self.reject_inside("advance")
        clock = self._clock
        async with self._moving:
            await self._settle()
            end = clock.time() + seconds
            for number in count():
                left = end - clock.time()
                if left <= 0:
                    break
                due = await self._next(0.0 if number < EXACT_STEPS else seconds / STEPS, end)
                clock.move(max(0.0, due - clock.time()))
                await self._settle()
                await self._wake()
            await self._wake()

    async def advance_to(self, moment: datetime) -> None:
        """Move the time to a moment. Raises ``ValueError`` for a past moment."""
        if moment.tzinfo is None:
            raise ValueError("a moment needs a time zone: datetime(2026, 1, 1, tzinfo=UTC)")
        left = moment - self.now
        if left < timedelta(0):
            raise ValueError(f"time goes forward: it is {self.now.astimezone(UTC)} already")
        await self.advance(left)

    async def settle(self) -> None:
        """Wait until all agents are idle, without moving the time."""
        self.reject_inside("settle")
        async with self._moving:
            await self._settle()

    async def _next(self, span: float, end: float) -> float:
        """Return the time of the next step: a timer, a sleeping task, or the end of the move."""
        wakes = [await deployment.next_wake() for deployment in self._deployments]
        return min([end, self._clock.upcoming(span, end) or end, *[w for w in wakes if w]])

    async def _wake(self) -> None:
        """Run the periodic work of all hosts, and wait until it is done."""
        for deployment in self._deployments:
            deployment.wake()
        await self._settle()

    async def _settle(self) -> None:
        deployments = self._deployments
        await self._simulated.settle(
            [deployment.is_busy for deployment in deployments],
            [deployment.is_in_threads for deployment in deployments],
        )

    def reject_inside(self, what: str) -> None:
        """Raise ``RuntimeError`` if the caller is a function of an agent."""
        if PROCESS.get() is not None:
            raise RuntimeError(
                f"{what} waits until the agents are idle, so an agent cannot call it: call it "
                "in the test"
            )


# -- world ------------------------------------------------------------------------------------
#
# The world of one test, which its agents and clients share: time, addresses, webhooks.


class WorldTransport(InProcessTransport):
    """The connections of one client; they break when the process at either end dies."""

    def __init__(
        self, sites: Mapping[str, Site], *, caller: Mapping[str, Caller] = {}, is_closed_with: bool
    ) -> None:
        super().__init__(sites, scope=caller)
        self.closes_with_agent = is_closed_with

    def on_open(self, site: Site, exchange: InProcessExchange | InProcessSocket) -> None:
        """Break the connection when a process dies."""

        def cut() -> None:
            exchange.fail(Disconnected(f"the process of {name} was killed"))
            if process.is_dead:
                self.forget(exchange)

        assert isinstance(site, Deployment)
        name, process, here = site.agent.name, site.process, PROCESS.get()
        ends = [process] if here is None else [process, here]
        for end in ends:
            end.on_death.append(cut)

        def ended(_: object) -> None:
            for end in ends:
                if cut in end.on_death:
                    end.on_death.remove(cut)

        if exchange.task is not None:
            exchange.task.add_done_callback(ended)

    def unknown(self, url: str) -> ClientError:
        """Return the error for an address that has no agent in this test."""
        known = ", ".join(sorted(self._sites))
        return ClientError(
            f"a test uses no network, and none of its agents is at {redacted(url)}: add "
            f'remotes={{"{redacted(url)}": an_agent}} to parley.testing.client; the agents are '
            f"at {known}"
        )


class World:
    """The time, the addresses and the webhooks of one test."""

    def __init__(self, start: datetime | None) -> None:
        self.simulated = SimulatedLoop.of_running()
        self.clock = self.simulated.clock(start)
        self.time = TestTime(self.clock, self.simulated)
        self.webhooks = Deliveries()
        self.sites: dict[str, Deployment] = {}
        self._stack = AsyncExitStack()
        self._stack.callback(self.simulated.leave)
        self._stack.callback(self.clock.stop)
        self.clients: list[RemoteAgent] = []

    async def deploy(self, agent: Agent, address: str, **options: Any) -> Deployment:
        """Start an agent at an address."""
        deployment = Deployment(
            agent,
            address,
            clock=self.clock,
            webhooks=self.webhooks,
            connect=self.connect,
            **options,
        )
        self.sites[address] = deployment
        self._stack.push_async_callback(deployment.close)
        await deployment.open()
        self.time.watch(deployment)
        return deployment

    def connect(self, reference: Any, **options: Any) -> Connection:
        """Connect a turn to another agent, as the real client does, but without a network."""
        if options.get("http") is None:
            options["http"] = WorldTransport(self.sites, is_closed_with=True)
        return connect_to(reference, **options)

    async def crash(self, address: str, down_for: timedelta) -> None:
        """Kill the process at an address, and start a new process there."""
        deployment = self.sites[address]
        self.simulated.hook_generators()  # the event loop may have been restarted
        await deployment.kill()
        if down_for:
            await self.time.advance(down_for)
        await deployment.restart()

    async def close(self) -> None:
        """Close the clients, stop the agents, and restore the event loop."""
        clients, self.clients = self.clients, []
        async with self._stack:
            for client in clients:
                await client.aclose()


TESTER = "tester"
"""The default caller of an agent that requires credentials."""

RETRY = Retry(calls=5, streams=20, first=0.002, limit=0.05)
"""The retry policy of a test's client: its pauses are real time, so they are short."""


class TestedAgent(RemoteAgent):
    """The ordinary client of the agent under test, with methods that control the test.

    ``time`` is the time of the agents; ``webhooks`` are their notifications to any address.
    ``webhook`` is an address for them: ``send(..., push=remote.webhook)``.
    """

    __test__ = False  # pytest must not collect this class

    webhook = WEBHOOK
    _world: World
    _connection: _Connection
    _address: str

    @property
    def time(self) -> TestTime:
        """The time of the agents."""
        return self._world.time

    @property
    def webhooks(self) -> Deliveries:
        """The notifications that the agents posted to webhooks, in order."""
        return self._world.webhooks

    async def advance(self, span: timedelta | float) -> None:
        """Move the time of the agents: see ``TestTime.advance``."""
        await self._world.time.advance(span)

    async def settle(self) -> None:
        """Wait until all agents are idle, without moving the time."""
        await self._world.time.settle()

    async def crash(
        self, address: str | None = None, *, down_for: timedelta = timedelta(0)
    ) -> None:
        """Kill the agent's process as ``kill -9`` does, and start a new process on the same store.

        Nothing of the dead process runs any more, not even a ``finally``; its connections break,
        and its clients reconnect. Its store remains, and the new process runs unfinished turns
        again. ``address`` crashes the remote agent at that address instead. The new process starts
        after ``down_for``.

        A plain function in a thread cannot be killed: it runs to its end, and its result is lost.
        """
        if address is not None and address not in self._world.sites:
            known = ", ".join(each for each in self._world.sites if each != self._address)
            raise ValueError(f"no agent is at {address}; remotes are at: {known or 'nowhere'}")
        self._world.time.reject_inside("crash")
        await self._world.crash(address or self._address, down_for)

    @property
    def store(self) -> TaskStore:
        """The agent's store: for ``parley.complete(..., store=remote.store)``, for instance."""
        return self._world.sites[self._address].store

    @property
    def http(self) -> HttpTransport:
        """The HTTP transport of the client, for other requests, such as a request to a callback
        address.
        """
        return self._connection.http

    @overload
    async def complete(self, key: str, value: Any = None) -> bool: ...

    @overload
    async def complete(
        self, key: str, value: Any = None, *, task: str | Task | Answer[Any]
    ) -> Answer[Any]: ...

    async def complete(
        self, key: str, value: Any = None, *, task: str | Task | Answer[Any] | None = None
    ) -> bool | Answer[Any]:
        """Complete an event that a turn awaits (``turn.wait_event``), and ``settle``.

        Returns the result of ``parley.complete``; with ``task``, which awaits the event, the answer
        that follows. Raises the errors of ``parley.complete``.
        """
        deployment = self._world.sites[self._address]
        done = complete(key, value, agent=deployment.agent, store=deployment.store)
        completed = await deployment.process.run(done)
        await self.settle()
        return completed if task is None else await self.wait(task)

    def as_caller(
        self, caller: str | Caller | None, *, scopes: Iterable[str] | None = None
    ) -> TestedAgent:
        """Return a client of the same agent for another caller. It closes with this client.

        ``caller`` and ``scopes`` have the meaning that they have in ``parley.testing.client``.
        """
        return self._connection.for_caller(caller, scopes)

    async def aclose(self) -> None:
        """Close the client; the first client of a test also stops the agents. Idempotent."""
        await super().aclose()
        if self._world.clients[:1] == [self]:
            await self._world.close()


_DEFAULTS = {
    name: parameter.default
    for name, parameter in signature(connect_to).parameters.items()
    if parameter.default is not Parameter.empty
}
"""The default options of connections."""


class _Connection(Connection):
    """A connection to the agent under test."""

    agent_type = TestedAgent

    def __init__(
        self,
        world: World,
        address: str,
        caller: str | Caller | UnsetType | None,
        scopes: Iterable[str] | None,
        options: dict[str, Any],
    ) -> None:
        self._world = world
        self._address = address
        self._options = options
        self._resolved: ResolvedCard | None = None
        found = _caller_in(caller, scopes, world.sites[address].authorization)
        self.http = WorldTransport(world.sites, caller=found, is_closed_with=True)
        super().__init__(address, **{**_DEFAULTS, **options, "http": self.http})

    def for_caller(self, caller: str | Caller | None, scopes: Iterable[str] | None) -> TestedAgent:
        """Return a client of the same agent for another caller."""
        assert self._resolved is not None
        _check_caller(caller, scopes)
        other = _Connection(self._world, self._address, caller, scopes, self._options)
        made = other._make_agent(self._resolved, other._resolver())
        assert isinstance(made, TestedAgent)
        return made

    def _make_agent(self, resolved: ResolvedCard, resolver: CardResolver) -> RemoteAgent:
        self._resolved = resolved
        made = super()._make_agent(resolved, resolver)
        assert isinstance(made, TestedAgent)
        made._world, made._connection, made._address = self._world, self, self._address
        self._world.clients.append(made)
        return made


_REMOTE_DEFAULTS = {"identify": None, "settings": None, "files": None, "middleware": ()}
"""The options of the agent under test alone, with their values for remote agents."""


class Client(Unopened):
    """An agent under test. Start it with ``async with``, or ``await`` it and close it."""

    def __init__(
        self,
        agent: Agent,
        *,
        remotes: Mapping[str, Agent],
        store: str,
        caller: str | Caller | UnsetType | None,
        scopes: Iterable[str] | None,
        start: datetime | None,
        connection: dict[str, Any],
        deployment: dict[str, Any],
    ) -> None:
        self._agent = agent
        self._remotes = {_address(address): remote for address, remote in remotes.items()}
        self._store = store
        self._caller = caller
        self._scopes = scopes
        self._start = start
        self._connection = connection
        self._deployment = deployment
        self._world: World | None = None

    def __await__(self) -> Generator[Any, None, TestedAgent]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> TestedAgent:
        if self._world is not None:
            raise RuntimeError("this client is open already; create a new client for another test")
        world = self._world = World(self._start)
        try:
            shared = {**self._deployment, **_REMOTE_DEFAULTS}
            for address, remote in self._remotes.items():
                await world.deploy(remote, address, store="memory:", **shared)
            await world.deploy(self._agent, ADDRESS, store=self._store, **self._deployment)
            opened = await _Connection(world, ADDRESS, self._caller, self._scopes, self._connection)
        except BaseException:
            await world.close()
            raise
        assert isinstance(opened, TestedAgent)
        return opened

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the clients, and stop the agents. Idempotent."""
        if self._world is not None:
            await self._world.close()


def client(
    agent: Agent,
    *,
    remotes: Mapping[str, Agent] | None = None,
    store: str = "memory:",
    caller: str | Caller | UnsetType | None = UNSET,
    scopes: Iterable[str] | None = None,
    identify: Identify | None = None,
    start: datetime | None = None,
    settings: Settings | None = None,
    retry_policy: RetryPolicy | None = None,
    allow_private_webhooks: bool = False,
    files: str | Path | None = None,
    middleware: Iterable[AnyMiddleware] = (),
    headers: Mapping[str, str] | None = None,
    bearer: str | None = None,
    binding: str | Sequence[str] = (),
    version: str = "",
    timeout: float | None = 30.0,
    retries: int | Retry = RETRY,
    extensions: Sequence[Extension | AgentExtension | str] = (),
    idempotent: bool = True,
) -> Client:
    """Test an agent: ``async with parley.testing.client(agent) as remote: ...``.

    ``remote`` is the real client, connected to the real app without a socket.
    ``remote.advance(timedelta(days=2))`` moves the time of the agent, ``remote.webhooks`` lists its
    notifications, ``remote.crash()`` kills its process and starts a new process.

    ``remotes`` maps addresses to other agents, such as ``ScriptedAgent``s: with
    ``turn.connect(address)`` the agent under test reaches these agents only. ``store`` is
    ``memory:``, which survives a crash of the agent, or ``sqlite:///path/to/tasks.db``.

    ``caller`` is an id, which counts as authenticated, or a ``Caller``; ``remote.as_caller("bob")``
    switches to another caller. The caller has all the credentials that the agent declares
    (``security=``) with these ``scopes``, by default all required scopes. ``None`` is an anonymous
    caller. Without ``caller``, ``"tester"`` calls an agent that requires credentials, and an
    anonymous caller any other agent; credentials in ``headers`` or ``bearer`` are verified instead.
    ``identify`` is a function that finds the caller, like ``caller=`` of ``parley.asgi``, for tests
    of that function with ``headers`` or ``bearer``.

    ``start`` is the time at which the test begins, by default now. ``retry_policy`` applies to
    webhooks. ``settings``, ``allow_private_webhooks``, ``files`` and ``middleware`` are options of
    ``parley.asgi``; the other options are options of ``parley.connect``.

    Use it on one event loop. Raises ``ValueError`` for options that contradict each other.
    """
    if not isinstance(agent, Agent):
        raise TypeError(f"client tests an Agent, not {agent!r}; parley.connect(app) calls an app")
    if identify is not None and (caller is not UNSET or scopes is not None):
        raise ValueError("identify finds the caller of a request; leave caller and scopes out")
    _check_caller(caller, scopes)
    if start is not None and start.tzinfo is None:
        raise ValueError("start needs a time zone: datetime(2026, 1, 1, tzinfo=UTC)")
    refuse_for_local({"binding": binding})
    return Client(
        agent,
        remotes=remotes or {},
        store=store,
        caller=caller,
        scopes=None if scopes is None else frozenset(scopes),
        start=start,
        connection={
            "headers": headers,
            "bearer": bearer,
            "binding": binding,
            "version": version,
            "timeout": timeout,
            "retries": retries,
            "extensions": extensions,
            "idempotent": idempotent,
        },
        deployment={
            "settings": settings,
            "identify": identify,
            "authenticates": isinstance(caller, str | Caller) or agent.rules.needs_identity,
            "retry_policy": retry_policy,
            "private_webhooks": allow_private_webhooks,
            "files": files,
            "middleware": tuple(middleware),
        },
    )


def _check_caller(caller: str | Caller | UnsetType | None, scopes: Iterable[str] | None) -> None:
    """Raise ``ValueError`` for a caller without a name, and for scopes without a named caller."""
    if caller == "":
        raise ValueError("a caller needs a name; caller=None is the anonymous caller")
    if scopes is None:
        return
    if isinstance(scopes, str):
        raise ValueError(f"scopes is a list of strings, such as [{scopes!r}]")
    if caller is None:
        raise ValueError("an anonymous caller has no scopes; name the caller")
    if isinstance(caller, Caller):
        raise ValueError("a Caller has its own scopes: Caller(..., scopes=frozenset([...]))")


def _caller_in(
    caller: str | Caller | UnsetType | None,
    scopes: Iterable[str] | None,
    rules: Authorization | None,
) -> dict[str, Caller]:
    """Return the caller's entry in a request's ASGI scope, with the credentials for ``rules``."""
    if caller is None:
        return {}
    if isinstance(caller, Caller):
        return {CALLER: caller}
    if scopes is None:
        scopes = () if rules is None else rules.all_scopes
    if isinstance(caller, str):
        return {CALLER: Caller(caller, authenticated=True, scopes=frozenset(scopes))}
    if rules is None or not (rules.securities or rules.needs_identity):
        return {}
    return {DEFAULT_CALLER: Caller(TESTER, authenticated=True, scopes=frozenset(scopes))}


def _address(address: str) -> str:
    try:
        Origin.of(address)
    except ValueError as error:
        raise ValueError(f"{address!r} is not an address of a remote agent; give {error}") from None
    return address.rstrip("/")
