"""What is posted to a receiver of push notifications: bodies, and the proofs in headers.

Each target takes any bytes. It raises when what is promised does not hold: a body is an event or
is refused, and that only what was signed is accepted.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Iterator

from parley.conformance.signing_keys import new_key, signed
from parley.push import DeliveredRequest, NotificationRefused, any_of, verify_hmac, verify_jwt
from parley.push.receiving import answer_challenge
from parley.push.verification import lane_of, number_of, read_event, task_id_of

SECRET = b"0123456789abcdef0123456789abcdef"
BODY = b'{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}'
ID, NOW = "t/default/4", 1_800_000_000
ISSUER, AUDIENCE = "https://agents.example", "https://hooks.example/a2a"
KEY = new_key("ES256")
CLAIMS = {
    "iss": ISSUER,
    "aud": AUDIENCE,
    "iat": NOW,
    "exp": NOW + 300,
    "jti": ID,
    "taskId": "t",
    "request_body_sha256": hashlib.sha256(BODY).hexdigest(),
}
_MAC = hmac.digest(SECRET, f"{ID}.{NOW}.".encode() + BODY, "sha256")
SIGNATURE = f"v1,{base64.b64encode(_MAC).decode()}"
TOKEN = signed({"alg": "ES256", "kid": KEY.kid, "typ": "JWT"}, CLAIMS, KEY)
VERIFY = any_of(
    verify_hmac(SECRET.decode()),
    verify_jwt(issuer=ISSUER, audience=AUDIENCE, keys=KEY.as_dict(private=False)),
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
    """Verify a signature, or a JWT, of a body that is always the same."""
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
        assert text.split()[1] == TOKEN
    else:
        assert SIGNATURE in text.split(" ")


def proof_seeds() -> Iterator[bytes]:
    yield SIGNATURE.encode()
    yield f"v1,AAAA {SIGNATURE} v2,x".encode()
    yield f"Bearer {TOKEN}".encode()
