"""``parley agents``: agents found by need, in a registry or a catalog, and changes of its list.

A command's function gets the call of its registry, and what is its own of the command line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import settings_command
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.registry.client.found import FoundAgent

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

EXITS = f"{REGISTRY_EXITS}\n\n{SOURCES}"


def _option(default: Any, flag: str, text: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(default, flag, metavar=metavar, help=text, rich_help_panel=PANEL, **more)


def _text(flag: str, metavar: str, text: str, **more: Any) -> Any:
    return _option("", flag, text, metavar, show_default=False, **more)


def _texts(flag: str, metavar: str, text: str) -> Any:
    return _option([], flag, text, metavar, show_default=False)


def _argument(metavar: str, text: str) -> Any:
    return typer.Argument(..., metavar=metavar, help=text)


_REGISTRY = {
    "registry": _text(
        "--registry",
        "URL|DOMAIN|FILE",
        "The registry: its address, a domain, or a catalog file. PARLEY_REGISTRY names it too.",
        envvar="PARLEY_REGISTRY",
        show_envvar=False,
    ),
    "registry_bearer": _text(
        "--bearer",
        "TOKEN",
        "A bearer token for the registry. Better in PARLEY_REGISTRY_BEARER.",
        envvar="PARLEY_REGISTRY_BEARER",
        show_envvar=False,
    ),
    "registry_api_key": _text(
        "--api-key",
        "KEY",
        "An API key for the registry. Better in PARLEY_REGISTRY_API_KEY.",
        envvar="PARLEY_REGISTRY_API_KEY",
        show_envvar=False,
    ),
}


def asking(
    group: typer.Typer, name: str, examples: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a command that asks a registry, with the options that name one.

    An async function gets the call and a ``RegistryPublisher``, and returns the exit status;
    another function gets the call alone.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(settings: CommandSettings, output: Output, **given: Any) -> int:
            from parley.registry.commands.registry_call import RegistryCall

            registry, bearer, api_key = (given.pop(each) for each in _REGISTRY)
            call = RegistryCall(settings, output, registry, bearer=bearer, api_key=api_key)
            if not inspect.iscoroutinefunction(function):
                return int(function(call, **given))
            status = 0

            async def work(remote: Any) -> None:
                nonlocal status
                from parley.registry.served.registration import RegistryPublisher

                status = await function(call, RegistryPublisher(remote), **given)

            return call.run(work) or status

        of_call = 2 if inspect.iscoroutinefunction(function) else 1
        own = [*inspect.signature(function, eval_str=True).parameters.values()][of_call:]
        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [each.replace(kind=keyword) for each in own]
        named = [
            inspect.Parameter(name, keyword, default=option, annotation=str)
            for name, option in _REGISTRY.items()
        ]
        first = [*inspect.signature(run).parameters.values()][:2]
        run.__signature__ = inspect.Signature([*first, *own, *named])  # type: ignore[attr-defined]
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        epilog = f"\b\nExamples:\n{examples}\n\n{EXITS}" if examples else EXITS
        settings_command(group, name, *ASKING, epilog=epilog)(run)
        return function

    return register


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="agents", help="Find agents by what you need, and publish them.")
    _add_finding(group)
    _add_publishing(group)
    _add_operating(group)


# Finding agents.

SEARCH_EXAMPLES = """\
  parley agents search "currency conversion" --registry http://localhost:9010
  parley agents search "book a flight" --filter tags=travel --limit 5
  parley agents search "currency conversion" --registry agents.json -o json"""

SHOW_EXAMPLES = """\
  parley agents show urn:air:example.com:agent:currency \\
      --registry https://registry.example.com"""


def _add_finding(group: typer.Typer) -> None:
    @asking(group, "search", SEARCH_EXAMPLES)
    def search(
        call: Any,
        text: list[str] = _argument("TEXT", "What you need, in words."),  # noqa: B008
        filters: list[str] = _option(  # noqa: B008
            [],
            "--filter",
            "Only entries with this value at a field path, such as tags=finance or "
            "card.bindings=GRPC; repeatable. Values of one path are alternatives. Without type=, "
            "A2A agents are looked for.",
            "PATH=VALUE",
            show_default=False,
        ),
        limit: int = _option(10, "--limit", "The most agents to show.", "N"),
        federation: str = _option(
            "auto",
            "--federation",
            "Whether the registry asks others, names them, or neither.",
            "auto|referrals|none",
        ),
    ) -> int:
        """Search for agents by what you need; the best match comes first.

        The score (0 to 100) says how well an agent matches, and nothing about trust. Names and
        descriptions are texts of others; those that try to instruct a language model are marked.
        """
        from parley.registry.client.remote_registry import RemoteRegistry, mode_of

        output: Output = call.output
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

        return int(call.run(work))

    @asking(group, "show", SHOW_EXAMPLES)
    def show(
        call: Any, identifier: str = _argument("IDENTIFIER", "urn:air:..., as search shows it.")
    ) -> int:
        """Show what a registry knows of one agent: where it is, what is proved, how it is."""
        from parley.registry.catalog.reading import write_entry
        from parley.registry.client.remote_registry import RemoteRegistry
        from parley.registry.commands.publishing import write_entry_text

        output: Output = call.output

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

        return int(call.run(work))


# Publishers: their entries, their domains, and that their agents are alive.

PUBLISH_EXAMPLES = """\
  parley agents publish https://agents.example.com       the catalog of a server
  parley agents publish ./ai-catalog.json --audience scope:partners
  parley agents publish ./ai-catalog.json --replace      withdraw what is not in it"""

PROVE_EXAMPLES = """\
  parley agents prove example.com                 says what to set, in DNS or a file
  parley agents prove example.com --check         has it looked for
  parley agents prove example.com --give-up       is not yours any more"""

_PUBLISHED = "urn:air:..., as publish shows it."


def _add_publishing(group: typer.Typer) -> None:
    @asking(group, "publish", PUBLISH_EXAMPLES)
    async def publish(
        call: Any,
        publisher: Any,
        reference: str = _argument("URL|FILE", "A server, a catalog's address, or a catalog file."),
        audience: list[str] = _texts(  # noqa: B008
            "--audience",
            "WHO",
            "Who sees the entries: public, authenticated, caller:ID or scope:NAME; repeat it. "
            "[default: as before, at first public]",
        ),
        probe: str = _text(
            "--probe",
            "TEXT",
            "A message that the registry may probe the agents with, once an hour at most. "
            "Without it no message is ever sent to them.",
        ),
        replace: bool = _option(
            False, "--replace", "Withdraw all other entries that you have published."
        ),
    ) -> int:
        """Publish the agents of a catalog in a registry.

        Their publisher's domain has to be proved yours: parley agents prove. Publishing the same
        again changes nothing.
        """
        from parley.cli.calls.agent_call import AgentCall
        from parley.registry.commands.publishing import catalog_at, show_report

        catalog = await catalog_at(AgentCall(call.settings, call.output), reference)
        report = await publisher.publish(
            catalog, audience=audience or None, probe=probe or None, replace=replace
        )
        return show_report(call.output, report)

    @asking(group, "prove", PROVE_EXAMPLES)
    async def prove(
        call: Any,
        publisher: Any,
        domain: str = _argument("DOMAIN", "The domain of a publisher."),
        check: bool = _option(False, "--check", "It is set: have it looked for."),
        give_up: bool = _option(
            False, "--give-up", "The domain is not yours any more; what rests on it is not listed."
        ),
        origin: str = _text(
            "--origin",
            "URL",
            "Where the document is, for domains of this machine (*.localhost) alone.",
        ),
    ) -> int:
        """Prove to a registry that a domain is yours: by a TXT record, or by a document.

        Without options it says what to set. Leave it there: the registry looks for it every day.
        """
        from parley.registry.commands.publishing import show_challenge, show_proof

        if check and give_up:
            raise UsageFailure("give --check or --give-up, but not both")
        if give_up:
            await publisher.release(domain)
            call.output.note(f"{domain} is not yours in this registry any more")
        elif check:
            show_proof(call.output, await publisher.prove(domain, origin=origin))
        else:
            show_challenge(call.output, await publisher.challenge(domain, origin=origin))
        return 0

    @asking(group, "published")
    async def published(call: Any, publisher: Any) -> int:
        """Show what you have published in a registry, with its state, and your domains."""
        from parley.registry.commands.publishing import show_own

        show_own(call.output, await publisher.published())
        return 0

    @asking(group, "withdraw")
    async def withdraw(
        call: Any,
        publisher: Any,
        identifiers: list[str] = _argument("IDENTIFIER...", _PUBLISHED),  # noqa: B008
    ) -> int:
        """Withdraw entries that you have published: they are not found any more."""
        output = call.output
        done = {each: await publisher.withdraw(each) for each in identifiers}
        if output.is_json:
            output.document({"withdrawn": done})
        for each, count in done.items():
            output.note(f"{each} is withdrawn" if count else f"{each} was withdrawn before")
        return 0

    @asking(group, "heartbeat")
    async def heartbeat(
        call: Any,
        publisher: Any,
        identifiers: list[str] = _argument("IDENTIFIER...", _PUBLISHED),  # noqa: B008
    ) -> int:
        """Say once that agents you have published are alive; a server does so by itself
        (parley serve --registry).
        """
        output = call.output
        answer = await publisher.beat(identifiers)
        if output.is_json:
            output.document(answer)
        for each in answer.get("alive", ()):
            wait = answer.get("interval", 30)
            output.note(f"{each} is alive; the next heartbeat is wanted within {wait:g} s")
        for each in answer.get("unknown", ()):
            output.warn(f"{each} is not published by you")
        return 1 if answer.get("unknown") else 0


# Operators: what is read, and what is listed of it.

IMPORT_EXAMPLES = """\
  parley agents import ./ai-catalog.json          you vouch for its entries
  parley agents import example.com                its catalogs are looked for, and read again
  parley agents import https://example.com/agents.json --vouch"""

REFRESH_EXAMPLES = """\
  parley agents refresh example.com               its catalogs, and their cards
  parley agents refresh https://example.com/.well-known/ard.json"""


def _add_operating(group: typer.Typer) -> None:
    @asking(group, "import", IMPORT_EXAMPLES)
    async def import_(
        call: Any,
        publisher: Any,
        references: list[str] = _argument(  # noqa: B008
            "URL|DOMAIN|FILE...", "Catalog files, catalogs' addresses, domains."
        ),
        vouch: bool = _option(
            False,
            "--vouch",
            "Answer for the entries of catalogs by address too, whatever their domains.",
        ),
        replace: bool = _option(
            False,
            "--replace",
            "Withdraw what was imported from a file of this name before and is not in it.",
        ),
    ) -> int:
        """Import catalogs as the operator of a registry (scope registry:operate).

        Entries of a file are listed: you vouch for them. A domain or an address is read from now
        on, and its entries have to be of its own domain.
        """
        from parley.cli.calls.agent_call import AgentCall
        from parley.registry.commands.publishing import bring_in

        asked = AgentCall(call.settings, call.output)
        found = [
            await bring_in(asked, call.output, publisher, each, vouches=vouch, replace=replace)
            for each in references
        ]
        return max(found)

    @asking(group, "waiting")
    async def waiting(
        call: Any,
        publisher: Any,
        standing: list[str] = _texts(  # noqa: B008
            "--standing", "STANDING", "Another standing, such as listed or withdrawn; repeat it."
        ),
    ) -> int:
        """Show which entries are held, rejected or pending, which sources are not read, and why
        (for operators).
        """
        from parley.registry.commands.publishing import show_waiting

        show_waiting(call.output, await publisher.waiting(standing), await publisher.sources())
        return 0

    @asking(group, "refresh", REFRESH_EXAMPLES)
    async def refresh(
        call: Any,
        publisher: Any,
        references: list[str] = _argument(  # noqa: B008
            "URL|DOMAIN|FILE...", "Sources that the registry reads."
        ),
    ) -> int:
        """Have a registry read sources again now, with all cards (for operators)."""
        from parley.registry.commands.publishing import show_sources

        found = [each for url in references for each in await publisher.refresh(url)]
        return show_sources(call.output, found)

    for name, decided, doc in (
        ("approve", "listed", "List an entry that is held, as it is now (for operators)."),
        ("reject", "rejected", "Reject an entry, whatever its source sends (for operators)."),
    ):
        _add_decision(group, name, decided, doc)


def _add_decision(group: typer.Typer, name: str, decided: str, doc: str) -> None:
    async def decide(
        call: Any,
        publisher: Any,
        identifier: str = _argument("IDENTIFIER", "urn:air:..."),
        reason: str = _text(
            "--reason", "TEXT", "Why: it is in the audit, and the owner of the entry reads it."
        ),
        source: str = _text("--source", "SOURCE", "Which of several sources that have the entry."),
    ) -> int:
        from parley.registry.commands.publishing import show_entries

        found = await publisher.decide(identifier, decided, reason, source=source)
        show_entries(call.output, [found])
        return 0

    decide.__doc__ = doc
    asking(group, name)(decide)


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
