"""``parley catalog``: catalogs of agents, and the DNS records that lead to them."""

from __future__ import annotations

from typing import Any

import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import settings_command
from parley.cli.settings.table import CommandSettings

FETCHING = (
    "insecure",
    "ca_file",
    "client_cert",
    "client_key",
    "proxy",
    "timeout",
    "output",
    "debug",
    "config",
)

SHOW_EXAMPLES = """\b
Examples:
  parley catalog show agents.example.com     the well-known path is added
  parley catalog show http://127.0.0.1:9999 -o json
  parley catalog show ./ai-catalog.json"""

CHECK_EXAMPLES = """\b
Examples:
  parley catalog check https://agents.example.com --cards
  parley catalog check ./ai-catalog.json
  parley catalog check - < ai-catalog.json"""

DNS_EXAMPLES = """\b
Examples:
  parley catalog dns --url https://agents.example.com      of a running server
  parley catalog dns agent.py --url https://agents.example.com \\
      --publisher example.com                              before it runs"""

EXITS = """\b
Exit status:
  0  done      1  failed      2  wrong usage
  3  out of reach, or no catalog"""
CHECKED = EXITS.replace("1  failed", "1  not valid")


def _text(flag: str, metavar: str, text: str, variable: str | None = None) -> Any:
    return typer.Option(
        "",
        flag,
        envvar=variable,
        metavar=metavar,
        help=text,
        show_default=False,
        rich_help_panel="Catalog",
    )


def _reference() -> Any:
    words = "A host, an address, or a file; - is standard input."
    return typer.Argument(..., metavar="URL|FILE", help=words)


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="catalog", help="Look at catalogs of agents, and publish one in DNS.")

    @settings_command(group, "show", *FETCHING, epilog=f"{SHOW_EXAMPLES}\n\n{EXITS}")
    def show(settings: CommandSettings, output: Output, reference: str = _reference()) -> int:
        """Show what a catalog lists, and the catalogs in it that are at the same server."""
        from parley.cli.calls.agent_call import AgentCall
        from parley.registry.commands.documents import show

        return show(AgentCall(settings, output), output, reference)

    @settings_command(group, "check", *FETCHING, epilog=f"{CHECK_EXAMPLES}\n\n{CHECKED}")
    def check(
        settings: CommandSettings,
        output: Output,
        reference: str = _reference(),
        cards: bool = typer.Option(
            False,
            "--cards",
            help="Fetch the cards that it names, too.",
            show_default=False,
            rich_help_panel="Catalog",
        ),
    ) -> int:
        """Check a catalog against its schema and the rules of registries, and say what is wrong.

        An error is what registries may refuse; a warning is what makes an agent hard to find.
        """
        from parley.cli.calls.agent_call import AgentCall
        from parley.registry.commands.checked import check

        return check(AgentCall(settings, output), output, reference, cards=cards)

    @settings_command(group, "dns", *FETCHING, epilog=f"{DNS_EXAMPLES}\n\n{EXITS}")
    def dns(
        settings: CommandSettings,
        output: Output,
        targets: list[str] = typer.Argument(  # noqa: B008
            None, metavar="[TARGET]...", help="Agents in files, as parley serve takes them."
        ),
        url: str = _text(
            "--url",
            "URL",
            "The public address of the server. Without targets, it is asked for its catalog.",
        ),
        publisher: str = _text(
            "--publisher",
            "DOMAIN",
            "The domain that the records are for.  [default: that of the catalog]",
            "PARLEY_PUBLISHER",
        ),
        namespace: str = _text(
            "--namespace",
            "NAME",
            "What is between the publisher and the name in identifiers.  [default: agent]",
            "PARLEY_NAMESPACE",
        ),
        ttl: int = typer.Option(
            3600,
            "--ttl",
            metavar="SECONDS",
            min=0,
            max=2**31 - 1,
            help="How long resolvers may keep the records.",
            rich_help_panel="Records",
        ),
        alpn: str = typer.Option(
            "http/1.1",
            "--alpn",
            metavar="NAMES",
            help="What the server, or the proxy in front of it, speaks, such as h2,http/1.1.",
            rich_help_panel="Records",
        ),
    ) -> int | None:
        """Print the DNS records that lead to a catalog and its agents (DNS-AID), to be set.

        They are lines of a zone file: SVCB records, and TXT records that say the same.
        """
        from parley.cli.calls.agent_call import AgentCall
        from parley.registry.commands.dns import of_server, of_targets, read_publisher

        publisher = read_publisher(publisher)
        if targets:
            of_targets(output, url, publisher, namespace, targets, ttl=ttl, alpn=alpn)
            return None
        if not url:
            raise UsageFailure(
                "name the server with --url, or agents in files",
                hint="parley catalog dns --url https://agents.example.com",
            )
        call = AgentCall(settings, output)
        return of_server(call, output, url, publisher, ttl=ttl, alpn=alpn)
