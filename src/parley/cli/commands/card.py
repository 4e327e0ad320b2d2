"""``parley card``: fetch and show an agent card, and check it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

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


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="card", help="Look at agent cards.")

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


async def _get(call: AgentCall, *, validate: bool = False, only_check: bool = False) -> None:
    from parley.cli.calls.agent_call import RETRY
    from parley.cli.output.card_text import write_card
    from parley.cli.output.redaction import without_user
    from parley.client.auth.authorizer import Authorizer
    from parley.client.auth.credentials import Credentials
    from parley.client.card.interface import choose
    from parley.client.card.resolver import CardResolver
    from parley.client.errors import CardInvalid, NoCommonInterface, OriginNotTrusted

    settings, output = call.settings, call.output
    try:
        reference, credentials = Credentials.from_reference(
            settings.agent_card,
            headers=call.headers,
            bearer=settings.bearer,
            api_key=settings.api_key,
            trust_origins=settings.trust_origin,
            insecure=settings.insecure,
        )
    except ValueError as error:
        raise UsageFailure(str(error)) from None
    async with call.http() as http:
        auth = Authorizer(
            credentials,
            None if call.uses_logins else (),
            http=http,
            address=without_user(settings.agent_card),
        )
        http.certificate_for = auth.may_see_certificate
        resolver = CardResolver(
            http, credentials=credentials, auth=auth, timeout=call.response_timeout, retry=RETRY
        )
        try:
            resolved = await resolver.resolve(reference)
        finally:
            await auth.aclose()
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
        write_card(output.text, resolved.card, selected, verbose=settings.verbose)


def _validate(call: AgentCall, raw: bytes) -> None:
    from parley.cli.validation import problems

    _refuse(problems(raw))
    call.output.note("the card is valid")


def _check(call: AgentCall, raw: bytes) -> None:
    from parley.cli.validation import exposures, problems

    _refuse(problems(raw) + exposures(raw))
    call.output.note("the card is valid, and no secret was found in it")


def _refuse(found: list[str]) -> None:
    if found:
        raise CommandFailure(
            "A2ACLI_ERR_CARD_INVALID", "\n".join(["the card is not valid:", *found])
        )


async def _get_extended(call: AgentCall) -> None:
    from parley.cli.output.card_text import write_card
    from parley.model.operations import BY_NAME

    output = call.output
    async with call.agent() as agent:
        BY_NAME["GetExtendedAgentCard"].check(agent.card.capabilities)
        call.require_scheme(agent.card)
        card = await agent.extended_card()
        if output.is_json:
            output.document(card)
        else:
            write_card(output.text, card, agent.interface, verbose=call.settings.verbose)
