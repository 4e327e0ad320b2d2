"""``parley registry``: serves a registry of agents."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import log_to_stderr, print_line
from parley.cli.output.text import shell_words
from parley.host.program import invocation
from parley.model.option import Option
from parley.registry.options import CALLERS, RegistryFlags

if TYPE_CHECKING:
    from parley.cli.settings.server import ServeCommand
    from parley.host.options import ServerOptions
    from parley.security.schemes.scheme import Scheme, Security

PORT = 9010

OPTIONS = (
    "host",
    "url",
    "grpc_port",
    "migrate",
    "metrics",
    "access_log",
    "otlp",
    "trace_content",
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
"""The options of a server that also apply to a registry."""


class RegistryServe(RegistryFlags, frozen=True, kw_only=True):
    """The flags of the command, in addition to the flags of a server."""

    port: Annotated[int, Option("Port to listen on; 0 selects a free port.", "PORT")] = PORT
    api_keys: Annotated[
        bool,
        Option("Callers use API keys (X-API-Key) of its store: parley keys create.", panel=CALLERS),
    ] = False
    oidc: Annotated[
        tuple[str, ...],
        Option("Callers use tokens of this OpenID Connect issuer; repeatable.", "ISSUER", CALLERS),
    ] = ()
    audience: Annotated[
        str, Option("The audience of these tokens.", "TEXT", CALLERS, default="--url")
    ] = ""
    mtls: Annotated[
        bool, Option("Callers use certificates of an authority in --tls-client-ca.", panel=CALLERS)
    ] = False


EPILOG = """\b
Examples:
  parley registry serve --crawl http://127.0.0.1:9999
  parley registry serve --crawl example.com --crawl acme.com --by-meaning
  parley registry serve --entries agents.json --store postgresql://host/db
  parley registry serve --api-keys --public-search --allow-anonymous \\
      --host 0.0.0.0 --url https://registry.acme.com --publisher acme.com

\b
Operators need the scope registry:operate, for example with a key of its store:
  parley keys create --owner me --scope registry:operate \\
      --store sqlite:///registry-tasks.db"""


def register(app: typer.Typer) -> None:
    """Add the command group."""
    from parley.cli.settings.server import reporting, server_command

    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="registry", help="Serve a registry that finds agents by need.")

    @server_command(group, *OPTIONS, epilog=EPILOG)
    def serve(command: ServeCommand, flags: RegistryServe) -> None:
        """Serve a registry: it reads catalogs, and answers searches for agents.

        It has a REST interface (Agentic Resource Discovery) and an A2A agent, and runs until
        Ctrl-C.
        """
        given = {**command.options, "port": flags.port}
        if flags.mtls and "tls_client_ca" not in given:
            raise UsageFailure(
                "--mtls: give the authorities of the certificates with --tls-client-ca"
            )
        log_to_stderr(command.log_level, command.log_format)
        if command.log_level == "info":
            # Probes call agents all the time: the registry logs their results itself.
            logging.getLogger("parley.client").setLevel(logging.WARNING)
        from parley.host.app import run_app
        from parley.host.options import ServerOptions, shown
        from parley.registry.app.registry import Registry

        audience = flags.audience or given.get("url", "")
        callers = credentials(flags.api_keys, flags.oidc, audience, flags.mtls)
        own = {each: getattr(flags, each) for each in RegistryFlags.__struct_fields__}
        try:
            options = ServerOptions(**given)
            registry = Registry(
                **own,
                auth=callers,
                address=reached_at(options),
                url=options.url,
                egress=options.egress,
                settings=options.settings,
                limits=options.limits,
                publisher=options.publisher,
                signing_keys=options.signing_keys,
                migrate=options.migrate,
                access_log=options.access_log,
                otlp=options.otlp,
                trace_content=options.trace_content,
            )
        except ValueError as error:
            raise UsageFailure(str(error)) from error
        anonymous = (
            f"everyone who can reach {options.host} could use this registry: require credentials "
            "(--api-keys, --oidc ISSUER or --mtls), without --public-search"
        )
        with reporting(flags.index, anonymous):
            run_app(
                registry.app,
                options,
                access_log=command.log_level == "debug",
                on_listening=lambda address: print_line(
                    banner(registry.name, options.url or address, shown(flags.index))
                ),
            )


def reached_at(options: ServerOptions) -> str | None:
    """Return the address of a registry without --url; ``None`` if it listens on all addresses,
    because that address does not identify this registry.
    """
    host, port = options.host, options.port
    if not port or host in ("", "0.0.0.0", "::"):
        return None
    scheme = "http" if options.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def credentials(
    api_keys: bool, issuers: Sequence[str], audience: str, mtls: bool
) -> Scheme | Security | None:
    """Return the accepted credentials of callers: any of these schemes; ``None`` without a scheme.

    Raises ``UsageFailure``.
    """
    from parley.security.schemes.api_key import ApiKey
    from parley.security.schemes.mutual_tls import MutualTls
    from parley.security.schemes.oauth import OpenIdConnect

    schemes: list[Scheme] = [ApiKey()] if api_keys else []
    if issuers and not audience:
        raise UsageFailure("--oidc: give the audience of the tokens with --audience or --url")
    for place, issuer in enumerate(issuers, 1):
        own = "openid" if place == 1 else f"openid{place}"
        schemes.append(OpenIdConnect(issuer, audience=audience, name=own))
    if mtls:
        schemes.append(MutualTls())
    return reduce(or_, schemes) if schemes else None


def banner(name: str, address: str, store: str) -> str:
    """Return the text for a started registry: its addresses, and a command to try."""
    base = address.rstrip("/")
    durability = "lost when it stops" if store.startswith("memory:") else "kept between runs"
    begin = shell_words(invocation())
    return "\n".join(
        [
            name,
            f"  address    {base}",
            f"  interface  {base}/openapi.json",
            f"  agent      {base}/a2a",
            f'  try        {begin} send -a {base}/a2a "find me an agent that converts currencies"',
            "",
            f"Its index is {durability} ({store}). Ctrl-C stops the registry.",
        ]
    )
