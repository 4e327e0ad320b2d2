"""Message signatures, checked with published vectors and third-party implementations."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from parley.envelope.codec import read_message, write_message
from parley.envelope.messages import SignatureInvalid
from parley.envelope.server.card import vectors
from parley.envelope.signatures import (
    ED25519,
    HMAC_SHA256,
    EnvelopeKey,
    canonical_form,
    sign_message,
    verify_signature,
)
from parley.model.struct import Timestamp
from parley.security.signing.canonical import NotCanonical
from tests.kit.strategies import json_values
from tests.wire.envelope.messages import request

VECTORS = json.loads(vectors())
NOW = Timestamp.parse("2026-01-15T10:30:00Z")
SECRET = EnvelopeKey(id="key-1", owner="a", algorithm=HMAC_SHA256, material=bytes(range(32)))
PRIVATE = EnvelopeKey(id="key-2", owner="a", algorithm=ED25519, material=bytes(range(32)))


def key_of(vector: dict[str, Any]) -> EnvelopeKey:
    given = VECTORS["keys"][vector["key"]]
    is_public = "public" in given
    return EnvelopeKey(
        id=vector["key"],
        owner=given["owner"],
        algorithm=given["algorithm"],
        material=bytes.fromhex(given["public" if is_public else "secret"]),
        is_public=is_public,
    )


@pytest.mark.parametrize("vector", VECTORS["good"], ids=lambda each: each["name"])
def test_a_vector_is_good_here_and_by_other_implementations(vector: dict[str, Any]) -> None:
    message, key = read_message(vector["message"]), key_of(vector)

    verify_signature(message, key)

    canonical = vector["canonical"].encode()
    signature = base64.urlsafe_b64decode(vector["signature"] + "==")
    if key.algorithm == HMAC_SHA256:
        assert hmac.new(key.material, canonical, hashlib.sha256).digest() == signature
    else:
        Ed25519PublicKey.from_public_bytes(key.material).verify(signature, canonical)
    members = json.loads(vector["message"])
    assert members["security"].pop("signature") == vector["signature"]
    assert json.loads(canonical) == members


@pytest.mark.parametrize("vector", VECTORS["bad"], ids=lambda each: each["name"])
def test_a_vector_of_a_forgery_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(SignatureInvalid):
        verify_signature(read_message(vector["message"]), key_of(vector))


NODE = """
const crypto = require("node:crypto");
const {keys, good, bad} = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
const canonical = (value) => {
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return "[" + value.map(canonical).join(",") + "]";
  const pairs = Object.keys(value).sort().map((k) => JSON.stringify(k) + ":" + canonical(value[k]));
  return "{" + pairs.join(",") + "}";
};
const isGood = ({key, message}) => {
  const {algorithm, secret, public: x} = keys[key];
  const members = JSON.parse(message), {signature, ...kept} = members.security;
  if ((kept.algorithm ?? algorithm) !== algorithm || (kept.keyId ?? key) !== key) return false;
  const data = Buffer.from(canonical({...members, security: kept}), "utf8");
  const given = Buffer.from(signature, "base64url");
  if (algorithm === "HMAC-SHA256") {
    const right = crypto.createHmac("sha256", Buffer.from(secret, "hex")).update(data).digest();
    return given.length === right.length && crypto.timingSafeEqual(given, right);
  }
  const jwk = {kty: "OKP", crv: "Ed25519", x: Buffer.from(x, "hex").toString("base64url")};
  return crypto.verify(null, data, crypto.createPublicKey({key: jwk, format: "jwk"}), given);
};
const same = good.every(({message, canonical: c}) => {
  const members = JSON.parse(message);
  delete members.security.signature;
  return canonical(members) === c;
});
console.log(JSON.stringify([same, good.map(isGood), bad.map(isGood)]));
"""


@pytest.mark.parametrize("key", [SECRET, PRIVATE], ids=lambda key: key.algorithm)
def test_what_is_signed_here_is_verified_after_it_was_sent(key: EnvelopeKey) -> None:
    unsigned = read_message(json.dumps(request(security=..., further={"x": 1.5})))

    sent = sign_message(unsigned, key, now=NOW)
    arrived = read_message(write_message(sent))

    verify_signature(sent, key)
    verify_signature(arrived, key)
    if key.algorithm == ED25519:
        verify_signature(arrived, key.public)
    assert sent.security is not None
    assert (sent.security.key_id, sent.security.timestamp) == (key.id, NOW)
    again = sign_message(unsigned, key, now=NOW)
    assert again.security is not None
    assert again.security.nonce != sent.security.nonce


@pytest.mark.parametrize("key", [SECRET, PRIVATE], ids=lambda key: key.algorithm)
def test_a_change_of_any_member_breaks_the_signature(key: EnvelopeKey) -> None:
    unsigned = read_message(json.dumps(request(security=..., later={"deep": [{"x": 1}]})))
    signed = json.loads(write_message(sign_message(unsigned, key, now=NOW)))
    verify_signature(read_message(json.dumps(signed)), key)

    tried = 0
    pending: list[tuple[dict[Any, Any] | list[Any], Any, Any]] = [
        (signed, k, v) for k, v in signed.items()
    ]
    while pending:
        holder, name, value = pending.pop()
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            pending += [(value, *item) for item in items]
            continue
        if name in ("signature", "type", "version", "encoding"):
            continue
        if isinstance(value, str):
            holder[name] = _other_text(name, value)
        else:
            holder[name] = value + 1
        with pytest.raises(SignatureInvalid):
            verify_signature(read_message(json.dumps(signed)), key)
        holder[name] = value
        tried += 1
    assert tried >= 18


def _other_text(name: str, value: str) -> str:
    if name == "timestamp":
        return value.replace("2026", "2027")
    swaps = {"subType": "command", "priority": "low", "routingStrategy": "broadcast"}
    return swaps.get(name, value + "x")


def test_a_signature_of_another_key_or_algorithm_is_refused() -> None:
    message = sign_message(read_message(json.dumps(request())), SECRET, now=NOW)
    assert message.security is not None
    nameless = replace(message, security=replace(message.security, key_id="", algorithm=""))
    other = replace_material(SECRET, b"x" * 32)

    for wrong in (other, PRIVATE, PRIVATE.public):
        for each in (message, nameless):
            with pytest.raises(SignatureInvalid):
                verify_signature(each, wrong)
    with pytest.raises(SignatureInvalid, match="has no signature"):
        verify_signature(replace(message, security=None), SECRET)


def replace_material(key: EnvelopeKey, material: bytes) -> EnvelopeKey:
    return EnvelopeKey(id=key.id, owner=key.owner, algorithm=key.algorithm, material=material)


_odd = st.text('aé\u20ac\uffff\U0001f600"\\\x00\x1f\x7f\u2028', max_size=3)


@pytest.mark.slow
@given(
    st.recursive(
        json_values | _odd | st.integers(-(2**60), 2**60) | st.floats(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_odd, inner, max_size=4),
        max_leaves=6,
    )
)
@settings(max_examples=150)
def test_the_fast_canonical_form_is_that_of_rfc_8785(value: Any) -> None:
    try:
        right = rfc8785.dumps(value)
    except rfc8785.CanonicalizationError:
        with pytest.raises(NotCanonical):
            canonical_form(value)
    else:
        assert canonical_form(value) == right


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"material": b"short"}, "has 5 bytes; HMAC-SHA256 needs at least 32"),
        ({"algorithm": "none"}, "for HMAC-SHA256 or Ed25519, not for 'none'"),
        ({"algorithm": ED25519, "material": b"x" * 31}, "has 31 bytes; one for Ed25519 has 32"),
        ({"is_public": True}, "has no public half"),
        ({"owner": ""}, "the owner of a key"),
        ({"id": "a\nb"}, "the id of a key"),
    ],
)
def test_a_key_that_cannot_be_used_says_why(fields: dict[str, Any], says: str) -> None:
    right = {"id": "k", "owner": "a", "algorithm": HMAC_SHA256, "material": b"s" * 32}

    with pytest.raises(ValueError, match=says) as caught:
        EnvelopeKey(**{**right, **fields})

    assert "ssss" not in str(caught.value)


def test_a_key_never_shows_its_material_and_a_public_one_signs_nothing() -> None:
    for key in (SECRET, PRIVATE, PRIVATE.public):
        assert repr(key.material) not in repr(key)
        assert str(key) == f"EnvelopeKey({key.id!r} of 'a', {key.algorithm})"
    with pytest.raises(ValueError, match="it verifies, and signs nothing"):
        sign_message(read_message(json.dumps(request())), PRIVATE.public)
