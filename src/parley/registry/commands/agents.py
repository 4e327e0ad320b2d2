"""``parley agents``: finds agents by need in a registry or catalog, and publishes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from parley.cli.command import Commands
from parley.cli.output.failures import UsageFailure, wrong_usage
from parley.cli.output.streams import Output
from parley.cli.settings.options import REGISTRY_OPTIONS, Argument, Command, CommandOption
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.registry.client.found import FoundAgent

ASKING = (
    *REGISTRY_OPTIONS,
    "insecure",
    "ca_file",
    "client_cert",
    "client_key",
    "proxy",
    "trust_origin",
    "timeout",
    "output",
    "verbose",
    "debug",
    "config",
)
"""The settings of commands that call a registry."""

PANEL = "Registry"

REGISTRY_EXITS = """\b
Exit status:
  0  done      1  failed, or not found      2  wrong usage
  3  registry out of reach                  4  credentials missing or rejected
  5  --timeout ran out"""

SOURCES = """\b
--registry or PARLEY_REGISTRY names the registry: its address, a domain
or the address of a catalog that names it, or a catalog file. There is no
default. Its credentials are --bearer or --api-key, a login (parley auth login),
or PARLEY_TOKEN with PARLEY_AUTH_ORIGIN; credentials of agents never go there."""

EXITS = f"{REGISTRY_EXITS}\n\n{SOURCES}"


def _option(text: str, metavar: str = "", flag: str = "", **more: Any) -> CommandOption:
    return CommandOption(text, metavar, PANEL, flag, **more)


class AskedRegistry(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a command that calls a registry."""


class Identified(AskedRegistry, frozen=True, kw_only=True):
    """One entry of a registry."""

    identifier: Annotated[str, Argument("An identifier, urn:air:..., from a search.", "IDENTIFIER")]


class Published(AskedRegistry, frozen=True, kw_only=True):
    """The caller's published entries."""

    identifiers: Annotated[
        tuple[str, ...],
        Argument("An identifier, urn:air:..., of a published entry.", "IDENTIFIER...", kind=tuple),
    ]


class RegistryCommands(Commands):
    """Commands that call a registry: async functions of the call, a ``RegistryPublisher`` and their
    options, which return the exit status.
    """

    def ask(self, name: str, examples: str = "") -> Callable[[Command], Command]:
        """Return a decorator that adds a command."""

        def added(function: Command) -> Command:
            @wraps(function)
            def run(settings: CommandSettings, output: Output, options: AskedRegistry) -> int:
                from parley.registry.commands.registry_call import RegistryCall
                from parley.registry.served.registration import RegistryPublisher

                call = RegistryCall(settings, output)
                return call.run(lambda remote: function(call, RegistryPublisher(remote), options))

            epilog = f"\b\nExamples:\n{examples}\n\n{EXITS}" if examples else EXITS
            self.add(name, *ASKING, epilog=epilog)(run)
            return function

        return added


COMMANDS = RegistryCommands("agents", "Find agents by what you need, and publish them.")


def register(app: typer.Typer) -> None:
    """Add the command group."""
    COMMANDS.register(app)


# Finding agents.

SEARCH_EXAMPLES = """\
  parley agents search "currency conversion" --registry http://localhost:9010
  parley agents search "book a flight" --filter tags=travel --limit 5
  parley agents search "currency conversion" --registry agents.json -o json"""

SHOW_EXAMPLES = """\
  parley agents show urn:air:example.com:agent:currency \\
      --registry https://registry.example.com"""


class Search(AskedRegistry, frozen=True, kw_only=True):
    """The options of ``parley agents search``."""

    text: Annotated[tuple[str, ...], Argument("What you need, in words.", "TEXT...", kind=tuple)]
    filters: Annotated[
        tuple[str, ...],
        _option(
            "Only entries with this value at a field path, such as tags=finance or "
            "card.bindings=GRPC; repeatable. Values of one path are alternatives. Without type=, "
            "only A2A agents are found.",
            "PATH=VALUE",
            "--filter",
        ),
    ] = ()
    limit: Annotated[int, _option("The most agents to show.", "N")] = 10
    federation: Annotated[
        str,
        _option(
            "Have the registry ask other registries, name them, or neither.",
            choices=("auto", "referrals", "none"),
        ),
    ] = "auto"


@COMMANDS.ask("search", SEARCH_EXAMPLES)
async def search(call: Any, publisher: Any, options: Search) -> int:
    """Search for agents by what you need; the best match comes first.

    The score (0 to 100) says how well an agent matches, and nothing about trust. Names and
    descriptions are untrusted texts; texts that try to instruct a language model are marked.
    """
    asked, need, mode = publisher.registry, " ".join(options.text), options.federation
    output: Output = call.output
    wanted = parse_filters(options.filters)
    with wrong_usage():
        found = await asked.find(need, filter=wanted, limit=options.limit, federation=mode)
    named = await asked.referrals(need) if mode == "referrals" else ()
    if output.is_json:
        document: dict[str, Any] = {"results": [_document(each) for each in found]}
        if mode == "referrals":
            document["referrals"] = list(named)
        output.document(document)
        return 0
    _write_found(output, found, asked.name)
    for each in named:
        output.text.field("Registry", f"{each.display_name} at {each.url}")
    # An identifier is untrusted: the user must not copy one that looks like an option.
    if found and not found[0].identifier.startswith("-"):
        output.note(f"show one: {call.command(['agents', 'show', found[0].identifier])}")
    if found and not found[0].marks:
        _note_call(output, found[0])
    return 0


@COMMANDS.ask("show", SHOW_EXAMPLES)
async def show(call: Any, publisher: Any, options: Identified) -> int:
    """Show a registry's information about one agent: its address, proofs and health."""
    from parley.registry.catalog.reading import write_entry
    from parley.registry.commands.publishing import write_entry_text

    output: Output = call.output
    with wrong_usage():
        found = await publisher.registry.agent(options.identifier)
    if output.is_json:
        details = {"details": dict(found.details)} if found.details else {}
        output.document({**write_entry(found.entry), **details})
        return 0
    write_entry_text(output.text, found)
    if problem := _note_call(output, found):
        output.warn(problem)
    return 0


# Commands of publishers: their entries, their domains, and heartbeats of their agents.

PUBLISH_EXAMPLES = """\
  parley agents publish https://agents.example.com       the catalog of a server
  parley agents publish ./ai-catalog.json --audience scope:partners
  parley agents publish ./ai-catalog.json --replace      withdraw all other entries"""

PROVE_EXAMPLES = """\
  parley agents prove example.com                 print the text to publish, in DNS or a file
  parley agents prove example.com --check         let the registry look for the text
  parley agents prove example.com --give-up       release the domain"""


class Publish(AskedRegistry, frozen=True, kw_only=True):
    """The options of ``parley agents publish``."""

    reference: Annotated[
        str, Argument("A server, a catalog's address, or a catalog file.", "URL|FILE")
    ]
    audience: Annotated[
        tuple[str, ...],
        _option(
            "The audience of the entries: public, authenticated, caller:ID or scope:NAME; repeat "
            "it.",
            "WHO",
            default="unchanged, at first public",
        ),
    ] = ()
    probe: Annotated[
        str,
        _option(
            "A message with which the registry may probe the agents, once an hour at most. "
            "Without it the registry never sends them messages.",
            "TEXT",
        ),
    ] = ""
    replace: Annotated[bool, _option("Withdraw all other entries that you have published.")] = False


@COMMANDS.ask("publish", PUBLISH_EXAMPLES)
async def publish(call: Any, publisher: Any, options: Publish) -> int:
    """Publish the agents of a catalog in a registry.

    You must have proved their publisher's domain: parley agents prove. Publishing the same again
    changes nothing.
    """
    from parley.registry.commands.publishing import catalog_at, show_report

    catalog = await catalog_at(call.settings, call.output, options.reference)
    report = await publisher.publish(
        catalog,
        audience=options.audience or None,
        probe=options.probe or None,
        replace=options.replace,
    )
    return show_report(call.output, report)


class Prove(AskedRegistry, frozen=True, kw_only=True):
    """The options of ``parley agents prove``."""

    domain: Annotated[str, Argument("The domain of a publisher.", "DOMAIN")]
    check: Annotated[bool, _option("The text is published: let the registry look for it.")] = False
    give_up: Annotated[
        bool, _option("Release the domain; entries that depend on it are no longer listed.")
    ] = False
    origin: Annotated[
        str,
        _option(
            "The address of the document, only for domains of this machine (*.localhost).", "URL"
        ),
    ] = ""


@COMMANDS.ask("prove", PROVE_EXAMPLES)
async def prove(call: Any, publisher: Any, options: Prove) -> int:
    """Prove to a registry that a domain is yours: by a TXT record, or by a document.

    Without options it prints the text to publish. Leave it there: the registry checks it every day.
    """
    from parley.registry.commands.publishing import show_challenge, show_proof

    domain, origin = options.domain, options.origin
    if options.check and options.give_up:
        raise UsageFailure("give --check or --give-up, but not both")
    if options.give_up:
        await publisher.release(domain)
        call.output.note(f"{domain} is no longer yours in this registry")
    elif options.check:
        show_proof(call.output, await publisher.prove(domain, origin=origin))
    else:
        show_challenge(call.output, await publisher.challenge(domain, origin=origin))
    return 0


@COMMANDS.ask("published")
async def published(call: Any, publisher: Any, options: AskedRegistry) -> int:
    """Show what you have published in a registry, with its state, and your domains."""
    from parley.registry.commands.publishing import show_own

    show_own(call.output, await publisher.published())
    return 0


@COMMANDS.ask("withdraw")
async def withdraw(call: Any, publisher: Any, options: Published) -> int:
    """Withdraw entries that you have published: searches no longer find them."""
    output = call.output
    done = {each: await publisher.withdraw(each) for each in options.identifiers}
    if output.is_json:
        output.document({"withdrawn": done})
    for each, count in done.items():
        output.note(f"{each} is withdrawn" if count else f"{each} was withdrawn before")
    return 0


@COMMANDS.ask("heartbeat")
async def heartbeat(call: Any, publisher: Any, options: Published) -> int:
    """Report once that your published agents are alive; a server does so by itself (parley serve
    --registry).
    """
    output = call.output
    answer = await publisher.beat(options.identifiers)
    if output.is_json:
        output.document(answer)
    for each in answer.get("alive", ()):
        wait = answer.get("interval", 30)
        output.note(f"{each} is alive; the next heartbeat is due within {wait:g} s")
    for each in answer.get("unknown", ()):
        output.warn(f"{each} is not an entry of yours")
    return 1 if answer.get("unknown") else 0


# Commands of operators: sources, and decisions on their entries.

IMPORT_EXAMPLES = """\
  parley agents import ./ai-catalog.json          you vouch for its entries
  parley agents import example.com                its catalogs are found, and read regularly
  parley agents import https://example.com/agents.json --vouch"""

REFRESH_EXAMPLES = """\
  parley agents refresh example.com               its catalogs, and their cards
  parley agents refresh https://example.com/.well-known/ard.json"""


class ImportOptions(AskedRegistry, frozen=True, kw_only=True):
    """The options of ``parley agents import``."""

    references: Annotated[
        tuple[str, ...],
        Argument(
            "Catalog files, addresses of catalogs, domains.", "URL|DOMAIN|FILE...", kind=tuple
        ),
    ]
    vouch: Annotated[
        bool,
        _option("Vouch for the entries of catalogs by address as well, whatever their domains."),
    ] = False
    replace: Annotated[
        bool, _option("Withdraw entries of an earlier import of this file that are not in it now.")
    ] = False


@COMMANDS.ask("import", IMPORT_EXAMPLES)
async def import_(call: Any, publisher: Any, options: ImportOptions) -> int:
    """Import catalogs as the operator of a registry (scope registry:operate).

    Entries of a file are listed: you vouch for them. A domain or an address is read regularly from
    now on, and its entries must belong to its own domain.
    """
    from parley.registry.commands.publishing import bring_in

    return max(
        [
            await bring_in(call, publisher, each, vouches=options.vouch, replace=options.replace)
            for each in options.references
        ]
    )


class Waiting(AskedRegistry, frozen=True, kw_only=True):
    """The options of ``parley agents waiting``."""

    standing: Annotated[
        tuple[str, ...],
        _option("Another standing, such as listed or withdrawn; repeat it.", "STANDING"),
    ] = ()


@COMMANDS.ask("waiting")
async def waiting(call: Any, publisher: Any, options: Waiting) -> int:
    """Show which entries are held, rejected or pending, which sources are not read, and why (for
    operators).
    """
    from parley.registry.commands.publishing import show_waiting

    found = await publisher.waiting(options.standing)
    show_waiting(call.output, found, await publisher.sources())
    return 0


class Refresh(AskedRegistry, frozen=True, kw_only=True):
    """The options of ``parley agents refresh``."""

    references: Annotated[
        tuple[str, ...],
        Argument("Sources that the registry reads.", "URL|DOMAIN|FILE...", kind=tuple),
    ]


@COMMANDS.ask("refresh", REFRESH_EXAMPLES)
async def refresh(call: Any, publisher: Any, options: Refresh) -> int:
    """Have a registry read sources again now, with all cards (for operators)."""
    from parley.registry.commands.publishing import show_sources

    found = [each for url in options.references for each in await publisher.refresh(url)]
    return show_sources(call.output, found)


class DecideOptions(Identified, frozen=True, kw_only=True):
    """The options of ``parley agents approve`` and ``reject``."""

    reason: Annotated[
        str, _option("The reason, for the audit log and the owner of the entry.", "TEXT")
    ] = ""
    source: Annotated[str, _option("The source, if several have the entry.", "SOURCE")] = ""


@COMMANDS.ask("approve")
async def approve(call: Any, publisher: Any, options: DecideOptions) -> int:
    """List a held entry in its current form (for operators)."""
    return await _decide(call, publisher, options, "listed")


@COMMANDS.ask("reject")
async def reject(call: Any, publisher: Any, options: DecideOptions) -> int:
    """Reject an entry, whatever its source sends later (for operators)."""
    return await _decide(call, publisher, options, "rejected")


async def _decide(call: Any, publisher: Any, options: DecideOptions, standing: str) -> int:
    from parley.registry.commands.publishing import show_entries

    found = await publisher.decide(
        options.identifier, standing, options.reason, source=options.source
    )
    show_entries(call.output, [found])
    return 0


def parse_filters(given: Iterable[str]) -> dict[str, list[str]]:
    """Return the filters of ``--filter``. Raises ``UsageFailure``."""
    found: dict[str, list[str]] = {}
    for each in given:
        path, equals, value = each.partition("=")
        if not path.strip() or not equals or not value.strip():
            raise UsageFailure(
                f"--filter: {each!r} is not of the form PATH=VALUE, such as tags=finance"
            )
        found.setdefault(path.strip(), []).append(value.strip())
    return found


def _note_call(output: Output, found: FoundAgent) -> str:
    """Print the command that calls an agent; return the reason if there is none."""
    from parley.cli.output.text import shell_words
    from parley.client.errors import CardNotFound
    from parley.host.program import invocation

    try:
        reference = found.reference
    except CardNotFound as error:
        return str(error)
    if isinstance(reference, str):
        output.note(f"call it: {shell_words([*invocation(), 'send', '-a', reference, 'Hello'])}")
    return ""


def _write_found(output: Output, found: list[FoundAgent], name: str) -> None:
    from parley.registry.commands.publishing import agent_table

    output.text.field("Registry", name)
    if found:
        output.text.block("Agents", "\n".join(agent_table(found)))
        return
    output.text.field("Agents", "none")
    output.note("no agent matches; use other words, or fewer filters")


def _document(found: FoundAgent) -> dict[str, Any]:
    """Return a result in the JSON form of registries."""
    from parley.registry.catalog.reading import write_entry

    return {**write_entry(found.entry), "score": found.score, "source": found.source}
