"""Serve agents: as an ASGI app (``parley.asgi``), or as a process (``parley.serve``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from parley.agent.agent import Agent
from parley.engine.description import AgentDescription
from parley.engine.service.service import AgentService
from parley.files.layout import FileLimits
from parley.files.objects import FilesUnavailable, ObjectStore
from parley.host.banner import banner, write_banner
from parley.host.bindings import BoundBinding, ServerBinding, ServerParts, bindings_of, check_paths
from parley.host.egress import egress_options, is_of_this_machine
from parley.host.files import open_files
from parley.host.host import DRAIN_SECONDS, Agents, Host, Identify, Role, placed
from parley.host.limits import redis_for_limits
from parley.host.publishing import log_publication, read_publication
from parley.host.registration import RegistryRegistration, read_registration
from parley.host.store_urls import open_bus, open_store, shown
from parley.model.cards import AgentCard
from parley.push.jobs import DestinationCap
from parley.push.proofs.proofs import CertificateFiles, WebhookCertificate
from parley.security.authorization import Policy, checked_policy
from parley.security.egress import LOOPBACK, Egress
from parley.security.failures import Failures
from parley.security.networks import is_loopback
from parley.security.rates.limit import parse_limits
from parley.security.schemes.scheme import Scheme, Security, security_of
from parley.security.signing.keys import SigningKeys
from parley.server.app import App, Endpoint, Settings, create_app
from parley.server.cards.publication import Publication
from parley.server.cards.signed_cards import ServerCardSigner, signed_endpoints
from parley.server.endpoint import Interfaces
from parley.server.file_service import FileService
from parley.server.middleware import AnyMiddleware
from parley.store.bus.subscriptions import Bus
from parley.store.protocols.errors import StoreError
from parley.store.task_store import TaskStore

WORKER = (
    "this process is a worker: it runs turns, and answers nobody but health checks; send requests "
    "to those of the role both or api"
)


def asgi(
    agents: Agents | None = None,
    *,
    tenants: Mapping[str, Agent] | None = None,
    store: str | TaskStore = "memory:",
    url: str | None = None,
    caller: Identify | None = None,
    auth: Scheme | Security | Literal[False] | None = None,
    policy: Policy | None = None,
    settings: Settings | None = None,
    drain: float = DRAIN_SECONDS,
    allow_private_webhooks: bool | Iterable[str] = False,
    allow_private_files: bool | Iterable[str] = False,
    allow_private_agents: bool | Iterable[str] | None = None,
    egress: Egress | None = None,
    bus: str | Bus | None = None,
    role: Role = "both",
    lease: float | None = None,
    migrate: bool = True,
    middleware: Iterable[AnyMiddleware] = (),
    files: str | Path | ObjectStore | None = None,
    secret_key: str | None = None,
    signing_keys: SigningKeys | str | Path | None = None,
    webhook_certificate: WebhookCertificate | CertificateFiles | None = None,
    webhook_challenge: bool = False,
    limits: Iterable[str] = (),
    usage: bool = False,
    audit: str | Iterable[str] = (),
    audit_retention: timedelta | None = None,
    publisher: str | None = None,
    namespace: str | None = None,
    unlisted: Iterable[str] = (),
    registry: str | None = None,
    bindings: Iterable[ServerBinding] = (),
) -> App:
    """Return one or more agents as an ASGI app. It serves them as they are now.

    ``agents`` is one agent (served at the root), a mapping of paths to agents, or a list (each
    served under the slug of its name). ``tenants`` are agents at the root, by the tenant that
    requests name. ``store`` keeps tasks: ``memory:`` in this process, until it ends,
    ``sqlite:///tasks.db`` in a file, ``postgresql://user@host/database`` for many processes.
    ``url`` is the public address of the app, if requests do not carry it.
    ``auth`` is what callers must prove to every agent of this server, in place of what the agents
    themselves declare (``Agent(security=...)``); ``False`` verifies nothing. ``policy`` is asked
    before the policies of the agents, and all must allow what a caller does.
    ``caller`` identifies the caller of a request from its ASGI scope, for agents that declare no
    ``security``; a task belongs to its caller (see ``Caller``). A plain ``def`` runs in a thread;
    an ``async def`` that awaits nothing is fastest. ``drain`` is the grace period of turns, in
    seconds, when the server stops.
    ``allow_private_webhooks`` allows push notifications to this machine and private networks, or
    to the hosts and networks of a list (``["hooks.internal", "10.1.0.0/16"]``).
    With ``webhook_challenge`` a webhook gets nothing before its receiver has confirmed that it
    wants notifications.
    ``allow_private_files`` allows the same for files that callers name by their addresses, and
    ``allow_private_agents`` for what agents call (``turn.connect``, ``turn.delegate``); with
    ``parley.serve`` on this machine alone, agents of this machine may be called without it.
    ``egress`` is the policy for all requests that the data of others cause, to which these add
    (``Egress.of(allow=["10.1.0.0/16"], deny=["*.example.net"])``); by default that of the
    environment variables ``PARLEY_EGRESS_ALLOW``, ``PARLEY_EGRESS_DENY`` and
    ``PARLEY_EGRESS_ONLY_ALLOWED``.
    ``files`` is where files by reference are kept: a directory, ``s3://bucket/prefix``, or
    ``"none"``. By default they are beside the file of a SQLite store, and with ``memory:`` in a
    temporary directory; replicas that share a store have no default.
    ``secret_key`` encrypts the credentials that tasks wait for and the secrets of webhooks, by
    default that of the environment variable ``PARLEY_SECRET_KEY``; the same for all replicas.
    Without it the store keeps one for the former, and the latter are not encrypted.
    ``signing_keys`` is the file of the private keys that sign cards and webhooks (``parley keys
    generate``), by default that of ``PARLEY_SIGNING_KEYS_FILE``, or the keys in
    ``PARLEY_SIGNING_KEYS``; the same for all replicas. ``webhook_certificate`` is shown to webhooks
    that ask for mutual TLS: the files of the certificate and of its key.
    ``bindings`` are those beside JSON-RPC, HTTP+JSON and gRPC with settings of their own, such as
    ``parley.envelope.EnvelopeBinding(keys="envelope-keys.json")``; other installed ones are there
    with their defaults (``docs/extend-parley.md``).

    ``limits`` are how much callers may take of all agents together, beside the limits of the agents
    themselves: ``["60/minute per caller", "20 streams per caller"]`` (``docs/limits.md``). Replicas
    share them through a Redis ``bus``, else through the store, but streams: each process counts its
    own. ``usage`` counts what callers use, for ``parley usage``.
    ``audit`` is where the store's audit is forwarded, one address or several: ``syslog://host``,
    ``syslog+tcp://host``, ``syslog+tls://host``, ``otlp+http://host:4318``. ``audit_retention`` is
    how long the store keeps its lines; by default for ever.

    ``publisher`` is a domain of yours: with it, the server publishes a catalog of its agents at
    ``/.well-known/ai-catalog.json``, in which each is
    ``urn:air:<publisher>:<namespace>:<its path, or its key>``; by default that of the environment
    variable ``PARLEY_PUBLISHER``, and with ``""`` none is published. ``namespace`` (``agent``) is
    by default that of ``PARLEY_NAMESPACE``. ``unlisted`` are paths of agents and names of tenants
    that the catalog leaves out. ``registry`` is the address of a registry: the server publishes
    its catalog there and sends heartbeats, with the credentials that the environment has for it
    (``PARLEY_AUTH_ORIGIN``); a registry that is away does not hold the server up.

    ``middleware`` is a list of Starlette's ``Middleware(cls, ...)``, or of functions that take an
    ASGI app and return one, the first outermost. It is around every HTTP request, and not around
    gRPC; what is to be opened and closed goes into ``Agent(lifespan=...)``.

    The rest is for processes that share a store. ``bus`` carries hints between them:
    ``redis://host``, ``postgresql://...``, ``None`` for the store's own database, or ``"none"``:
    then they poll every quarter of a second. The ``role`` ``"api"`` leaves turns to workers;
    ``"worker"`` runs turns and answers only health checks. When a process sends no heartbeat for
    ``lease`` seconds (15), others claim its tasks. Without ``migrate`` a store with an older schema
    is refused.

    To mount the app in another, pass ``lifespan=app.lifespan`` to that one: it starts and stops
    the agents. Raises ``ValueError`` for what cannot be served, and ``TypeError`` for what is no
    middleware.
    """
    if caller is not None and auth:
        raise ValueError("give auth=, whose schemes find the caller, or caller=, but not both")
    tenants = dict(tenants or {})
    allow_private_webhooks = _read_once(allow_private_webhooks)
    allow_private_files = _read_once(allow_private_files)
    if allow_private_agents is not None:
        allow_private_agents = _read_once(allow_private_agents)
    settings = settings or Settings()
    publication = read_publication(publisher, namespace, unlisted)
    registration = read_registration(registry, url, publishes=publication is not None)
    limits = limits if isinstance(limits, str) else tuple(limits)
    placed_agents = placed(agents, tenants)
    host = Host(
        placed_agents,
        open_store(store, lease, migrate=migrate),
        tenants=tenants,
        drain=drain,
        authenticates=caller is not None,
        auth=auth if auth is None or auth is False else security_of(auth, "auth"),
        policy=None if policy is None else checked_policy(policy),
        bus=open_bus(bus, store) if bus is None or isinstance(bus, str) else bus,
        role=role,
        url=url,
        files=open_files(files, store),
        **file_options(settings),
        **egress_options(
            egress,
            webhooks=allow_private_webhooks,
            files=allow_private_files,
            agents=allow_private_agents,
        ),
        failures=Failures(settings.auth_failures_per_minute, trust_proxy=settings.trust_proxy),
        secret_key=secret_key,
        signing_keys=signing_keys,
        webhook_certificate=webhook_certificate,
        webhook_cap=DestinationCap(
            per_minute=settings.webhook_calls_per_minute, concurrent=settings.max_webhook_calls
        ),
        webhook_challenge=webhook_challenge,
        limits=parse_limits(limits, operations=_method_names(placed_agents, tenants)),
        usage=usage,
        redis=redis_for_limits(bus) if limits else None,
        audit=audit if isinstance(audit, str) else tuple(audit),
        audit_retention=audit_retention,
    )
    host.audit.settings |= {
        "url": url,
        "drain": drain,
        "lease": lease,
        "caller": caller is not None,
        "policy": policy is not None,
        "auth": auth is not None and auth is not False,
        "tenants": list(tenants),
        "allow_private_webhooks": allow_private_webhooks,
        "allow_private_files": allow_private_files,
        "allow_private_agents": allow_private_agents,
        "egress": repr(egress),
        "limits": list(limits),
        "usage": usage,
        "signing_keys": _signer_names(host.signing_keys),
        "webhook_certificate": webhook_certificate is not None,
        "webhook_challenge": webhook_challenge,
        "publisher": "" if publication is None else publication.publisher,
        "registry": registration is not None,
        "settings": msgspec.structs.asdict(settings),
    }
    return app_of(
        host,
        settings=settings,
        url=url,
        caller=caller,
        role=role,
        middleware=middleware,
        publication=publication,
        registration=registration,
        bindings=bindings,
        calls_machine=allow_private_agents is None and is_of_this_machine(settings, url),
    )


def _method_names(agents: Mapping[str, Agent], tenants: Mapping[str, Agent]) -> list[str]:
    every = (*agents.values(), *tenants.values())
    return [
        method.operation.name
        for agent in every
        for extension in agent.extensions
        for method in extension.methods
    ]


def _signer_names(keys: SigningKeys | None) -> list[str]:
    """Return the ids of the keys that sign, so that the audit shows a rotation."""
    return [] if keys is None else [f"{key.kid} {key.alg}" for key in keys.signers]


def _read_once(allowed: bool | Iterable[str]) -> bool | Iterable[str]:
    return allowed if isinstance(allowed, bool | str) else list(allowed)


def file_options(settings: Settings) -> dict[str, Any]:
    """Return the options of a host that the settings of its server say."""
    limits = FileLimits(
        file_bytes=settings.max_file_bytes,
        uploads=settings.max_uploads,
        upload_bytes=settings.max_upload_bytes,
        upload_timeout=settings.upload_timeout,
        link_timeout=settings.file_link_timeout,
    )
    return {"file_limits": limits, "inline_file_bytes": settings.inline_file_bytes}


def app_of(
    host: Host,
    *,
    settings: Settings | None = None,
    url: str | None = None,
    caller: Identify | None = None,
    role: Role = "both",
    middleware: Iterable[AnyMiddleware] = (),
    publication: Publication | None = None,
    registration: RegistryRegistration | None = None,
    calls_machine: bool = False,
    bindings: Iterable[ServerBinding] = (),
) -> App:
    """Return the ASGI app that serves a host, starts it and stops it.

    With ``calls_machine`` agents may call others of this machine if only this machine reaches them.
    """
    settings = settings or Settings()
    parts = ServerParts(
        agents={
            **{path: each.agent for path, each in host.services.items()},
            **{f"/{name}": each.agent for name, each in host.tenants.items()},
        },
        store=host.store,
        settings=settings,
        url=url,
        authenticator=host.authenticator,
        identifies=caller is not None,
        resources=host.scheme_resources,
        signing_keys=host.signing_keys,
        registry="" if registration is None else registration.registry,
        publisher="" if publication is None else publication.publisher,
        egress=lambda: host.agent_egress,
    )
    bound = {each.name: each.bind(parts) for each in bindings_of(bindings)}
    for each in bound.values():
        host.audit.settings |= each.record
    endpoints = {} if role == "worker" else _endpoints(host, settings, bound.values())
    if host.signing_keys is not None and url is not None:
        endpoints = signed_endpoints(endpoints, ServerCardSigner(host.signing_keys, url))
    if caller is not None and endpoints and all(each.identify for each in endpoints.values()):
        raise ValueError(
            "caller= would never be asked: all agents declare what callers must prove (security=), "
            "and that finds the caller; leave out caller=, or use it instead with auth=False"
        )

    async def start() -> None:
        if calls_machine and app.hosts.is_on_loopback:
            host.allow_calls(LOOPBACK)
        for each in bound.values():
            await each.start()
        await host.start()
        if publication is not None and endpoints:
            log_publication(publication, url, host.tenants)
            if registration is not None:
                registration.start(app)

    async def stop() -> None:
        async with AsyncExitStack() as stack:  # a failure of one keeps no other open
            stack.push_async_callback(host.stop)
            for each in bound.values():
                stack.push_async_callback(each.close)
            if registration is not None:
                stack.push_async_callback(registration.stop)

    app = create_app(
        endpoints,
        settings=settings,
        identify=host.identify_with(caller) or host.authenticator,
        url=url,
        startup=start,
        shutdown=stop,
        on_drain=host.drain,
        unavailable_reason=lambda: host.store.unavailable_reason,
        unavailable_message=WORKER if role == "worker" else "",
        middleware=middleware,
        signing_keys=host.signing_keys if endpoints else None,
        publication=publication if endpoints else None,
    )
    app.bindings = bound
    for each in bound.values():
        each.serve(app, endpoints)
    return app


def _endpoints(
    host: Host, settings: Settings, bindings: Collection[BoundBinding]
) -> dict[str, Endpoint]:
    """Return the endpoint of each path; the root has the tenants."""

    def endpoint(service: AgentService) -> Endpoint:
        agent = service.agent
        files, card = None, agent.card_at
        added = tuple(b for each in bindings if (b := each.of(agent)) is not None)
        check_paths(agent.name, added)
        named = set() if agent.interfaces is None else agent.interfaces.added
        if unknown := named - {each.protocol for each in added}:
            raise ValueError(
                f"listed_interfaces of the agent {agent.name!r} names "
                f"{', '.join(sorted(unknown))}, a binding that the agent does not have here"
            )
        if host.files is not None and agent.transfers_files:
            # In a message, bytes are base64, and there is more in it.
            inline_bytes = min(settings.inline_file_bytes, settings.max_body_bytes * 7 // 10)
            guests = host.receivers[agent.key].guests
            files = FileService(host.files, agent.key, inline_bytes, agent.owner, guests)
            card = partial(_card_with_files, agent, files)
        return Endpoint(
            service,
            card,
            agent.extensions,
            key=agent.key,
            callbacks=host.receivers[agent.key].callbacks,
            credentials=host.receivers[agent.key].credentials,
            authorization=agent.authorization,
            interfaces=agent.interfaces,
            limits=service.limits,
            files=files,
            bindings=added,
            agent_type=agent.rules.agent_type,
        )

    endpoints = {path: endpoint(service) for path, service in host.services.items()}
    if host.tenants:
        by_tenant = {name: endpoint(service) for name, service in host.tenants.items()}
        root = endpoints.get("", Endpoint())
        endpoints[""] = msgspec.structs.replace(root, tenants=by_tenant)
    return {path: _with_authenticator(each, host) for path, each in endpoints.items()}


def _card_with_files(
    agent: AgentDescription, files: FileService, interfaces: Interfaces
) -> AgentCard:
    made = agent.card_at(interfaces)
    return files.declared(made, made.supported_interfaces)


def _with_authenticator(endpoint: Endpoint, host: Host) -> Endpoint:
    """Return an endpoint that verifies the schemes of its own agent and tenants only."""
    agents = [each for each in (endpoint, *endpoint.tenants.values()) if each.service is not None]
    authenticator = host.authenticator_of(each.authorization for each in agents)
    if authenticator is None:
        return endpoint
    return msgspec.structs.replace(endpoint, identify=authenticator)


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
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    tls_client_ca: str | Path | None = None,
    allow_anonymous: bool = False,
    on_listening: Callable[[str], None] | None = None,
    **options: Any,
) -> None:
    """Serve agents until SIGINT or SIGTERM. Takes the options of ``asgi`` too.

    By default the server listens on this machine only, and tasks are durable. Once it accepts
    requests, it prints the addresses of its agents and a command to try; ``on_listening`` is called
    with the address in place of that.

    ``tls_cert`` and ``tls_key`` (PEM files) make it HTTPS: the certificate with its chain, and its
    private key, whose passphrase is in the environment variable ``PARLEY_TLS_KEY_PASSWORD`` if it
    has one. They are read again when they change. ``tls_client_ca`` has the authorities of callers'
    certificates: callers need one, unless agents accept other credentials than ``MutualTls`` too.

    On a ``host`` that other machines reach, agents require credentials, or ``caller=`` identifies
    callers, or ``allow_anonymous`` allows that everyone calls them.

    With ``grpc_port`` (0 takes a free one) the agents are served over gRPC too, on the same host
    or on ``grpc_host``, and with the same TLS. ``grpc_cert`` and ``grpc_key`` (PEM files) are for
    another certificate there; ``grpc_client_ca`` requires a client certificate.

    Raises ``ValueError`` for what cannot be served, and ``SystemExit`` with the reason if the
    address or the store is unavailable.
    """
    from parley.server.grpc.options import grpc_options
    from parley.server.run import ListenError, run
    from parley.server.tls.options import tls_options

    tls = tls_options(tls_cert, tls_key, tls_client_ca)
    grpc = grpc_options(
        grpc_port, host=grpc_host, cert=grpc_cert, key=grpc_key, client_ca=grpc_client_ca
    )
    if options.get("allow_private_agents") is None and grpc_host and not is_loopback(grpc_host):
        options["allow_private_agents"] = False
    app = asgi(agents, store=store, drain=drain, **options)
    url, tenants = options.get("url"), options.get("tenants") or {}
    served = placed(agents, tenants)

    def started(address: str) -> None:
        text = banner(
            served,
            url or address,
            shown(store) if isinstance(store, str) else type(store).__name__,
            tenants,
            grpc=app.grpc.beside(url or address) if grpc is not None else "",
            role=options.get("role", "both"),
            publishes=app.publishes,
        )
        write_banner(text)

    if grpc is not None and not app.agents:
        raise ValueError("a worker serves nothing over gRPC: leave out the port, or the role")
    grace = math.ceil(drain) + 1  # answers of released turns need another second
    try:
        run(
            app,
            host=host,
            port=port,
            grace=grace,
            grpc=grpc,
            tls=tls,
            allow_anonymous=allow_anonymous,
            on_listening=on_listening or started,
        )
    except (ListenError, StoreError, FilesUnavailable) as error:
        raise SystemExit(str(error)) from error
