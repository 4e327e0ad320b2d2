"""``parley agents``: agents found by need, in a registry or a catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import settings_command
from parley.cli.settings.registry import (
    ASKING,
    PANEL,
    REGISTRY_EXITS,
    SOURCES,
    api_key_option,
    bearer_option,
    registry_option,
)
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.client.registry.found import FoundAgent

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
    from parley.registry.commands.agents_publishing import register_publishing

    register_publishing(group)


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
        from parley.cli.calls.registry_call import RegistryCall
        from parley.client.registry.remote_registry import RemoteRegistry, mode_of

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
        from parley.cli.calls.registry_call import RegistryCall
        from parley.client.registry.remote_registry import RemoteRegistry
        from parley.registry.commands.agent_table import write_entry_text
        from parley.wire.catalog.entries import write_entry

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
    from parley.registry.commands.agent_table import agent_table

    output.text.field("Registry", name)
    if found:
        output.text.block("Agents", "\n".join(agent_table(found)))
        return
    output.text.field("Agents", "none")
    output.note("no agent matches; use other words, or fewer filters")


def _document(found: FoundAgent) -> dict[str, Any]:
    """Return a result as registries write it."""
    from parley.wire.catalog.entries import write_entry

    return {**write_entry(found.entry), "score": found.score, "source": found.source}
