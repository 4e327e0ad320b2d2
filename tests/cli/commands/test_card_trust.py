"""Signed cards on the command line: required, pinned, and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parley.security.signing.cards import sign_card
from parley.wire import versions
from tests.client.card.signer import new_keys
from tests.security.signing.cards import CARD

KEYS = new_keys("k-1")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a signed card, one without a signature, one that was changed, and the keys."""
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


@pytest.mark.parametrize(
    ("card", "flags", "said"),
    [
        ("plain", ["--require-signature"], "the card has no signature"),
        ("plain", ["--card-keys", "keys.json"], "the card has no signature"),
        ("signed", ["--require-signature"], "another origin, https://a.example"),
        ("signed", ["--card-keys", "other.json"], "another one was signed"),
        ("changed", ["--card-keys", "keys.json"], "the card was changed"),
    ],
)
@pytest.mark.parametrize("command", [("card", "get"), ("send", "hi"), ("task", "get", "t")])
def test_an_untrusted_card_is_not_used(
    parley: Any, files: Path, command: Any, card: str, flags: list[str], said: str
) -> None:
    ran = parley(*command, "-a", f"./{card}.json", *flags)
    assert ran.status == 1
    assert said in ran.stderr


def test_keys_that_cannot_be_read_are_wrong_usage(parley: Any, files: Path) -> None:
    for flags, said in (
        (["--card-keys", "none.json"], "cannot be read"),
        (["--card-keys", "plain.json"], "no"),
        (["--card-key-origin", "https://a/b"], "more than an origin"),
    ):
        ran = parley("card", "get", "-a", "./signed.json", *flags)
        assert ran.status == 2
        assert said in ran.stderr


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
    """A folder may come from somebody else, with settings in it."""
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
