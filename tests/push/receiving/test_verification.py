"""A receiver accepts only a fresh proof for this delivery and URL, and reveals no reason."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from parley.push import (
    DeliveredRequest,
    NotificationRefused,
    ReceiverLimits,
    Verified,
    WebhookVerification,
    any_of,
    receiver,
    verify_access_token,
    verify_api_key,
    verify_basic,
    verify_bearer,
    verify_hmac,
    verify_jwt,
    verify_token,
)
from parley.push import verify as verify_request
from parley.security import Jwt
from tests.kit.webhooks import webhook
from tests.push.receiving.delivering import SECRET, Handled, deliver, hmac_headers, update

pytestmark = pytest.mark.anyio

OTHER = "whsec_" + base64.b64encode(b"another secret of this size....").decode()
ISSUER, AUDIENCE = "https://agents.example.com", "https://hooks.example.net/a2a"
KEY = ECKey.generate_key("P-256", parameters={"kid": "one"})
NEXT = ECKey.generate_key("P-256", parameters={"kid": "two"})


def public(*keys: Any) -> dict[str, Any]:
    return {"keys": [key.as_dict(private=False) | {"kid": key.kid} for key in keys]}


def jwt_headers(
    body: bytes,
    id: str = "t1/default/1",
    *,
    key: Any = KEY,
    header: dict[str, Any] | None = None,
    without: str = "",
    **claims: Any,
) -> dict[str, str]:
    now = int(time.time())
    content = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "iat": now,
        "exp": now + 300,
        "jti": id,
        "taskId": "t1",
        "request_body_sha256": hashlib.sha256(body).hexdigest(),
    } | claims
    content.pop(without, None)
    protected = {"typ": "JWT", "alg": "ES256", "kid": "one"} | (header or {})
    token = jws.serialize_compact(
        protected, json.dumps(content), key, algorithms=["ES256", "HS256", "RS256"]
    )
    return {"webhook-id": id, "webhook-timestamp": str(now), "Authorization": f"Bearer {token}"}


async def verdict(verify: Any, body: bytes, headers: Any) -> int:
    """Return the response's status. The body must reveal nothing more."""
    handled = Handled()
    async with receiver(handled, verify=verify) as app:
        answer = await deliver(app, body, headers)
    assert bool(handled.got) == (answer.status == 202)
    if answer.status in (401, 403):
        assert json.loads(answer.body) == {"error": "the notification is not accepted"}
    return answer.status


async def test_a_request_is_verified_without_a_receiver() -> None:
    body = update()
    headers = [(k.encode(), v.encode()) for k, v in hmac_headers(body).items()]
    notification = await verify_request(headers, body, verify_hmac(SECRET))
    assert (notification.id, notification.task_id) == ("t1/default/1", "t1")
    assert notification.verified_by == "HMAC-SHA256"
    assert (await verify_request([], body, False)).verified_by == ""

    async def never(request: DeliveredRequest) -> Verified:
        raise NotificationRefused(403, "nobody may")

    for wrong, status in (([verify_hmac(SECRET), never], 403), (verify_hmac(OTHER), 401)):
        with pytest.raises(NotificationRefused) as refused:
            await verify_request(headers, body, wrong)  # type: ignore[arg-type]
        assert refused.value.status == status


async def test_a_signature_covers_id_time_and_body() -> None:
    body, verify = update(), verify_hmac(SECRET)
    right = hmac_headers(body)
    assert await verdict(verify, body, right) == 202
    assert await verdict(verify, body + b" ", right) == 401
    other = {"webhook-id": "t1/default/2", "A2A-Notification-Id": "t1/default/2"}
    assert await verdict(verify, body, right | other) == 401
    later = str(int(right["webhook-timestamp"]) + 1)
    assert await verdict(verify, body, right | {"webhook-timestamp": later}) == 401
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        assert await verdict(verify, body, {k: v for k, v in right.items() if k != name}) == 401


async def test_a_signature_of_another_secret_or_scheme_is_refused() -> None:
    body = update()
    assert await verdict(verify_hmac(OTHER), body, hmac_headers(body)) == 401
    right = hmac_headers(body)
    for wrong in ("v1a,", "v2,", ""):
        signature = right["webhook-signature"].replace("v1,", wrong)
        headers = right | {"webhook-signature": signature}
        assert await verdict(verify_hmac(SECRET), body, headers) == 401


async def test_secrets_rotate_on_both_sides() -> None:
    body = update()
    assert await verdict(verify_hmac(OTHER, SECRET), body, hmac_headers(body)) == 202
    new, old = hmac_headers(body, secret=OTHER), hmac_headers(body)
    both = f"{new['webhook-signature']} {old['webhook-signature']}"
    assert await verdict(verify_hmac(SECRET), body, old | {"webhook-signature": both}) == 202
    assert await verdict(verify_hmac(OTHER), body, old | {"webhook-signature": both}) == 202


async def test_secrets_that_are_sent_are_compared() -> None:
    body = update()
    basic = {"Authorization": "Basic " + base64.b64encode(b"hook:pass:word").decode()}
    cases: list[tuple[Any, dict[str, str]]] = [
        (verify_bearer("one", "two"), {"Authorization": "bearer two"}),
        (verify_basic("hook", "pass:word"), basic),
        (verify_api_key("X-API-Key", "k1"), {"x-api-key": "k1"}),
        (verify_token("t0ken"), {"X-A2A-Notification-Token": "t0ken"}),
        (verify_token("t0ken"), {"A2A-Notification-Token": "t0ken"}),
    ]
    for verify, right in cases:
        assert await verdict(verify, body, right) == 202
        assert await verdict(verify, body, {}) == 401
        assert (
            await verdict(verify, body, {name: value + "x" for name, value in right.items()}) == 401
        )
        twice = [*right.items(), *right.items()]
        assert await verdict(verify, body, twice) == 400
        assert "one" not in repr(verify)


async def test_a_list_needs_all_and_any_needs_one() -> None:
    body = update()
    token = {"X-A2A-Notification-Token": "t0ken"}
    both = [verify_hmac(SECRET), verify_token("t0ken")]
    assert await verdict(both, body, hmac_headers(body) | token) == 202
    assert await verdict(both, body, hmac_headers(body)) == 401
    assert await verdict(both, body, token) == 401
    assert await verdict(any_of(*both), body, token) == 202
    assert await verdict(any_of(*both), body, hmac_headers(body)) == 202
    assert await verdict(any_of(*both), body, {}) == 401
    old = hmac_headers(body, at=time.time() - 1000)
    assert await verdict(any_of(*both), body, old) == 403


async def test_one_agent_cannot_use_up_the_ids_of_another() -> None:
    """The receiver accepts both agents; the first agent's ids do not suppress the second's."""
    handled, body = Handled(), update()
    verify = any_of(verify_hmac(SECRET), verify_hmac(OTHER))
    async with receiver(handled, verify=verify, acknowledge="after") as app:
        for secret in (OTHER, SECRET, OTHER, SECRET):
            assert (await deliver(app, body, hmac_headers(body, secret=secret))).status == 200
    assert handled.ids == ["t1/default/1"] * 2


def of_keys(*keys: Any, **options: Any) -> WebhookVerification:
    return verify_jwt(issuer=ISSUER, audience=AUDIENCE, keys=public(*keys), **options)


async def test_a_jwt_is_about_one_delivery_for_here_and_now() -> None:
    body, now = update(), int(time.time())
    assert await verdict(of_keys(KEY), body, jwt_headers(body)) == 202
    assert await verdict(of_keys(KEY), body, jwt_headers(body, aud=["x", AUDIENCE])) == 202
    refused: list[tuple[int, dict[str, Any]]] = [
        (401, {"iss": "https://evil.example"}),
        (403, {"aud": "https://hooks.example.net/another"}),
        (403, {"aud": [AUDIENCE + "/"]}),
        (403, {"iat": now - 1000, "exp": now - 700}),
        (403, {"iat": now - 1000, "exp": now + 9999}),
        (403, {"iat": now + 200, "exp": now + 500}),
        (401, {"without": "exp"}),
        (401, {"without": "iat"}),
        (401, {"without": "jti"}),
        (403, {"without": "aud"}),
        (401, {"without": "request_body_sha256"}),
        (401, {"jti": "t1/default/2"}),
        (400, {"id": "two\nlines"}),
        (401, {"taskId": "t2"}),
        (401, {"request_body_sha256": hashlib.sha256(b"else").hexdigest()}),
        (401, {"exp": "soon"}),
    ]
    for status, options in refused:
        assert await verdict(of_keys(KEY), body, jwt_headers(body, **options)) == status, options
    assert await verdict(of_keys(KEY), body + b" ", jwt_headers(body)) == 401


async def test_no_jwt_outlives_what_is_remembered() -> None:
    handled, body = Handled(), update()
    limits = ReceiverLimits(max_age=5.0, remember=10.0)
    async with receiver(handled, verify=of_keys(KEY, leeway=600.0), limits=limits) as app:
        for seconds, status in ((2, 202), (30, 403), (-30, 403)):
            iat = int(time.time()) - seconds
            answer = await deliver(app, body, jwt_headers(body, iat=iat, exp=iat + 300))
            assert answer.status == status


async def test_a_jwt_of_another_key_or_algorithm_is_refused() -> None:
    body = update()
    assert await verdict(of_keys(NEXT), body, jwt_headers(body)) == 401
    assert await verdict(of_keys(KEY), body, jwt_headers(body, key=NEXT)) == 401
    # The public key as the HS256 secret: key confusion.
    token = jwt_headers(body)["Authorization"].split(" ")[1].split(".")
    head = (
        base64.urlsafe_b64encode(b'{"typ":"JWT","alg":"HS256","kid":"one"}').rstrip(b"=").decode()
    )
    digest = hmac.digest(KEY.as_pem(private=False), f"{head}.{token[1]}".encode(), "sha256")
    mac = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    forged = {"Authorization": f"Bearer {head}.{token[1]}.{mac}"}
    assert await verdict(of_keys(KEY), body, jwt_headers(body) | forged) == 401
    none = base64.urlsafe_b64encode(b'{"typ":"JWT","alg":"none"}').rstrip(b"=").decode()
    for signature in ("", token[2]):
        headers = {"Authorization": f"Bearer {none}.{token[1]}.{signature}"}
        assert await verdict(of_keys(KEY), body, jwt_headers(body) | headers) == 401
    rsa = RSAKey.generate_key(2048, parameters={"kid": "rsa"})
    signed = jwt_headers(body, key=rsa, header={"alg": "RS256", "kid": "rsa"})
    assert await verdict(of_keys(rsa), body, signed) == 202
    assert await verdict(of_keys(rsa, algorithms=["ES256"]), body, signed) == 401


async def test_a_jwt_cannot_name_where_its_key_is() -> None:
    body = update()
    async with webhook() as evil:
        for header in ({"jku": evil.url}, {"jwk": NEXT.as_dict(private=False)}, {"x5u": evil.url}):
            named = header | {"kid": "two"}
            forged = jwt_headers(body, key=NEXT, header=named)
            assert await verdict(of_keys(KEY), body, forged) == 401
        assert evil.told == []


async def test_keys_are_fetched_kept_and_followed_as_they_rotate() -> None:
    from aiohttp import web

    body = update()
    async with webhook() as server:
        origin = server.url.removesuffix("/hook")
        keys = [KEY]
        server.answer = lambda told: web.json_response(public(*keys))
        verify = verify_jwt(issuer=origin, audience=AUDIENCE)
        handled = Handled()
        async with receiver(handled, verify=verify) as app:
            for n in range(5):
                headers = jwt_headers(body, f"t1/default/{n}", iss=origin)
                assert (await deliver(app, body, headers)).status == 202
            assert [told.path for told in server.told] == ["/.well-known/jwks.json"]
            keys.append(NEXT)
            headers = jwt_headers(body, "t1/default/9", iss=origin, key=NEXT, header={"kid": "two"})
            assert (await deliver(app, body, headers)).status == 202
            assert len(server.told) == 2
            for n in range(20):  # senders of tokens cannot cause endless fetches
                forged = jwt_headers(body, f"t1/x/{n}", iss=origin, header={"kid": f"k{n}"})
                assert (await deliver(app, body, forged)).status in (401, 503)
            assert len(server.told) < 10


async def test_an_access_token_is_judged_by_a_security_scheme() -> None:
    scheme = Jwt(issuer=ISSUER, audience=AUDIENCE, keys=public(KEY))
    body, now = update(), int(time.time())

    def bearer(**claims: Any) -> dict[str, str]:
        content = {"iss": ISSUER, "aud": AUDIENCE, "sub": "parley", "exp": now + 60} | claims
        header = {"alg": "ES256", "kid": "one", "typ": "at+jwt"}
        token = jws.serialize_compact(header, json.dumps(content), KEY)
        return {"Authorization": f"Bearer {token}"}

    verify = verify_access_token(scheme, subjects=["parley"])
    assert await verdict(verify, body, bearer()) == 202
    assert await verdict(verify, body, bearer(sub="another")) == 403
    assert await verdict(verify_access_token(scheme), body, bearer(sub="another")) == 202
    assert await verdict(verify, body, bearer(aud="https://elsewhere")) == 401
    assert await verdict(verify, body, bearer(exp=now - 1000)) == 401
    assert await verdict(verify, body, {}) == 401
    away = Jwt(issuer=ISSUER, audience=AUDIENCE, jwks_url="http://127.0.0.1:9/keys")
    assert await verdict(verify_access_token(away), body, bearer()) == 503
    with pytest.raises(TypeError, match="Jwt"):
        verify_access_token("token")  # type: ignore[arg-type]


async def test_without_keys_the_sender_is_told_to_come_again() -> None:
    body = update()
    verify = verify_jwt(issuer="http://127.0.0.1:9", audience=AUDIENCE)
    handled = Handled()
    async with receiver(handled, verify=verify) as app:
        answer = await deliver(app, body, jwt_headers(body, iss="http://127.0.0.1:9"))
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert not handled.got


def test_wrong_settings_are_refused_with_what_is_right_and_without_secrets() -> None:
    async def handle(notification: object) -> None: ...

    cases: list[tuple[Any, str]] = [
        (lambda: verify_hmac(), "takes a secret"),
        (lambda: verify_hmac("tooshort"), "24 bytes or more"),
        (lambda: verify_hmac("whsec_!!"), "base64 behind"),
        (lambda: verify_bearer(""), "one is empty"),
        (lambda: verify_basic("a:b", "c"), "without a colon"),
        (lambda: verify_api_key("X Key", "c"), "name of a header"),
        (lambda: verify_jwt(issuer="", audience="x"), "issuer="),
        (lambda: verify_jwt(issuer="http://example.com", audience="x"), "https"),
        (lambda: verify_jwt(issuer=ISSUER, audience=""), "audience="),
        (lambda: verify_jwt(issuer=ISSUER, audience="x", algorithms=["HS256"]), "algorithms="),
        (lambda: verify_jwt(issuer=ISSUER, audience="x", leeway=9999), "leeway="),
        (lambda: receiver(handle, verify=[]), "verify=False"),
        (lambda: receiver(handle, verify=None), "verify_hmac"),  # type: ignore[arg-type]
        (lambda: receiver(handle, verify=True), "verify_hmac"),  # type: ignore[arg-type]
        (lambda: receiver(handle, verify="secret"), "not a text"),  # type: ignore[arg-type]
        (lambda: receiver(handle, verify=verify_hmac), "verify_hmac"),  # type: ignore[arg-type]
    ]
    for make, words in cases:
        with pytest.raises((ValueError, TypeError), match=words) as refused:
            make()
        assert "tooshort" not in str(refused.value)


async def test_the_log_says_why_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    refusals: list[NotificationRefused] = []
    async with receiver(
        Handled(), verify=verify_bearer("s3cret"), on_refused=refusals.append
    ) as app:
        for _ in range(3):
            await deliver(app, update(), {"Authorization": "Bearer guess"})
    assert [each.reason for each in refusals] == ["the secret in authorization is wrong"] * 3
    assert caplog.text.count("is rejected with 401") == 1  # one a second
    assert "s3cret" not in caplog.text
    assert "guess" not in caplog.text
