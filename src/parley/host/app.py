"""Serve agents: as an ASGI app (``parley.asgi``), or as a process (``parley.serve``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from parley.agent.agent import Agent
from parley.engine.service.service import AgentService
from parley.files.errors import FilesUnavailable
from parley.files.objects import ObjectStore
from parley.files.records import FileLimits
from parley.host.files import open_files
from parley.host.host import DRAIN_SECONDS, Agents, Host, Identify, Role, placed
from parley.host.store_urls import open_bus, open_store
from parley.model.cards import AgentCard
from parley.security.authentication import authenticator_of
from parley.security.authorization import Policy, checked_policy
from parley.security.egress import Egress
from parley.security.failures import Failures
from parley.security.schemes.scheme import Scheme, Security
from parley.server.app import App, Endpoint, Settings, create_app
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
    bus: str | Bus | None = None,
    role: Role = "both",
    lease: float | None = None,
    migrate: bool = True,
    middleware: Iterable[AnyMiddleware] = (),
    files: str | Path | ObjectStore | None = None,
    secret_key: str | None = None,
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
    ``allow_private_files`` allows the same for files that callers name by their addresses.
    ``files`` is where files by reference are kept: a directory, ``s3://bucket/prefix``, or
    ``"none"``. By default they are beside the file of a SQLite store, and with ``memory:`` in a
    temporary directory; replicas that share a store have no default.
    ``secret_key`` encrypts the credentials that tasks wait for, by default that of the environment
    variable ``PARLEY_SECRET_KEY``, else one that the store keeps; the same for all replicas.

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
    settings = settings or Settings()
    host = Host(
        placed(agents, tenants),
        open_store(store, lease, migrate=migrate),
        tenants=tenants,
        drain=drain,
        authenticates=caller is not None,
        auth=auth if auth is None or auth is False else auth.security,
        policy=None if policy is None else checked_policy(policy),
        egress=Egress.allowing(allow_private_webhooks),
        bus=open_bus(bus, store) if bus is None or isinstance(bus, str) else bus,
        role=role,
        url=url,
        files=open_files(files, store),
        **file_options(settings),
        file_egress=Egress.allowing(allow_private_files),
        failures=Failures(settings.auth_failures_per_minute, trust_proxy=settings.trust_proxy),
        secret_key=secret_key,
    )
    return app_of(host, settings=settings, url=url, caller=caller, role=role, middleware=middleware)


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
) -> App:
    """Return the ASGI app that serves a host, starts it and stops it."""
    settings = settings or Settings()
    endpoints = {} if role == "worker" else _endpoints(host, settings)
    if caller is not None and endpoints and all(each.identify for each in endpoints.values()):
        raise ValueError(
            "caller= would never be asked: all agents declare what callers must prove (security=), "
            "and that finds the caller; leave out caller=, or use it instead with auth=False"
        )
    return create_app(
        endpoints,
        settings=settings,
        identify=host.identify_with(caller) or host.authenticator,
        url=url,
        startup=host.start,
        shutdown=host.stop,
        on_drain=host.drain,
        unavailable_reason=lambda: host.store.unavailable_reason,
        unavailable_message=WORKER if role == "worker" else "",
        middleware=middleware,
    )


def _endpoints(host: Host, settings: Settings) -> dict[str, Endpoint]:
    """Return the endpoint of each path; the root has the tenants."""

    def endpoint(service: AgentService) -> Endpoint:
        agent = service.agent
        if host.files is None or not agent.transfers_files:
            return Endpoint(
                service,
                agent.card_at,
                agent.extensions,
                key=agent.key,
                callbacks=host.callbacks[agent.key],
                credentials=host.authorizations[agent.key],
                authorization=agent.authorization,
            )
        # In a message, bytes are base64, and there is more in it.
        inline_bytes = min(settings.inline_file_bytes, settings.max_body_bytes * 7 // 10)
        files = FileService(host.files, agent.key, inline_bytes, agent.owner)

        def card(interfaces: Interfaces) -> AgentCard:
            return files.declared(agent.card_at(interfaces), interfaces)

        return Endpoint(
            service,
            card,
            agent.extensions,
            key=agent.key,
            callbacks=host.callbacks[agent.key],
            credentials=host.authorizations[agent.key],
            authorization=agent.authorization,
            files=files,
        )

    endpoints = {path: endpoint(service) for path, service in host.services.items()}
    if host.tenants:
        by_tenant = {name: endpoint(service) for name, service in host.tenants.items()}
        root = endpoints.get("", Endpoint())
        endpoints[""] = msgspec.structs.replace(root, tenants=by_tenant)
    return {path: _with_authenticator(each, host) for path, each in endpoints.items()}


def _with_authenticator(endpoint: Endpoint, host: Host) -> Endpoint:
    """Return an endpoint that verifies the schemes of its own agent and tenants only."""
    agents = [each for each in (endpoint, *endpoint.tenants.values()) if each.service is not None]
    authenticator = authenticator_of((each.authorization for each in agents), host.scheme_resources)
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

    By default the server listens on this machine only, and tasks are durable. ``on_listening`` is
    called with the address once the server accepts requests.

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
    app = asgi(agents, store=store, drain=drain, **options)
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
            on_listening=on_listening,
        )
    except (ListenError, StoreError, FilesUnavailable) as error:
        raise SystemExit(str(error)) from error
