"""Signed cards and keys on the command line: made, shared, required, pinned, shown."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from parley.envelope.server.guard import EnvelopeKeys
from parley.envelope.signatures import read_key, sign_message, verify_signature
from parley.security.signing.canonical import stripped
from parley.security.signing.cards import sign_card
from parley.security.signing.keys import SigningKeys
from parley.wire import versions
from tests.client.card.signer import new_keys
from tests.security.signing.cards import CARD, LATEST, MERGED, members, signed
from tests.security.signing.key_sets import key_file, private_jwk
from tests.server.envelope.guarded import message, received

KEYS = new_keys("k-1")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with cards (signed, unsigned, changed after signing) and the keys."""
    card = versions.write_card(CARD, "1.0")
    signed = sign_card(card, KEYS.signers, jku="https://a.example/.well-known/jwks.json")
    (tmp_path / "signed.json").write_bytes(signed)
    (tmp_path / "plain.json").write_bytes(card)
    (tmp_path / "changed.json").write_bytes(signed.replace(b"does it", b"does evil"))
    (tmp_path / "keys.json").write_text(json.dumps(KEYS.published))
    (tmp_path / "other.json").write_text(json.dumps(new_keys("k-1").published))
    return tmp_path


def test_a_card_is_shown_with_what_is_found_out(parley: Any, files: Path) -> None:
    ran = parley("card", "get", "-a", "./signed.json", "--card-keys", "keys.json")
    assert ran.status == 0
    assert ran.field("Trust") == "trusted (key k-1, ES256)"
    ran = parley("card", "get", "-a", "./signed.json")
    assert ran.status == 0
    assert "Trust: not trusted: " in ran.stdout
    assert "the card was not fetched from any" in ran.field("Trust")


@pytest.mark.parametrize(
    ("card", "flags", "outcome"),
    [
        ("signed", ["--card-keys", "keys.json"], "verified"),
        ("signed", [], "unverifiable"),
        ("plain", [], "absent"),
    ],
)
def test_what_became_of_the_signatures_is_said_and_no_signature_is_no_failure(
    parley: Any, files: Path, card: str, flags: list[str], outcome: str
) -> None:
    """A2ACLI_CARD_GET_004"""
    ran = parley("card", "get", f"./{card}.json", *flags)
    assert ran.status == 0, ran.stderr
    assert ran.field("Signature check") == outcome
    assert outcome == "verified" or "Trust: trusted" not in ran.stdout
    ran = parley("card", "get", f"./{card}.json", *flags, "-o", "json")
    assert ran.status == 0
    assert ran.document == json.loads((files / f"{card}.json").read_bytes())
    assert f"signature check: {outcome}" in ran.stderr


@pytest.mark.parametrize("command", ["get", "verify"])
def test_keys_take_the_place_of_origins_in_the_settings(
    parley: Any, files: Path, monkeypatch: Any, command: str
) -> None:
    pinned = ("card", command, "-a", "./signed.json", "--card-keys", "keys.json")
    ran = parley(*pinned, "--card-key-origin", "https://a.example")
    assert (ran.status, "not both" in ran.stderr) == (2, True)
    monkeypatch.setenv("A2ACLI_CARD_KEY_ORIGIN", "https://a.example")
    assert parley(*pinned).status == 0


def test_the_environment_requires_signatures_too(
    parley: Any, files: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("A2ACLI_REQUIRE_SIGNATURE", "true")
    assert parley("card", "get", "-a", "./plain.json").status == 1
    assert parley("card", "get", "-a", "./plain.json", "--no-require-signature").status == 0
    monkeypatch.setenv("A2ACLI_CARD_KEYS", "keys.json")
    assert parley("card", "get", "-a", "./signed.json").status == 0


def test_a_file_that_was_found_takes_no_requirement_back(
    parley: Any, files: Path, monkeypatch: Any
) -> None:
    """A folder may come from an attacker, with settings in it."""
    own = files / ".config" / "a2a-cli" / ".env"
    own.parent.mkdir(parents=True)
    own.write_text("A2ACLI_REQUIRE_SIGNATURE=true\nA2ACLI_CARD_KEYS=keys.json\n")
    found = files / ".env"
    found.write_text("A2ACLI_REQUIRE_SIGNATURE=false\nA2ACLI_CARD_KEYS=other.json\n")
    for file in (own, found):
        file.chmod(0o600)
    assert parley("card", "get", "-a", "./signed.json").status == 0
    assert parley("card", "get", "-a", "./plain.json").status == 1
    assert parley("card", "get", "-a", "./signed.json", "--config", ".env").status == 1


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (["--require-signature"], {}),
        ([], {"A2ACLI_REQUIRE_SIGNATURE": "true"}),
        (["--card-keys", "keys.json"], {}),
        ([], {"A2ACLI_CARD_KEYS": "keys.json"}),
    ],
)
def test_a_file_that_was_found_adds_no_keys_to_those_that_are_required(
    parley: Any, files: Path, monkeypatch: Any, flags: list[str], variables: dict[str, str]
) -> None:
    forger = new_keys("k-2")
    card = versions.write_card(CARD, "1.0")
    (files / "forged.json").write_bytes(sign_card(card, forger.signers))
    (files / "forger.json").write_text(json.dumps(forger.published))
    found = files / ".env"
    found.write_text("A2ACLI_CARD_KEYS=forger.json\n")
    found.chmod(0o600)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ran = parley("card", "get", "-a", "./forged.json", *flags)
    assert ran.status == 1
    assert "is not trusted" in ran.stderr


# -- ``parley card sign``, ``verify`` and ``keygen``: files, and cards at addresses ----------------


SIGNING_KEYS, PUBLIC, SIGNING_CARD = "keys.json", "public.json", "./card.json"


@pytest.fixture
def keys(tmp_path):
    """A key file; its public half is in the same folder."""
    path = key_file(
        tmp_path / SIGNING_KEYS, private_jwk("ES256", kid="one"), private_jwk("EdDSA", kid="two")
    )
    keys = SigningKeys.from_file(path)
    (tmp_path / PUBLIC).write_text(json.dumps(keys.published))
    (tmp_path / SIGNING_CARD).write_bytes(MERGED)
    return keys


def verify(parley, card=SIGNING_CARD, *more):
    return parley("card", "verify", "-a", card, "--card-keys", PUBLIC, *more)


def test_what_an_sdk_signs_is_named(parley, tmp_path, keys):
    card = signed(members(MERGED), keys.signers[0], stripped(members(MERGED)))
    (tmp_path / SIGNING_CARD).write_bytes(card)
    found = verify(parley)
    assert found.status == 0
    assert "not empty" in found.field("Signed")


def test_a_changed_card_is_not_trusted_and_each_signature_says_why(parley, tmp_path, keys):
    card = json.loads(
        parley("card", "sign", "-a", SIGNING_CARD, "--signing-keys", SIGNING_KEYS).stdout
    )
    (tmp_path / SIGNING_CARD).write_text(json.dumps({**card, "name": "Evil"}))
    found = verify(parley)
    assert found.status == 1
    assert found.field("Trust") == "not trusted"
    assert found.stdout.count("the card was changed") == 6
    document = verify(parley, SIGNING_CARD, "-o", "json").document
    assert document["trusted"] is False
    assert all(each["reason"] for each in document["signatures"])


def test_a_card_without_signatures_is_not_trusted(parley, keys):
    found = verify(parley)
    assert found.status == 1
    assert "no signature" in found.field("Why")


def test_signatures_of_others_stay_unless_they_are_replaced(parley, tmp_path, keys):
    (tmp_path / SIGNING_CARD).write_bytes(signed(members(LATEST), keys.signers[0]))
    stays = parley("card", "sign", "-a", SIGNING_CARD, "--signing-keys", SIGNING_KEYS).document[
        "signatures"
    ]
    replaced = parley(
        "card", "sign", "-a", SIGNING_CARD, "--signing-keys", SIGNING_KEYS, "--replace"
    ).document
    assert len(stays) == len(replaced["signatures"]) + 1


def test_signing_needs_keys_and_says_how_to_make_them(parley, tmp_path, keys):
    ran = parley("card", "sign", "-a", SIGNING_CARD)
    assert ran.status == 2
    assert "parley keys generate" in ran.stderr
    ran = parley("card", "sign", "-a", SIGNING_CARD, "--signing-keys", "none.json")
    assert ran.status == 1
    assert "parley keys generate none.json" in ran.stderr


def test_keys_of_the_environment_are_named_once(parley, tmp_path, keys, monkeypatch):
    monkeypatch.setenv("PARLEY_SIGNING_KEYS_FILE", SIGNING_KEYS)
    assert parley("card", "sign", "-a", SIGNING_CARD).status == 0
    monkeypatch.setenv("PARLEY_SIGNING_KEYS", (tmp_path / SIGNING_KEYS).read_text())
    ran = parley("card", "sign", "-a", SIGNING_CARD)
    assert (ran.status, "are both set" in ran.stderr) == (1, True)
    (tmp_path / "agent.py").write_text("from parley import Agent\nagent = Agent('A')\n")
    ran = parley("serve", "agent.py", "--port", "0")
    assert (ran.status, "are both set" in ran.stderr) == (2, True)


def test_keygen_makes_keys_as_keys_generate_does(parley, tmp_path):
    ran = parley("card", "keygen", "own.json", "--alg", "EdDSA")
    assert ran.status == 0
    assert SigningKeys.load(tmp_path / "own.json").signers[0].alg == "EdDSA"


def test_nothing_private_is_in_a_signed_card(parley, tmp_path, keys):
    ran = parley("card", "sign", "-a", SIGNING_CARD, "--signing-keys", SIGNING_KEYS, "--debug")
    for key in json.loads((tmp_path / SIGNING_KEYS).read_text())["keys"]:
        assert key["d"] not in ran.stdout + ran.stderr


# -- ``parley keys share``: a server gets the public keys of message signers -----------------------


def test_a_sender_and_its_server_share_a_secret(tmp_path, parley):
    words = ["keys", "share", "keys.json", "--owner", "shop", "--to", "shop.json"]
    done = parley(*words)
    assert done.status == 0, done.stderr
    for name in ("keys.json", "shop.json"):
        assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600
    key = read_key(json.loads((tmp_path / "shop.json").read_text()))
    assert json.loads((tmp_path / "shop.json").read_text())["k"] not in done.stdout
    keys = EnvelopeKeys.from_file(tmp_path / "keys.json")
    found = asyncio.run(keys.find("shop", key.id))
    verify_signature(received(sign_message(message("shop"), key)), found)
    again = parley(*words)
    assert again.status != 0
    assert "is not replaced" in again.stderr


def test_the_public_key_of_a_sender_is_taken_and_its_private_one_is_not(tmp_path, parley):
    assert parley("keys", "generate", "own.json", "--alg", "EdDSA").status == 0
    share = ["keys", "share", "keys.json", "--owner", "press", "--public"]
    refused = parley(*share, "own.json")
    assert refused.status != 0
    assert "private keys" in refused.stderr
    assert not (tmp_path / "keys.json").exists()
    shown = parley("keys", "show", "own.json", "-o", "json")
    (tmp_path / "public.json").write_text(shown.stdout)
    assert parley(*share, "public.json").status == 0
    assert EnvelopeKeys.from_file(tmp_path / "keys.json").owners == {"press"}
    twice = parley(*share, "public.json")
    assert twice.status != 0
    assert "already" in twice.stderr
