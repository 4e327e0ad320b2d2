"""A server's signing keys: their sources, and their secrecy."""

from __future__ import annotations

import json
import logging
import os
import warnings

import pytest
from joserfc import jws
from joserfc.errors import SecurityWarning
from joserfc.jwk import import_key

from parley.security.signing import keys as module
from parley.security.signing.keys import SigningKeys, SigningKeysInvalid, missing_keys, read_key
from tests.security.signing.key_sets import key_file, key_set, private_jwk

NOW = 1_800_000_000.0
needs_modes = pytest.mark.skipif(os.name != "posix", reason="files have no modes here")


@pytest.mark.parametrize("alg", ["ES256", "RS256", "EdDSA"])
def test_what_a_key_signs_its_published_half_verifies(alg):
    keys = SigningKeys.parse(key_set(private_jwk(alg)))
    token = keys.signers[0].jws({"typ": "JOSE"}, b'{"a":1}')
    (public,) = keys.published["keys"]
    with warnings.catch_warnings():  # EdDSA has another name in RFC 9864, which few verifiers know
        warnings.simplefilter("ignore", SecurityWarning)
        found = jws.deserialize_compact(token, import_key(public), algorithms=[alg])
    assert found.payload == b'{"a":1}'
    assert found.headers() == {"alg": alg, "kid": public["kid"], "typ": "JOSE"}
    assert public["use"] == "sig"


def test_an_id_has_up_to_256_characters():
    assert read_key(private_jwk(kid="k" * 256)).kid == "k" * 256


def test_a_detached_signature_leaves_the_payload_out():
    key = SigningKeys.parse(key_set(private_jwk("EdDSA"))).signers[0]
    header, payload, signature = key.jws({}, b"body", detached=True).split(".")
    assert payload == ""
    whole = key.jws({}, b"body").split(".")
    assert [whole[0], whole[2]] == [header, signature]  # Ed25519 is deterministic


def test_a_header_cannot_name_another_key_or_algorithm():
    key = SigningKeys.parse(key_set()).signers[0]
    for header in ({"alg": "none"}, {"kid": "other"}):
        with pytest.raises(ValueError, match="of the header"):
            key.jws(header, b"")


def test_nothing_private_is_published_shown_or_logged(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    jwks = [private_jwk(alg, state=s) for alg, s in [("ES256", "current"), ("RS256", "next")]]
    jwks.append(private_jwk("EdDSA", state="previous"))
    keys = SigningKeys.load(key_file(tmp_path / "keys.json", *jwks))
    secrets = [
        jwk[name] for jwk in jwks for name in ("d", "p", "q", "dp", "dq", "qi") if name in jwk
    ]
    assert len(secrets) == 8
    shown = json.dumps(keys.published) + repr(keys) + repr(keys.signers) + caplog.text
    shown += str(vars(keys))
    assert not [secret for secret in secrets if secret in shown]
    for key in keys.published["keys"]:
        assert set(key) <= {"kty", "crv", "x", "y", "n", "e", "kid", "alg", "use"}


REFUSED = {
    "no json": ("{", "not JSON"),
    "a list": ("[]", "not a JSON object"),
    "no keys": ("{}", 'no list of "keys"'),
    "an empty list": ('{"keys": []}', 'no list of "keys"'),
    "PEM": ("-----BEGIN PRIVATE KEY-----\nMIG", "is PEM"),
    "a member twice": ('{"keys": [], "keys": []}', "'keys' twice"),
    "too long": ('{"keys": "' + "x" * 300_000 + '"}', "at most"),
    "a secret": (key_set({"kty": "oct", "k": "c2VjcmV0"}), "shared secret"),
    "an unknown kind": (key_set({"kty": "??"}), '"kty"'),
    "another curve": (
        key_set({"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA", "d": "AA"}),
        "P-256 and Ed25519",
    ),
    "a weak one": (key_set({"kty": "RSA", "n": "AQAB", "e": "AQAB", "d": "AQ"}), "2048"),
    "a public one": (
        key_set({k: v for k, v in private_jwk().items() if k != "d"}),
        "no private half",
    ),
    "halves of two": (
        key_set({**private_jwk("EdDSA"), "d": private_jwk("EdDSA")["d"]}),
        "do not belong together",
    ),
    "HMAC": (key_set(private_jwk(alg="HS256")), '"alg" other than ES256'),
    "none": (key_set(private_jwk(alg="none")), '"alg" other than ES256'),
    "for encryption": (key_set(private_jwk(use="enc")), '"use"'),
    "an unknown state": (key_set(private_jwk(state="old")), '"state"'),
    "a time that is none": (key_set(private_jwk(until="tomorrow")), '"until"'),
    "a time in milliseconds": (key_set(private_jwk(until=1.8e12)), '"until"'),
    "a time without end": (
        key_set(private_jwk(created=1)).replace(": 1}", ": 1e999}"),
        '"created"',
    ),
    "a long id": (key_set(private_jwk(kid="k" * 257)), "at most 256 characters"),
    "one id for two": (key_set(private_jwk(kid="a"), private_jwk(kid="a")), "same kid"),
    "none that signs": (key_set(private_jwk(state="next")), "no key would sign"),
    "too many": (key_set(*[{"kty": "EC"}] * 33), "at most 32"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_key_set_that_cannot_be_used_is_refused_with_the_reason(case):
    text, reason = REFUSED[case]
    with pytest.raises(SigningKeysInvalid, match=reason) as failure:
        SigningKeys.parse(text)
    assert failure.value.__cause__ is None


def test_an_error_never_quotes_a_private_member():
    jwk = private_jwk()
    for broken in ({**jwk, "x": "AAAA"}, {**jwk, "d": jwk["d"] + "AA"}, {**jwk, "kid": 7}):
        with pytest.raises(SigningKeysInvalid) as failure:
            SigningKeys.parse(key_set(broken))
        assert jwk["d"] not in str(failure.value)


def test_keys_come_from_what_is_given_or_from_the_environment(tmp_path):
    file = key_file(tmp_path / "a.json", private_jwk(kid="file"))
    text = key_set(private_jwk(kid="text"))

    def load(given=None, **environment):
        keys = SigningKeys.load(given, environment=environment)
        return keys and keys.signers[0].kid

    assert load() is None
    assert load("", PARLEY_SIGNING_KEYS="", PARLEY_SIGNING_KEYS_FILE="") is None
    assert load(PARLEY_SIGNING_KEYS=text) == "text"
    assert load(PARLEY_SIGNING_KEYS_FILE=str(file)) == "file"
    assert load(str(file), PARLEY_SIGNING_KEYS=text) == "file"
    assert load(SigningKeys.parse(text)) == "text"
    with pytest.raises(SigningKeysInvalid, match="both set"):
        load(PARLEY_SIGNING_KEYS=text, PARLEY_SIGNING_KEYS_FILE=str(file))


def test_a_missing_file_is_refused_with_the_command_that_makes_one(tmp_path):
    with pytest.raises(SigningKeysInvalid, match="parley keys generate"):
        SigningKeys.load(tmp_path / "none.json")
    assert "parley keys generate" in missing_keys("a signed card")


@needs_modes
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604, 0o602, 0o666])
def test_a_file_that_others_may_read_or_change_is_refused(tmp_path, mode):
    file = key_file(tmp_path / "keys.json", mode=mode)
    with pytest.raises(SigningKeysInvalid, match=f"chmod 600 {file}"):
        SigningKeys.load(file)


@needs_modes
@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_only_its_owner_reads_is_taken(tmp_path, mode):
    assert SigningKeys.load(key_file(tmp_path / "keys.json", mode=mode)) is not None


@pytest.fixture
def looks_always(monkeypatch):
    monkeypatch.setattr(module, "RELOAD_SECONDS", 0)


def test_a_changed_file_is_read_again(tmp_path, looks_always):
    path = key_file(tmp_path / "keys.json", private_jwk(kid="a"))
    keys = SigningKeys.load(path)
    revision = keys.revision
    assert keys.revision == revision
    key_file(tmp_path / "new", private_jwk(kid="b")).replace(path)
    assert keys.signers[0].kid == "b"
    assert keys.published["keys"][0]["kid"] == "b"
    assert keys.revision != revision


@needs_modes
def test_a_changed_file_that_is_broken_leaves_the_old_keys_and_is_logged(
    tmp_path, looks_always, caplog
):
    path = key_file(tmp_path / "keys.json", private_jwk(kid="a"))
    keys = SigningKeys.load(path)
    revision = keys.revision
    for spoil, reason in (
        (lambda: path.write_text('{"keys": ['), "not JSON"),
        (lambda: path.chmod(0o644), "chmod 600"),
        (path.unlink, "there is no key file"),
    ):
        caplog.clear()
        spoil()
        assert keys.signers[0].kid == "a"
        assert keys.revision == revision
        assert reason in caplog.text
        assert len(caplog.records) == 1  # not at every check
    key_file(path, private_jwk(kid="b"))
    assert keys.signers[0].kid == "b"


def test_a_file_is_looked_at_once_in_a_while_only(tmp_path, monkeypatch):
    looked = []
    keys = SigningKeys.load(key_file(tmp_path / "keys.json"))
    monkeypatch.setattr(module, "stamp_of", looked.append)
    for _ in range(100):
        assert keys.signers
    assert looked == []
