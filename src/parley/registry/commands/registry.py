"""``parley registry``: a registry of agents, served."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import log_to_stderr, print_line
from parley.cli.output.text import shell_words
from parley.host.program import invocation

if TYPE_CHECKING:
    from parley.cli.settings.server import ServeCommand
    from parley.host.options import ServerOptions
    from parley.security.schemes.scheme import Scheme, Security

INDEX = "sqlite:///registry.db"
STORE_VARIABLE = "PARLEY_REGISTRY_STORE"
TASKS_VARIABLE = "PARLEY_REGISTRY_TASKS"
PORT = 9010

OPTIONS = (
    "host",
    "url",
    "grpc_port",
    "migrate",
    "tls_cert",
    "tls_key",
    "tls_client_ca",
    "allow_anonymous",
    "signing_keys",
    "limits",
    "publisher",
    "restrict",
    "allowed_hosts",
    "hsts_max_age",
    "egress_allow",
    "egress_deny",
    "egress_only_allowed",
)
"""The options of a server that a registry has."""

_READS = "What it reads"
_CALLERS = "Who may call"


def _many(panel: str, metavar: str, text: str) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=panel, show_default=False)


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
    from parley.cli.settings.server import reporting, server_command

    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="registry", help="Serve a registry: agents, found by need.")

    @server_command(group, *OPTIONS, epilog=EPILOG)
    def serve(
        command: ServeCommand,
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
        port: Annotated[
            int, typer.Option(help="Port to listen on; 0 takes a free one.", metavar="PORT")
        ] = PORT,
        name: Annotated[
            str, typer.Option(help="What it is called.", metavar="TEXT", show_default=False)
        ] = "",
        crawl: Annotated[
            list[str] | None,
            _many(
                _READS,
                "URL",
                "A domain whose catalogs are looked for (example.com), or the address of a "
                "catalog (.json); repeat it.",
            ),
        ] = None,
        entries: Annotated[
            list[str] | None,
            _many(_READS, "FILE", "A catalog in a file, for whose entries you vouch; repeat it."),
        ] = None,
        allow_private: Annotated[
            list[str] | None,
            _many(
                _READS,
                "PLACE",
                "A private host or network that may be read, over http too, such as "
                "10.1.0.0/16 or agents.internal; repeat it.",
            ),
        ] = None,
        nameserver: Annotated[
            list[str] | None,
            _many(_READS, "ADDRESS", "A DNS server to ask, in place of the system's; repeat it."),
        ] = None,
        upstream: Annotated[
            list[str] | None,
            _many(_READS, "URL", "The address of another registry to ask too; repeat it."),
        ] = None,
        by_meaning: Annotated[
            bool,
            typer.Option(
                "--by-meaning",
                help="Search by meaning too, with a small model (the extra meaning).",
                rich_help_panel=_READS,
            ),
        ] = False,
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
            _many(
                _CALLERS, "ISSUER", "Callers have tokens of this OpenID Connect issuer; repeat it."
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
    ) -> None:
        """Serve a registry: it reads catalogs, and answers searches for agents by what they do.

        It answers by REST (Agentic Resource Discovery) and as an A2A agent, until Ctrl-C.
        """
        given = {**command.options, "port": port}
        if mtls and "tls_client_ca" not in given:
            raise UsageFailure("--mtls: name the authorities of the certificates: --tls-client-ca")
        log_to_stderr(command.log_level)
        if command.log_level == "info":
            # Probes call agents all the time: what matters of that is logged by the registry.
            logging.getLogger("parley.client").setLevel(logging.WARNING)
        from parley.host.app import run_app
        from parley.host.options import ServerOptions, shown
        from parley.registry.app.registry import NAME, Registry

        callers = credentials(api_keys, oidc or (), audience or given.get("url", ""), mtls)
        try:
            options = ServerOptions(**given)
            registry = Registry(
                store,
                name=name or NAME,
                tasks=tasks or None,
                auth=callers,
                public_search=public_search,
                sources=crawl or (),
                entries=entries or (),
                upstreams=tuple(upstream or ()),
                meaning=by_meaning,
                allow_private=allow_private or (),
                nameservers=nameserver or (),
                address=reached_at(options),
                url=options.url,
                egress=options.egress,
                settings=options.settings,
                limits=options.limits,
                publisher=options.publisher,
                signing_keys=options.signing_keys,
                migrate=options.migrate,
            )
        except ValueError as error:
            raise UsageFailure(str(error)) from error
        anonymous = (
            f"everyone who can reach {options.host} could use this registry: require credentials "
            "(--api-keys, --oidc ISSUER or --mtls), without --public-search"
        )
        with reporting(store, anonymous):
            run_app(
                registry.app,
                options,
                access_log=command.log_level == "debug",
                on_listening=lambda address: print_line(
                    banner(registry.name, options.url or address, shown(store))
                ),
            )


def reached_at(options: ServerOptions) -> str | None:
    """Return the address of a registry without --url; ``None`` if it listens on all addresses: that
    is the address of every registry that does, and says nothing of this one.
    """
    host, port = options.host, options.port
    if not port or host in ("", "0.0.0.0", "::"):
        return None
    scheme = "http" if options.tls_cert is None else "https"
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
