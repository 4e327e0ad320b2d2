"""``parley keys share``: a server gets the keys of those who sign messages."""

from __future__ import annotations

import asyncio
import json
import os
import stat

import pytest

from parley.envelope.server.guard import EnvelopeKeys, EnvelopeKeysInvalid
from parley.envelope.signatures import read_key, sign_message, verify_signature
from tests.server.envelope.guarded import message, received


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
