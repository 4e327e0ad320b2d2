"""Agents put on a server: their store, their executors, their paths."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal

import msgspec

from parley.agent.agent import Agent, slug
from parley.engine.executor import AgentExecutor
from parley.engine.loop_watchdog import LoopWatchdog
from parley.engine.maintenance import Maintenance
from parley.engine.service.service import AgentService
from parley.engine.skill import form_of
from parley.engine.thread_pool import ThreadPool
from parley.host.startup_log import note_start
from parley.host.store_urls import open_bus, open_store
from parley.model.service import Caller
from parley.push.delivery import RetryPolicy
from parley.push.dispatcher import PushDispatcher
from parley.security.egress import Egress
from parley.server.app import App, Endpoint, Settings, create_app
from parley.store.bus.poller import BusPoller
from parley.store.bus.subscriptions import Bus, LocalHints
from parley.store.ending import see_through
from parley.store.events import LoggedEvent
from parley.store.task_store import StoreError, TaskStore

log = logging.getLogger("parley.agent")

Agents = Agent | Mapping[str, Agent] | Iterable[Agent]
Identify = Callable[[Any], Caller | Awaitable[Caller]]

Role = Literal["both", "api", "worker"]

WORKER = (
    "this process is a worker: it runs turns, and answers nobody but health checks; send requests "
    "to those of the role both or api"
)

DRAIN_SECONDS = 10.0
PUSH_GRACE = 2.0

CALLER_THREADS = 40
"""How many threads say who sends requests, where ``caller`` is a plain function."""


def placed(agents: Agents | None, tenants: Mapping[str, Agent] = {}) -> dict[str, Agent]:
    """Return agents by path: one alone at the root, several each under the slug of its name.

    ``tenants`` have no paths, and one agent may be several of them. Raises ``ValueError`` when
    there is no agent at all, or two that cannot be told apart.
    """
    if agents is None:
        paths = {}
    elif isinstance(agents, Agent):
        paths = {"": agents}
    elif isinstance(agents, Mapping):
        paths = {path.rstrip("/"): agent for path, agent in agents.items()}
    else:
        listed = list(agents)
        paths = {f"/{slug(agent.name)}": agent for agent in listed}
        if len(paths) < len(listed):
            raise ValueError("two agents have the same name; give a mapping of paths to agents")
    if not paths and not tenants:
        raise ValueError("there is no agent to serve")
    several = list({id(agent): agent for agent in tenants.values()}.values())
    keys = [agent.key for agent in paths.values()]
    keys += [agent.key for agent in several if not any(agent is at for at in paths.values())]
    if len(set(keys)) < len(keys):
        raise ValueError(
            "two agents on one server have the same key, under which their tasks are kept; "
            "give them different names, or different keys (Agent(..., key=...))"
        )
    for agent in (*paths.values(), *several):
        _ = agent.default_skill  # raises when there is none
    return paths


class Host:
    """Runs agents on one store.

    ``start`` opens the store and takes up what nobody works on; ``stop`` drains. What answers for
    an agent is in ``services`` by its path, in ``tenants`` by the names of tenants: an agent that
    has several has one executor, and keeps their tasks apart by tenant. ``executors`` are by the
    keys of the agents. ``webhooks`` says where push notifications may go, ``retry_policy``
    when they are tried again. ``bus`` tells other replicas on the same store what happens here,
    and this one what happens there; what it loses is found every ``poll`` seconds.

    ``role`` is what the process is for: one that is ``"api"`` takes messages in and leaves their
    turns to others, but for skills that reply with messages alone, which leave no task to hand
    over; one that is a ``"worker"`` runs turns, and offers nothing.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent],
        store: TaskStore,
        *,
        tenants: Mapping[str, Agent] = {},
        drain: float = DRAIN_SECONDS,
        authenticates: bool = False,
        webhooks: Egress | None = None,
        retry_policy: RetryPolicy | None = None,
        bus: Bus | None = None,
        role: Role = "both",
        poll: float = 1.0,
    ) -> None:
        if role not in ("both", "api", "worker"):
            raise ValueError(f"role is 'both', 'api' or 'worker', not {role!r}")
        if role != "both" and not store.is_shared:
            raise ValueError(
                f"role={role!r} needs a store that other processes use too, such as postgresql://"
            )
        self.store = store
        self.role = role
        self.hints = LocalHints()
        self.relay = BusPoller(store, self.hints, bus, poll=poll)
        self.push = PushDispatcher(
            store, egress=webhooks or Egress(), retry_policy=retry_policy, hints=self.hints
        )
        self._grace = drain
        self._draining: Sequence[asyncio.Task[None]] = ()
        self._running: AsyncExitStack | None = None
        self._hurries = False
        by_key = {agent.key: agent for agent in (*agents.values(), *tenants.values())}
        self._agents = list(by_key.values())
        self.executors: dict[str, AgentExecutor] = {}
        self._watchdog = LoopWatchdog()
        self._threads = ThreadPool(CALLER_THREADS, "parley-caller")
        self._sweep: Maintenance | None = None
        made: dict[str, AgentService] = {}
        for agent in self._agents:
            executor = self.executors[agent.key] = AgentExecutor(
                store,
                agent=agent.key,
                skills=agent.skills,
                default_skill=agent.default_skill,
                options=agent.options,
                threads=ThreadPool(agent.threads, f"parley-{agent.key}"),
                push=self.push,
                tell=self.relay.work,
                extensions=agent.extensions,
                hints=self.hints,
                works=role != "api",
            )
            made[agent.key] = AgentService(
                agent,
                executor=executor,
                store=store,
                hints=self.hints,
                authenticates=authenticates,
            )
        self.services = {path: made[agent.key] for path, agent in agents.items()}
        self.tenants = {name: made[agent.key] for name, agent in tenants.items()}

    async def start(self) -> None:
        """Open the store, and take up the tasks that nobody works on.

        Of a start that fails, or is cancelled, nothing stays open.
        """
        self._draining, self._hurries = (), True
        async with AsyncExitStack() as stack:
            await see_through(self._open_store(stack))
            self._stop_with(stack, "hints", self.relay.stop)
            await self.relay.start()
            stack.callback(self._threads.close)
            stack.callback(self._watchdog.stop)
            self._watchdog.start()
            self._stop_with(stack, "push notifications", self._stop_push)
            await self.push.start([agent.key for agent in self._agents if agent.push_notifications])
            self._stop_with(stack, "turns", self._end_turns)
            for executor in self.executors.values():
                executor.open()
            stack.enter_context(self.hints.listen_work(self._work))
            self._sweep = Maintenance(self.store, self._agents, self.executors, self.push)
            self._stop_with(stack, "looking after tasks", self._sweep.stop)
            await self._sweep.start()
            note_start(self.store, self._agents)
            self._hurries = False
            self._running = stack.pop_all()

    async def stop(self) -> None:
        """Let turns end, release those that do not, and close the store. Idempotent.

        Whatever fails meanwhile is logged, the rest is stopped all the same, and the failure is
        raised at the end. Who cancels it takes their time from turns and webhooks; everything is
        closed before the cancellation is raised.
        """
        self.drain()
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    async def _open_store(self, stack: AsyncExitStack) -> None:
        await self.store.open(self._committed)
        self._stop_with(stack, "the store", lambda: see_through(self.store.close()))

    def _stop_with(
        self, stack: AsyncExitStack, what: str, stop: Callable[[], Awaitable[None]]
    ) -> None:
        """Have something stopped with the rest; why it could not be is logged."""

        async def stopped() -> None:
            try:
                await stop()
            except Exception as error:
                log.error("stopping %s failed, the rest is stopped all the same: %r", what, error)
                raise
            except asyncio.CancelledError:
                self._hurries = True
                raise

        stack.push_async_callback(stopped)

    async def _end_turns(self) -> None:
        """Wait until the executors have drained."""
        if not self._draining:  # the start failed
            self._drain(0)
        drains = self._draining
        try:
            await asyncio.wait(drains)
        except asyncio.CancelledError:
            for drain in drains:
                drain.cancel()
            await see_through(_all_of(drains))
            raise
        await _all_of(drains)

    async def _stop_push(self) -> None:
        await self.push.stop(0 if self._hurries else min(self._grace, PUSH_GRACE))

    def identifying(self, caller: Identify | None) -> Identify | None:
        """Return a function that says who sends a request as a server calls it: where it is a plain
        one, in a thread.
        """
        if caller is None or not form_of(caller).in_thread:
            return caller

        async def identify(scope: Any) -> Caller:
            named = await self._threads.call(caller, scope)
            return named if isinstance(named, Caller) else await named

        return identify

    def _committed(self, records: Sequence[LoggedEvent]) -> None:
        self.relay.committed(records)
        self.push.committed(records)

    def _work(self, agent: str) -> None:
        executor = self.executors.get(agent)
        if executor is not None:
            executor.adoption.go_on()

    def drain(self) -> None:
        """Begin the end: accept nothing new, let turns end for a while, release the rest.

        Those who wait for a turn are answered when it ends or is released, so their requests end
        while the server still gives them time.
        """
        if self._running is not None:
            self._drain(self._grace)

    def _drain(self, grace: float) -> None:
        if self._draining:
            return
        if self._sweep is not None:
            self._sweep.end()
        drains = [executor.drain(grace) for executor in self.executors.values()]
        self._draining = [asyncio.create_task(drain) for drain in drains]


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until all have ended; then raise why some failed."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [failure for failure in results if isinstance(failure, Exception)]
    if len(failures) > 1:
        raise ExceptionGroup("several agents did not end as they should", failures)
    if failures:
        raise failures[0]


def asgi(
    agents: Agents | None = None,
    *,
    tenants: Mapping[str, Agent] | None = None,
    store: str | TaskStore = "memory:",
    url: str | None = None,
    caller: Identify | None = None,
    settings: Settings | None = None,
    drain: float = DRAIN_SECONDS,
    allow_private_webhooks: bool | Iterable[str] = False,
    bus: str | Bus | None = None,
    role: Role = "both",
    lease: float | None = None,
    migrates: bool = True,
) -> App:
    """Return one or more agents as an ASGI app.

    ``agents`` is an agent (served at the root), a mapping of paths to agents, or a list (each under
    the slug of its name). ``tenants`` are agents behind one address, the app's root, by the tenant
    that requests name; without ``agents`` there are no others. ``store`` keeps their tasks:
    ``memory:`` loses them with the process, and keeps them from other workers,
    ``sqlite:///tasks.db`` loses nothing, and ``postgresql://user@host/database`` is for many
    processes at a time. ``url`` is the app's public address, where requests do not tell it.
    ``caller`` says who sends a request, from its ASGI scope; tasks belong to their caller, an id
    and its issuer (see ``Caller``). A plain ``def`` runs in a thread, an ``async def`` that awaits
    nothing costs least. ``drain`` is how many seconds turns get to end when the server stops.
    ``allow_private_webhooks`` lets push notifications go to private networks and to this machine,
    or to the hosts and networks of a list (``["hooks.internal", "10.1.0.0/16"]``).

    The rest is for processes that share a store. ``bus`` is how they tell one another what happens:
    ``redis://host``, ``postgresql://...``, the store's own database (``None``), or ``"none"``: then
    they look every quarter of a second. ``role`` is what this one is for: ``"api"`` leaves turns to
    others, ``"worker"`` runs them and serves nothing but health checks. When nothing is heard of
    one for ``lease`` seconds (15), others have gone on with its tasks. Without ``migrates`` a store
    whose schema is older than this version needs is refused, not brought up to date.

    Mounted in another app, pass ``lifespan=app.lifespan`` to that one, so that agents start and
    stop with it. Raises ``ValueError`` for what cannot be served.
    """
    tenants = dict(tenants or {})
    paths = placed(agents, tenants)
    host = Host(
        paths,
        open_store(store, lease, migrates=migrates),
        tenants=tenants,
        drain=drain,
        authenticates=caller is not None,
        webhooks=Egress.allowing(allow_private_webhooks),
        bus=open_bus(bus, store) if bus is None or isinstance(bus, str) else bus,
        role=role,
    )
    return create_app(
        {} if role == "worker" else _endpoints(host, paths, tenants),
        settings=settings,
        identify=host.identifying(caller),
        url=url,
        startup=host.start,
        shutdown=host.stop,
        on_drain=host.drain,
        unavailable_reason=lambda: host.store.unavailable_reason,
        unavailable_message=WORKER if role == "worker" else "",
    )


def _endpoints(
    host: Host, paths: Mapping[str, Agent], tenants: Mapping[str, Agent]
) -> dict[str, Endpoint]:
    """Return what is served at each path; the root has the tenants."""

    def endpoint(service: AgentService, agent: Agent) -> Endpoint:
        return Endpoint(service, agent.card, agent.extensions, key=agent.key)

    endpoints = {path: endpoint(host.services[path], agent) for path, agent in paths.items()}
    if tenants:
        behind = {name: endpoint(host.tenants[name], agent) for name, agent in tenants.items()}
        root = endpoints.get("", Endpoint())
        endpoints[""] = msgspec.structs.replace(root, tenants=behind)
    return endpoints


def serve(
    agents: Agents | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 9999,
    store: str | TaskStore = "sqlite:///parley.db",
    drain: float = DRAIN_SECONDS,
    grpc_port: int | None = None,
    grpc_host: str | None = None,
    grpc_cert: str | Path | None = None,
    grpc_key: str | Path | None = None,
    grpc_client_ca: str | Path | None = None,
    listening: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Serve agents until the process is told to stop. Takes the options of ``asgi`` besides.

    Listens on this machine alone unless ``host`` says otherwise; tasks are durable unless
    ``store`` says otherwise. ``listening`` is told the address once requests are taken.

    With ``grpc_port`` (0 takes a free one) the agents are served over gRPC too, on the same host
    unless ``grpc_host`` is another: with TLS where there are ``grpc_cert`` and ``grpc_key`` (PEM
    files), for callers with a certificate alone where there is ``grpc_client_ca``.

    Raises ``ValueError`` for what cannot be served, and ``SystemExit`` with the reason when the
    address or the store cannot be had.
    """
    from parley.server.grpc.options import grpc_options
    from parley.server.run import ListenError, run

    grpc = grpc_options(
        grpc_port, host=grpc_host, cert=grpc_cert, key=grpc_key, client_ca=grpc_client_ca
    )
    app = asgi(agents, store=store, drain=drain, **options)
    if grpc is not None and not app.agents:
        raise ValueError("a worker serves nothing over gRPC: leave out the port, or the role")
    # Requests that wait for a turn are answered when it is released; they get a moment for it.
    grace = math.ceil(drain) + 1
    try:
        run(app, host=host, port=port, grace=grace, grpc=grpc, listening=listening)
    except (ListenError, StoreError) as error:
        raise SystemExit(str(error)) from error
