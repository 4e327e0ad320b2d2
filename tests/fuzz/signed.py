"""Signed cards, as anybody can send them: only what the one trusted key signed is believed."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from parley.security.key_sets import KeySet, read_keys
from parley.security.signing.canonical import exact, received, stripped
from parley.security.signing.cards import CardUnverifiable, sign_card, verify
from parley.security.signing.keys import SigningKeys, new_key_set, write_key_set

CARD = {
    "name": "Bank",
    "description": "",
    "supportedInterfaces": [
        {"url": "https://bank.example", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "capabilities": {"streaming": False},
    "version": "1",
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": [],
    "skills": [{"id": "s", "name": "S", "description": "d", "tags": []}],
    "url": "https://bank.example",
}
KEYS = SigningKeys.parse(write_key_set(new_key_set(["ES256"], 0)))
TRUSTED = KeySet(read_keys(KEYS.published))
SIGNED = sign_card(msgspec.json.encode(CARD), KEYS.signers)
BELIEVED = (received(CARD), exact(CARD))


def signed_cards(data: bytes) -> None:
    """A card is trusted with the members that were signed, or it is not, and says why."""
    try:
        verdict = verify(data, TRUSTED)
    except CardUnverifiable as error:
        assert str(error)
        return
    for each in verdict.signatures:
        assert bool(each.reason) == (each.form is None)
    if verdict.is_trusted:
        assert verdict.members is not None
        assert verdict.members in BELIEVED or stripped(verdict.members) == stripped(CARD)
    else:
        assert verdict.members is None
        assert str(verdict)


def signed_card_seeds() -> Iterator[bytes]:
    yield SIGNED
    yield msgspec.json.encode(CARD)
    for index in range(3):
        card = msgspec.json.decode(SIGNED)
        card["signatures"] = card["signatures"][index : index + 1]
        yield msgspec.json.encode(card)
