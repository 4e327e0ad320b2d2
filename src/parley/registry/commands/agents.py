"""``parley agents``: agents found by need, in a registry or a catalog, and changes of its list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import settings_command
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.registry.client.found import FoundAgent
    from parley.registry.served.registration import RegistryPublisher

ASKING = (
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
"""The settings of commands that ask a registry."""

PANEL = "Registry"

REGISTRY_EXITS = """\b
Exit status:
  0  done      1  failed, or not found      2  wrong usage
  3  registry out of reach                  4  credentials missing or refused
  5  --timeout ran out"""

SOURCES = """\b
The registry is what --registry or PARLEY_REGISTRY names: its address, a domain
or the address of a catalog that names one, or a catalog file. There is no
default. Its credentials are --bearer or --api-key, a login (parley auth login),
or PARLEY_TOKEN with PARLEY_AUTH_ORIGIN; those of agents never go there."""


def registry_option() -> Any:
    """Return the option that names the registry."""
    return typer.Option(
        "",
        "--registry",
        envvar="PARLEY_REGISTRY",
        metavar="URL|DOMAIN|FILE",
        help="The registry: its address, a domain, or a catalog file. PARLEY_REGISTRY names it "
        "too.",
        show_default=False,
        show_envvar=False,
        rich_help_panel=PANEL,
    )


def bearer_option() -> Any:
    """Return the option with a token for the registry."""
    return typer.Option(
        "",
        "--bearer",
        envvar="PARLEY_REGISTRY_BEARER",
        metavar="TOKEN",
        help="A bearer token for the registry. Better in PARLEY_REGISTRY_BEARER.",
        show_default=False,
        show_envvar=False,
        rich_help_panel=PANEL,
    )


def api_key_option() -> Any:
    """Return the option with an API key for the registry."""
    return typer.Option(
        "",
        "--api-key",
        envvar="PARLEY_REGISTRY_API_KEY",
        metavar="KEY",
        help="An API key for the registry. Better in PARLEY_REGISTRY_API_KEY.",
        show_default=False,
        show_envvar=False,
        rich_help_panel=PANEL,
    )


# ``parley agents publish`` and the other commands that change what a registry lists.

PUBLISH_EXAMPLES = """\b
Examples:
  parley agents publish https://agents.example.com       the catalog of a server
  parley agents publish ./ai-catalog.json --audience scope:partners
  parley agents publish ./ai-catalog.json --replace      withdraw what is not in it"""

PROVE_EXAMPLES = """\b
Examples:
  parley agents prove example.com                 says what to set, in DNS or a file
  parley agents prove example.com --check         has it looked for
  parley agents prove example.com --give-up       is not yours any more"""

IMPORT_EXAMPLES = """\b
Examples:
  parley agents import ./ai-catalog.json          you vouch for its entries
  parley agents import example.com                its catalogs are looked for, and read again
  parley agents import https://example.com/agents.json --vouch"""

EXITS = f"{REGISTRY_EXITS}\n\n{SOURCES}"


def _add_publish(group: typer.Typer) -> None:
    @settings_command(group, "publish", *ASKING, epilog=f"{PUBLISH_EXAMPLES}\n\n{EXITS}")
    def publish(
        settings: CommandSettings,
        output: Output,
        reference: str = typer.Argument(
            ..., metavar="URL|FILE", help="A server, a catalog's address, or a catalog file."
        ),
        audience: list[str] = typer.Option(  # noqa: B008
            [],
            "--audience",
            metavar="WHO",
            help="Who sees the entries: public, authenticated, caller:ID or scope:NAME; repeat it. "
            "[default: as before, at first public]",
            show_default=False,
            rich_help_panel=PANEL,
        ),
        probe: str = typer.Option(
            "",
            "--probe",
            metavar="TEXT",
            help="A message that the registry may probe the agents with, once an hour at most. "
            "Without it no message is ever sent to them.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
        replace: bool = typer.Option(
            False,
            "--replace",
            help="Withdraw all other entries that you have published.",
            rich_help_panel=PANEL,
        ),
        registry: str = registry_option(),
        registry_bearer: str = bearer_option(),
        registry_api_key: str = api_key_option(),
    ) -> int:
        """Publish the agents of a catalog in a registry.

        Their publisher's domain has to be proved yours: parley agents prove. Publishing the same
        again changes nothing.
        """

        async def work(publisher: RegistryPublisher) -> int:
            from parley.cli.calls.agent_call import AgentCall
            from parley.registry.commands.publishing import catalog_at, show_report

            catalog = await catalog_at(AgentCall(settings, output), reference)
            report = await publisher.publish(
                catalog, audience=audience or None, probe=probe or None, replace=replace
            )
            return show_report(output, report)

        return _run(settings, output, registry, registry_bearer, registry_api_key, work)


def _add_prove(group: typer.Typer) -> None:
    @settings_command(group, "prove", *ASKING, epilog=f"{PROVE_EXAMPLES}\n\n{EXITS}")
    def prove(
        settings: CommandSettings,
        output: Output,
        domain: str = typer.Argument(..., metavar="DOMAIN", help="The domain of a publisher."),
        check: bool = typer.Option(
            False, "--check", help="It is set: have it looked for.", rich_help_panel=PANEL
        ),
        give_up: bool = typer.Option(
            False,
            "--give-up",
            help="The domain is not yours any more; what rests on it is not listed.",
            rich_help_panel=PANEL,
        ),
        origin: str = typer.Option(
            "",
            "--origin",
            metavar="URL",
            help="Where the document is, for domains of this machine (*.localhost) alone.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
        registry: str = registry_option(),
        registry_bearer: str = bearer_option(),
        registry_api_key: str = api_key_option(),
    ) -> int:
        """Prove to a registry that a domain is yours: by a TXT record, or by a document.

        Without options it says what to set. Leave it there: the registry looks for it every day.
        """
        if check and give_up:
            raise UsageFailure("give --check or --give-up, but not both")

        async def work(publisher: RegistryPublisher) -> int:
            from parley.registry.commands.publishing import show_challenge, show_proof

            if give_up:
                await publisher.release(domain)
                output.note(f"{domain} is not yours in this registry any more")
            elif check:
                show_proof(output, await publisher.prove(domain, origin=origin))
            else:
                show_challenge(output, await publisher.challenge(domain, origin=origin))
            return 0

        return _run(settings, output, registry, registry_bearer, registry_api_key, work)


def _add_own(group: typer.Typer) -> None:
    @settings_command(group, "published", *ASKING, epilog=EXITS)
    def published(
        settings: CommandSettings,
        output: Output,
        registry: str = registry_option(),
        registry_bearer: str = bearer_option(),
        registry_api_key: str = api_key_option(),
    ) -> int:
        """Show what you have published in a registry, with its state, and your domains."""

        async def work(publisher: RegistryPublisher) -> int:
            from parley.registry.commands.publishing import show_own

            show_own(output, await publisher.published())
            return 0

        return _run(settings, output, registry, registry_bearer, registry_api_key, work)


def _add_withdraw(group: typer.Typer) -> None:
    @settings_command(group, "withdraw", *ASKING, epilog=EXITS)
    def withdraw(
        settings: CommandSettings,
        output: Output,
        identifiers: list[str] = typer.Argument(  # noqa: B008
            ..., metavar="IDENTIFIER...", help="urn:air:..., as publish shows it."
        ),
        registry: str = registry_option(),
        registry_bearer: str = bearer_option(),
        registry_api_key: str = api_key_option(),
    ) -> int:
        """Withdraw entries that you have published: they are not found any more."""

        async def work(publisher: RegistryPublisher) -> int:
            done = {each: await publisher.withdraw(each) for each in identifiers}
            if output.is_json:
                output.document({"withdrawn": done})
            for each, count in done.items():
                output.note(f"{each} is withdrawn" if count else f"{each} was withdrawn before")
            return 0

        return _run(settings, output, registry, registry_bearer, registry_api_key, work)


def _add_heartbeat(group: typer.Typer) -> None:
    @settings_command(group, "heartbeat", *ASKING, epilog=EXITS)
    def heartbeat(
        settings: CommandSettings,
        output: Output,
        identifiers: list[str] = typer.Argument(  # noqa: B008
            ..., metavar="IDENTIFIER...", help="urn:air:..., as publish shows it."
        ),
        registry: str = registry_option(),
        registry_bearer: str = bearer_option(),
        registry_api_key: str = api_key_option(),
    ) -> int:
        """Say once that agents you have published are alive; a server does so by itself
        (parley serve --registry).
        """

        async def work(publisher: RegistryPublisher) -> int:
            answer = await publisher.beat(identifiers)
            if output.is_json:
                output.document(answer)
            for each in answer.get("alive", ()):
                output.note(f"{each} is alive; the next heartbeat is wanted within "
                            f"{answer.get('interval', 30):g} s")  # fmt: skip
            for each in answer.get("unknown", ()):
                output.warn(f"{each} is not published by you")
            return 1 if answer.get("unknown") else 0

        return _run(settings, output, registry, registry_bearer, registry_api_key, work)


def _add_import(group: typer.Typer) -> None:
    @settings_command(group, "import", *ASKING, epilog=f"{IMPORT_EXAMPLES}\n\n{EXITS}")
    def import_(
        settings: CommandSettings,
        output: Output,
        references: list[str] = typer.Argument(  # noqa: B008
            ..., metavar="URL|DOMAIN|FILE...", help="Catalog files, catalogs' addresses, domains."
        ),
        vouch: bool = typer.Option(
            False,
            "--vouch",
            help="Answer for the entries of catalogs by address too, whatever their domains.",
            rich_help_panel=PANEL,
        ),
        replace: bool = typer.Option(
            False,
            "--replace",
            help="Withdraw what was imported from a file of this name before and is not in it.",
            rich_help_panel=PANEL,
        ),
        registry: str = registry_option(),
        registry_bearer: str = bearer_option(),
        registry_api_key: str = api_key_option(),
    ) -> int:
        """Import catalogs as the operator of a registry (scope registry:operate).

        Entries of a file are listed: you vouch for them. A domain or an address is read from now
        on, and its entries have to be of its own domain.
        """

        async def work(publisher: RegistryPublisher) -> int:
            from parley.cli.calls.agent_call import AgentCall
            from parley.registry.commands.publishing import bring_in

            call = AgentCall(settings, output)
            found = [
                await bring_in(call, output, publisher, each, vouches=vouch, replace=replace)
                for each in references
            ]
            return max(found)

        return _run(settings, output, registry, registry_bearer, registry_api_key, work)


def _add_decisions(group: typer.Typer) -> None:
    @settings_command(group, "waiting", *ASKING, epilog=EXITS)
    def waiting(
        settings: CommandSettings,
        output: Output,
        standing: list[str] = typer.Option(  # noqa: B008
            [],
            "--standing",
            metavar="STANDING",
            help="Another standing, such as listed or withdrawn; repeat it.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
        registry: str = registry_option(),
        registry_bearer: str = bearer_option(),
        registry_api_key: str = api_key_option(),
    ) -> int:
        """Show which entries are held, rejected or pending, and why (for operators)."""

        async def work(publisher: RegistryPublisher) -> int:
            from parley.registry.commands.publishing import show_entries

            show_entries(output, await publisher.waiting(standing))
            return 0

        return _run(settings, output, registry, registry_bearer, registry_api_key, work)

    for name, decided, doc in (
        ("approve", "listed", "List an entry that is held, as it is now (for operators)."),
        ("reject", "rejected", "Reject an entry, whatever its source sends (for operators)."),
    ):
        _add_decision(group, name, decided, doc)


def _add_decision(group: typer.Typer, name: str, decided: str, doc: str) -> None:
    def decide(
        settings: CommandSettings,
        output: Output,
        identifier: str = typer.Argument(..., metavar="IDENTIFIER", help="urn:air:..."),
        reason: str = typer.Option(
            "",
            "--reason",
            metavar="TEXT",
            help="Why: it is in the audit, and the owner of the entry reads it.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
        source: str = typer.Option(
            "",
            "--source",
            metavar="SOURCE",
            help="Which of several sources that have the entry.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
        registry: str = registry_option(),
        registry_bearer: str = bearer_option(),
        registry_api_key: str = api_key_option(),
    ) -> int:
        async def work(publisher: RegistryPublisher) -> int:
            from parley.registry.commands.publishing import show_entries

            show_entries(
                output, [await publisher.decide(identifier, decided, reason, source=source)]
            )
            return 0

        return _run(settings, output, registry, registry_bearer, registry_api_key, work)

    decide.__doc__ = doc
    settings_command(group, name, *ASKING, epilog=EXITS)(decide)


def _run(
    settings: CommandSettings,
    output: Output,
    registry: str,
    bearer: str,
    api_key: str,
    work: Callable[[RegistryPublisher], Awaitable[int]],
) -> int:
    from parley.registry.commands.registry_call import RegistryCall
    from parley.registry.served.registration import RegistryPublisher

    status = 0

    async def whole(remote: Any) -> None:
        nonlocal status
        status = await work(RegistryPublisher(remote))

    call = RegistryCall(settings, output, registry, bearer=bearer, api_key=api_key)
    return call.run(whole) or status


SEARCH_EXAMPLES = """\b
Examples:
  parley agents search "currency conversion" --registry http://localhost:9010
  parley agents search "book a flight" --filter tags=travel --limit 5
  parley agents search "currency conversion" --registry agents.json -o json"""

SHOW_EXAMPLES = """\b
Examples:
  parley agents show urn:air:example.com:agent:currency \\
      --registry https://registry.example.com"""


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="agents", help="Find agents by what you need, and publish them.")
    _add_search(group)
    _add_show(group)
    _add_publish(group)
    _add_prove(group)
    _add_own(group)
    _add_withdraw(group)
    _add_heartbeat(group)
    _add_import(group)
    _add_decisions(group)


def _add_search(group: typer.Typer) -> None:
    @settings_command(
        group, "search", *ASKING, epilog=f"{SEARCH_EXAMPLES}\n\n{REGISTRY_EXITS}\n\n{SOURCES}"
    )
    def search(
        settings: CommandSettings,
        output: Output,
        text: list[str] = typer.Argument(..., metavar="TEXT", help="What you need, in words."),  # noqa: B008
        filters: list[str] = typer.Option(  # noqa: B008
            [],
            "--filter",
            metavar="PATH=VALUE",
            help="Only entries with this value at a field path, such as tags=finance or "
            "card.bindings=GRPC; repeatable. Values of one path are alternatives. Without type=, "
            "A2A agents are looked for.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
        limit: int = typer.Option(
            10, "--limit", metavar="N", help="The most agents to show.", rich_help_panel=PANEL
        ),
        federation: str = typer.Option(
            "auto",
            "--federation",
            metavar="auto|referrals|none",
            help="Whether the registry asks others, names them, or neither.",
            rich_help_panel=PANEL,
        ),
        registry: str = registry_option(),
        registry_bearer: str = bearer_option(),
        registry_api_key: str = api_key_option(),
    ) -> int:
        """Search for agents by what you need; the best match comes first.

        The score (0 to 100) says how well an agent matches, and nothing about trust. Names and
        descriptions are texts of others; those that try to instruct a language model are marked.
        """
        from parley.registry.client.remote_registry import RemoteRegistry, mode_of
        from parley.registry.commands.registry_call import RegistryCall

        call = RegistryCall(
            settings, output, registry, bearer=registry_bearer, api_key=registry_api_key
        )
        wanted = parse_filters(filters)
        try:
            mode = mode_of(federation)
        except ValueError as error:
            raise UsageFailure(f"--federation: {error}") from None

        async def work(asked: RemoteRegistry) -> None:
            try:
                found = await asked.find(
                    " ".join(text), filter=wanted, limit=limit, federation=mode
                )
            except ValueError as error:
                raise UsageFailure(str(error)) from None
            named = await asked.referrals(" ".join(text)) if mode == "referrals" else ()
            if output.is_json:
                document: dict[str, Any] = {"results": [_document(each) for each in found]}
                if mode == "referrals":
                    document["referrals"] = list(named)
                output.document(document)
                return
            _write_found(output, found, asked.name)
            for each in named:
                output.text.field("Registry", f"{each.display_name} at {each.url}")
            # An identifier is a text of others: one that looks like an option is not to be copied.
            if found and not found[0].identifier.startswith("-"):
                output.note(f"show one: {call.command(['agents', 'show', found[0].identifier])}")
            if found and not found[0].marks:
                _note_call(output, found[0])

        return call.run(work)


def _add_show(group: typer.Typer) -> None:
    @settings_command(
        group, "show", *ASKING, epilog=f"{SHOW_EXAMPLES}\n\n{REGISTRY_EXITS}\n\n{SOURCES}"
    )
    def show(
        settings: CommandSettings,
        output: Output,
        identifier: str = typer.Argument(
            ..., metavar="IDENTIFIER", help="urn:air:..., as search shows it."
        ),
        registry: str = registry_option(),
        registry_bearer: str = bearer_option(),
        registry_api_key: str = api_key_option(),
    ) -> int:
        """Show what a registry knows of one agent: where it is, what is proved, how it is."""
        from parley.registry.catalog.reading import write_entry
        from parley.registry.client.remote_registry import RemoteRegistry
        from parley.registry.commands.publishing import write_entry_text
        from parley.registry.commands.registry_call import RegistryCall

        call = RegistryCall(
            settings, output, registry, bearer=registry_bearer, api_key=registry_api_key
        )

        async def work(asked: RemoteRegistry) -> None:
            try:
                found = await asked.agent(identifier)
            except ValueError as error:
                raise UsageFailure(str(error)) from None
            if output.is_json:
                details = dict(found.details)
                output.document(
                    {**write_entry(found.entry), **({"details": details} if details else {})}
                )
                return
            write_entry_text(output.text, found)
            if problem := _note_call(output, found):
                output.warn(problem)

        return call.run(work)


def parse_filters(given: list[str]) -> dict[str, list[str]]:
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
    """Write the command that calls an agent; return why there is none."""
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
    """Return a result as registries write it."""
    from parley.registry.catalog.reading import write_entry

    return {**write_entry(found.entry), "score": found.score, "source": found.source}
