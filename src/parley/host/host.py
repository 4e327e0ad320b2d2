"""Run agents on one store: open it, start the executors, drain, stop.

``host/app.py`` serves a host over the network.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import os
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec.structs import replace

from parley.agent.agent import Agent, slug
from parley.agent.context import AgentContexts
from parley.agent.invoke import call
from parley.agent.lifespan import Lifespan
from parley.agent.services import RemoteFiles, TurnServices
from parley.engine.authorizations import Authorizations, Callbacks
from parley.engine.capacity import ThreadPool
from parley.engine.description import AgentDescription
from parley.engine.executor import AgentExecutor
from parley.engine.maintenance import LoopWatchdog, Maintenance
from parley.engine.service.service import AgentService
from parley.engine.skill import form_of
from parley.engine.turn.attempt import Attempt
from parley.files.objects import ObjectStore
from parley.files.turn_files import TurnFiles
from parley.host.egress import EgressPolicies
from parley.host.files import FileSweeps, hosted_files, kept_for
from parley.host.limits import HostLimits
from parley.host.local_agents import Receivers, agent_addresses, connect_local, guests_of, hosted
from parley.host.options import Identify, ServerOptions
from parley.host.server_audit import ServerAudit
from parley.model.concurrency import see_through
from parley.model.service import Caller
from parley.observe import metrics, tracing
from parley.push.delivery import RetryPolicy
from parley.push.dispatcher import PushDispatcher
from parley.push.http_sender import WebhookTransport
from parley.push.proofs import Proofs, WebhookCertificate
from parley.push.scheduler import DeliveryLimits, DestinationCap
from parley.security.authentication import Authenticator, authenticator_of
from parley.security.authorization import Access, Authorization, Policy, all_of
from parley.security.evidence import SchemeResources
from parley.security.exposed_secrets import masked
from parley.security.failures import Failures
from parley.security.networks import is_plain_public
from parley.security.owner import PER_TENANT
from parley.security.schemes.scheme import Security, card_schemes
from parley.security.sealing import operator_key
from parley.security.signing.keys import SigningKeys
from parley.server.sockets import most_webhook_calls
from parley.store.bus.poller import BusPoller
from parley.store.bus.subscriptions import Bus, LocalHints
from parley.store.events import LoggedEvent
from parley.store.memory import MemoryTaskStore
from parley.store.task_store import TaskStore

if TYPE_CHECKING:
    from parley.client.connection import Connection
    from parley.host.metrics import HostMetrics
    from parley.observe.export import Collector, Flush

# -- startup log ------------------------------------------------------------------------------
#
# Warn at startup of settings that an operator may regret later. ``Host.start`` calls it.


_WORKERS = re.compile(r"(?:--workers(?:=|$)|-w=?)(\d*)")


def log_startup(
    store: TaskStore,
    agents: Sequence[AgentDescription],
    url: str | None = None,
    *,
    signs: bool = False,
) -> None:
    """Log when ended tasks are pruned, and warn of probable mistakes.

    The mistakes are: several processes with ``memory:``, a public ``url`` without encryption that
    credentials would be sent to, and signing keys (``signs``) without a public address, or with a
    public address over plain HTTP, where clients do not fetch keys.
    """
    secured = [agent.name for agent in agents if requires_credentials(agent)]
    if url is not None and is_plain_public(url) and secured:
        log.warning(
            "the card of %s requires credentials and names %s, where callers would send them "
            "unencrypted: give an https:// address (url)",
            ", ".join(secured),
            url,
        )
    if signs and url is None:
        log.warning(
            "cards are not signed: there are signing keys, and only an address that the operator "
            "configures is signed, never the address of a request; configure the public one (url)"
        )
    elif signs and url is not None and is_plain_public(url):
        log.warning(
            "the signatures of cards name keys at %s, and clients fetch keys over https only: they "
            "trust these cards if they pin the keys; give an https:// address (url)",
            url,
        )
    removed = removed_after(agents)
    if removed:
        log.debug("tasks and their files and webhooks are removed when they have ended %s", removed)
    if (
        isinstance(store, MemoryTaskStore)
        and not store.is_shared
        and (workers := several_workers())
    ):
        log.warning(
            "this is a worker process among several (%s), and memory: keeps the tasks of each "
            "process separate: no worker sees the tasks of another; use one worker, or a store "
            "that processes share, postgresql://host/database",
            workers,
        )


def requires_credentials(agent: AgentDescription) -> bool:
    """Return whether at least a part of an agent requires credentials."""
    return agent.authorization is not None and bool(agent.authorization.securities)


def removed_after(agents: Sequence[AgentDescription]) -> str:
    """Return a text on when the agents' tasks are pruned, empty if tasks are kept for ever."""
    names: dict[timedelta, list[str]] = {}
    for agent in agents:
        if agent.retention.tasks is not None:
            names.setdefault(agent.retention.tasks, []).append(agent.name)
    spans = sorted(names)
    if not spans:
        return ""
    if len(names[spans[0]]) == len(agents):
        times = _span(spans[0])
    else:
        times = ", ".join(f"{_span(span)} ({', '.join(names[span])})" for span in spans)
    return f"for {times}; Retention(tasks=...) says how long they are kept, None for ever"


def several_workers(environ: Mapping[str, str] = os.environ) -> str:
    """Return the evidence that several processes serve the same app, and this is one.

    The text is empty for a single process, and if the number is unknown: a reloader is a second
    process too.
    """
    processes = sys.modules.get("multiprocessing")  # loaded if it has started this process
    child = processes and processes.parent_process() and processes.current_process()
    # uvicorn passes its configuration to the child process; there is no other way to read it.
    config: Any = (getattr(child, "_kwargs", None) or {}).get("config")
    if type(config).__module__ == "uvicorn.config":
        is_alone = config.should_reload or config.workers < 2
        return "" if is_alone else f"uvicorn has {config.workers}"
    if environ.get("SERVER_SOFTWARE", "").startswith("gunicorn"):
        arguments = [*shlex.split(environ.get("GUNICORN_CMD_ARGS", "")), *sys.argv[1:]]
        count = _worker_count(arguments) or _number(environ.get("WEB_CONCURRENCY", ""))
        return f"gunicorn has {count}" if count > 1 else ""
    if child and (count := _worker_count(sys.argv[1:])) > 1 and "--reload" not in sys.argv:
        return f"--workers {count}"
    return ""


def _worker_count(arguments: Sequence[str]) -> int:
    """Return the number of workers in a command line, 0 without one."""
    count = 0
    for argument, value in itertools.pairwise([*arguments, ""]):
        match = _WORKERS.fullmatch(argument)
        if match:
            count = _number(match[1] or value)
    return count


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _span(span: timedelta) -> str:
    if span % timedelta(days=1):
        return str(span)
    return "1 day" if span.days == 1 else f"{span.days} days"


# -- host -------------------------------------------------------------------------------------


log = logging.getLogger("parley.host")

Agents = Agent | Mapping[str, Agent] | Iterable[Agent]

PUSH_GRACE = 2.0

SECRET_KEY_VARIABLE = "PARLEY_SECRET_KEY"
"""The environment variable with the key that encrypts the credentials for waiting tasks."""

CALLER_THREADS = 40
"""The number of threads that identify callers if ``caller`` is a plain function."""


def placed(agents: Agents | None, tenants: Mapping[str, Agent] = {}) -> dict[str, Agent]:
    """Return agents by path: a single agent at the root, several under the slugs of their names.

    ``tenants`` have no paths; several tenants may share an agent. Raises ``ValueError`` if there
    are no agents, and for agents with the same path or key.
    """
    if agents is None:
        paths = {}
    elif isinstance(agents, Agent):
        paths = {"": agents}
    elif isinstance(agents, Mapping):
        paths = {path.rstrip("/"): agent for path, agent in agents.items()}
        if len(paths) < len(agents):
            raise ValueError("two agents have the same path: a / at its end makes no other path")
    else:
        listed = list(agents)
        paths = {f"/{slug(agent.name)}": agent for agent in listed}
        if len(paths) < len(listed):
            raise ValueError("two agents have the same name; give a mapping of paths to agents")
    if not paths and not tenants:
        raise ValueError("there is no agent to serve")
    only_tenants = {id(agent): agent for agent in tenants.values()}
    for agent in paths.values():
        only_tenants.pop(id(agent), None)
    keys = [agent.key for agent in (*paths.values(), *only_tenants.values())]
    if len(set(keys)) < len(keys):
        raise ValueError(
            "two agents on one server have the same key, under which their tasks are kept; "
            "give them different names, or different keys (Agent(..., key=...))"
        )
    return paths


class Host:
    """Runs agents on one store.

    ``services`` are by path, ``tenants`` are services by tenant, ``executors`` and ``callbacks``
    are by the agent's key. An agent with several tenants has one executor, which isolates the
    tasks of the tenants. ``parts`` are the services of agents that other agents use
    (``Agent(uses=...)``), by key. Their callbacks arrive at the address of the agent that uses
    them (``receivers``). The attribute ``audit`` records the acts of the server.

    The ``bus`` carries wake-up notifications between replicas on the same store; polling every
    ``poll_interval`` seconds finds the changes whose notification was lost. ``files`` keeps the
    bytes of files by reference.

    With the role ``"api"`` the process accepts messages and leaves turns to workers, except for
    skills that always reply directly. With ``"worker"`` it runs turns and serves no agent.
    ``shows_errors`` is for ``AgentExecutor``.

    The other parameters are for tests. ``authenticates`` says that callers are identified although
    no option says how. ``connect`` makes the connections of turns to other agents; ``webhooks``
    delivers notifications and replaces HTTP; ``authenticator`` verifies credentials.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent],
        store: TaskStore,
        options: ServerOptions | None = None,
        *,
        bus: Bus | None = None,
        files: ObjectStore | None = None,
        poll_interval: float = 1.0,
        retry_policy: RetryPolicy | None = None,
        authenticates: bool = False,
        shows_errors: bool = False,
        connect: Callable[..., Connection] | None = None,
        webhooks: WebhookTransport | None = None,
        authenticator: type[Authenticator] = Authenticator,
    ) -> None:
        self.options = options = options or ServerOptions()
        tenants, settings, url = options.tenants, options.settings, options.url
        check_shared(options, store)
        self.store = store
        self.signing_keys = SigningKeys.load(options.signing_keys)
        self._connect = connect
        egress = EgressPolicies.of(options)
        self.agent_egress = egress.agents
        self.hints = LocalHints()
        self.poller = BusPoller(store, self.hints, bus, poll=poll_interval)
        seals = sealing_key(options.secret_key)
        self.push = PushDispatcher(
            store,
            Proofs(
                egress.webhooks,
                issuer=url or "",
                keys=self.signing_keys,
                certificate=options.webhook_certificate
                and WebhookCertificate.of(options.webhook_certificate),
                secret_key=seals,
            ),
            retry_policy=retry_policy,
            limits=DeliveryLimits().within(most_webhook_calls()),
            hints=self.hints,
            transport=webhooks,
            cap=DestinationCap(
                per_minute=settings.webhook_calls_per_minute, concurrent=settings.max_webhook_calls
            ),
            challenges=options.webhook_challenge,
        )
        self._remote_files = RemoteFiles(egress.files, max_bytes=settings.max_file_bytes)
        self.files = None if files is None else hosted_files(files, store, settings)
        self._runs_turns = options.role != "api"
        self._shows_errors = shows_errors
        self._serves_agents = options.role != "worker"
        every = hosted((*agents.values(), *tenants.values()))
        guests = guests_of(agents, tenants)
        self._addresses = None if url is None else agent_addresses(url, agents, tenants)
        self._grace = options.drain
        self._hurries = False
        self._drains: Sequence[asyncio.Task[None]] = ()
        self._started: AsyncExitStack | None = None
        self._watchdog = LoopWatchdog()
        self._threads = ThreadPool(CALLER_THREADS, "parley-caller")
        self._services: list[TurnServices] = []
        served = {agent.key for agent in (*agents.values(), *tenants.values())}
        self._lifespans = {
            agent.key: Lifespan(agent.name, agent.lifespan, agent)
            for agent in every
            if agent.lifespan is not None
        }
        self._agents = [self._with_rights(agent.describe()) for agent in every]
        self.scheme_resources = SchemeResources(
            store=store,
            egress=egress.all,
            now=lambda: store.now() / 1000,
            failures=Failures(settings.auth_failures_per_minute, trust_proxy=settings.trust_proxy),
        )
        self.audit = ServerAudit(
            store, self.scheme_resources.failures, retention=options.audit_retention
        )
        self.authenticator_of = partial(
            authenticator_of, resources=self.scheme_resources, kind=authenticator
        )
        self.authenticator = self.authenticator_of(
            agent.authorization for agent in self._agents if agent.key in served
        )
        authenticates = authenticates or bool(options.caller or self.authenticator)
        self.callbacks = {agent.key: Callbacks(store, agent.key) for agent in self._agents}
        self.authorizations = {
            agent.key: Authorizations(store, agent.key, seals) for agent in self._agents
        }
        self.receivers = {
            key: Receivers(self.callbacks, self.authorizations, (key, *guests[key]))
            for key in served
        }
        self.limits = HostLimits(self._agents, store, options)
        self.executors = {agent.key: self._executor(agent) for agent in self._agents}
        self._sweeps = None if self.files is None else FileSweeps(self.files, store, self._agents)
        self._maintenance = Maintenance(store, self._agents, self.executors, self.push)
        self.collector: Collector | None = None
        self.metrics: HostMetrics | None = None
        if settings.metrics:
            metrics.start(workers=options.workers)
            self.metrics = self._host_metrics()
        services = {
            agent.key: AgentService(
                agent,
                executor=self.executors[agent.key],
                store=store,
                hints=self.hints,
                authenticates=authenticates,
                keeps_addresses=url is None,
                files=self._turn_files(agent),
                limits=self.limits.by_agent.get(agent.key),
            )
            for agent in self._agents
        }
        if any(agent.uses for agent in every):
            connect_local(every, services, self.executors, self._services)
        self.parts = {agent.key: services[agent.key] for agent in every if agent.key not in served}
        self.services = {path: services[agent.key] for path, agent in agents.items()}
        self.tenants = {name: services[agent.key] for name, agent in tenants.items()}

    def _host_metrics(self) -> HostMetrics:
        from parley.host.metrics import HostMetrics

        return HostMetrics(self.store, self.executors, self.hints, self.push)

    def _executor(self, agent: AgentDescription) -> AgentExecutor:
        services = self._turn_services(agent)
        self._services.append(services)
        invoke: Callable[[Attempt], Awaitable[object]] = partial(call, services)
        if (meter := self.limits.meter(agent.key)) is not None:
            invoke = meter.measured(invoke)
        return AgentExecutor(
            self.store,
            agent=agent,
            threads=ThreadPool(agent.execution.threads, f"parley-{agent.key}"),
            push=self.push,
            invoke=invoke,
            meter=meter,
            cancel_calls=services.cancel_calls,
            notify=self.poller.publish_work,
            hints=self.hints,
            runs_turns=self._runs_turns,
            shows_errors=self._shows_errors,
        )

    def _turn_services(self, agent: AgentDescription) -> TurnServices:
        addresses = self._addresses
        return TurnServices(
            contexts=AgentContexts(keep_history=agent.retention.history),
            callbacks=self.callbacks[agent.key],
            authorizations=self.authorizations[agent.key],
            address=None if addresses is None else partial(addresses, agent.key),
            files=self._turn_files(agent),
            lifespan=self._lifespans.get(agent.key),
            name=agent.name,
            handoffs=agent.handoffs,
            inline_bytes=self.options.settings.inline_file_bytes,
            remote_files=self._remote_files,
            authorization=agent.authorization,
            connect=self._connect,
            egress=self.agent_egress,
        )

    def _turn_files(self, agent: AgentDescription) -> TurnFiles | None:
        if self.files is None or not agent.transfers_files:
            return None
        return TurnFiles(self.files, agent.key, kept_for(agent))

    # -- start ---------------------------------------------------------------------------------

    def allow_calls(self, places: Iterable[str]) -> None:
        """Let agents call other agents at these addresses too. Must be called before the start."""
        places = tuple(places)
        self.agent_egress = self.agent_egress.adding(places)
        for services in self._services:
            services.allow(places)

    async def start(self) -> None:
        """Open the store, start the executors, and claim unfinished tasks.

        A failed or cancelled start closes everything that it opened.
        """
        self._drains, self._hurries = (), True
        async with AsyncExitStack() as stack:
            await see_through(self._open_store(stack))
            self._start_export(stack)
            await self.audit.start(self.options.role, self._agents)
            self._on_stop(stack, "the audit", self.audit.stop)
            if self.signing_keys is not None:
                stack.callback(self.audit.watch(self.signing_keys))
            if self.files is not None:
                self._on_stop(stack, "files", self.files.close)
            self._on_stop(stack, "hints", self.poller.stop)
            await self.poller.start()
            stack.callback(self._threads.close)
            if self.authenticator is not None:
                resources = self.scheme_resources
                self._on_stop(stack, "the count of failures", resources.failures.close)
                for scheme in self.authenticator.schemes:
                    self._on_stop(stack, f"the scheme {scheme.name}", scheme.close)
                    await scheme.start(resources)
            for what, close in self.limits.start().items():
                self._on_stop(stack, what, close)
            stack.callback(self._watchdog.stop)
            self._watchdog.start()
            for lifespan in self._lifespans.values():
                await lifespan.enter()
                self._on_stop(stack, "a lifespan", lifespan.leave)
            self._on_stop(stack, "push notifications", self._stop_push)
            events = {
                agent.key: agent.execution.push_events
                for agent in self._agents
                if agent.push_notifications
            }
            await self.push.start(events, events)
            self._on_stop(stack, "connections to other agents", self._disconnect)
            self._on_stop(stack, "downloads from other servers", self._remote_files.close)
            self._on_stop(stack, "turns", self._end_turns)
            for executor in self.executors.values():
                executor.open()
            stack.enter_context(self.hints.listen_work(self._claim))
            self._on_stop(stack, "maintenance", self._maintenance.stop)
            await self._maintenance.start()
            if self.metrics is not None:
                self._on_stop(stack, "metrics", self.metrics.stop)
                self.metrics.start()
            if self._sweeps is not None:
                self._on_stop(stack, "sweeps of files", self._sweeps.stop)
                await self._sweeps.start()
            log_startup(
                self.store,
                self._agents,
                self.options.url,
                signs=self.signing_keys is not None and self._serves_agents,
            )
            self._hurries = False
            self._started = stack.pop_all()

    def _start_export(self, stack: AsyncExitStack) -> None:
        """Begin to send spans, metrics and logs, or take the program's provider of spans."""
        if (collector := self.collector) is not None:
            from parley.observe import log_export, metrics_export
            from parley.observe.export import resource_of, start_spans

            agents = self._agents
            version = agents[0].card.version if len(agents) == 1 else ""
            names = ", ".join([agent.name for agent in agents])
            resource = resource_of(names, version, self.store.replica)
            keeps = self.options.settings.page
            ends: list[Flush] = []

            async def end() -> None:  # at the same time: a collector may not answer
                await asyncio.gather(*(each() for each in ends))

            self._on_stop(stack, "the export of telemetry", end)
            if (flush := start_spans(collector, resource, keeps=keeps)) is not None:
                ends.append(flush)
            if collector.wants(metrics_export.SIGNAL):
                metrics.start()
                self.metrics = self.metrics or self._host_metrics()
                sender = metrics_export.MetricsSender(collector, resource)
                self.metrics.send_by(sender)
                ends.append(sender.send)
            if collector.wants(log_export.SIGNAL):
                ends.append(log_export.start_logs(collector, resource, masked))
        content = self.options.trace_content
        tracing.find(content=content)
        if content and tracing.tracer is None:
            log.warning("trace_content has no effect: nothing makes spans; give otlp=")

    async def _open_store(self, stack: AsyncExitStack) -> None:
        await self.store.open(self._committed)
        self._on_stop(stack, "the store", lambda: see_through(self.store.close()))

    def _on_stop(
        self, stack: AsyncExitStack, what: str, stop: Callable[[], Awaitable[None]]
    ) -> None:
        """Register the call of ``stop``. An error is logged, and the rest is stopped too."""

        async def stopped() -> None:
            try:
                await stop()
            except Exception as error:
                log.error("stopping %s failed; the other parts are stopped: %r", what, error)
                raise
            except asyncio.CancelledError:
                self._hurries = True
                raise

        stack.push_async_callback(stopped)

    def _committed(self, records: Sequence[LoggedEvent]) -> None:
        self.poller.publish(records)
        self.push.committed(records)

    def _claim(self, agent: str) -> None:
        executor = self.executors.get(agent)
        if executor is not None:
            executor.claimer.wake()

    # -- serve ---------------------------------------------------------------------------------

    def identify_with(self, caller: Identify | None) -> Identify | None:
        """Return ``caller`` as an async function: a plain function runs in a thread."""
        if caller is None or not form_of(caller).in_thread:
            return caller

        async def identify(scope: Any) -> Caller:
            identified = await self._threads.call(caller, scope)
            return identified if isinstance(identified, Caller) else await identified

        return identify

    def _with_rights(self, agent: AgentDescription) -> AgentDescription:
        """Return an agent with the policy of its server added; plain functions run in threads."""
        agent, policy = _with_auth(agent, self.options.auth), self.options.policy
        rights = agent.authorization
        own = None if rights is None else rights.policy
        policies = [self._in_thread(each) for each in (policy, own) if each is not None]
        if not policies:
            if agent.owner is PER_TENANT:
                log.warning(
                    "the tasks of %r belong to tenants, and no policy limits the choice of a "
                    "tenant: "
                    "every caller of the agent may name any tenant; give Rights(policy=...), or "
                    "asgi(policy=...), a function that compares access.tenant with access.caller",
                    agent.name,
                )
            return agent
        authorization = (rights or Authorization()).with_policy(all_of(policies))
        return replace(agent, authorization=authorization)

    def _in_thread(self, policy: Policy) -> Policy:
        """Return a policy that calls a plain function in a thread."""
        if not form_of(policy).in_thread:
            return policy

        async def decided(access: Access) -> bool:
            allowed: Any = await self._threads.call(policy, access)
            if inspect.isawaitable(allowed):
                allowed = await allowed
            return cast("bool", allowed)

        return decided

    def wake(self) -> None:
        """Run the periodic maintenance now. For tests that move the store's clock."""
        if self._started is not None:
            self._maintenance.wake()

    # -- drain and stop ------------------------------------------------------------------------

    def drain(self) -> None:
        """Reject new messages, give turns the grace period, then release the remaining turns.

        Requests that wait for a turn are answered when the turn ends or is released, while the
        server still accepts connections.
        """
        if self._started is not None:
            self._drain(self._grace)

    async def stop(self) -> None:
        """Drain, then close everything. Idempotent.

        After a failure the other parts are stopped too; the failure is logged, and raised at the
        end. If the caller is cancelled, turns and webhooks get no more time; everything is closed
        before the cancellation is raised.
        """
        self.drain()
        started, self._started = self._started, None
        if started is not None:
            await started.aclose()

    def end_threads(self) -> None:
        """Stop the threads that watch the event loop of a host whose tasks are gone: for tests."""
        self._watchdog.stop()
        self._threads.close()

    def _drain(self, grace: float) -> None:
        if self._drains:
            return
        self._maintenance.end()
        drains = [executor.drain(grace) for executor in self.executors.values()]
        self._drains = [asyncio.create_task(drain) for drain in drains]

    async def _end_turns(self) -> None:
        """Wait until the executors have drained. In a hurry, end their grace period early."""
        self._drain(0)  # unless a drain has begun: the start failed
        drains = self._drains
        try:
            # Even in a hurry every drain must begin: a task cancelled before its start cleans
            # nothing up.
            await asyncio.wait(drains, timeout=0 if self._hurries else None)
        finally:
            for drain in drains:
                drain.cancel()
            await see_through(_all_of(drains))

    async def _disconnect(self) -> None:
        for services in self._services:
            await services.aclose()

    async def _stop_push(self) -> None:
        await self.push.stop(0 if self._hurries else min(self._grace, PUSH_GRACE))


def check_shared(options: ServerOptions, store: TaskStore) -> None:
    """Raise ``ValueError`` for several processes on a store of one."""
    if (options.role != "both" or options.workers > 1) and not store.is_shared:
        one = options.workers == 1
        what = f"role={options.role!r}" if one else f"workers={options.workers}"
        raise ValueError(
            f"{what} needs a store that other processes use too: --store postgresql://HOST/DATABASE"
        )


def sealing_key(given: str | None) -> bytes | None:
    """Return the key that encrypts credentials, from the option or the environment.

    Raises ``ValueError`` for a short one.
    """
    given = (os.environ.get(SECRET_KEY_VARIABLE) or None) if given is None else given
    return None if given is None else operator_key(given)


def _with_auth(agent: AgentDescription, auth: Security | Literal[False] | None) -> AgentDescription:
    """Return an agent with the security requirements of its server in place of its own."""
    if auth is None:
        return agent
    policy = None if agent.authorization is None else agent.authorization.policy
    security = auth or None
    if agent.authorization is not None:
        dropped = [
            *(f"the skill {name}" for name in agent.authorization.skills),
            *(f"the operation {name}" for name in agent.authorization.operations),
        ]
        if dropped:
            log.warning(
                "auth= replaces everything that %r requires of callers, including its requirements "
                "for %s: put these into a policy, or leave auth= out",
                agent.name,
                ", ".join(dropped),
            )
    card = replace(
        agent.card,
        security_schemes={} if security is None else card_schemes([security]),
        security_requirements=() if security is None else security.declared(),
        skills=tuple(replace(skill, security_requirements=()) for skill in agent.card.skills),
    )
    authorization = None
    rights = (agent.authorization or Authorization()).with_security(security)
    if security is not None or policy is not None or rights.needs_identity:
        authorization = rights
    return replace(agent, card=card, authorization=authorization)


async def _all_of(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for all tasks, then raise their failures."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    failures = [failure for failure in results if isinstance(failure, Exception)]
    if len(failures) > 1:
        raise ExceptionGroup("several agents failed to stop", failures)
    if failures:
        raise failures[0]
