"""The issuer of ``parley.testing``: every flow, and its deliberate defects."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet

from parley.testing import Issuer

pytestmark = pytest.mark.anyio

REDIRECT = "http://127.0.0.1:5000/callback"


def basic(name: str, secret: str) -> str:
    return f"Basic {base64.b64encode(f'{name}:{secret}'.encode()).decode()}"


SERVICE = basic("service", "secret")
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer(audience="bank", device_interval=0) as issuer:
        yield issuer


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def get(http: aiohttp.ClientSession, url: str) -> Any:
    async with http.get(url) as response:
        assert response.status == 200
        return await response.json()


async def post(
    http: aiohttp.ClientSession, url: str, authorization: str = "", **form: str
) -> tuple[int, Any]:
    headers = {"authorization": authorization} if authorization else {}
    async with http.post(url, data=form, headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def code(
    http: aiohttp.ClientSession, issuer: Issuer, verifier: str = "v" * 43, **changes: str
) -> dict[str, list[str]]:
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
    query = {
        "response_type": "code",
        "client_id": "app",
        "redirect_uri": REDIRECT,
        "scope": "openid pay",
        "state": "s",
        "nonce": "n",
        "code_challenge": challenge.decode(),
        "code_challenge_method": "S256",
    } | changes
    url = f"{issuer.url}/authorize"
    async with http.get(url, params=query, allow_redirects=False) as response:
        assert response.status == 302
        return parse_qs(urlsplit(response.headers["location"]).query)


async def claims(http: aiohttp.ClientSession, issuer: Issuer, token: str) -> dict[str, Any]:
    keys = KeySet.import_key_set(await get(http, f"{issuer.url}/jwks"))
    return jwt.decode(token, keys, algorithms=["ES256"]).claims


async def test_a_code_is_granted_at_once_and_used_once(
    issuer: Issuer, http: aiohttp.ClientSession
) -> None:
    answer = await code(http, issuer)
    assert answer["state"] == ["s"]
    assert answer["iss"] == [issuer.url]
    form = {
        "grant_type": "authorization_code",
        "client_id": "app",
        "code": answer["code"][0],
        "redirect_uri": REDIRECT,
        "code_verifier": "v" * 43,
    }
    status, tokens = await post(http, f"{issuer.url}/token", **form)
    assert status == 200
    access = await claims(http, issuer, tokens["access_token"])
    assert access["sub"] == "ada"
    assert access["aud"] == "bank"
    assert access["client_id"] == "app"
    assert access["scope"] == "openid pay"
    identity = await claims(http, issuer, tokens["id_token"])
    assert identity["aud"] == "app"
    assert identity["nonce"] == "n"
    status, again = await post(http, f"{issuer.url}/token", **form)
    assert (status, again["error"]) == (400, "invalid_grant")
    _, read = await post(http, f"{issuer.url}/introspect", SERVICE, token=tokens["access_token"])
    assert read == {"active": False}  # tokens from a reused code are revoked


async def test_a_refresh_token_is_replaced_and_reuse_revokes_all(
    issuer: Issuer, http: aiohttp.ClientSession
) -> None:
    answer = await code(http, issuer)
    url = f"{issuer.url}/token"
    _, first = await post(
        http,
        url,
        grant_type="authorization_code",
        client_id="app",
        code=answer["code"][0],
        redirect_uri=REDIRECT,
        code_verifier="v" * 43,
    )
    refresh = {"grant_type": "refresh_token", "client_id": "app"}
    status, second = await post(http, url, **refresh, refresh_token=first["refresh_token"])
    assert status == 200
    assert second["refresh_token"] != first["refresh_token"]
    status, _ = await post(http, url, **refresh, refresh_token=first["refresh_token"])
    assert status == 400
    status, _ = await post(http, url, **refresh, refresh_token=second["refresh_token"])
    assert status == 400


async def test_a_client_is_granted_a_token_by_its_secret(
    issuer: Issuer, http: aiohttp.ClientSession
) -> None:
    url, form = f"{issuer.url}/token", {"grant_type": "client_credentials", "scope": "pay"}
    _, by_header = await post(http, url, SERVICE, **form)
    _, posted = await post(http, url, **form, client_id="service", client_secret="secret")
    for answer in (by_header, posted):
        access = await claims(http, issuer, answer["access_token"])
        assert access["sub"] == access["client_id"] == "service"
    for auth in (basic("service", "wrong"), basic("nobody", "")):
        status, refused = await post(http, url, auth, **form)
        assert (status, refused["error"]) == (401, "invalid_client")


async def test_a_token_is_exchanged_by_one_who_acts_for_its_user(
    issuer: Issuer, http: aiohttp.ClientSession
) -> None:
    form = {
        "grant_type": EXCHANGE,
        "subject_token": issuer.token("ada", scope="pay read"),
        "subject_token_type": ACCESS_TOKEN,
        "audience": "hotel",
        "scope": "read",
    }
    status, answer = await post(http, f"{issuer.url}/token", SERVICE, **form)
    assert status == 200
    assert answer["issued_token_type"] == ACCESS_TOKEN
    access = await claims(http, issuer, answer["access_token"])
    assert (access["sub"], access["aud"], access["scope"]) == ("ada", "hotel", "read")
    assert access["act"] == {"sub": "service"}

    form["subject_token"] = answer["access_token"]
    _, chained = await post(http, f"{issuer.url}/token", SERVICE, **form)
    access = await claims(http, issuer, chained["access_token"])
    assert access["act"] == {"sub": "service", "act": {"sub": "service"}}

    _, wider = await post(http, f"{issuer.url}/token", SERVICE, **form | {"scope": "pay"})
    assert wider["error"] == "invalid_scope"
    form["subject_token"] = issuer.token("ada", forged=True)
    _, forged = await post(http, f"{issuer.url}/token", SERVICE, **form)
    assert forged["error"] == "invalid_request"


async def test_introspection_reads_tokens_until_they_are_revoked(
    issuer: Issuer, http: aiohttp.ClientSession
) -> None:
    url = f"{issuer.url}/introspect"
    for token in (issuer.token("ada"), issuer.token("ada", opaque=True)):
        _, read = await post(http, url, SERVICE, token=token)
        assert read["active"] is True
        assert read["sub"] == "ada"
        async with http.post(
            f"{issuer.url}/revoke", data={"token": token}, headers={"authorization": SERVICE}
        ) as response:
            assert response.status == 200
        assert (await post(http, url, SERVICE, token=token))[1] == {"active": False}
    expired = issuer.token("ada", expires_in=-1)
    assert (await post(http, url, SERVICE, token=expired))[1] == {"active": False}
    assert (await post(http, url, token=expired, client_id="app"))[0] == 401


@pytest.mark.parametrize("alg", ["RS256", "PS256", "ES256", "ES384", "EdDSA"])
async def test_tokens_can_be_signed_with_any_algorithm(
    issuer: Issuer, http: aiohttp.ClientSession, alg: str
) -> None:
    token = issuer.token(alg=alg)
    _, read = await post(http, f"{issuer.url}/introspect", SERVICE, token=token)
    assert read["active"] is True
