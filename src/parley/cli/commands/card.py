"""``parley card``: fetch and show an agent card, and check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from parley.cli.commands.keys import algorithms_option, key_file_argument
from parley.cli.commands.store import EXITS, audit_option, with_record
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.options import CLIENT_OPTIONS, EXIT_HELP, SOURCES_HELP, settings_command
from parley.cli.settings.table import CommandSettings

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall

EXAMPLES = """\b
Examples:
  parley card get -a agents.example.com      the well-known path is added
  parley card get -a https://agents.example.com/cards/time.json
  parley card get -a ./card.json -o json
  parley card get -a agents.example.com --extended   with A2ACLI_BEARER set"""

VALIDATE_EXAMPLES = """\b
Examples:
  parley card validate -a https://agents.example.com
  parley card validate -a ./card.json"""

VERIFY_EXAMPLES = """\b
Examples:
  parley card verify -a https://agents.example.com
  parley card verify -a https://agents.example.com --card-keys partner-jwks.json
  parley card verify -a ./card.json --card-keys partner-jwks.json"""

VERIFY_EXITS = """\b
Exit status:
  0  trusted: one signature is of a trusted key
  1  not trusted, or not a card          2  wrong usage
  3  card out of reach                   4  credentials missing or refused
  5  --timeout ran out"""

SIGN_EXAMPLES = """\b
Examples:
  parley card sign -a ./card.json --signing-keys signing-keys.json > signed.json
  parley card sign -a ./card.json --signing-keys signing-keys.json \\
      --jku https://agents.example.com/.well-known/jwks.json > signed.json"""


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="card", help="Look at agent cards, sign and verify them.")

    @settings_command(
        group, "get", *CLIENT_OPTIONS, epilog=f"{EXAMPLES}\n\n{EXIT_HELP}\n\n{SOURCES_HELP}"
    )
    def get(
        settings: CommandSettings,
        output: Output,
        extended: bool = typer.Option(
            False,
            "--extended",
            help="Show the card that the agent has for authenticated callers.",
            show_default=False,
            rich_help_panel="Card",
        ),
        validate: bool = typer.Option(
            False,
            "--validate",
            help="Check the card against the schema of the protocol.",
            show_default=False,
            rich_help_panel="Card",
        ),
    ) -> int:
        """Fetch an agent card and show it: who the agent is, what it can do, and where.

        "Selected" is the interface that parley would call.
        """
        from parley.cli.calls.agent_call import AgentCall

        call = AgentCall(settings, output)
        return call.run(lambda: _get_extended(call) if extended else _get(call, validate=validate))

    @settings_command(
        group,
        "validate",
        *CLIENT_OPTIONS,
        epilog=f"{VALIDATE_EXAMPLES}\n\n{EXIT_HELP}\n\n{SOURCES_HELP}",
    )
    def validate(settings: CommandSettings, output: Output) -> int:
        """Check an agent card: the schema of the protocol, secrets, and unencrypted addresses.

        Secrets are tokens, keys, passwords in URLs, and random values in texts and parameters; they
        are not shown. Addresses of this machine may be http://.
        """
        from parley.cli.calls.agent_call import AgentCall

        call = AgentCall(settings, output)
        return call.run(lambda: _get(call, only_check=True))

    @settings_command(
        group,
        "verify",
        *CLIENT_OPTIONS,
        epilog=f"{VERIFY_EXAMPLES}\n\n{VERIFY_EXITS}\n\n{SOURCES_HELP}",
    )
    def verify(
        settings: CommandSettings,
        output: Output,
        alg: list[str] = typer.Option(  # noqa: B008
            [],
            "--alg",
            metavar="ALG",
            help="An algorithm that counts; may be repeated.  [default: ES256, RS256, EdDSA]",
            show_default=False,
            rich_help_panel="Trust",
        ),
    ) -> int:
        """Say whether a card is signed with a trusted key, and of each signature why or why not.

        Trusted are the keys of --card-keys, else those that are published at the card's own origin
        or at a --card-key-origin. One signature that verifies is enough. "exact" is the form that
        the specification signs, "received" the whole card as it was sent, "stripped" the form
        without empty members, which the official SDKs sign.
        """
        from parley.cli.cards import verify_card

        return verify_card(settings, output, alg)

    @settings_command(
        group, "sign", *CLIENT_OPTIONS, epilog=f"{SIGN_EXAMPLES}\n\n{EXIT_HELP}\n\n{SOURCES_HELP}"
    )
    def sign(
        settings: CommandSettings,
        output: Output,
        signing_keys: str = typer.Option(
            "",
            "--signing-keys",
            metavar="FILE",
            help="The private keys (parley keys generate). Without it PARLEY_SIGNING_KEYS_FILE "
            "names the file, or PARLEY_SIGNING_KEYS has the keys, as JSON.",
            show_default=False,
            rich_help_panel="Signing",
        ),
        jku: str = typer.Option(
            "",
            "--jku",
            metavar="URL",
            help="Where the public keys are, for the protected header, such as "
            "https://agents.example.com/.well-known/jwks.json.",
            show_default=False,
            rich_help_panel="Signing",
        ),
        replace: bool = typer.Option(
            False,
            "--replace",
            help="Leave out the signatures that the card has.",
            show_default=False,
            rich_help_panel="Signing",
        ),
        store: str = audit_option(panel="Signing"),
    ) -> int:
        """Sign a card with the current keys, and write it to standard output.

        Each key signs each form of the card that verifiers use. Signatures of others stay. A
        server that has --signing-keys and --url signs its cards itself.
        """
        from parley.cli.cards import sign_fetched

        return with_record(
            store,
            lambda record: sign_fetched(
                settings, output, signing_keys, record, jku=jku, replace=replace
            ),
        )

    @settings_command(group, "keygen", "output", "debug", epilog=EXITS)
    def keygen(
        settings: CommandSettings,
        output: Output,
        file: str = key_file_argument(),
        alg: list[str] = algorithms_option(),  # noqa: B008
        store: str = audit_option(),
    ) -> None:
        """Make a file of signing keys: the same as parley keys generate."""
        from parley.cli.signing_keys import generate

        with_record(store, lambda record: generate(output, file, alg, record))


async def _get(call: AgentCall, *, validate: bool = False, only_check: bool = False) -> None:
    from parley.cli.cards import fetch_card
    from parley.cli.output.rendering import write_card
    from parley.client.card.interface import choose
    from parley.client.errors import CardInvalid, NoCommonInterface, OriginNotTrusted

    settings, output = call.settings, call.output
    try:
        trust = call.trust()
    except ValueError as error:
        raise UsageFailure(str(error)) from None
    try:
        resolved, credentials, http = await fetch_card(call, trust)
    except CardInvalid as error:
        if error.raw and (only_check or validate):
            _check(call, error.raw)
        raise
    if only_check:
        _check(call, resolved.raw)
        return
    if validate:
        _validate(call, resolved.raw)
    selected = None
    try:
        choice = choose(
            resolved.card,
            call.bindings,
            version=call.version,
            card_url=resolved.url,
            credentials=resolved.bind(credentials),
            http=http,
        )
        selected = choice.candidates[0].interface
    except OriginNotTrusted as error:
        output.warn(f"{error.reason}; --trust-origin allows it")
    except (NoCommonInterface, CardInvalid) as error:
        output.warn(str(error))
    if output.is_json:
        output.json(resolved.raw)  # exactly as the agent sent it
    else:
        verbose = settings.verbose
        write_card(output.text, resolved.card, selected, check=resolved.check, verbose=verbose)


def _validate(call: AgentCall, raw: bytes) -> None:
    from parley.cli.cards import problems

    _refuse(problems(raw))
    call.output.note("the card is valid")


def _check(call: AgentCall, raw: bytes) -> None:
    from parley.cli.cards import exposures, problems

    _refuse(problems(raw) + exposures(raw))
    call.output.note("the card is valid, and no secret was found in it")


def _refuse(found: list[str]) -> None:
    if found:
        raise CommandFailure(
            "A2ACLI_ERR_CARD_INVALID", "\n".join(["the card is not valid:", *found])
        )


async def _get_extended(call: AgentCall) -> None:
    from parley.cli.output.rendering import write_card
    from parley.model.operations import BY_NAME

    output = call.output
    async with call.agent(shows_trust=True) as agent:
        BY_NAME["GetExtendedAgentCard"].check(agent.card.capabilities)
        call.require_scheme(agent.card)
        card = await agent.extended_card()
        if output.is_json:
            output.document(card)
        else:
            check, verbose = agent.card_trust, call.settings.verbose
            write_card(output.text, card, agent.interface, check=check, verbose=verbose)
