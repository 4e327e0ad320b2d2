"""Fuzz targets for credentials: tokens, keys, certificates, signed cards, webhooks and envelopes.

Each target takes any bytes and raises when a promise is broken: input is accepted or rejected with
a reason, only signed data is trusted, and accepted input names a caller.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from parley.conformance.signing_keys import new_key, signed
from parley.envelope.cards import agent_card_of, envelope_card_of, read_card, write_card
from parley.envelope.codec import UnreadableEnvelope, read_message, write_message
from parley.envelope.messages import Envelope, SignatureInvalid
from parley.envelope.server.card import vectors
from parley.envelope.signatures import EnvelopeKey, signed_form, verify_signature
from parley.model.errors import A2AError
from parley.model.ids import may_be_name
from parley.push import DeliveredRequest, NotificationRefused, any_of, verify_hmac, verify_jwt
from parley.push.receiving import answer_challenge
from parley.push.verification import lane_of, number_of, read_event, task_id_of
from parley.security import Jwt, MutualTls
from parley.security.evidence import Evidence
from parley.security.exposed_secrets import kind_of
from parley.security.key_sets import ASYMMETRIC, KeySet, read_keys
from parley.security.outbound import FetchFailed
from parley.security.schemes.scheme import CredentialsRefused, Proof
from parley.security.schemes.tokens import read_jwt
from parley.security.signing.canonical import exact, received, stripped
from parley.security.signing.cards import CardUnverifiable, sign_card, verify
from parley.security.signing.keys import SigningKeys, new_key_set, write_key_set
from tests.kit.certificates import Authority, Pair

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
    """Return the caller that a token proves, or ``None``."""
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
    """A token as received: only signed content is accepted."""
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
    """Claims of any form, signed by an issuer."""
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
    """A key set of an issuer: each signature key has only algorithms of its own kind."""
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


XFCC, CLIENT_CERT = b"x-forwarded-client-cert", b"client-cert"

SCHEMES = {
    name: MutualTls(proxy_header=name.decode(), trusted_proxies=["10.0.0.0/8"])
    for name in (XFCC, CLIENT_CERT)
}


@cache
def _pair() -> Pair:
    return Authority().caller("ada", uris=("spiffe://example.org/ada",), dns=("ada.example",))


def certificates(data: bytes) -> None:
    """A certificate header names a caller that can own tasks, or is rejected."""
    for name, scheme in SCHEMES.items():
        scope = {"headers": [(name, data)], "client": ("10.0.0.1", 1), "query_string": b""}
        try:
            caller = scheme.verify(Evidence(scope)).caller
        except CredentialsRefused as refused:
            assert len(refused.description) < 200
        else:
            assert caller.authenticated
            assert caller.id
            assert caller.issuer
            assert "\x1f" not in caller.owner.removesuffix("\x1f").partition("\x1f")[2]


def certificate_seeds() -> Iterable[bytes]:
    pair = _pair()
    yield b":" + b64encode(pair.der) + b":"
    yield f'By=a;Hash={pair.fingerprint};Cert="{quote(pair.pem)}"'.encode()
    yield b'Subject="CN=a\\\\, b,O=\\"c\\"";URI=spiffe://a/b;DNS=a.example,URI=urn:x:y'
    yield f"Hash={pair.fingerprint};Subject=CN=a".encode()


def secrets(data: bytes) -> None:
    """Any text is searched for secrets."""
    text = data.decode("utf-8", "replace")
    assert isinstance(kind_of(text, is_free=True), str)


def secret_seeds() -> Iterable[bytes]:
    yield b"https://me:secret@example.com/?token=abc Bearer abcdef0123456789abcdef"
    yield b"password=hunter2hunter2 eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc"
    yield b"-----BEGIN RSA PRIVATE KEY----- 9f86d081884c7d659a2feaa0c55ad015"


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
SIGNED_CARD = sign_card(msgspec.json.encode(CARD), KEYS.signers)
BELIEVED = (received(CARD), exact(CARD))


def signed_cards(data: bytes) -> None:
    """A card is trusted with its signed members, or rejected with a reason."""
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
    yield SIGNED_CARD
    yield msgspec.json.encode(CARD)
    for index in range(3):
        card = msgspec.json.decode(SIGNED_CARD)
        card["signatures"] = card["signatures"][index : index + 1]
        yield msgspec.json.encode(card)


SECRET = b"0123456789abcdef0123456789abcdef"
BODY = b'{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}'
ID = "t/default/4"
SENDER, RECEIVER = "https://agents.example", "https://hooks.example/a2a"
SENDER_KEY = new_key("ES256")
DELIVERED = {
    "iss": SENDER,
    "aud": RECEIVER,
    "iat": NOW,
    "exp": NOW + 300,
    "jti": ID,
    "taskId": "t",
    "request_body_sha256": hashlib.sha256(BODY).hexdigest(),
}
_MAC = hmac.digest(SECRET, f"{ID}.{NOW}.".encode() + BODY, "sha256")
SIGNATURE = f"v1,{base64.b64encode(_MAC).decode()}"
PROOF = signed({"alg": "ES256", "kid": SENDER_KEY.kid, "typ": "JWT"}, DELIVERED, SENDER_KEY)
VERIFY = any_of(
    verify_hmac(SECRET.decode()),
    verify_jwt(issuer=SENDER, audience=RECEIVER, keys=SENDER_KEY.as_dict(private=False)),
)
BODIES = (
    BODY,
    b'{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_SUBMITTED"}}}',
    b'{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"hi"}]}}',
    b'{"artifactUpdate":{"taskId":"t","contextId":"c","artifact":{"artifactId":"a","parts":[]}}}',
    b'{"kind":"task","id":"t","contextId":"c","status":{"state":"completed"},"history":[]}',
    b'{"kind":"message","messageId":"m","role":"agent","parts":[{"kind":"text","text":"hi"}]}',
)
CHALLENGE = b'{"challenge":"2qY0m3n5x8tQn0o7bB8d1cWc1n0rVb8uT9h2mY4kLrE"}'


def bodies(data: bytes) -> None:
    """Read a body, and a challenge."""
    try:
        event, version = read_event(data)
        assert version in ("1.0", "0.3")
        lane_of(event, "id").encode("utf-8", "surrogatepass")
        number_of(task_id_of(event))
    except ValueError as error:
        assert str(error)
    try:
        assert answer_challenge("v1", data, "token")
    except NotificationRefused as refused:
        assert refused.status == 400


def body_seeds() -> Iterator[bytes]:
    yield from BODIES
    yield CHALLENGE


def proofs(data: bytes) -> None:
    """Verify a signature, or a JWT, of a fixed body."""
    text = data.decode("latin-1")
    headers = [(b"webhook-id", ID.encode()), (b"webhook-timestamp", str(NOW).encode())]
    name = b"authorization" if text.lower().startswith("bearer") else b"webhook-signature"
    request = DeliveredRequest.of([*headers, (name, data)], BODY, float(NOW))
    try:
        verified = asyncio.run(VERIFY.check(request))
    except NotificationRefused as refused:
        assert refused.status in (400, 401, 403)
        return
    assert verified.id == ID
    if name == b"authorization":
        assert text.split()[1] == PROOF
    else:
        assert SIGNATURE in text.split(" ")


def proof_seeds() -> Iterator[bytes]:
    yield SIGNATURE.encode()
    yield f"v1,AAAA {SIGNATURE} v2,x".encode()
    yield f"Bearer {PROOF}".encode()


_VECTORS = json.loads(vectors())
ENVELOPE_KEY = EnvelopeKey(
    id="key-1",
    owner="customer-service-001",
    algorithm="HMAC-SHA256",
    material=bytes.fromhex(_VECTORS["keys"]["key-1"]["secret"]),
)
SIGNED_FORMS = {each["canonical"].encode() for each in _VECTORS["good"] if each["key"] == "key-1"}
LONGEST_MESSAGE = 100_000


def envelope_messages(data: bytes) -> None:
    """A message is rejected with a reason, or keeps its meaning when it is encoded again.

    Only signed content is trusted.
    """
    try:
        message = read_message(data, max_bytes=LONGEST_MESSAGE)
    except UnreadableEnvelope as refused:
        assert refused.error.reason in ("INVALID_JSON", "INVALID_REQUEST", "UNSUPPORTED_VERSION")
        assert str(refused)
        return
    written = write_message(message)
    assert _meaning(read_message(written)) == _meaning(message)
    try:
        verify_signature(message, ENVELOPE_KEY)
    except SignatureInvalid as error:
        assert error.message
    else:
        assert message.received is not None
        assert signed_form(message.received) in SIGNED_FORMS


def _meaning(message: Envelope) -> Envelope:
    payload = message.payload
    if isinstance(payload, msgspec.Raw):
        payload = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(payload)))
    return replace(message, payload=payload, received=None)


def envelope_message_seeds() -> Iterator[bytes]:
    for each in (*_VECTORS["good"], *_VECTORS["bad"]):
        yield each["message"].encode()


def envelope_cards(data: bytes) -> None:
    """A card is rejected with a reason, or stays the same, also as an A2A card."""
    try:
        card = read_card(data)
    except A2AError as error:
        assert error.message
        return
    assert read_card(write_card(card)) == card
    back = envelope_card_of(agent_card_of(card))
    assert back.agent_info.id == card.agent_info.id
    assert [each.name for each in back.capabilities] == [each.name for each in card.capabilities]


def envelope_card_seeds() -> Iterator[bytes]:
    yield b'{"agentInfo":{"id":"a"}}'
    yield json.dumps(
        {
            "agentInfo": {"id": "kb", "name": "KB", "type": "kb", "version": "1", "vendor": "V"},
            "capabilities": [
                {
                    "name": "search",
                    "inputSchema": {"type": "object"},
                    "performance": {"averageResponseTime": 200, "reliability": 0.5},
                }
            ],
            "endpoints": {"primary": "wss://a.example/e", "healthCheck": "https://a.example/h"},
            "security": {"authMethods": ["bearer-token"], "requiredPermissions": ["read"]},
            "constraints": {
                "rateLimits": {"requestsPerMinute": 10},
                "availability": {"maintenanceWindows": [{"start": "02:00", "end": "04:00"}]},
            },
            "metadata": {"createdAt": "2026-01-15T10:00:00Z", "tags": ["a"]},
        }
    ).encode()
