"""A server's published security documents: public keys, and the issuers of an agent."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import parley
from parley import Agent, CardDetails, Turn
from parley.conformance.signing_keys import new_key, signed
from parley.model.operations import GetExtendedAgentCardRequest
from parley.model.service import Caller
from parley.model.struct import encode
from parley.security import (
    AuthorizationCodeOAuthFlow,
    Bearer,
    Jwt,
    OAuth2,
    OpenIdConnect,
    Scheme,
    Security,
)
from parley.security.key_sets import KeySet, read_keys
from parley.security.signing.cards import verify
from parley.security.signing.keys import SigningKeys
from parley.server.app import Settings
from parley.server.run import serving
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.kit.grpc import rpc_to
from tests.kit.http import ask, call, post
from tests.security.signing.key_sets import key_set

pytestmark = pytest.mark.anyio


JWKS, CARD = "/.well-known/jwks.json", "/.well-known/agent-card.json"
PUBLIC = "https://agents.example.com"
LATEST, OLD = {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}
TOKEN = {"authorization": "Bearer good"}


def judge(card, jwks):
    return verify(card.body, KeySet(read_keys(jwks.json)))


def agent_of(**options):
    agent = Agent("Bank", description="Looks after money.", **options)

    @agent.skill
    async def balance(text: str) -> str:
        """Say the balance."""
        return "42"

    return agent


def app_of(keys=None, *, agents=None, settings=None, url=PUBLIC, **options):
    settings = Settings(allowed_hosts=("*",), **settings or {})
    keys = SigningKeys.parse(key_set()) if keys is None else keys
    return parley.asgi(
        agents or agent_of(), settings=settings, url=url, signing_keys=keys, **options
    )


async def test_without_keys_there_is_nothing():
    async with serving(
        parley.asgi(agent_of(), url=PUBLIC, settings=Settings(allowed_hosts=("*",)))
    ) as url:
        assert (await ask(url, "GET", JWKS)).status == 404
        assert "signatures" not in (await ask(url, "GET", CARD)).json


async def test_a_worker_signs_webhooks_and_publishes_nothing():
    """A worker serves only health checks over HTTP; servers with the API role publish the keys."""
    logs = MemoryLogs()
    async with serving(app_of(store=MemoryTaskStore(logs=logs), role="api")) as url:
        assert (await ask(url, "GET", JWKS)).status == 200
    async with serving(app_of(store=MemoryTaskStore(logs=logs), role="worker")) as url:
        assert (await ask(url, "GET", "/health/live")).status == 200
        for path in (JWKS, CARD):
            refused = await ask(url, "GET", path)
            assert refused.status == 503
            assert b"kty" not in refused.body


def extended_app(keys):
    agent = agent_of(
        security=Bearer({"good": Caller(id="ada")}.get),
        card=CardDetails(extended_card={"description": "Knows you."}),
    )
    return app_of(keys, agents=agent)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["jsonrpc", "rest"])
async def test_the_extended_card_is_signed_over_http(binding, version):
    keys = SigningKeys.parse(key_set())
    names = {"1.0": "GetExtendedAgentCard", "0.3": "agent/getAuthenticatedExtendedCard"}
    paths = {"1.0": "/extendedAgentCard", "0.3": "/v1/card"}
    headers = {**TOKEN, "A2A-Version": version, "content-type": "application/json"}
    async with serving(extended_app(keys)) as url:
        if binding == "jsonrpc":
            body = {"jsonrpc": "2.0", "id": 1, "method": names[version], "params": {}}
            answer = await ask(url, "POST", "/", json.dumps(body).encode(), headers=headers)
            card = answer.json["result"]
        else:
            answer = await ask(url, "GET", paths[version], headers=headers)
            card = answer.json
        assert answer.status == 200
        assert card["description"] == "Knows you."
        verdict = verify(card, KeySet(read_keys(keys.published)))
        assert verdict.is_trusted, str(verdict)
        if version == "1.0":
            assert verdict.form in ("exact", "received")
            assert len(verdict.verified) >= 1


async def test_the_extended_card_is_signed_over_grpc():
    keys = SigningKeys.parse(key_set())
    app = extended_app(keys)
    metadata = (("authorization", "Bearer good"), ("a2a-version", "1.0"))
    async with rpc_to(app) as rpc:
        card = await rpc.ask("GetExtendedAgentCard", GetExtendedAgentCardRequest(), metadata)
    assert card.description == "Knows you."
    assert card.signatures[0].protected
    verdict = verify(encode(card), KeySet(read_keys(keys.published)))
    assert verdict.form == "exact"
    interfaces = verdict.members["supportedInterfaces"]
    assert "GRPC" in {each["protocolBinding"] for each in interfaces}


# -- protected resource metadata (RFC 9728): a challenge leads to an agent's issuers ---------------


PATH = "/.well-known/oauth-protected-resource"
ISSUER = "https://id.example"
FLOW = AuthorizationCodeOAuthFlow(
    authorization_url=f"{ISSUER}/authorize",
    token_url=f"{ISSUER}/token",
    scopes={"read": "Read", "pay": "Pay"},
)
KEY = new_key("ES256")
BODY = call()


def resource_agent_of(security: Scheme | Security | None, name: str = "Bank") -> Agent:
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
    async with serving(parley.asgi(resource_agent_of(security))) as url:
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
    agent = resource_agent_of(scheme.with_scopes("read"))

    @agent.skill(listed=listed, security=scheme.with_scopes("read", "vault"))
    async def vault(turn: Turn) -> str:
        return "gold"

    async with serving(parley.asgi(agent)) as url:
        scopes = (await ask(url, "GET", PATH)).json["scopes_supported"]
        assert scopes == (["read", "vault"] if listed is True else ["read"])


async def test_missing_scopes_are_named() -> None:
    scheme = Jwt(issuer=ISSUER, audience="bank", keys=KEY.as_dict(private=False))
    claims = {"iss": ISSUER, "aud": "bank", "sub": "ada", "exp": 9999999999, "scope": "read"}
    token = signed({"alg": "ES256", "kid": KEY.kid}, claims, KEY)
    async with serving(parley.asgi(resource_agent_of(scheme.with_scopes("read", "pay")))) as url:
        response = await post(url, BODY, {"authorization": f"Bearer {token}"})
        assert response.status == 403
        challenge = challenge_of(response)
        assert challenge["error"] == "insufficient_scope"
        assert set(challenge["scope"].split()) == {"read", "pay"}
        assert challenge["resource_metadata"] == f"{url}{PATH}"
        response = await post(url, BODY, {"authorization": "Bearer x.y.z"})
        assert challenge_of(response)["error"] == "invalid_token"


async def test_challenges_of_grpc_name_the_metadata_over_http() -> None:
    import grpc.aio

    from parley.server.settings import GrpcOptions

    app = parley.asgi(resource_agent_of(oidc()))
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


async def test_a_host_of_a_request_is_never_signed():
    async with serving(app_of(settings={"trust_proxy": True})) as url:
        headers = {"Host": "evil.example", "x-forwarded-host": "evil.example"}
        card = await ask(url, "GET", CARD, headers=headers)
        assert b"evil" not in card.body
        assert judge(card, await ask(url, "GET", JWKS)).is_trusted
