"""``parley serve``: serves agents from files or modules."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import typer

from parley.cli.boundary import exit_status_of
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output, log_to_stderr, print_line
from parley.cli.settings.access import (
    AllowAnonymous,
    EnvelopeKeysFile,
    NoHsts,
    Restrict,
    SigningKeysFile,
    TlsCert,
    TlsClientCa,
    TlsKey,
    WebhookCa,
    WebhookCert,
    WebhookChallenge,
    WebhookKey,
    access_flags,
    read_restrict,
    read_webhook_certificate,
)
from parley.cli.settings.audit import AuditKept, AuditTargets, audit_kept
from parley.cli.settings.durations import parse_duration
from parley.cli.settings.egress import EgressAllow, EgressDeny, EgressOnly, PrivateAgents
from parley.cli.settings.limits import Limits, Usage, limit_flags, read_limits
from parley.cli.settings.options import GroupedCommand
from parley.cli.settings.publishing import Namespace, Publisher, Registry, Unlisted, catalog_flags

STORE = "sqlite:///parley.db"
STORE_VARIABLE = "PARLEY_STORE"
BUS_VARIABLE = "PARLEY_BUS"
FILES_VARIABLE = "PARLEY_FILES"
ROLES = ("both", "api", "worker")
LEVELS = ("debug", "info", "warning", "error")

EPILOG = """\b
Targets:
  agent.py             the one agent in a file
  agent.py:name        one of several in it
  package.module:name  one that can be imported
  /time=agent.py       any of them, under a path of its own
  Several targets without paths are served under the names of their agents.
  --tenant NAME=TARGET serves one as a tenant of the address that all share.

\b
Examples:
  parley serve agent.py
  parley serve agent.py --reload --store memory:
  parley serve /time=time_agent.py /boats=sailboat.py --port 8000
  parley serve --tenant acme=shop.py --tenant globex=shop.py
  parley serve agents.shop:clerk --host 0.0.0.0 --url https://shop.example.com
  parley serve agent.py --url https://a.example.com --publisher example.com
  parley serve agent.py --tls-cert chain.pem --tls-key key.pem --port 8443
  parley serve agent.py --store postgresql://user@host/database

\b
--store, --bus and --files are read from PARLEY_STORE, PARLEY_BUS and
PARLEY_FILES too, where other users of the machine do not see the passwords;
the options of "Who may call" from PARLEY_TLS_CERT, PARLEY_RESTRICT, ..."""


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("serve", cls=GroupedCommand, epilog=EPILOG)
    def serve(
        targets: Annotated[
            list[str] | None,
            typer.Argument(metavar="TARGET", help="The agents to serve.", show_default=False),
        ] = None,
        tenant: Annotated[
            list[str] | None,
            typer.Option(
                help="An agent that answers for one tenant of the server's address; repeat it.",
                metavar="NAME=TARGET",
                show_default=False,
            ),
        ] = None,
        host: Annotated[
            str, typer.Option(help="Address to listen on; 0.0.0.0 for all.", metavar="HOST")
        ] = "127.0.0.1",
        port: Annotated[
            int, typer.Option(help="Port to listen on; 0 takes a free one.", metavar="PORT")
        ] = 9999,
        store: Annotated[
            str,
            typer.Option(
                help="Where tasks are kept: sqlite:///PATH (durable; sqlite:////PATH from the "
                "root), postgresql://USER@HOST/DATABASE (for many processes at a time), or "
                "memory: (gone with the process).",
                envvar=STORE_VARIABLE,
                metavar="URL",
            ),
        ] = STORE,
        files: Annotated[
            str,
            typer.Option(
                help="Where to keep files that are too large for messages: a directory, "
                "s3://BUCKET/PREFIX, or none. [default: beside a SQLite store; a temporary "
                "directory with memory:; none with PostgreSQL]",
                envvar=FILES_VARIABLE,
                metavar="PLACE",
                show_default=False,
            ),
        ] = "",
        bus: Annotated[
            str,
            typer.Option(
                help="How processes that share a store tell one another what happens: "
                "redis://HOST, postgresql://..., or none (they look four times a second). "
                "[default: the PostgreSQL store's own]",
                envvar=BUS_VARIABLE,
                metavar="URL",
                rich_help_panel="Many processes",
                show_default=False,
            ),
        ] = "",
        role: Annotated[
            str,
            typer.Option(
                help="What this process does: takes requests and runs turns (both), leaves turns "
                "to others (api), or runs them and serves health checks alone (worker).",
                metavar="both|api|worker",
                rich_help_panel="Many processes",
            ),
        ] = "both",
        lease: Annotated[
            str,
            typer.Option(
                help="How long a process may be silent before others have gone on with its tasks, "
                "such as 15s.  [default: 15s]",
                metavar="TIME",
                rich_help_panel="Many processes",
                show_default=False,
            ),
        ] = "",
        no_migrate: Annotated[
            bool,
            typer.Option(
                "--no-migrate",
                help="Do not bring the store's schema up to date, but refuse an older one; see "
                "parley store migrate.",
                rich_help_panel="Many processes",
            ),
        ] = False,
        reload: Annotated[
            bool, typer.Option("--reload", help="Restart when the agents' code changes.")
        ] = False,
        url: Annotated[
            str,
            typer.Option(
                help="The public address, for the cards, when a proxy in front hides it.",
                metavar="URL",
                show_default=False,
            ),
        ] = "",
        allowed_host: Annotated[
            list[str] | None,
            typer.Option(
                help="A host that requests may name besides this machine's own, such as "
                "example.com, *.example.com, example.com:8443, or * for all; repeat it.",
                metavar="HOST",
                show_default=False,
            ),
        ] = None,
        grpc_port: Annotated[
            int | None,
            typer.Option(
                help="Port for gRPC, which is not served without one; 0 takes a free one.",
                metavar="PORT",
                show_default=False,
            ),
        ] = None,
        grpc_cert: Annotated[
            str,
            typer.Option(
                help="Certificate for gRPC with TLS, with its chain (PEM).",
                metavar="FILE",
                show_default=False,
            ),
        ] = "",
        grpc_key: Annotated[
            str, typer.Option(help="Its private key (PEM).", metavar="FILE", show_default=False)
        ] = "",
        grpc_client_ca: Annotated[
            str,
            typer.Option(
                help="Authorities of callers' certificates; others are not let in (PEM).",
                metavar="FILE",
                show_default=False,
            ),
        ] = "",
        tls_cert: TlsCert = "",
        tls_key: TlsKey = "",
        tls_client_ca: TlsClientCa = "",
        signing_keys: SigningKeysFile = "",
        envelope_keys: EnvelopeKeysFile = "",
        webhook_cert: WebhookCert = "",
        webhook_key: WebhookKey = "",
        webhook_ca: WebhookCa = "",
        webhook_challenge: WebhookChallenge = False,
        no_hsts: NoHsts = False,
        allow_anonymous: AllowAnonymous = False,
        restrict: Restrict = None,
        limit: Limits = None,
        usage: Usage = False,
        publisher: Publisher = "",
        namespace: Namespace = "",
        unlisted: Unlisted = None,
        registry: Registry = "",
        no_grpc_on_card: Annotated[
            bool,
            typer.Option(
                "--no-grpc-on-card",
                help="Leave gRPC off the cards, for clients that refuse one with another address "
                "than that of HTTP (google-adk).",
            ),
        ] = False,
        missing_version: Annotated[
            Literal["0.3", "1.0"],
            typer.Option(
                help="The version of a request that names none: 0.3, as the specification says, "
                "or 1.0, which also reads the forms of 0.3 that introductory texts print.",
                envvar="PARLEY_MISSING_VERSION",
            ),
        ] = "0.3",
        allow_private_webhooks: Annotated[
            bool,
            typer.Option(
                "--allow-private-webhooks",
                help="Send push notifications to private networks and this machine too.",
            ),
        ] = False,
        allow_private_files: Annotated[
            bool,
            typer.Option(
                "--allow-private-files",
                help="Let callers name files in private networks and on this machine.",
            ),
        ] = False,
        audit: AuditTargets = None,
        audit_retention: AuditKept = "",
        allow_private_agents: PrivateAgents = False,
        egress_allow: EgressAllow = None,
        egress_deny: EgressDeny = None,
        egress_only_allowed: EgressOnly = False,
        log_level: Annotated[
            str,
            typer.Option(
                help="How much to log to stderr: debug (with every request), info, warning, error.",
                metavar="LEVEL",
            ),
        ] = "info",
        debug: Annotated[
            bool, typer.Option("--debug", help="Show tracebacks of what stops the server.")
        ] = False,
    ) -> None:
        """Serve agents over A2A: each with its card, its tasks kept in a durable store.

        Prints the addresses and a command to try, and serves until Ctrl-C: what runs
        then gets ten seconds to end, and the rest goes on after the next start.
        """
        output = Output(is_json=False, debug=debug)
        targets, tenants = targets or [], tenant or []
        webhook_files = (webhook_cert, webhook_key, webhook_ca)
        if reload:
            child = [*targets, *(f"--tenant={each}" for each in tenants)]
            child += ["--host", host, "--port", str(port), "--role", role]
            child += ["--no-migrate"] if no_migrate else []
            child += ["--lease", lease] if lease else []
            child += ["--url", url, "--log-level", log_level, *(["--debug"] if debug else [])]
            child += [f"--allowed-host={each}" for each in allowed_host or []]
            child += ["--allow-private-webhooks"] if allow_private_webhooks else []
            child += ["--allow-private-files"] if allow_private_files else []
            child += ["--allow-private-agents"] if allow_private_agents else []
            child += [f"--egress-allow={each}" for each in egress_allow or []]
            child += [f"--egress-deny={each}" for each in egress_deny or []]
            child += ["--egress-only-allowed"] if egress_only_allowed else []
            child += [] if grpc_port is None else ["--grpc-port", str(grpc_port)]
            child += ["--grpc-cert", grpc_cert] if grpc_cert else []
            child += ["--grpc-key", grpc_key] if grpc_key else []
            child += ["--grpc-client-ca", grpc_client_ca] if grpc_client_ca else []
            child += ["--no-grpc-on-card"] if no_grpc_on_card else []
            child += ["--missing-version", missing_version]
            child += limit_flags(limit, usage=usage)
            child += catalog_flags(publisher, namespace, unlisted, registry)
            child += [f"--audit={each}" for each in audit or []]
            child += ["--audit-retention", audit_retention] if audit_retention else []
            child += access_flags(
                cert=tls_cert,
                key=tls_key,
                client_ca=tls_client_ca,
                no_hsts=no_hsts,
                allow_anonymous=allow_anonymous,
                restrict=restrict or (),
                signing_keys=signing_keys,
                envelope_keys=envelope_keys,
                webhook_files=webhook_files,
                webhook_challenge=webhook_challenge,
            )
            # URLs with passwords must not appear in the process table.
            os.environ[STORE_VARIABLE] = store
            os.environ[BUS_VARIABLE] = bus
            os.environ[FILES_VARIABLE] = files
            status = exit_status_of(output, lambda: _reload(targets, tenants, child))
        else:
            status = exit_status_of(
                output,
                lambda: _serve(
                    targets,
                    tenants,
                    host,
                    port,
                    store,
                    url,
                    log_level.lower(),
                    sharing=lambda: _sharing(bus, role, lease, migrate=not no_migrate),
                    files=files,
                    allowed_hosts=tuple(allowed_host or ()),
                    allow_private_webhooks=allow_private_webhooks,
                    allow_private_files=allow_private_files,
                    allow_private_agents=allow_private_agents or None,
                    egress=(egress_allow or (), egress_deny or (), egress_only_allowed),
                    port_for_grpc=grpc_port,
                    grpc_on_card=not no_grpc_on_card,
                    missing_version=missing_version,
                    cert=grpc_cert or None,
                    key=grpc_key or None,
                    client_ca=grpc_client_ca or None,
                    https=(tls_cert or None, tls_key or None, tls_client_ca or None),
                    hsts=not no_hsts,
                    allow_anonymous=allow_anonymous,
                    restrict=restrict or (),
                    signing_keys=signing_keys,
                    envelope_keys=envelope_keys,
                    webhook_files=webhook_files,
                    webhook_challenge=webhook_challenge,
                    limits=read_limits(limit),
                    usage=usage,
                    audit=tuple(audit or ()),
                    audit_retention=audit_retention,
                    catalog=(publisher, namespace, tuple(unlisted or ()), registry),
                ),
            )
        if status:
            raise typer.Exit(status)


def _serve(
    targets: list[str],
    tenant_targets: list[str],
    host: str,
    port: int,
    store: str,
    url: str,
    log_level: str,
    *,
    sharing: Callable[[], dict[str, Any]],
    files: str = "",
    allowed_hosts: tuple[str, ...] = (),
    allow_private_webhooks: bool = False,
    allow_private_files: bool = False,
    allow_private_agents: bool | None = None,
    egress: tuple[Sequence[str], Sequence[str], bool] = ((), (), False),
    port_for_grpc: int | None = None,
    grpc_on_card: bool = True,
    missing_version: Literal["0.3", "1.0"] = "0.3",
    https: tuple[str | None, str | None, str | None] = (None, None, None),
    hsts: bool = True,
    allow_anonymous: bool = False,
    restrict: Sequence[str] = (),
    signing_keys: str = "",
    envelope_keys: str = "",
    webhook_files: Sequence[str] = (),
    webhook_challenge: bool = False,
    limits: Sequence[str] = (),
    usage: bool = False,
    audit: tuple[str, ...] = (),
    audit_retention: str = "",
    catalog: tuple[str, str, tuple[str, ...], str] = ("", "", (), ""),
    **tls: str | None,
) -> None:
    if log_level not in LEVELS:
        raise UsageFailure(f"--log-level: {log_level!r} is not one of {', '.join(LEVELS)}")
    if not targets and not tenant_targets:
        raise UsageFailure("there is nothing to serve", hint="parley serve agent.py")
    if envelope_keys:  # the binding reads its settings, which the server does not know
        os.environ["PARLEY_ENVELOPE_KEYS"] = envelope_keys
    shared = sharing()
    restrictions = read_restrict(restrict)
    webhook_certificate = read_webhook_certificate(webhook_files)
    kept = audit_kept(audit_retention)
    if shared["role"] == "worker" and port_for_grpc is not None:
        raise UsageFailure("--grpc-port: a worker serves nothing; leave it out, or the role")
    if not grpc_on_card and port_for_grpc is None:
        raise UsageFailure("--no-grpc-on-card: gRPC is served where it has a port: --grpc-port")
    from parley.cli.loading import load, load_tenants

    log_to_stderr(log_level)
    agents, tenants = load(targets), load_tenants(tenant_targets)

    from parley.agent.lifespan import LifespanFailed
    from parley.files.objects import FilesUnavailable
    from parley.host.app import asgi
    from parley.host.banner import banner
    from parley.host.egress import read_egress
    from parley.host.store_urls import shown
    from parley.server.app import Settings
    from parley.server.run import AnonymousRefused, ListenError, run
    from parley.server.settings import grpc_options, tls_options
    from parley.server.tls import TlsFailure
    from parley.store.protocols.errors import StoreError

    settings: dict[str, Any] = {} if hsts else {"hsts_max_age": 0}
    try:
        encryption = tls_options(*https)
        grpc = grpc_options(port_for_grpc, **tls)
        app = asgi(
            agents,
            tenants=tenants,
            store=store,
            url=url or None,
            settings=Settings(
                allowed_hosts=allowed_hosts,
                grpc_on_card=grpc_on_card,
                missing_version=missing_version,
                restrict=restrictions,
                **settings,
            ),
            allow_private_webhooks=allow_private_webhooks,
            allow_private_files=allow_private_files,
            allow_private_agents=allow_private_agents,
            egress=read_egress(egress[0], egress[1], only_allowed=egress[2]),
            files=files or None,
            signing_keys=signing_keys or None,
            webhook_certificate=webhook_certificate,
            webhook_challenge=webhook_challenge,
            limits=limits,
            usage=usage,
            audit=audit,
            audit_retention=kept,
            publisher=catalog[0],
            namespace=catalog[1] or None,
            unlisted=catalog[2],
            registry=catalog[3] or None,
            **shared,
        )
    except ValueError as error:
        raise UsageFailure(str(error)) from error
    location = shown(store)
    is_postgres = location.startswith("postgres")
    try:
        run(
            app,
            host=host,
            port=port,
            access_log=log_level == "debug",
            grpc=grpc,
            tls=encryption,
            allow_anonymous=allow_anonymous,
            on_listening=lambda address: print_line(
                banner(
                    agents,
                    url or address,
                    location,
                    tenants,
                    role=shared["role"],
                    grpc=app.grpc.beside(url or address) if grpc is not None else "",
                    publishes=app.publishes,
                )
            ),
        )
    except LifespanFailed as error:
        raise CommandFailure(
            "PARLEY_ERR_AGENT", str(error), hint="the same command with --debug shows where"
        ) from error
    except AnonymousRefused as error:
        raise UsageFailure(str(error), hint="the same command with --allow-anonymous") from error
    except TlsFailure as error:
        raise CommandFailure("PARLEY_ERR_TLS", str(error)) from error
    except ListenError as error:
        raise CommandFailure(
            "PARLEY_ERR_LISTEN", str(error), hint="--port 0 takes a free port"
        ) from error
    except FilesUnavailable as error:
        raise CommandFailure(
            "PARLEY_ERR_FILES", str(error), hint="name another place with --files, or none"
        ) from error
    except StoreError as error:
        raise CommandFailure(
            "PARLEY_ERR_STORE",
            f"the store cannot be used: {error}"
            if is_postgres
            else f"the store {location} cannot be used: {error}",
            hint=None
            if is_postgres
            else "name another with --store, such as --store sqlite:///other.db",
        ) from error


def _sharing(bus: str, role: str, lease: str, *, migrate: bool) -> dict[str, Any]:
    """Return the options of processes that share a store. Raises ``UsageFailure``."""
    if role not in ROLES:
        raise UsageFailure(f"--role: {role!r} is not one of {', '.join(ROLES)}")
    try:
        seconds = parse_duration(lease) if lease else None
    except ValueError as error:
        raise UsageFailure(f"--lease: {error}") from None
    return {"bus": bus or None, "role": role, "lease": seconds, "migrate": migrate}


def _reload(targets: list[str], tenants: list[str], arguments: list[str]) -> int:
    from parley.cli.loading import folders, parse_tenant
    from parley.cli.reload import serve_and_watch

    locations = [parse_tenant(each)[1].location for each in tenants]
    return serve_and_watch(["serve", *arguments], folders([*targets, *locations]))
