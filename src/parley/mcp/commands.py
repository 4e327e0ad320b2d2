"""``parley mcp``: A2A agents for hosts that speak MCP."""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, Any

import typer

from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output, log_to_stderr
from parley.cli.settings.options import settings_command
from parley.cli.settings.table import CommandSettings
from parley.model.distribution import install_command

TOKEN_VARIABLE = "PARLEY_MCP_TOKEN"
HOST = "127.0.0.1"
PORT = 9020

_HTTP = "Over HTTP"

SETTINGS = (
    "bearer", "api_key", "svc_param", "transport", "a2a_version", "insecure", "ca_file",
    "client_cert", "client_key", "proxy", "trust_origin", "verbose", "debug", "config",
)  # fmt: skip

EXAMPLES = """\b
Examples:
  parley mcp serve http://127.0.0.1:9999
  parley mcp serve https://agents.example.com/travel --http
  parley mcp serve --registry https://registry.example.com --search "book a flight"

\b
A host such as Claude Desktop, VS Code or Cursor starts it by itself:
  {"mcpServers": {"travel": {"command": "parley",
    "args": ["mcp", "serve", "https://agents.example.com/travel"]}}}"""


def _over_http(*flags: str, show_default: bool = False, **named: Any) -> Any:
    return typer.Option(*flags, show_default=show_default, rich_help_panel=_HTTP, **named)


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="mcp", help="Offer A2A agents to hosts that speak MCP.")

    @settings_command(group, "serve", *SETTINGS, epilog=EXAMPLES)
    def serve(
        settings: CommandSettings,
        output: Output,
        agents: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="URL", help="The agents: hosts, addresses or cards.", show_default=False
            ),
        ] = None,
        registry: Annotated[
            str,
            typer.Option(
                metavar="URL|DOMAIN|FILE",
                help="A registry: offers the tools find_agents and ask_agent.",
                envvar="PARLEY_REGISTRY",
                show_default=False,
                show_envvar=False,
                rich_help_panel="Registry",
            ),
        ] = "",
        search: Annotated[
            str,
            typer.Option(
                metavar="TEXT",
                help="Offer the skills of agents that the registry finds for this.",
                show_default=False,
                rich_help_panel="Registry",
            ),
        ] = "",
        limit: Annotated[
            int,
            typer.Option(
                metavar="N",
                min=1,
                max=50,
                help="The most agents that --search offers.",
                rich_help_panel="Registry",
            ),
        ] = 5,
        registry_bearer: Annotated[
            str,
            typer.Option(
                metavar="TOKEN",
                help="A bearer token for the registry. Better in PARLEY_REGISTRY_BEARER.",
                envvar="PARLEY_REGISTRY_BEARER",
                show_default=False,
                show_envvar=False,
                rich_help_panel="Registry",
            ),
        ] = "",
        name: Annotated[
            str, typer.Option(metavar="TEXT", help="What the server is called.")
        ] = "parley",
        call_time: Annotated[
            float,
            typer.Option(
                metavar="SECONDS",
                help="How long a call takes at most; then it returns the name of its task.",
            ),
        ] = 50.0,
        http: Annotated[
            bool,
            _over_http(
                "--http", help="Serve over HTTP, at /mcp, not over stdio.", show_default=True
            ),
        ] = False,
        host: Annotated[
            str, _over_http(metavar="HOST", help="Address to listen on.", show_default=True)
        ] = HOST,
        port: Annotated[
            int,
            _over_http(
                metavar="PORT", help="Port to listen on; 0 takes a free one.", show_default=True
            ),
        ] = PORT,
        url: Annotated[
            str,
            _over_http(metavar="URL", help="The public address, when a proxy in front hides it."),
        ] = "",
        allowed_host: Annotated[
            list[str] | None,
            _over_http(
                metavar="HOST",
                help="A host that requests may name besides this machine's; repeat it.",
            ),
        ] = None,
        allowed_origin: Annotated[
            list[str] | None,
            _over_http(metavar="ORIGIN", help="An origin whose pages may call it; repeat it."),
        ] = None,
        token: Annotated[
            list[str] | None,
            _over_http(
                metavar="TOKEN",
                help=f"A token that callers have to send; repeat it. Better in {TOKEN_VARIABLE}.",
                envvar=TOKEN_VARIABLE,
                show_envvar=False,
            ),
        ] = None,
        oidc: Annotated[
            str,
            _over_http(
                metavar="ISSUER",
                help="Callers have tokens of this OpenID Connect issuer; needs --url.",
            ),
        ] = "",
        audience: Annotated[
            str,
            _over_http(
                metavar="TEXT", help="Whom these tokens are for.  [default: --url with /mcp]"
            ),
        ] = "",
        tls_cert: Annotated[
            str, _over_http(metavar="FILE", help="The certificate, to serve HTTPS.")
        ] = "",
        tls_key: Annotated[str, _over_http(metavar="FILE", help="Its key.")] = "",
        allow_anonymous: Annotated[
            bool,
            _over_http(
                "--allow-anonymous",
                help="Let everyone in who can reach it, from other machines too.",
                show_default=True,
            ),
        ] = False,
    ) -> int:
        """Serve agents as an MCP server: skills are tools, agent cards are resources.

        Over stdio, for a host that starts it, or with --http for many. Questions of agents go to
        the user of the host; a call that the host cancels is canceled.

        Credentials for the agents are --bearer, --api-key or a login (parley auth login). Over
        HTTP without --token and --oidc, the bearer token or API key (X-API-Key) of a caller goes
        to the agents named here instead, each time.
        """
        if not agents and not registry:
            raise UsageFailure(
                "name an agent, or a registry",
                hint='parley mcp serve URL, or parley mcp serve --registry URL --search "..."',
            )
        if search and not registry:
            raise UsageFailure("--search needs --registry", hint="--registry URL")
        needs_http = {
            "--host": host != HOST, "--port": port != PORT, "--url": url, "--oidc": oidc,
            "--allowed-host": allowed_host, "--allowed-origin": allowed_origin,
            "--audience": audience, "--tls-cert": tls_cert, "--tls-key": tls_key,
            "--token": token and TOKEN_VARIABLE not in os.environ,
            "--allow-anonymous": allow_anonymous,
        }  # fmt: skip
        for flag, is_given in needs_http.items():
            if is_given and not http:
                raise UsageFailure(f"{flag} needs --http", hint="the same command with --http")
        if not http and sys.stdin.isatty():
            output.note(
                "waits for a host that speaks MCP on standard input; Ctrl-C ends. "
                "--http serves hosts that connect to it"
            )
        log_to_stderr("debug" if settings.debug else "warning")
        try:
            from parley.mcp.command_run import McpServing
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
                raise
            raise CommandFailure(
                "PARLEY_ERR_NOT_INSTALLED",
                "parley mcp needs the package mcp",
                hint=install_command("mcp"),
            ) from error
        logging.getLogger("mcp").setLevel(logging.WARNING)
        serving = McpServing(settings, output, tuple(agents or ()))
        serving.find(registry, search, limit, bearer=registry_bearer)
        options: dict[str, Any] = {"name": name, "wait": call_time}
        if not http:
            return serving.stdio(options)
        return serving.http(
            options,
            host=host,
            port=port,
            url=url,
            allowed_hosts=tuple(allowed_host or ()),
            allowed_origins=tuple(allowed_origin or ()),
            tokens=tuple(token or ()),
            oidc=oidc,
            audience=audience,
            tls=(tls_cert or None, tls_key or None),
            allow_anonymous=allow_anonymous,
        )
