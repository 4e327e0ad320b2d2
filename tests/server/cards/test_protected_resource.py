"""Protected resource metadata (RFC 9728): a challenge leads to the issuers of an agent."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import parley
from parley import Agent, Turn
from parley.conformance.signing_keys import new_key, signed
from parley.model.service import Caller
from parley.security import (
    AuthorizationCodeOAuthFlow,
    Bearer,
    Jwt,
    OAuth2,
    OpenIdConnect,
    Scheme,
    Security,
)
from parley.server.run import serving
from tests.kit.http import ask, call, post

pytestmark = pytest.mark.anyio

PATH = "/.well-known/oauth-protected-resource"
ISSUER = "https://id.example"
FLOW = AuthorizationCodeOAuthFlow(
    authorization_url=f"{ISSUER}/authorize",
    token_url=f"{ISSUER}/token",
    scopes={"read": "Read", "pay": "Pay"},
)
KEY = new_key("ES256")
BODY = call()


def agent_of(security: Scheme | Security | None, name: str = "Bank") -> Agent:
    agent = Agent(name, security=security)

    @agent.skill
    async def whoami(turn: Turn) -> str:
        return turn.caller.id

    return agent


def oidc() -> OpenIdConnect:
    return OpenIdConnect(ISSUER, audience="bank")


def challenge_of(response: Any) -> dict[str, str]:
    value = response.headers["www-authenticate"]
    assert value.startswith("Bearer ")
    return dict(re.findall(r'(\w+)="([^"]*)"', value))


async def test_it_names_issuers_and_scopes() -> None:
    security = oidc().with_scopes("openid") | OAuth2(FLOW, issuer=f"{ISSUER}/a", audience="bank")
    async with serving(parley.asgi(agent_of(security))) as url:
        response = await ask(url, "GET", PATH)
        assert response.status == 200
        assert response.headers["content-type"] == "application/json"
        assert "max-age" in response.headers["cache-control"]
        assert response.json == {
            "resource": url,
            "authorization_servers": [ISSUER, f"{ISSUER}/a"],
            "bearer_methods_supported": ["header"],
            "scopes_supported": ["openid", "pay", "read"],
        }
        assert (await ask(url, "POST", PATH)).status == 405


@pytest.mark.parametrize("listed", [True, "extended", False])
async def test_it_names_no_scopes_of_skills_that_not_all_see(listed: Any) -> None:
    scheme = oidc()
    agent = agent_of(scheme.with_scopes("read"))

    @agent.skill(listed=listed, security=scheme.with_scopes("read", "vault"))
    async def vault(turn: Turn) -> str:
        return "gold"

    async with serving(parley.asgi(agent)) as url:
        scopes = (await ask(url, "GET", PATH)).json["scopes_supported"]
        assert scopes == (["read", "vault"] if listed is True else ["read"])


@pytest.mark.parametrize(
    ("serve", "path"),
    [
        (lambda agent: parley.asgi({"/bank": agent, "/open": agent_of(None, "Open")}), "/bank"),
        (lambda agent: parley.asgi([agent]), "/bank"),
        (lambda agent: parley.asgi({"/a/b": agent}), "/a/b"),
    ],
)
async def test_a_challenge_leads_to_the_metadata_of_its_agent(
    serve: Callable[[Agent], Any], path: str
) -> None:
    async with serving(serve(agent_of(oidc()))) as url:
        response = await post(url, BODY, path=path)
        assert response.status == 401
        metadata = challenge_of(response)["resource_metadata"]
        assert metadata == f"{url}{PATH}{path}"
        found = await ask(url, "GET", f"{PATH}{path}")
        assert found.json["resource"] == url + path
        if path == "/bank":
            assert (await ask(url, "GET", f"{PATH}/open")).status == 404


async def test_tenants_have_metadata_of_their_own() -> None:
    other = OpenIdConnect("https://acme.example", audience="bank")
    app = parley.asgi(tenants={"acme": agent_of(other), "open": agent_of(None, "Open")})
    async with serving(app) as url:
        found = await ask(url, "GET", f"{PATH}/acme")
        assert found.json["resource"] == f"{url}/acme"
        assert found.json["authorization_servers"] == ["https://acme.example"]
        assert (await ask(url, "GET", f"{PATH}/open")).status == 404


async def test_the_address_is_the_public_one() -> None:
    app = parley.asgi(agent_of(oidc()), url="https://bank.example.com")
    async with serving(app) as url:
        response = await post(url, BODY)
        assert challenge_of(response)["resource_metadata"] == f"https://bank.example.com{PATH}"
        assert (await ask(url, "GET", PATH)).json["resource"] == "https://bank.example.com"


async def test_a_host_cannot_write_into_a_challenge() -> None:
    async with serving(parley.asgi(agent_of(oidc()))) as url:
        for host in ('evil.example", error="x', "a b", "", "a,b"):
            response = await ask(url, "GET", "/tasks", headers={"Host": host, "A2A-Version": "1.0"})
            assert "evil" not in response.headers.get("www-authenticate", "")


async def test_missing_scopes_are_named() -> None:
    scheme = Jwt(issuer=ISSUER, audience="bank", keys=KEY.as_dict(private=False))
    claims = {"iss": ISSUER, "aud": "bank", "sub": "ada", "exp": 9999999999, "scope": "read"}
    token = signed({"alg": "ES256", "kid": KEY.kid}, claims, KEY)
    async with serving(parley.asgi(agent_of(scheme.with_scopes("read", "pay")))) as url:
        response = await post(url, BODY, {"authorization": f"Bearer {token}"})
        assert response.status == 403
        challenge = challenge_of(response)
        assert challenge["error"] == "insufficient_scope"
        assert set(challenge["scope"].split()) == {"read", "pay"}
        assert challenge["resource_metadata"] == f"{url}{PATH}"
        response = await post(url, BODY, {"authorization": "Bearer x.y.z"})
        assert challenge_of(response)["error"] == "invalid_token"


async def test_agents_without_issuers_have_none() -> None:
    judged = Bearer({"t": Caller(id="ada")}.get)
    for agent in (agent_of(None), agent_of(judged)):
        async with serving(parley.asgi(agent)) as url:
            assert (await ask(url, "GET", PATH)).status in (401, 404)
            response = await post(url, BODY)
            assert "resource_metadata" not in response.headers.get("www-authenticate", "")


async def test_challenges_of_grpc_name_the_metadata_over_http() -> None:
    import grpc.aio

    from parley.server.settings import GrpcOptions

    app = parley.asgi(agent_of(oidc()))
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        card = (await ask(url, "GET", "/.well-known/agent-card.json")).json
        [address] = {
            each["url"]
            for each in card["supportedInterfaces"]
            if each["protocolBinding"] == "GRPC" and each["protocolVersion"] == "1.0"
        }
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary("/lf.a2a.v1.A2AService/GetTask")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"\n\x01x", metadata=[("a2a-version", "1.0")])
        trailing = dict(caught.value.trailing_metadata() or ())
        assert f'resource_metadata="{url}{PATH}"' in trailing["www-authenticate"]
