"""``parley catalog``: shows and checks catalogs of agents, and prints DNS records for them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from parley.cli.command import Commands
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import Argument, CommandOption
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
  parley catalog dns --url https://agents.example.com      for a running server
  parley catalog dns agent.py --url https://agents.example.com \\
      --publisher example.com                              before the server runs"""

EXITS = """\b
Exit status:
  0  done      1  failed      2  wrong usage
  3  not reachable, or no catalog"""
CHECKED = EXITS.replace("1  failed", "1  not valid")


def _option(text: str, metavar: str = "", panel: str = "Catalog", **more: Any) -> CommandOption:
    return CommandOption(text, metavar, panel, **more)


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """The option that names a catalog."""

    reference: Annotated[
        str, Argument("A host, an address, or a file; - is standard input.", "URL|FILE")
    ]


class Checked(Named, frozen=True, kw_only=True):
    """The options of ``parley catalog check``."""

    cards: Annotated[bool, _option("Also fetch the cards that the catalog names.")] = False


class DnsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``parley catalog dns``."""

    targets: Annotated[
        tuple[str, ...], Argument("Agents in files, as for parley serve.", "[TARGET]...")
    ] = ()
    url: Annotated[
        str,
        _option(
            "The public address of the server. Without targets, its catalog is fetched.", "URL"
        ),
    ] = ""
    publisher: Annotated[
        str,
        _option(
            "The domain that the records are for.",
            "DOMAIN",
            variable="PARLEY_PUBLISHER",
            default="the publisher of the catalog",
        ),
    ] = ""
    namespace: Annotated[
        str,
        _option(
            "The part between publisher and name in identifiers.",
            "NAME",
            variable="PARLEY_NAMESPACE",
            default="agent",
        ),
    ] = ""
    ttl: Annotated[
        int,
        _option(
            "How long resolvers may cache the records.",
            "SECONDS",
            "Records",
            least=0,
            most=2**31 - 1,
        ),
    ] = 3600
    alpn: Annotated[
        str,
        _option(
            "The protocols of the server or of the proxy in front of it, such as h2,http/1.1.",
            "NAMES",
            "Records",
        ),
    ] = "http/1.1"


COMMANDS = Commands("catalog", "Show and check catalogs of agents, and print their DNS records.")


def register(app: typer.Typer) -> None:
    """Add the command group."""
    COMMANDS.register(app)


@COMMANDS.add("show", *FETCHING, epilog=f"{SHOW_EXAMPLES}\n\n{EXITS}")
def show(settings: CommandSettings, output: Output, options: Named) -> int:
    """Show the entries of a catalog, and of its nested catalogs at the same server."""
    from parley.cli.calls.agent_call import AgentCall
    from parley.registry.commands.documents import show

    return show(AgentCall(settings, output), output, options.reference)


@COMMANDS.add("check", *FETCHING, epilog=f"{CHECK_EXAMPLES}\n\n{CHECKED}")
def check(settings: CommandSettings, output: Output, options: Checked) -> int:
    """Check a catalog against its schema and the rules of registries, and report problems.

    An error may make registries reject the catalog; a warning makes an agent hard to find.
    """
    from parley.cli.calls.agent_call import AgentCall
    from parley.registry.commands.documents import check

    return check(AgentCall(settings, output), output, options.reference, cards=options.cards)


@COMMANDS.add("dns", *FETCHING, epilog=f"{DNS_EXAMPLES}\n\n{EXITS}")
def dns(settings: CommandSettings, output: Output, options: DnsOptions) -> int | None:
    """Print the DNS records that lead to a catalog and its agents (DNS-AID).

    They are lines of a zone file: SVCB records, and TXT records with the same content.
    """
    from parley.cli.calls.agent_call import AgentCall
    from parley.registry.commands.dns import of_server, of_targets, read_publisher

    publisher, url = read_publisher(options.publisher), options.url
    records: dict[str, Any] = {"ttl": options.ttl, "alpn": options.alpn}
    if options.targets:
        of_targets(output, url, publisher, options.namespace, options.targets, **records)
        return None
    if not url:
        raise UsageFailure(
            "name the server with --url, or agents in files",
            hint="parley catalog dns --url https://agents.example.com",
        )
    return of_server(AgentCall(settings, output), output, url, publisher, **records)
