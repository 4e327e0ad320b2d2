"""Introspection: the issuer is queried as rarely as allowed, and its responses are checked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from parley.model.errors import OverloadedError
from parley.security import ClientCredentialsOAuthFlow, Introspection, OAuth2, outbound
from parley.security.schemes import oauth
from parley.security.schemes.scheme import CredentialsRefused
from parley.testing import Issuer
from tests.kit.waiting import until
from tests.security.tokens import Clock, at, verified

pytestmark = pytest.mark.anyio

FLOW = ClientCredentialsOAuthFlow(token_url="https://id.example/token", scopes={"pay": "Pay"})


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer(audience="bank") as issuer:
        yield issuer


@pytest.fixture
def clock() -> Clock:
    return Clock(time.time())


@pytest.fixture
async def scheme(issuer: Issuer, clock: Clock) -> AsyncIterator[OAuth2]:
    scheme = by(issuer)
    await at(scheme, clock)
    yield scheme
    await scheme.close()


def by(at: Issuer, /, *, secret: str = "secret", cache_for: float = 60, **options: Any) -> OAuth2:
    asking = Introspection("service", secret, f"{at.url}/introspect", cache_for)
    return OAuth2(FLOW, **{"audience": "bank", "introspection": asking, **options})


async def test_the_issuer_says_what_a_token_means(issuer: Issuer, scheme: OAuth2) -> None:
    token = issuer.token("ada", client="shop", scope="read pay", opaque=True)
    proof = await verified(scheme, token)
    assert (proof.caller.id, proof.caller.client, proof.scopes) == ("ada", "shop", {"read", "pay"})
    assert "active" not in proof.caller.claims
    own = by(issuer, issuer=issuer.url)
    assert (await verified(own, issuer.token("ada"))).caller.issuer == issuer.url
    await own.close()


async def test_an_answer_is_not_kept_longer_than_the_token(issuer: Issuer, clock: Clock) -> None:
    scheme = by(issuer, cache_for=3600, leeway=0)
    await at(scheme, clock)
    token = issuer.token(opaque=True, expires_in=100)
    await verified(scheme, token)
    clock.now += 101
    issuer.advance(101)
    with pytest.raises(CredentialsRefused):
        await verified(scheme, token)
    await scheme.close()


async def test_refusals_are_bounded(issuer: Issuer, scheme: OAuth2) -> None:
    assert scheme._verifier._refused.most == oauth.MAX_REFUSED  # type: ignore[attr-defined]
    scheme._verifier._refused.most = 3  # type: ignore[attr-defined]
    for number in range(6):
        with pytest.raises(CredentialsRefused):
            await verified(scheme, f"unknown-{number}")
    assert len(scheme._verifier._refused) == 3  # type: ignore[attr-defined]


async def test_a_token_is_asked_about_once_at_a_time(issuer: Issuer, scheme: OAuth2) -> None:
    issuer.hang("introspect")
    token = issuer.token(opaque=True)
    waiting = [asyncio.create_task(verified(scheme, token)) for _ in range(10)]
    await until(lambda: issuer.requests["introspect"] == 1)
    waiting[0].cancel()
    issuer.recover()
    done = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert not any(isinstance(each, BaseException) for each in done[1:])
    assert issuer.requests["introspect"] == 1


@pytest.mark.parametrize("status", [400, 413])
async def test_a_token_that_the_issuer_cannot_read_holds_no_other_up(
    issuer: Issuer, scheme: OAuth2, status: int
) -> None:
    issuer.fail("introspect", status=status, times=1)
    with pytest.raises(OverloadedError):
        await verified(scheme, "odd")
    assert await verified(scheme, issuer.token(opaque=True))


async def test_a_token_of_another_issuer_is_not_shown_to_this_one(issuer: Issuer) -> None:
    scheme = by(issuer, issuer=issuer.url)
    with pytest.raises(CredentialsRefused, match="another issuer"):
        await verified(scheme, issuer.token(issuer="https://other.example"))
    assert not issuer.requests
    assert await verified(scheme, issuer.token())
    await scheme.close()


@pytest.mark.parametrize(
    "lie",
    [
        {"active": "true"},
        {"active": 1},
        {"active": None},
        {"active": False},
        {"aud": "hotel"},
        {"aud": None},
        {"exp": 1},
        {"exp": "never"},
        {"nbf": 9999999999},
        {"iss": "https://evil.example"},
        {"sub": None, "client_id": None},
        {"sub": ["ada"]},
        {"scope": 7},
        {"token_type": "DPoP"},
        {"cnf": {"jkt": "x"}},
        {"act": "somebody"},
    ],
)
async def test_an_answer_has_to_fit(issuer: Issuer, clock: Clock, lie: dict[str, Any]) -> None:
    issuer.lie("introspect", **lie)
    scheme = by(issuer, issuer=issuer.url)
    await at(scheme, clock)
    with pytest.raises(CredentialsRefused):
        await verified(scheme, issuer.token("ada", opaque=True))
    await scheme.close()


@pytest.mark.parametrize("fault", ["fails", "hangs", "no JSON", "grows", "wrong secret"])
async def test_without_an_answer_nobody_is_refused_and_nobody_let_in(
    issuer: Issuer, clock: Clock, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    match fault:
        case "fails":
            issuer.fail("introspect")
        case "hangs":
            issuer.hang("introspect")
            monkeypatch.setattr(outbound, "TIMEOUT", 1.0)
        case "no JSON":
            issuer.fail("introspect", status=200, body=b"<html>")
        case "grows":
            issuer.grow("introspect", size=5_000_000)
    secret = "wrong" if fault == "wrong secret" else "secret"
    scheme = by(issuer, secret=secret)
    await at(scheme, clock)
    for number in range(5):
        with pytest.raises(OverloadedError) as caught:
            await verified(scheme, issuer.token(f"user-{number}", opaque=True))
        assert caught.value.retry_after
    assert issuer.requests["introspect"] == 1  # the issuer is not queried for a moment
    if secret == "secret":
        issuer.recover()
        monkeypatch.undo()
        clock.now += oauth.RETRY_SECONDS
        assert await verified(scheme, issuer.token(opaque=True))
    await scheme.close()


async def test_secrets_and_tokens_do_not_show(
    issuer: Issuer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    asking = Introspection("service", "hunter2", f"{issuer.url}/introspect")
    scheme = OAuth2(FLOW, audience="bank", introspection=asking)
    await at(scheme, clock)
    token = issuer.token(opaque=True)
    with pytest.raises(OverloadedError) as caught:
        await verified(scheme, token)
    shown = f"{asking} {asking!r} {scheme!r} {caught.value!r} {caplog.text}"
    assert "cannot be introspected" in caplog.text
    assert "hunter2" not in shown
    assert token not in shown
    await scheme.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"client_id": "", "client_secret": "x"}, "client_id="),
        ({"client_id": "x", "client_secret": ""}, "client_secret="),
        ({"client_id": "x", "client_secret": "y", "url": "http://id.example"}, "https"),
        ({"client_id": "x", "client_secret": "y", "cache_for": -1}, "cache_for="),
        ({"client_id": "x", "client_secret": "y", "cache_for": 1e9}, "cache_for="),
    ],
)
def test_a_question_names_who_asks(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Introspection(**options)


def test_names_and_secrets_may_have_any_characters() -> None:
    import base64

    header = Introspection("a:b", "c d&é", "https://id.example").authorization
    assert base64.b64decode(header.removeprefix("Basic ")) == b"a%3Ab:c+d%26%C3%A9"


async def test_an_active_token_needs_no_expiry(issuer: Issuer, scheme: OAuth2) -> None:
    token = issuer.token("ada", claims={"exp": None}, opaque=True)
    assert (await verified(scheme, token)).caller.id == "ada"
