"""``parley keys generate``, ``show`` and ``rotate FILE``; ``parley serve --signing-keys``."""

from __future__ import annotations

import json
import os
import re

import pytest

from parley.security.signing.keys import SigningKeys
from tests.security.signing.cards import LATEST
from tests.security.signing.key_sets import key_file

FILE = "signing-keys.json"
PRIVATE = ("d", "p", "q", "dp", "dq", "qi")


def secrets_of(path):
    return [
        key[name] for key in json.loads(path.read_text())["keys"] for name in PRIVATE if name in key
    ]


def test_a_file_that_is_there_is_not_replaced(parley, tmp_path):
    path = key_file(tmp_path / FILE)
    before = path.read_bytes()
    ran = parley("keys", "generate")
    assert ran.status == 1
    assert "parley keys rotate" in ran.stderr
    assert path.read_bytes() == before


def test_rotation_says_what_changed(parley, tmp_path):
    parley("keys", "generate")
    (old,) = SigningKeys.load(tmp_path / FILE).signers
    ran = parley("keys", "rotate", FILE, "--overlap", "12h")
    assert ran.status == 0
    assert "verifiers may cache the earlier keys for 300 s" in ran.stderr
    keys = SigningKeys.load(tmp_path / FILE)
    assert keys.signers[0].kid != old.kid
    assert re.search(rf"{old.kid} ES256, previous: published until 20\S+Z", ran.stdout)
    published = {key["kid"] for key in keys.published["keys"]}
    assert old.kid in published
    assert len(published) == 3
    document = parley("keys", "show", FILE, "-o", "json").document
    (ended,) = [key for key in document["keys"] if key["state"] == "previous"]
    assert ended["kid"] == old.kid
    assert "d" not in ended


@pytest.mark.parametrize("command", [("rotate", FILE), ("show", FILE)])
def test_a_file_that_cannot_be_used_is_explained(parley, tmp_path, command):
    ran = parley("keys", *command)
    assert ran.status == 1
    assert "parley keys generate" in ran.stderr
    (tmp_path / FILE).write_text("{}")
    (tmp_path / FILE).chmod(0o600)
    ran = parley("keys", *command)
    assert (ran.status, "no list of" in ran.stderr) == (1, True)
    if os.name == "posix":
        key_file(tmp_path / FILE, mode=0o644)
        ran = parley("keys", *command)
        assert (ran.status, "chmod 600" in ran.stderr) == (1, True)


def test_a_rotation_that_was_killed_is_explained(parley, tmp_path):
    path = key_file(tmp_path / FILE)
    (tmp_path / f"{FILE}.new").touch()
    ran = parley("keys", "rotate", FILE)
    assert ran.status == 1
    assert f"remove {path}.new" in ran.stderr
    (tmp_path / f"{FILE}.new").unlink()
    assert parley("keys", "rotate", FILE).status == 0


def test_options_of_api_keys_are_refused_for_files(parley, tmp_path):
    key_file(tmp_path / FILE)
    ran = parley("keys", "rotate", FILE, "--expires", "90d")
    assert (ran.status, "for API keys" in ran.stderr) == (2, True)
    ran = parley("keys", "rotate", FILE, "--overlap", "soon")
    assert (ran.status, "--overlap" in ran.stderr) == (2, True)


STORE = ("--store", "sqlite:///shop.db")


def recorded(parley):
    return parley("audit", "--json", *STORE).lines[1:]  # the first entry is the migration


@pytest.mark.slow
def test_acts_on_a_file_are_recorded_in_the_store_that_is_named(parley, tmp_path, monkeypatch):
    assert parley("store", "migrate", *STORE).status == 0
    made = parley("keys", "generate", FILE, "-o", "json", *STORE).document["keys"]
    first, second = (key["kid"] for key in made)
    (tmp_path / "card.json").write_bytes(LATEST)
    monkeypatch.setenv("PARLEY_STORE", STORE[1])
    assert parley("card", "sign", "-a", "./card.json", "--signing-keys", FILE).status == 0
    assert parley("keys", "rotate", FILE).status == 0
    assert parley("card", "keygen", "other.json", "--store", "").status == 0
    printed = parley("keys", "generate", "-").stdout
    lines = recorded(parley)
    assert [(line["kind"], line["subject"]) for line in lines] == [
        ("signing_key.generated", first),
        ("card.signed", first),
        ("signing_key.rotated", second),
        ("signing_key.generated", SigningKeys.parse(printed).signers[0].kid),
    ]
    assert lines[0]["details"] == {"keys": [first, second]}
    assert lines[1]["details"] == {"keys": [first]}
    assert lines[2]["details"] == {"signs": [second], "ended": [first], "removed": []}
    assert all(line["issuer"] == "os" and "@" in line["actor"] for line in lines)
    whole = (tmp_path / "shop.db").read_bytes()
    assert not [each for each in secrets_of(tmp_path / FILE) if each.encode() in whole]


def test_nothing_is_done_that_could_not_be_recorded(parley, tmp_path, monkeypatch):
    before = key_file(tmp_path / FILE).read_bytes()
    for command in (
        ("keys", "rotate", FILE),
        ("keys", "generate", "new.json"),
        ("card", "sign", "-a", "./card.json", "--signing-keys", FILE),
    ):
        ran = parley(*command, *STORE)
        assert (ran.status, "there is no store" in ran.stderr) == (1, True)
        ran = parley(*command, "--store", "memory:")
        assert (ran.status, "memory:" in ran.stderr) == (2, True)
    assert (tmp_path / FILE).read_bytes() == before
    assert not (tmp_path / "new.json").exists()
    monkeypatch.setenv("PARLEY_STORE", "memory:")  # a server's setting, not the command's
    assert parley("keys", "rotate", FILE).status == 0
