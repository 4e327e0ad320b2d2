"""Published keys rotate, hang, lie and grow; the issuer's tokens are soon valid again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from parley.conformance.signing_keys import new_key
from parley.model.errors import OverloadedError
from parley.security import Jwt, key_sets, outbound
from parley.security.key_sets import KEY_AGES, MAX_KEYS, read_keys
from parley.security.outbound import REFETCH_SECONDS, Cached, FetchFailed
from parley.security.schemes.scheme import CredentialsRefused
from parley.testing import Issuer
from tests.kit.waiting import until
from tests.security.tokens import Clock, at, verified

pytestmark = pytest.mark.anyio


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer(audience="bank") as issuer:
        yield issuer


@pytest.fixture
def clock() -> Clock:
    return Clock(time.time())


@pytest.fixture
async def scheme(issuer: Issuer, clock: Clock) -> AsyncIterator[Jwt]:
    scheme = Jwt(issuer=issuer.url, audience="bank", jwks_url=f"{issuer.url}/jwks", leeway=600)
    await at(scheme, clock)
    yield scheme
    await scheme.close()


def token(issuer: Issuer, **options: Any) -> str:
    return issuer.token(**{"expires_in": 24 * 3600, **options})


async def test_keys_are_fetched_once_for_all(issuer: Issuer, scheme: Jwt) -> None:
    await asyncio.gather(*(verified(scheme, token(issuer)) for _ in range(20)))
    await verified(scheme, token(issuer))
    assert issuer.requests == {"jwks": 1}


async def test_a_new_key_is_found_at_once(issuer: Issuer, scheme: Jwt) -> None:
    await verified(scheme, token(issuer))
    issuer.rotate()
    await asyncio.gather(*(verified(scheme, token(issuer)) for _ in range(20)))
    assert issuer.requests == {"jwks": 2}


async def test_one_unknown_key_is_looked_for_once(issuer: Issuer, scheme: Jwt) -> None:
    await verified(scheme, token(issuer))
    for _ in range(20):
        with pytest.raises(CredentialsRefused):
            await verified(scheme, token(issuer, header={"kid": "unknown"}))
    assert issuer.requests == {"jwks": 2}


async def test_a_known_key_for_another_algorithm_is_not_looked_for(
    issuer: Issuer, scheme: Jwt
) -> None:
    await verified(scheme, token(issuer))
    kid = issuer.keys.current("ES256").kid
    for _ in range(5):
        with pytest.raises(CredentialsRefused):
            await verified(scheme, token(issuer, alg="RS256", header={"kid": kid}))
    assert issuer.requests == {"jwks": 1}


@pytest.mark.slow
async def test_a_withdrawn_key_ends_when_the_keys_are_fetched_again(
    issuer: Issuer, scheme: Jwt, clock: Clock
) -> None:
    issuer.max_age = 100
    old = [token(issuer) for _ in range(1000)]
    await verified(scheme, old.pop())
    issuer.rotate(keep=False)
    await verified(scheme, old.pop())
    clock.now += 101

    async def is_refused() -> bool:
        try:
            await verified(scheme, old.pop())
        except CredentialsRefused as refusal:
            return refusal.reason == "an unknown signing key"
        return False

    await verified(scheme, old.pop())  # the last with the old keys, while the new are fetched
    await until(lambda: issuer.requests["jwks"] == 2)
    await until(is_refused)


@pytest.mark.parametrize(
    ("max_age", "kept"),
    [(0, KEY_AGES.minimum), (None, KEY_AGES.default), (10**9, KEY_AGES.maximum)],
)
async def test_keys_are_kept_within_bounds(
    issuer: Issuer, scheme: Jwt, clock: Clock, max_age: int | None, kept: float
) -> None:
    issuer.max_age = max_age
    await verified(scheme, token(issuer))
    clock.now += kept - 1
    await verified(scheme, token(issuer, expires_in=10 * KEY_AGES.maximum))
    assert issuer.requests["jwks"] == 1
    clock.now += 2
    await verified(scheme, token(issuer, expires_in=10 * KEY_AGES.maximum))
    await until(lambda: issuer.requests["jwks"] == 2)


@pytest.mark.parametrize("fault", ["fails", "hangs", "grows", "lies", "many"])
async def test_old_keys_count_for_a_while_when_the_issuer_is_broken(
    issuer: Issuer, scheme: Jwt, clock: Clock, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.max_age = 100
    await verified(scheme, token(issuer))
    broken(issuer, fault, monkeypatch)
    clock.now += 101
    for _ in range(10):
        await verified(scheme, token(issuer))
    clock.now += outbound.KEPT_SECONDS
    with pytest.raises(OverloadedError) as caught:
        await verified(scheme, token(issuer))
    assert caught.value.retry_after
    recovered(issuer, monkeypatch)
    clock.now += outbound.RETRY_SECONDS + 1
    await verified(scheme, token(issuer))


@pytest.mark.parametrize(
    "fault", ["fails", "hangs", "grows", "lies", "many", "redirects", "garbles", "no JSON"]
)
async def test_without_keys_nobody_is_refused_and_nobody_let_in(
    issuer: Issuer, scheme: Jwt, clock: Clock, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(issuer, fault, monkeypatch)
    for _ in range(10):
        with pytest.raises(OverloadedError) as caught:
            await verified(scheme, token(issuer))
        assert caught.value.retry_after
    assert issuer.requests["jwks"] == 1  # the issuer is not queried for a moment
    recovered(issuer, monkeypatch)
    clock.now += outbound.RETRY_SECONDS
    await verified(scheme, token(issuer))


def broken(issuer: Issuer, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    match fault:
        case "fails":
            issuer.fail("jwks")
        case "hangs":
            issuer.hang("jwks")
            monkeypatch.setattr(outbound, "TIMEOUT", 1.0)
        case "grows":
            issuer.grow("jwks", size=5_000_000)
        case "many":
            issuer.grow("jwks", keys=key_sets.MAX_KEYS + 1)
        case "lies":
            issuer.lie("jwks", keys="none")
        case "garbles":
            issuer.fail("jwks", status=200, body=b'{"keys": "\x89"}')
        case "no JSON":
            issuer.fail("jwks", status=200, body=b"[" * 100_000)
        case "redirects":
            issuer.fail("jwks", status=302, headers={"location": f"{issuer.url}/token"})


def recovered(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the issuer and the usual timeouts: recovery may take time."""
    issuer.recover()
    monkeypatch.undo()


async def test_closing_ends_what_is_under_way(issuer: Issuer, scheme: Jwt) -> None:
    issuer.hang("jwks")
    waiting = asyncio.create_task(verified(scheme, token(issuer)))
    await until(lambda: issuer.requests["jwks"] == 1)
    await scheme.close()
    with pytest.raises(OverloadedError):
        await waiting


# -- reading a set -------------------------------------------------------------------------------

KEY = new_key("ES256").as_dict(private=False)


def read(*keys: Any) -> list[str]:
    return [key.kid for key in key_sets.read_keys({"keys": list(keys)})]


@pytest.mark.parametrize(
    "unusable",
    [
        {"kty": "oct", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "kid": "secret"},
        {**KEY, "use": "enc"},
        {**KEY, "key_ops": ["encrypt"]},
        {**KEY, "key_ops": "verify"},
        {**KEY, "alg": "HS256"},
        {**KEY, "alg": "ES384"},
        {**KEY, "alg": ["ES256"]},
        {**KEY, "alg": "none"},
        {**KEY, "crv": "P-521"},
        {**KEY, "crv": ["P-256"]},
        {**KEY, "x": "AAAA"},
        {**KEY, "x": "!"},
        {**KEY, "x": None},
        {**KEY, "kid": 7},
        {**KEY, "kty": "AKP"},
        {**KEY, "kty": ["EC"]},
        {"kty": "RSA", "n": "A" * 2000, "e": "AQAB"},
        {"kty": "RSA", "n": "z" * 100, "e": "AQAB"},
        {"kty": "RSA", "n": "z" * 3000, "e": "AQAB"},
        {"kty": "RSA", "n": "z" * 342, "e": "z" * 342},
        {},
        "key",
        None,
    ],
)
def test_a_key_that_is_not_understood_is_left_out(unusable: Any) -> None:
    assert read(unusable, KEY) == [KEY["kid"]]


def test_private_members_are_not_kept() -> None:
    [key] = key_sets.read_keys({"keys": [new_key("ES256").as_dict(private=True)]})
    assert not key.key.is_private


@pytest.mark.parametrize("content", [{}, {"keys": {}}, {"keys": None}, {"keys": [KEY] * 101}])
def test_what_is_no_set_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(FetchFailed):
        key_sets.read_keys(content)


def test_a_published_set_has_keys_for_signatures_and_at_most_a_hundred() -> None:
    rsa, ec = (new_key(alg).as_dict(private=False) for alg in ("RS256", "ES256"))
    changes: list[dict[str, Any]] = [
        {"kid": "verifies", "key_ops": ["verify"]}, {"key_ops": "verify"}, {"key_ops": ["sign"]},
        {"use": "enc"}, {"kid": 7},
    ]  # fmt: skip
    keys = [{**rsa, "kid": "rsa", "alg": "RS256"}, {**rsa, "e": "AQABAQAB"}]
    found = read_keys({"keys": [*keys, *({**ec, **change} for change in changes)]})
    assert [(key.kid, key.algorithms) for key in found] == [
        ("rsa", {"RS256"}), ("verifies", {"ES256"})
    ]  # fmt: skip
    assert read_keys({"keys": [{}] * MAX_KEYS}) == []
    with pytest.raises(FetchFailed, match="101 keys"):
        read_keys({"keys": [{}] * (MAX_KEYS + 1)})


def test_a_fresh_document_is_fetched_again_five_times_and_then_seldom() -> None:
    clock = Clock(0.0)
    cached: Cached[str] = Cached(KEY_AGES, clock)
    assert [cached.may_refetch() for _ in range(7)] == [True] * 5 + [False] * 2
    clock.now += REFETCH_SECONDS
    assert [cached.may_refetch() for _ in range(2)] == [True, False]
    clock.now += 100
    cached.next_attempt = clock.now + 1
    assert not cached.may_refetch()
