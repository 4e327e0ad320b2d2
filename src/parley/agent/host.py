"""Agents put on a server: their store, their executors, their paths."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from parley.agent.agent import Agent, slug
from parley.agent.executor import AgentExecutor
from parley.agent.push_delivery import Pace, PushDelivery
from parley.agent.service import AgentService
from parley.agent.threads import Threads
from parley.agent.watchdog import Watchdog
from parley.log.events import LoggedEvent
from parley.log.hints import LocalHints
from parley.log.memory import MemoryTaskStore
from parley.log.store import StoreError, TaskStore
from parley.model.service import Caller
from parley.security.egress import Egress
from parley.server.app import App, Endpoint, Settings, create_app

log = logging.getLogger("parley.agent")

Agents = Agent | Mapping[str, Agent] | Iterable[Agent]
Identify = Callable[[Any], Caller | Awaitable[Caller]]

DRAIN_SECONDS = 10.0
SWEEP_SECONDS = 5.0
PUSH_GRACE = 2.0
PRUNE_SECONDS = 60.0
PRUNE_BATCH = 500


def open_store(url: str | TaskStore) -> TaskStore:
    """Return the store that a URL names: ``memory:`` or ``sqlite:///path/to/tasks.db``.

    After ``sqlite:///`` a path is relative to the working directory; a fourth slash makes it
    absolute. Raises ``ValueError`` for anything else.
    """
    if not isinstance(url, str):
        return url
    if url in ("memory:", "memory://"):
        return MemoryTaskStore()
    path = url.removeprefix("sqlite:///")
    if path == url or not path:
        raise ValueError(
            f"{url!r} names no store; use memory: or sqlite:///path/to/tasks.db "
            "(four slashes for an absolute path)"
        )
    from parley.log.sqlite import SqliteTaskStore

    return SqliteTaskStore(path)


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

    ``start`` opens the store and takes up what a dead process left; ``stop`` drains. What answers
    for an agent is in ``services`` by its path, in ``tenants`` by the names of tenants: an agent
    that has several has one executor, and keeps their tasks apart by tenant. ``webhooks`` says
    where push notifications may go, ``pace`` how patiently they do.
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
        pace: Pace | None = None,
    ) -> None:
        self.store = store
        self.hints = LocalHints()
        self.push = PushDelivery(store, egress=webhooks or Egress(), pace=pace)
        self._grace = drain
        self._draining: asyncio.Future[list[None]] | None = None
        by_key = {agent.key: agent for agent in (*agents.values(), *tenants.values())}
        self._agents = list(by_key.values())
        self._executors: list[AgentExecutor] = []
        self._watchdog = Watchdog()
        self._keeper: asyncio.Task[None] | None = None
        made: dict[str, AgentService] = {}
        for agent in self._agents:
            executor = AgentExecutor(
                store,
                skills=agent.skills,
                default_skill=agent.default_skill,
                options=agent.options,
                threads=Threads(agent.threads, f"parley-{agent.key}"),
                push=self.push,
                extensions=agent.extensions,
                hints=self.hints,
            )
            self._executors.append(executor)
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
        """Open the store, and take up the tasks that a dead process left open."""
        await self.store.open(self._committed)
        self._watchdog.start()
        await self.push.start([agent.key for agent in self._agents if agent.push_notifications])
        for agent, executor in zip(self._agents, self._executors, strict=True):
            executor.closing = False
            found = await executor.recover(agent.key)
            if found:
                log.info("%s: %d unfinished tasks are taken up again", agent.name, found)
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Let turns end, release those that do not, and close the store."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        self.drain()
        assert self._draining is not None
        await self._draining
        self._draining = None
        await self.push.stop(min(self._grace, PUSH_GRACE))
        self._watchdog.stop()
        await self.store.close()

    def _committed(self, records: Sequence[LoggedEvent]) -> None:
        self.hints.publish(records)
        self.push.committed(records)

    def drain(self) -> None:
        """Begin the end: accept nothing new, let turns end for a while, release the rest.

        Those who wait for a turn are answered when it ends or is released, so their requests end
        while the server still gives them time.
        """
        if self._draining is None:
            drains = [executor.drain(self._grace) for executor in self._executors]
            self._draining = asyncio.gather(*drains)

    async def _keep(self) -> None:
        """Take up what a failing store interrupted; remove what was kept long enough."""
        prune_at = 0.0
        while True:
            for agent, executor in zip(self._agents, self._executors, strict=True):
                try:
                    if executor.troubled:
                        await executor.recover(agent.key)
                    if time.monotonic() >= prune_at:
                        await self._prune(agent, executor)
                except StoreError as error:
                    log.error("%s: the store does not work: %s", agent.name, error)
                except Exception:
                    log.exception("%s: looking after its tasks failed", agent.name)
            if time.monotonic() >= prune_at:
                prune_at = time.monotonic() + PRUNE_SECONDS
            await asyncio.sleep(SWEEP_SECONDS)

    async def _prune(self, agent: Agent, executor: AgentExecutor) -> None:
        """Cancel what has waited for its caller too long; remove what was kept long enough."""
        if agent.park_for is not None:
            before = _milliseconds_ago(agent.park_for)
            for task_id in await self.store.parked(agent.key, before, PRUNE_BATCH):
                await executor.give_up(task_id)
        if agent.keep_for is not None:
            before = _milliseconds_ago(agent.keep_for)
            while await self.store.prune(agent.key, before, PRUNE_BATCH) == PRUNE_BATCH:
                pass


def _milliseconds_ago(span: timedelta) -> int:
    return int((time.time() - span.total_seconds()) * 1000)


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
) -> App:
    """Return one or more agents as an ASGI app.

    ``agents`` is an agent (served at the root), a mapping of paths to agents, or a list (each under
    the slug of its name). ``tenants`` are agents behind one address, the app's root, by the tenant
    that requests name; without ``agents`` there are no others. ``store`` keeps their tasks:
    ``memory:`` loses them with the process, ``sqlite:///tasks.db`` loses nothing. ``url`` is the
    app's public address, where requests do not tell it. ``caller`` says who sends a request, from
    its ASGI scope; tasks belong to their caller. ``drain`` is how many seconds turns get to end
    when the server stops. ``allow_private_webhooks`` lets push notifications go to private networks
    and to this machine, or to the hosts and networks of a list (``["hooks.internal",
    "10.1.0.0/16"]``).

    Mounted in another app, pass ``lifespan=app.lifespan`` to that one, so that agents start and
    stop with it. Raises ``ValueError`` for what cannot be served.
    """
    tenants = dict(tenants or {})
    paths = placed(agents, tenants)
    host = Host(
        paths,
        open_store(store),
        tenants=tenants,
        drain=drain,
        authenticates=caller is not None,
        webhooks=Egress.allowing(allow_private_webhooks),
    )
    return create_app(
        _endpoints(host, paths, tenants),
        settings=settings,
        identify=caller,
        url=url,
        startup=host.start,
        shutdown=host.stop,
        on_drain=host.drain,
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
    from parley.server.grpc_options import grpc_options
    from parley.server.run import ListenError, run

    grpc = grpc_options(
        grpc_port, host=grpc_host, cert=grpc_cert, key=grpc_key, client_ca=grpc_client_ca
    )
    app = asgi(agents, store=store, drain=drain, **options)
    # Requests that wait for a turn are answered when it is released; they get a moment for it.
    grace = math.ceil(drain) + 1
    try:
        run(app, host=host, port=port, grace=grace, grpc=grpc, listening=listening)
    except (ListenError, StoreError) as error:
        raise SystemExit(str(error)) from error
