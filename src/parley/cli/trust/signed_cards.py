"""``parley card sign`` and ``verify``: signatures of cards in files and at addresses."""

from __future__ import annotations

from collections.abc import Sequence

from parley.cli.calls.agent_call import AgentCall
from parley.cli.calls.fetched_card import fetch_card
from parley.cli.output.failures import FAILED, CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.table import CommandSettings
from parley.cli.store.acts import Record
from parley.client.card.trust import CardCheck
from parley.client.card.verification import checked_jku
from parley.client.errors import CardNotTrusted
from parley.client.origin import Origin
from parley.security.signing.cards import sign_card
from parley.security.signing.keys import ALGORITHMS, SigningKeys, SigningKeysInvalid, missing_keys

_COVERS = {
    "received": "all of the card as it was sent",
    "exact": "the members of version 1.0, as the specification says",
    "stripped": "the members of version 1.0 that are not empty",
}


def verify_card(settings: CommandSettings, output: Output, algorithms: Sequence[str]) -> int:
    """Report whether the card of ``--agent-card`` is trusted; return the exit status."""
    call, found = AgentCall(settings, output), []
    try:
        trust = call.trust(algorithms or ALGORITHMS, required=True)
    except ValueError as error:
        raise UsageFailure(str(error)) from None

    async def verify() -> None:
        try:
            resolved, _, _ = await fetch_card(call, trust)
            check, name = resolved.check, resolved.card.name
        except CardNotTrusted as error:
            check, name = CardCheck("not trusted", str(error), error.verdict), ""
        _report(output, check, name)
        found.append(check.is_trusted)

    return call.run(verify) or (0 if found == [True] else FAILED)


def sign_fetched(
    settings: CommandSettings,
    output: Output,
    signing_keys: str,
    record: Record,
    *,
    jku: str,
    replace: bool,
) -> int:
    """Record and write the card of ``--agent-card`` with new signatures; return the exit status."""
    try:
        keys = SigningKeys.load(signing_keys)
    except SigningKeysInvalid as error:
        raise CommandFailure("PARLEY_ERR_KEY", str(error)) from None
    if keys is None:
        raise UsageFailure(
            missing_keys("parley card sign"), hint="parley keys generate signing-keys.json"
        )
    _check_jku(jku)
    call, signers, made = AgentCall(settings, output), keys.signers, []

    async def sign() -> None:
        resolved, _, _ = await fetch_card(call, None)
        try:
            made.append(sign_card(resolved.raw, signers, jku=jku, replace=replace))
        except ValueError as error:
            raise CommandFailure(
                "A2ACLI_ERR_CARD_INVALID", f"the card cannot be signed: {error}"
            ) from None

    status = call.run(sign)
    for card in made:
        record("card.signed", signers[0].kid, {"keys": [key.kid for key in signers]})
        output.json(card)
    return status


def _check_jku(url: str) -> None:
    """Refuse an address of keys that no verifier would ask. Raises ``UsageFailure``."""
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
    if output.is_json:
        output.document(
            {
                "trusted": check.is_trusted,
                "form": None if verdict is None else verdict.form,
                "reason": check.reason,
                "signatures": [
                    {
                        "number": each.number,
                        "kid": each.kid,
                        "alg": each.alg,
                        "jku": each.jku,
                        "form": each.form,
                        "reason": each.reason,
                    }
                    for each in signatures
                ],
            }
        )
        return
    if name:
        output.text.field("Card", name)
    output.text.field("Trust", "trusted" if check.is_trusted else "not trusted")
    if verdict is not None and verdict.form is not None:
        output.text.field("Signed", _COVERS[verdict.form])
    for each in signatures:
        output.text.field("Signature", str(each).removeprefix("signature "))
    if not check.is_trusted and not signatures:
        output.text.field("Why", check.reason)
