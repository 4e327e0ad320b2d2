"""``parley card sign``, ``verify`` and ``keygen``: files, and cards at addresses."""

from __future__ import annotations

import json

import pytest

from parley.security.signing.canonical import stripped
from parley.security.signing.keys import SigningKeys
from tests.security.signing.cards import LATEST, MERGED, members, signed
from tests.security.signing.key_sets import key_file, private_jwk

KEYS, PUBLIC, CARD = "keys.json", "public.json", "./card.json"


@pytest.fixture
def keys(tmp_path):
    """A key file, and its public half beside it."""
    path = key_file(
        tmp_path / KEYS, private_jwk("ES256", kid="one"), private_jwk("EdDSA", kid="two")
    )
    keys = SigningKeys.from_file(path)
    (tmp_path / PUBLIC).write_text(json.dumps(keys.published))
    (tmp_path / CARD).write_bytes(MERGED)
    return keys


def verify(parley, card=CARD, *more):
    return parley("card", "verify", "-a", card, "--card-keys", PUBLIC, *more)


def test_a_card_that_was_signed_offline_is_trusted(parley, tmp_path, keys):
    ran = parley(
        "card", "sign", "-a", CARD, "--signing-keys", KEYS, "--jku", "https://a.example/jwks"
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
    (tmp_path / CARD).write_bytes(card)
    found = verify(parley)
    assert found.status == 0
    assert "not empty" in found.field("Signed")


def test_a_changed_card_is_not_trusted_and_each_signature_says_why(parley, tmp_path, keys):
    card = json.loads(parley("card", "sign", "-a", CARD, "--signing-keys", KEYS).stdout)
    (tmp_path / CARD).write_text(json.dumps({**card, "name": "Evil"}))
    found = verify(parley)
    assert found.status == 1
    assert found.field("Trust") == "not trusted"
    assert found.stdout.count("the card was changed") == 6
    document = verify(parley, CARD, "-o", "json").document
    assert document["trusted"] is False
    assert all(each["reason"] for each in document["signatures"])


def test_a_card_without_signatures_is_not_trusted(parley, keys):
    found = verify(parley)
    assert found.status == 1
    assert "no signature" in found.field("Why")


def test_a_card_with_a_member_twice_is_not_trusted(parley, tmp_path, keys):
    card = parley("card", "sign", "-a", CARD, "--signing-keys", KEYS).stdout.strip()
    (tmp_path / CARD).write_text(card[:-1] + ', "name": "Evil"}')
    found = verify(parley)
    assert found.status == 1
    assert "twice" in found.stdout + found.stderr


def test_a_key_of_somebody_else_is_not_trusted(parley, tmp_path, keys):
    ran = parley("card", "sign", "-a", CARD, "--signing-keys", KEYS)
    (tmp_path / CARD).write_text(ran.stdout)
    other = SigningKeys.parse(json.dumps({"keys": [private_jwk(kid="three")]}))
    (tmp_path / PUBLIC).write_text(json.dumps(other.published))
    found = verify(parley)
    assert found.status == 1
    assert "not among the trusted" in found.stdout


def test_algorithms_can_be_narrowed(parley, tmp_path, keys):
    ran = parley("card", "sign", "-a", CARD, "--signing-keys", KEYS)
    (tmp_path / CARD).write_text(ran.stdout)
    found = verify(parley, CARD, "--alg", "EdDSA", "-o", "json")
    assert found.status == 0
    assert {each["kid"] for each in found.document["signatures"] if each["form"]} == {"two"}
    assert verify(parley, CARD, "--alg", "HS256").status == 2


def test_signatures_of_others_stay_unless_they_are_replaced(parley, tmp_path, keys):
    (tmp_path / CARD).write_bytes(signed(members(LATEST), keys.signers[0]))
    stays = parley("card", "sign", "-a", CARD, "--signing-keys", KEYS).document["signatures"]
    replaced = parley("card", "sign", "-a", CARD, "--signing-keys", KEYS, "--replace").document
    assert len(stays) == len(replaced["signatures"]) + 1


def test_signing_needs_keys_and_says_how_to_make_them(parley, tmp_path, keys):
    ran = parley("card", "sign", "-a", CARD)
    assert ran.status == 2
    assert "parley keys generate" in ran.stderr
    ran = parley("card", "sign", "-a", CARD, "--signing-keys", "none.json")
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
    ran = parley("card", "sign", "-a", CARD, "--signing-keys", KEYS, "--jku", jku)
    assert (ran.status, said in ran.stderr, "s3cret" in ran.stderr) == (2, True, False)
    local = ("--jku", "http://127.0.0.1:9999/.well-known/jwks.json")
    assert parley("card", "sign", "-a", CARD, "--signing-keys", KEYS, *local).status == 0


def test_keys_of_the_environment_are_named_once(parley, tmp_path, keys, monkeypatch):
    monkeypatch.setenv("PARLEY_SIGNING_KEYS_FILE", KEYS)
    assert parley("card", "sign", "-a", CARD).status == 0
    monkeypatch.setenv("PARLEY_SIGNING_KEYS", (tmp_path / KEYS).read_text())
    ran = parley("card", "sign", "-a", CARD)
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
    ran = parley("card", "sign", "-a", CARD, "--signing-keys", KEYS, "--debug")
    for key in json.loads((tmp_path / KEYS).read_text())["keys"]:
        assert key["d"] not in ran.stdout + ran.stderr
