"""``parley registry``: a registry of agents, served."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.cli.boundary import exit_status_of
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output, log_to_stderr, print_line
from parley.cli.output.text import shell_words
from parley.cli.settings.access import (
    AllowAnonymous,
    NoHsts,
    Restrict,
    SigningKeysFile,
    TlsCert,
    TlsClientCa,
    TlsKey,
    read_restrict,
)
from parley.cli.settings.audit import AuditTargets
from parley.cli.settings.egress import EgressAllow, EgressDeny, EgressOnly
from parley.cli.settings.limits import Limits, read_limits
from parley.cli.settings.options import GroupedCommand
from parley.cli.settings.publishing import Publisher
from parley.host.program import invocation

if TYPE_CHECKING:
    from parley.security.schemes.scheme import Scheme, Security

INDEX = "sqlite:///registry.db"
STORE_VARIABLE = "PARLEY_REGISTRY_STORE"
TASKS_VARIABLE = "PARLEY_REGISTRY_TASKS"
PORT = 9010
LEVELS = ("debug", "info", "warning", "error")

_READS = "What it reads"
_CALLERS = "Who may call"

EPILOG = """\b
Examples:
  parley registry serve --crawl http://127.0.0.1:9999
  parley registry serve --crawl example.com --crawl acme.com --by-meaning
  parley registry serve --entries agents.json --store postgresql://host/db
  parley registry serve --api-keys --public-search --allow-anonymous \\
      --host 0.0.0.0 --url https://registry.acme.com --publisher acme.com

\b
Operators have the scope registry:operate, as with a key of its store:
  parley keys create --owner me --scope registry:operate \\
      --store sqlite:///registry-tasks.db"""


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="registry", help="Serve a registry: agents, found by need.")

    @group.command("serve", cls=GroupedCommand, epilog=EPILOG)
    def serve(
        store: Annotated[
            str,
            typer.Option(
                help="Where it keeps what it knows: sqlite:///PATH, "
                "postgresql://USER@HOST/DATABASE (for many processes at a time), or memory: (gone "
                "with the process).",
                envvar=STORE_VARIABLE,
                metavar="URL",
            ),
        ] = INDEX,
        tasks: Annotated[
            str,
            typer.Option(
                help="The store of its API keys and of its agent's tasks.  [default: beside "
                "--store]",
                envvar=TASKS_VARIABLE,
                metavar="URL",
                show_default=False,
            ),
        ] = "",
        host: Annotated[
            str, typer.Option(help="Address to listen on; 0.0.0.0 for all.", metavar="HOST")
        ] = "127.0.0.1",
        port: Annotated[
            int, typer.Option(help="Port to listen on; 0 takes a free one.", metavar="PORT")
        ] = PORT,
        url: Annotated[
            str,
            typer.Option(
                help="The public address, when a proxy in front hides it.",
                metavar="URL",
                show_default=False,
            ),
        ] = "",
        name: Annotated[
            str, typer.Option(help="What it is called.", metavar="TEXT", show_default=False)
        ] = "",
        publisher: Publisher = "",
        grpc_port: Annotated[
            int | None,
            typer.Option(
                help="Port for gRPC, over which its agent is served too; 0 takes a free one.",
                metavar="PORT",
                show_default=False,
            ),
        ] = None,
        allowed_host: Annotated[
            list[str] | None,
            typer.Option(
                help="A host that requests may name besides this machine's own; repeat it.",
                metavar="HOST",
                show_default=False,
            ),
        ] = None,
        no_migrate: Annotated[
            bool,
            typer.Option(
                "--no-migrate", help="Do not bring the schema up to date, but refuse an older one."
            ),
        ] = False,
        crawl: Annotated[
            list[str] | None,
            typer.Option(
                help="A domain whose catalogs are looked for (example.com), or the address of a "
                "catalog (.json); repeat it.",
                metavar="URL",
                rich_help_panel=_READS,
                show_default=False,
            ),
        ] = None,
        entries: Annotated[
            list[str] | None,
            typer.Option(
                help="A catalog in a file, for whose entries you vouch; repeat it.",
                metavar="FILE",
                rich_help_panel=_READS,
                show_default=False,
            ),
        ] = None,
        allow_private: Annotated[
            list[str] | None,
            typer.Option(
                help="A private host or network that may be read, over http too, such as "
                "10.1.0.0/16 or agents.internal; repeat it.",
                metavar="PLACE",
                rich_help_panel=_READS,
                show_default=False,
            ),
        ] = None,
        nameserver: Annotated[
            list[str] | None,
            typer.Option(
                help="A DNS server to ask, in place of the system's; repeat it.",
                metavar="ADDRESS",
                rich_help_panel=_READS,
                show_default=False,
            ),
        ] = None,
        upstream: Annotated[
            list[str] | None,
            typer.Option(
                help="The address of another registry to ask too; repeat it.",
                metavar="URL",
                rich_help_panel=_READS,
                show_default=False,
            ),
        ] = None,
        by_meaning: Annotated[
            bool,
            typer.Option(
                "--by-meaning",
                help="Search by meaning too, with a small model (the extra meaning).",
                rich_help_panel=_READS,
            ),
        ] = False,
        egress_allow: EgressAllow = None,
        egress_deny: EgressDeny = None,
        egress_only_allowed: EgressOnly = False,
        api_keys: Annotated[
            bool,
            typer.Option(
                "--api-keys",
                help="Callers have API keys (X-API-Key) of its store: parley keys create.",
                rich_help_panel=_CALLERS,
            ),
        ] = False,
        oidc: Annotated[
            list[str] | None,
            typer.Option(
                help="Callers have tokens of this OpenID Connect issuer; repeat it.",
                metavar="ISSUER",
                rich_help_panel=_CALLERS,
                show_default=False,
            ),
        ] = None,
        audience: Annotated[
            str,
            typer.Option(
                help="Whom these tokens are for.  [default: --url]",
                metavar="TEXT",
                rich_help_panel=_CALLERS,
                show_default=False,
            ),
        ] = "",
        mtls: Annotated[
            bool,
            typer.Option(
                "--mtls",
                help="Callers have certificates of an authority of --tls-client-ca.",
                rich_help_panel=_CALLERS,
            ),
        ] = False,
        public_search: Annotated[
            bool,
            typer.Option(
                "--public-search",
                help="Let everyone search; credentials are for the rest.",
                rich_help_panel=_CALLERS,
            ),
        ] = False,
        tls_cert: TlsCert = "",
        tls_key: TlsKey = "",
        tls_client_ca: TlsClientCa = "",
        signing_keys: SigningKeysFile = "",
        no_hsts: NoHsts = False,
        allow_anonymous: AllowAnonymous = False,
        restrict: Restrict = None,
        limit: Limits = None,
        audit: AuditTargets = None,
        log_level: Annotated[
            str,
            typer.Option(
                help="How much to log to stderr: debug (with every request), info, warning, error.",
                metavar="LEVEL",
            ),
        ] = "info",
        debug: Annotated[
            bool, typer.Option("--debug", help="Show tracebacks of what stops the registry.")
        ] = False,
    ) -> None:
        """Serve a registry: it reads catalogs, and answers searches for agents by what they do.

        It answers by REST (Agentic Resource Discovery) and as an A2A agent, until Ctrl-C.
        """
        output = Output(is_json=False, debug=debug)
        options: dict[str, Any] = {
            "url": url or None,
            "sources": tuple(crawl or ()),
            "entries": tuple(entries or ()),
            "upstreams": tuple(upstream or ()),
            "meaning": by_meaning,
            "allow_private": tuple(allow_private or ()),
            "nameservers": tuple(nameserver or ()),
            "public_search": public_search,
            "publisher": publisher or None,
            "tasks": tasks or None,
            "signing_keys": signing_keys or None,
            "audit": tuple(audit or ()),
            "migrate": not no_migrate,
            **({"name": name} if name else {}),
        }
        status = exit_status_of(
            output,
            lambda: _serve(
                store,
                host,
                port,
                log_level.lower(),
                options,
                callers=(api_keys, tuple(oidc or ()), audience or url, mtls),
                port_for_grpc=grpc_port,
                https=(tls_cert or None, tls_key or None, tls_client_ca or None),
                egress=(egress_allow or (), egress_deny or (), egress_only_allowed),
                settings={
                    "allowed_hosts": tuple(allowed_host or ()),
                    "restrict": read_restrict(restrict or ()),
                    **({"hsts_max_age": 0} if no_hsts else {}),
                },
                limits=read_limits(limit),
                allow_anonymous=allow_anonymous,
            ),
        )
        if status:
            raise typer.Exit(status)


def _serve(
    store: str,
    host: str,
    port: int,
    log_level: str,
    options: dict[str, Any],
    *,
    callers: tuple[bool, tuple[str, ...], str, bool],
    port_for_grpc: int | None,
    https: tuple[str | None, str | None, str | None],
    egress: tuple[Sequence[str], Sequence[str], bool],
    settings: dict[str, Any],
    limits: tuple[str, ...],
    allow_anonymous: bool,
) -> None:
    if log_level not in LEVELS:
        raise UsageFailure(f"--log-level: {log_level!r} is not one of {', '.join(LEVELS)}")
    if callers[3] and https[2] is None:
        raise UsageFailure("--mtls: name the authorities of the certificates: --tls-client-ca")
    log_to_stderr(log_level)
    if log_level == "info":
        # Probes call agents all the time: what matters of that is logged by the registry.
        logging.getLogger("parley.client").setLevel(logging.WARNING)
    from parley.agent.lifespan import LifespanFailed
    from parley.database.errors import StoreError
    from parley.host.egress import read_egress
    from parley.host.store_urls import shown
    from parley.registry.app.registry import Registry
    from parley.server.app import Settings
    from parley.server.exposure import AnonymousRefused
    from parley.server.grpc.options import grpc_options
    from parley.server.run import ListenError, run
    from parley.server.tls.files import TlsFailure
    from parley.server.tls.options import tls_options

    scheme = "http" if https[0] is None else "https"
    try:
        encryption = tls_options(*https)
        grpc = grpc_options(port_for_grpc)
        registry = Registry(
            store,
            auth=credentials(*callers),
            egress=read_egress(egress[0], egress[1], only_allowed=egress[2]),
            settings=Settings(**settings),
            limits=limits,
            address=reached_at(scheme, host, port),
            **options,
        )
    except ValueError as error:
        raise UsageFailure(str(error)) from error
    location = shown(store)

    def started(address: str) -> None:
        print_line(banner(registry.name, options["url"] or address, location))

    try:
        run(
            registry.app,
            host=host,
            port=port,
            access_log=log_level == "debug",
            grpc=grpc,
            tls=encryption,
            allow_anonymous=allow_anonymous,
            on_listening=started,
        )
    except AnonymousRefused as error:
        raise UsageFailure(
            f"everyone who can reach {host} could use this registry: require credentials "
            "(--api-keys, --oidc ISSUER or --mtls), without --public-search",
            hint="the same command with --allow-anonymous",
        ) from error
    except TlsFailure as error:
        raise CommandFailure("PARLEY_ERR_TLS", str(error)) from error
    except ListenError as error:
        raise CommandFailure(
            "PARLEY_ERR_LISTEN", str(error), hint="--port 0 takes a free port"
        ) from error
    except (LifespanFailed, StoreError) as error:
        cause = error.__cause__ if isinstance(error, LifespanFailed) else error
        if not isinstance(cause, StoreError):
            raise
        raise CommandFailure(
            "PARLEY_ERR_STORE",
            f"the store {location} cannot be used: {cause}",
            hint="name another with --store, such as --store sqlite:///other.db",
        ) from error


def reached_at(scheme: str, host: str, port: int) -> str | None:
    """Return the address of a registry without --url; ``None`` if it listens on all addresses: that
    is the address of every registry that does, and says nothing of this one.
    """
    if not port or host in ("", "0.0.0.0", "::"):
        return None
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def credentials(
    api_keys: bool, issuers: Sequence[str], audience: str, mtls: bool
) -> Scheme | Security | None:
    """Return what callers prove themselves with: any of these, ``None`` without one.

    Raises ``UsageFailure``.
    """
    from parley.security.schemes.api_key import ApiKey
    from parley.security.schemes.mutual_tls import MutualTls
    from parley.security.schemes.oauth import OpenIdConnect

    schemes: list[Scheme] = [ApiKey()] if api_keys else []
    if issuers and not audience:
        raise UsageFailure("--oidc: say whom the tokens are for: --audience, or --url")
    for place, issuer in enumerate(issuers, 1):
        own = "openid" if place == 1 else f"openid{place}"
        schemes.append(OpenIdConnect(issuer, audience=audience, name=own))
    if mtls:
        schemes.append(MutualTls())
    found: Scheme | Security | None = None
    for each in schemes:
        found = each if found is None else found | each
    return found


def banner(name: str, address: str, store: str) -> str:
    """Return the text for a started registry: its addresses, and a command to try."""
    base = address.rstrip("/")
    durability = "gone when it stops" if store.startswith("memory:") else "kept between runs"
    begin = shell_words(invocation())
    return "\n".join(
        [
            name,
            f"  address    {base}",
            f"  interface  {base}/openapi.json",
            f"  agent      {base}/a2a",
            f'  try        {begin} send -a {base}/a2a "find me an agent that converts currencies"',
            "",
            f"What it knows is {durability} ({store}). Ctrl-C stops the registry.",
        ]
    )
