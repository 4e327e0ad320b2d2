"""Tokens, their claims, and the keys that issuers publish.

Each target takes any bytes. It raises when what is promised does not hold: that a token is accepted
or refused with a reason, that what is accepted is what was signed, and names a caller.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from parley.conformance.signing_keys import new_key, signed
from parley.model.ids import may_be_name
from parley.security import Jwt
from parley.security.key_sets import ASYMMETRIC, read_keys
from parley.security.outbound import FetchFailed
from parley.security.schemes.scheme import CredentialsRefused, Proof
from parley.security.schemes.tokens import read_jwt

ISSUER = "https://id.example"
NOW = 1_800_000_000
KEY = new_key("ES256")
HEADER = {"alg": "ES256", "kid": KEY.kid, "typ": "at+jwt"}
SCHEME = Jwt(issuer=ISSUER, audience="bank", keys=KEY.as_dict(private=False))
SCHEME._now = lambda: float(NOW)

CLAIMS: tuple[dict[str, Any], ...] = (
    {"iss": ISSUER, "aud": "bank", "sub": "ada", "exp": NOW + 300},
    {
        "iss": ISSUER,
        "aud": ["bank", "hotel"],
        "sub": "ada",
        "azp": "shop",
        "client_id": "shop",
        "scope": "read pay",
        "scp": ["read"],
        "iat": NOW,
        "nbf": NOW - 1,
        "exp": NOW + 300,
        "act": {"sub": "travel", "act": {"sub": "hotel"}},
        "cnf": {"x5t#S256": "bwcK0esc3ACC3DB2Y5_lESsXE8o9ltc05O89jdN-dg2"},
    },
    {"iss": ISSUER, "aud": "bank", "sub": "ada", "exp": NOW + 300, "nonce": "n"},
)
TOKENS = {signed(HEADER, claims, KEY) for claims in CLAIMS}


def _verified(token: str) -> Proof | None:
    """Return what a token proves, ``None`` for nothing."""
    verifying = SCHEME._verifier.verify(token)
    try:
        verifying.send(None)  # type: ignore[attr-defined]
    except StopIteration as done:
        return done.value.proof
    except CredentialsRefused as refusal:
        assert refusal.reason
        assert refusal.description
        return None
    raise AssertionError("a token with known keys waits for nothing")


def tokens(data: bytes) -> None:
    """A token as it arrives: only what was signed is accepted."""
    token = data.decode("latin-1")
    try:
        read_jwt(token)
    except CredentialsRefused as refusal:
        assert refusal.reason
    assert _verified(token) is None or token in TOKENS


def token_seeds() -> Iterator[bytes]:
    for token in sorted(TOKENS):
        yield token.encode()
    yield signed({"alg": "none"}, CLAIMS[0], b"").encode()


def claims(data: bytes) -> None:
    """What an issuer has signed: claims of any form."""
    proof = _verified(signed(HEADER, data, KEY))
    if proof is None:
        return
    caller, said = proof.caller, json.loads(data)
    assert caller.id
    assert said["iss"] == caller.issuer == ISSUER
    assert "bank" in said["aud"]
    assert said["exp"] + 60 > NOW
    assert all(may_be_name(each) for each in (caller.id, caller.client, *caller.actors))
    assert all(isinstance(scope, str) and " " not in scope for scope in proof.scopes) or said["scp"]
    msgspec.json.encode(caller.claims)


def claims_seeds() -> Iterator[bytes]:
    for each in CLAIMS:
        yield json.dumps(each).encode()


def key_sets(data: bytes) -> None:
    """A key set of an issuer: keys for signatures, each with algorithms of its own kind."""
    try:
        content = msgspec.json.decode(data)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return
    if not isinstance(content, dict):
        return
    try:
        found = read_keys(content)
    except FetchFailed as failure:
        assert str(failure)
        return
    for key in found:
        assert key.algorithms <= set(ASYMMETRIC)
        assert not key.key.is_private
        assert not key.verifies(min(key.algorithms), b"x", b"y")


def key_set_seeds() -> Iterator[bytes]:
    for alg in ("ES256", "RS256", "EdDSA"):
        yield json.dumps({"keys": [new_key(alg).as_dict(private=False)]}).encode()
    yield json.dumps({"keys": [KEY.as_dict(private=True), {"kty": "oct", "k": "AAAA"}]}).encode()
