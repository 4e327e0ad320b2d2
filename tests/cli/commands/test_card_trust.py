"""Signed cards and keys on the command line: made, shared, required, pinned, shown."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from parley.envelope.server.guard import EnvelopeKeys, EnvelopeKeysInvalid
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


# -- ``parley card sign``, ``verify`` and ``keygen``: files, and cards at addresses ----------------


SIGNING_KEYS, PUBLIC, SIGNING_CARD = "keys.json", "public.json", "./card.json"


@pytest.fixture
def keys(tmp_path):
    """A key file, and its public half beside it."""
    path = key_file(
        tmp_path / SIGNING_KEYS, private_jwk("ES256", kid="one"), private_jwk("EdDSA", kid="two")
    )
    keys = SigningKeys.from_file(path)
    (tmp_path / PUBLIC).write_text(json.dumps(keys.published))
    (tmp_path / SIGNING_CARD).write_bytes(MERGED)
    return keys


def verify(parley, card=SIGNING_CARD, *more):
    return parley("card", "verify", "-a", card, "--card-keys", PUBLIC, *more)


def test_a_card_that_was_signed_offline_is_trusted(parley, tmp_path, keys):
    ran = parley(
        "card",
        "sign",
        "-a",
        SIGNING_CARD,
        "--signing-keys",
        SIGNING_KEYS,
        "--jku",
        "https://a.example/jwks",
    )
    assert ran.status == 0
    assert len(ran.document["signatures"]) == 6
    assert {**ran.document, "signatures": None} == {**members(MERGED), "signatures": None}
    (tmp_path / "signed.json").write_text(ran.stdout)
    found = verify(parley, "./signed.json")
    assert found.status == 0
    assert found.field("Trust") == "trusted"
    assert found.field("Signed") == "all of the card as it was sent"
    assert found.stdout.count("Signature: ") == 6
    document = verify(parley, "./signed.json", "-o", "json").document
    assert document["trusted"] is True
    assert document["form"] == "received"
    assert {each["jku"] for each in document["signatures"]} == {"https://a.example/jwks"}


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


def test_a_card_with_a_member_twice_is_not_trusted(parley, tmp_path, keys):
    card = parley("card", "sign", "-a", SIGNING_CARD, "--signing-keys", SIGNING_KEYS).stdout.strip()
    (tmp_path / SIGNING_CARD).write_text(card[:-1] + ', "name": "Evil"}')
    found = verify(parley)
    assert found.status == 1
    assert "twice" in found.stdout + found.stderr


def test_a_key_of_somebody_else_is_not_trusted(parley, tmp_path, keys):
    ran = parley("card", "sign", "-a", SIGNING_CARD, "--signing-keys", SIGNING_KEYS)
    (tmp_path / SIGNING_CARD).write_text(ran.stdout)
    other = SigningKeys.parse(json.dumps({"keys": [private_jwk(kid="three")]}))
    (tmp_path / PUBLIC).write_text(json.dumps(other.published))
    found = verify(parley)
    assert found.status == 1
    assert "not among the trusted" in found.stdout


def test_algorithms_can_be_narrowed(parley, tmp_path, keys):
    ran = parley("card", "sign", "-a", SIGNING_CARD, "--signing-keys", SIGNING_KEYS)
    (tmp_path / SIGNING_CARD).write_text(ran.stdout)
    found = verify(parley, SIGNING_CARD, "--alg", "EdDSA", "-o", "json")
    assert found.status == 0
    assert {each["kid"] for each in found.document["signatures"] if each["form"]} == {"two"}
    assert verify(parley, SIGNING_CARD, "--alg", "HS256").status == 2


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


@pytest.mark.parametrize(
    ("jku", "said"),
    [
        ("here", "https://host"),
        ("https://", "https://host"),
        ("http://a.example/jwks.json", "not encrypted"),
        ("https://ada:s3cret@a.example/jwks.json", "a password"),
        ("https://a.example/jwks.json#keys", "fragment"),
    ],
)
def test_an_address_of_keys_that_no_verifier_asks_is_refused(parley, keys, jku, said):
    ran = parley("card", "sign", "-a", SIGNING_CARD, "--signing-keys", SIGNING_KEYS, "--jku", jku)
    assert (ran.status, said in ran.stderr, "s3cret" in ran.stderr) == (2, True, False)
    local = ("--jku", "http://127.0.0.1:9999/.well-known/jwks.json")
    assert (
        parley("card", "sign", "-a", SIGNING_CARD, "--signing-keys", SIGNING_KEYS, *local).status
        == 0
    )


def test_keys_of_the_environment_are_named_once(parley, tmp_path, keys, monkeypatch):
    monkeypatch.setenv("PARLEY_SIGNING_KEYS_FILE", SIGNING_KEYS)
    assert parley("card", "sign", "-a", SIGNING_CARD).status == 0
    monkeypatch.setenv("PARLEY_SIGNING_KEYS", (tmp_path / SIGNING_KEYS).read_text())
    ran = parley("card", "sign", "-a", SIGNING_CARD)
    assert (ran.status, "are both set" in ran.stderr) == (1, True)
    (tmp_path / "agent.py").write_text("from parley import Agent\nagent = Agent('A')\n")
    ran = parley("serve", "agent.py", "--port", "0")
    assert (ran.status, "are both set" in ran.stderr) == (2, True)


def test_an_address_that_does_not_answer_is_out_of_reach(parley, keys):
    assert verify(parley, "http://127.0.0.1:9").status == 3


def test_keygen_makes_keys_as_keys_generate_does(parley, tmp_path):
    ran = parley("card", "keygen", "own.json", "--alg", "EdDSA")
    assert ran.status == 0
    assert SigningKeys.load(tmp_path / "own.json").signers[0].alg == "EdDSA"


def test_nothing_private_is_in_a_signed_card(parley, tmp_path, keys):
    ran = parley("card", "sign", "-a", SIGNING_CARD, "--signing-keys", SIGNING_KEYS, "--debug")
    for key in json.loads((tmp_path / SIGNING_KEYS).read_text())["keys"]:
        assert key["d"] not in ran.stdout + ran.stderr


# -- ``parley keys share``: a server gets the keys of those who sign messages ----------------------


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


WRONG = {
    "no key file": None,
    'no list of "keys"': {},
    '"owner"': {"keys": [{"kid": "k", "kty": "oct", "k": "A" * 43}]},
    '"kid"': {"keys": [{"owner": "shop", "kty": "oct", "k": "A" * 43}]},
    "at least 32": {"keys": [{"owner": "shop", "kid": "k", "kty": "oct", "k": "AAAA"}]},
    "neither a shared secret": {"keys": [{"owner": "shop", "kid": "k", "kty": "RSA"}]},
    "private half": {
        "keys": [
            {"owner": "a", "kid": "k", "kty": "OKP", "crv": "Ed25519", "x": "A" * 43, "d": "A" * 43}
        ]
    },
    "verifiers take either": {
        "keys": [{"owner": "a", "kid": "k", "kty": "oct", "k": "A" * 43}] * 2
    },
    "https address": {"keys": [{"owner": "a", "jwks_uri": "http://keys.example.com/jwks.json"}]},
}


@pytest.mark.parametrize("words", WRONG)
def test_a_key_file_that_cannot_be_used_says_why_and_shows_no_key(tmp_path, words):
    path = tmp_path / "keys.json"
    if WRONG[words] is not None:
        path.write_text(json.dumps(WRONG[words]))
        path.chmod(0o600)
    with pytest.raises(EnvelopeKeysInvalid, match=words) as caught:
        EnvelopeKeys.load(path)
    assert "AAAA" not in str(caught.value)


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "keys.json"

    def write(*owners: str) -> None:
        keys = [{"owner": each, "kid": "k", "kty": "oct", "k": "A" * 43} for each in owners]
        path.write_text(json.dumps({"keys": keys}))
        path.chmod(0o600)

    monkeypatch.setattr("parley.envelope.server.guard.RELOAD_SECONDS", 0.0)
    write("shop")
    keys = EnvelopeKeys.load(environment={"PARLEY_ENVELOPE_KEYS": str(path)})
    assert keys.owners == {"shop"}
    write("shop", "bank")
    assert keys.owners == {"shop", "bank"}
    path.write_text("{")
    assert keys.owners == {"shop", "bank"}
    assert EnvelopeKeys.load(environment={}) is None


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_a_key_file_that_others_may_read_is_refused(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text('{"keys": []}')
    path.chmod(0o644)
    with pytest.raises(EnvelopeKeysInvalid, match="chmod 600"):
        EnvelopeKeys.load(path)
