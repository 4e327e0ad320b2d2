"""``parley card``: fetches, shows, validates and signs an agent card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from parley.cli.command import Commands
from parley.cli.commands import signing_keys
from parley.cli.output.failures import FAILED, CommandFailure, UsageFailure, wrong_usage
from parley.cli.output.streams import Output
from parley.cli.settings.options import (
    CLIENT_OPTIONS,
    EXIT_HELP,
    LOCAL_OPTIONS,
    SOURCES_HELP,
    CommandOption,
)
from parley.cli.settings.table import CommandSettings
from parley.cli.store.acts import EXITS, Record, Recorded, with_record

if TYPE_CHECKING:
    from parley.cli.calls.agent_call import AgentCall
    from parley.client.card.trust import CardCheck
    from parley.model.cards import AgentCard, AgentInterface

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
  0  trusted: a signature by a trusted key is valid
  1  not trusted, or not a card          2  wrong usage
  3  card not reachable                  4  credentials missing or rejected
  5  --timeout ran out"""

SIGN_EXAMPLES = """\b
Examples:
  parley card sign -a ./card.json --signing-keys signing-keys.json > signed.json
  parley card sign -a ./card.json --signing-keys signing-keys.json \\
      --jku https://agents.example.com/.well-known/jwks.json > signed.json"""

ENDS = f"{EXIT_HELP}\n\n{SOURCES_HELP}"
COVERS = {
    "received": "all of the card as it was sent",
    "exact": "the members of version 1.0, as the specification says",
    "stripped": "the members of version 1.0 that are not empty",
}
OUTCOMES = {"trusted": "verified", "not signed": "absent"}
"""The results of verifying a card, in the terms of the specification (§10.1)."""

COMMANDS = Commands("card", "Show, sign and verify agent cards.")


class CardOptions(msgspec.Struct, frozen=True):
    """The options of ``parley card get``."""

    extended: Annotated[
        bool,
        CommandOption("Show the agent's extended card, for authenticated callers.", panel="Card"),
    ] = False
    validate: Annotated[
        bool, CommandOption("Check the card against the schema of the protocol.", panel="Card")
    ] = False


@COMMANDS.add("get", *CLIENT_OPTIONS, epilog=f"{EXAMPLES}\n\n{ENDS}")
async def get(call: AgentCall, options: CardOptions) -> None:
    """Fetch an agent card and show it: who the agent is, what it can do, and where.

    "Selected" is the interface that parley would call. "Signature check" says whether a signature
    is verified, unverifiable or absent.
    """
    from parley.model.operations import BY_NAME

    if not options.extended:
        await _get(call, validate=options.validate)
        return
    async with call.agent(shows_trust=True) as agent:
        BY_NAME["GetExtendedAgentCard"].check(agent.card.capabilities)
        call.require_scheme(agent.card)
        _show(call, await agent.extended_card(), agent.interface, agent.card_trust)


@COMMANDS.add("validate", *CLIENT_OPTIONS, epilog=f"{VALIDATE_EXAMPLES}\n\n{ENDS}")
async def validate(call: AgentCall) -> None:
    """Check an agent card: the schema of the protocol, secrets, and unencrypted addresses.

    Secrets are tokens, keys, passwords in URLs, and random values in texts and parameters; they are
    not shown. Addresses of this machine may be http://.
    """
    await _get(call, only_check=True)


class VerifyOptions(msgspec.Struct, frozen=True):
    """The options of ``parley card verify``."""

    alg: Annotated[
        tuple[str, ...],
        CommandOption(
            "An accepted algorithm; repeatable.", "ALG", "Trust", default="ES256, RS256, EdDSA"
        ),
    ] = ()


@COMMANDS.add(
    "verify", *CLIENT_OPTIONS, epilog=f"{VERIFY_EXAMPLES}\n\n{VERIFY_EXITS}\n\n{SOURCES_HELP}"
)
async def verify(call: AgentCall, options: VerifyOptions) -> int:
    """Report whether a card is signed with a trusted key, with the result of each signature.

    Trusted keys are the keys of --card-keys, else the keys published at the card's own origin or at
    a --card-key-origin. One valid signature is enough. "exact" is the form that the specification
    signs, "received" the whole card as it was sent, "stripped" the form without empty members,
    which the official SDKs sign.
    """
    from parley.cli.cards import fetch_card
    from parley.client.card.trust import CardCheck
    from parley.client.errors import CardNotTrusted
    from parley.security.signing.keys import ALGORITHMS

    with wrong_usage():
        trust = call.trust(options.alg or ALGORITHMS, required=True)
    try:
        resolved, _, _ = await fetch_card(call, trust)
        check, name = resolved.check, resolved.card.name
    except CardNotTrusted as error:
        check, name = CardCheck("not trusted", str(error), error.verdict), ""
    _report(call.output, check, name)
    return 0 if check.is_trusted else FAILED


class Sign(Recorded, frozen=True):
    """The options of ``parley card sign``."""

    signing_keys: Annotated[
        str,
        CommandOption(
            "The private keys (parley keys generate). Without it PARLEY_SIGNING_KEYS_FILE names "
            "the file, or PARLEY_SIGNING_KEYS has the keys, as JSON.",
            "FILE",
            "Signing",
        ),
    ] = ""
    jku: Annotated[
        str,
        CommandOption(
            "The address of the public keys, for the protected header, such as "
            "https://agents.example.com/.well-known/jwks.json.",
            "URL",
            "Signing",
        ),
    ] = ""
    replace: Annotated[
        bool, CommandOption("Remove the card's existing signatures.", panel="Signing")
    ] = False


@COMMANDS.add("sign", *CLIENT_OPTIONS, epilog=f"{SIGN_EXAMPLES}\n\n{ENDS}")
def sign(settings: CommandSettings, output: Output, options: Sign) -> int:
    """Sign a card with the current keys, and write it to standard output.

    Each key signs each form of the card that verifiers use. Signatures by other parties stay. A
    server with --signing-keys and --url signs its cards itself.
    """
    return with_record(options.store, lambda record: _sign(settings, output, options, record))


def _sign(settings: CommandSettings, output: Output, options: Sign, record: Record) -> int:
    """Record and write the card with new signatures; return the exit status."""
    from parley.cli.calls.agent_call import AgentCall
    from parley.cli.cards import fetch_card
    from parley.security.signing.cards import sign_card
    from parley.security.signing.keys import SigningKeys, SigningKeysInvalid, missing_keys

    try:
        keys = SigningKeys.load(options.signing_keys)
    except SigningKeysInvalid as error:
        raise CommandFailure("PARLEY_ERR_KEY", str(error)) from None
    if keys is None:
        raise UsageFailure(
            missing_keys("parley card sign"), hint="parley keys generate signing-keys.json"
        )
    _check_jku(options.jku)
    call, signers, made = AgentCall(settings, output), keys.signers, []

    async def work() -> None:
        resolved, _, _ = await fetch_card(call, None)
        try:
            made.append(sign_card(resolved.raw, signers, jku=options.jku, replace=options.replace))
        except ValueError as error:
            raise CommandFailure(
                "A2ACLI_ERR_CARD_INVALID", f"the card cannot be signed: {error}"
            ) from None

    status = call.run(work)
    for card in made:
        record("card.signed", signers[0].kid, {"keys": [key.kid for key in signers]})
        output.json(card)
    return status


@COMMANDS.add("keygen", *LOCAL_OPTIONS, epilog=EXITS)
def keygen(settings: CommandSettings, output: Output, options: signing_keys.NewKeys) -> None:
    """Create a file of signing keys: the same as parley keys generate."""
    signing_keys.generate(settings, output, options)


def _check_jku(url: str) -> None:
    """Reject an address of keys that no verifier would fetch. Raises ``UsageFailure``."""
    from parley.client.card.verification import checked_jku
    from parley.client.origin import Origin

    if not url:
        return
    try:
        wrong = checked_jku(url, Origin.of(url), ())
    except ValueError as error:
        wrong = f"it is not {error}"
    if wrong:
        raise UsageFailure(f"--jku: {wrong}", hint="--jku https://host/.well-known/jwks.json")


def _report(output: Output, check: CardCheck, name: str) -> None:
    verdict = check.verdict
    signatures = () if verdict is None else verdict.signatures
    members = ("number", "kid", "alg", "jku", "form", "reason")
    document = {
        "trusted": check.is_trusted,
        "form": None if verdict is None else verdict.form,
        "reason": check.reason,
        "signatures": [{each: getattr(one, each) for each in members} for one in signatures],
    }
    fields = [("Card", name)] if name else []
    fields.append(("Trust", "trusted" if check.is_trusted else "not trusted"))
    if verdict is not None and verdict.form is not None:
        fields.append(("Signed", COVERS[verdict.form]))
    fields += [("Signature", str(each).removeprefix("signature ")) for each in signatures]
    if not check.is_trusted and not signatures:
        fields.append(("Why", check.reason))
    output.report(document, *fields)


async def _get(call: AgentCall, *, validate: bool = False, only_check: bool = False) -> None:
    from parley.cli.cards import exposures, fetch_card, problems
    from parley.client.card.interface import choose
    from parley.client.errors import CardInvalid, NoCommonInterface, OriginNotTrusted

    output = call.output
    with wrong_usage():
        trust = call.trust()

    def check(raw: bytes) -> None:
        if only_check:
            found = problems(raw) + exposures(raw)
            _validated(output, found, "the card is valid and contains no secrets")
        elif validate:
            _validated(output, problems(raw), "the card is valid")

    try:
        resolved, credentials, http = await fetch_card(call, trust)
    except CardInvalid as error:
        if error.raw:
            check(error.raw)
        raise
    check(resolved.raw)
    if only_check:
        return
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
    _show(call, resolved.card, selected, resolved.check, raw=resolved.raw)


def _show(
    call: AgentCall,
    card: AgentCard,
    selected: AgentInterface | None,
    check: CardCheck,
    *,
    raw: bytes = b"",
) -> None:
    """Show a card, and the result of its signatures; as JSON, exactly as the agent sent it."""
    from parley.cli.output.rendering import write_card
    from parley.model.struct import encode

    output, signed = call.output, OUTCOMES.get(check.state, "unverifiable")
    if output.is_json:
        output.json(raw or encode(card))
        output.note(f"signature check: {signed}")
        return
    verbose = call.settings.verbose
    write_card(output.text, card, selected, check=check, signed=signed, verbose=verbose)


def _validated(output: Output, found: list[str], what: str) -> None:
    if found:
        raise CommandFailure(
            "A2ACLI_ERR_CARD_INVALID", "\n".join(["the card is not valid:", *found])
        )
    output.note(what)
