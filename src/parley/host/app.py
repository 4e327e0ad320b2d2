"""Serve agents as an ASGI app (``parley.asgi``) or as a process (``parley.serve``)."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from parley.engine.description import AgentDescription
from parley.engine.service.service import AgentService
from parley.files.objects import FilesUnavailable
from parley.host.banner import banner, write_banner
from parley.host.bindings import BoundBinding, ServerParts, bindings_of, check_paths
from parley.host.files import open_files
from parley.host.host import Agents, Host, placed
from parley.host.options import (
    AppKeywords,
    Identify,
    ServeKeywords,
    ServerOptions,
    secrets_of,
    shown,
)
from parley.host.store_urls import open_bus, open_store
from parley.model.cards import AgentCard
from parley.model.extensions import Extension
from parley.security.egress import LOOPBACK
from parley.security.exposed_secrets import hide_secrets
from parley.security.signing.keys import SigningKeys
from parley.server import observed
from parley.server.app import App, Endpoint, Settings, create_app
from parley.server.cards.discovery import ServerCardSigner, signed_endpoints
from parley.server.endpoint import FileService, Interfaces
from parley.store.protocols.errors import StoreError

if TYPE_CHECKING:
    from parley.host.configuration import Configuration

WORKER = (
    "this process is a worker: it runs turns and answers health checks only; send requests to "
    "processes with the role both or api"
)


_LISTENING = ServeKeywords.__annotations__.keys() - AppKeywords.__annotations__.keys()


def asgi(agents: Agents | None = None, **options: Unpack[AppKeywords]) -> App:
    """Return an ASGI app that serves one or more agents.

    ``agents`` is one agent (served at the root), a mapping of paths to agents, or a list (each
    agent is served under the slug of its name). The app serves them as they are at the time of
    this call. ``tenants`` maps tenant names to agents; requests to the root select one by tenant.
    ``store`` keeps tasks: ``memory:`` in this process until it ends, ``sqlite:///tasks.db`` in a
    file, ``postgresql://user@host/database`` for many processes. ``url`` is the public address of
    the app, needed where the ``Host`` of requests does not show it. ``auth`` or ``caller``
    identifies callers, who own their tasks; ``limits`` bounds the usage of each caller.
    ``config`` names a file with further options. ``docs/reference/server-options.md`` lists all:
    the fields of ``ServerOptions``.

    To mount the app in another one, pass ``lifespan=app.lifespan`` to the outer app: the lifespan
    starts and stops the agents. Raises ``ValueError`` for agents or options that cannot be served,
    and ``TypeError`` for a middleware of another type.
    """
    if others := sorted(options.keys() & _LISTENING):
        raise TypeError(
            f"an app does not listen, so asgi takes no {others[0]}: give it to parley.serve, or to "
            "the server that runs the app"
        )
    known, settings = _configured(options, unused=_LISTENING, store="memory:")
    return open_app(agents, known, settings=settings)


def open_app(
    agents: Agents | None,
    options: ServerOptions,
    *,
    shows_errors: bool = False,
    settings: Configuration | None = None,
    apply: Mapping[str, Callable[[Any], None]] = {},
) -> App:
    """Return the app of agents with these options. Raises the errors of ``asgi``.

    With ``shows_errors`` callers get the details of exceptions: only for an app that this machine
    alone reaches. ``settings`` are the sources of the options, which a reload reads again;
    ``apply`` has the functions for further settings that can be reloaded.
    """
    host = Host(
        placed(agents, options.tenants),
        open_store(options.store, options.lease, migrate=options.migrate),
        options,
        bus=open_bus(options.bus, options.store),
        files=open_files(options.files, options.store),
        shows_errors=shows_errors,
    )
    if options.otlp or "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
        from parley.observe.export import collector_of

        host.collector = collector_of(options.otlp)
    hide_secrets(secrets_of(options, os.environ))
    if options.access_log:
        observed.access.setLevel(logging.INFO)
    host.audit.settings |= {**options.record(), "signing_keys": _signer_names(host.signing_keys)}
    app = app_of(host)
    if settings is not None:
        from parley.host.configuration import Reloading

        reloading = Reloading(settings, {"limits": host.limits.declare, **apply})
        app.lifecycle.on_reload(reloading.reload)
    return app


def _configured(
    keywords: Mapping[str, Any], *, unused: Collection[str] = (), **defaults: Any
) -> tuple[ServerOptions, Configuration | None]:
    """Return the options of keywords, and the sources of further ones if ``config`` names a file.

    Raises ``ValueError``.
    """
    if keywords.get("config") is None:
        return ServerOptions(**{**defaults, **keywords}), None
    from parley.host.configuration import configured

    return configured(keywords, unused=unused, **defaults)


def _signer_names(keys: SigningKeys | None) -> list[str]:
    """Return the ids of the signing keys; the audit shows a rotation by them."""
    return [] if keys is None else [f"{key.kid} {key.alg}" for key in keys.signers]


def app_of(host: Host, *, caller: Identify | None = None) -> App:
    """Return the ASGI app that serves a host and that starts and stops it.

    ``caller`` identifies callers and replaces the option of that name.
    """
    options = host.options
    settings, url, role = options.settings, options.url, options.role
    caller = caller or options.caller
    parts = ServerParts(
        agents={
            **{path: each.agent for path, each in host.services.items()},
            **{f"/{name}": each.agent for name, each in host.tenants.items()},
        },
        store=host.store,
        publisher=options.publisher,
        namespace=options.namespace,
        unlisted=options.unlisted,
        registry=options.registry,
        settings=settings,
        url=url,
        authenticator=host.authenticator,
        identifies=caller is not None,
        resources=host.scheme_resources,
        signing_keys=host.signing_keys,
        egress=lambda: host.agent_egress,
    )
    bound = {each.name: each.bind(parts) for each in bindings_of(options.bindings)}
    if (options.publisher or options.registry) and "catalog" not in bound:
        raise ValueError(
            "publisher= and registry= need the binding catalog, which the installed package does "
            "not declare among its entry points: install it again"
        )
    for each in bound.values():
        host.audit.settings |= each.record
    endpoints = {} if role == "worker" else _endpoints(host, settings, bound.values())
    if host.signing_keys is not None and url is not None:
        endpoints = signed_endpoints(endpoints, ServerCardSigner(host.signing_keys, url))
    if caller is not None and endpoints and all(each.identify for each in endpoints.values()):
        raise ValueError(
            "caller= would never be called: every agent declares the credentials of its callers "
            "(security=), which identify the caller; leave out caller=, or use it with auth=False"
        )

    async def start() -> None:
        if options.calls_machine and app.hosts.is_on_loopback:
            host.allow_calls(LOOPBACK)
        async with AsyncExitStack() as stack:  # a failure of one keeps no other open
            await host.start()
            stack.push_async_callback(host.stop)
            for each in bound.values():  # a binding may announce this server, so it must answer
                stack.push_async_callback(each.close)
                await each.start()
            running.push_async_exit(stack.pop_all())

    running = AsyncExitStack()

    page = None
    if host.metrics is not None:
        from parley.host.metrics import MetricsPage

        page = MetricsPage(host.metrics)
    app = create_app(
        endpoints,
        settings=settings,
        identify=host.identify_with(caller) or host.authenticator,
        url=url,
        startup=start,
        shutdown=running.aclose,
        on_drain=host.drain,
        unavailable_reason=lambda: host.store.unavailable_reason,
        unavailable_message=WORKER if role == "worker" else "",
        middleware=options.middleware,
        signing_keys=host.signing_keys if endpoints else None,
        metrics=page,
    )
    if host.signing_keys is not None:
        app.lifecycle.on_reload(host.signing_keys.reload)
    app.bindings = bound
    for each in bound.values():
        each.serve(app, endpoints)
    return app


def _endpoints(
    host: Host, settings: Settings, bindings: Collection[BoundBinding]
) -> dict[str, Endpoint]:
    """Return the endpoint of each path. The endpoint of the root has the tenants."""

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
            # A message carries bytes as base64 (4/3 of their size) next to other fields.
            inline_bytes = min(settings.inline_file_bytes, settings.max_body_bytes * 7 // 10)
            guests = host.receivers[agent.key].guests
            files = FileService(host.files, agent.key, inline_bytes, agent.owner, guests)
            card = partial(_card_with_files, agent, files)
        extensions = agent.extensions
        if host.collector is not None and host.collector.wants("traces") and settings.page:
            from parley.extensions.task_spans import TaskSpans

            extensions = (*extensions, TaskSpans())
            card = partial(_card_with, extensions[-1], card)
        return Endpoint(
            service,
            card,
            extensions,
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


def _card_with(
    extension: Extension, card: Callable[[Interfaces], AgentCard], interfaces: Interfaces
) -> AgentCard:
    made = card(interfaces)
    extensions = (*made.capabilities.extensions, extension.declared())
    capabilities = msgspec.structs.replace(made.capabilities, extensions=extensions)
    return msgspec.structs.replace(made, capabilities=capabilities)


def _with_authenticator(endpoint: Endpoint, host: Host) -> Endpoint:
    """Return an endpoint that verifies only the schemes of its own agent and tenants."""
    agents = [each for each in (endpoint, *endpoint.tenants.values()) if each.service is not None]
    authenticator = host.authenticator_of(each.authorization for each in agents)
    if authenticator is None:
        return endpoint
    return msgspec.structs.replace(endpoint, identify=authenticator)


def serve(
    agents: Agents | None = None,
    *,
    on_listening: Callable[[str], None] | None = None,
    **options: Unpack[ServeKeywords],
) -> None:
    """Serve agents until SIGINT or SIGTERM. Takes the options of ``asgi`` too.

    By default the server listens on this machine only, and tasks are durable. When the server
    accepts requests, it prints the addresses of its agents and a command to try. ``on_listening``
    replaces this output: it is called with the address.

    ``tls_cert`` and ``tls_key`` (PEM files) turn on HTTPS; ``grpc_port`` serves the agents over
    gRPC as well. A ``host`` that other machines can reach needs agents that require credentials,
    or ``caller=`` to identify callers, or ``allow_anonymous`` to let everyone call. ``workers``
    are forked from this process, which calls ``on_listening``; they open the agents' resources.
    ``config`` names a file with further options; SIGHUP reads it, certificates and keys again.
    ``docs/reference/server-options.md`` lists all options: the fields of ``ServerOptions``.

    Raises ``ValueError`` for agents or options that cannot be served, and ``SystemExit`` with the
    reason if the address or the store is unavailable.
    """
    from parley.server.sockets import ListenError

    known, settings = _configured(options)
    app = open_app(agents, known, settings=settings)

    def started(address: str) -> None:
        write_banner(banner_of(app, agents, known, address))

    try:
        run_app(app, known, on_listening=on_listening or started)
    except (ListenError, StoreError, FilesUnavailable) as error:
        raise SystemExit(str(error)) from error


def run_app(
    app: App,
    options: ServerOptions,
    *,
    access_log: bool = False,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serve an app at the address of its options until SIGINT or SIGTERM.

    Raises ``ValueError`` for a worker with gRPC, and the errors of ``parley.server.run.run``.
    """
    from parley.server.run import run

    if options.grpc is not None and not app.agents:
        raise ValueError("a worker serves nothing over gRPC: leave out the port, or the role")
    run(
        app,
        host=options.host,
        port=options.port,
        grace=math.ceil(options.drain) + 1,  # one more second to send the replies of released turns
        access_log=access_log,
        grpc=options.grpc,
        tls=options.tls,
        allow_anonymous=options.allow_anonymous,
        workers=options.workers,
        on_listening=on_listening,
    )


def banner_of(app: App, agents: Agents | None, options: ServerOptions, address: str) -> str:
    """Return the text for a started server that listens at an address."""
    store, address = options.store, options.url or address
    return banner(
        placed(agents, options.tenants),
        address,
        shown(store) if isinstance(store, str) else type(store).__name__,
        options.tenants,
        grpc="" if options.grpc is None else app.grpc.beside(address),
        role=options.role,
        publishes=app.publishes,
        page=options.settings.page,
    )
