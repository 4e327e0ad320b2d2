"""What a server publishes about its security: its public keys, and the issuers of an agent."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import pytest

import parley
from parley import Agent, CardDetails, Turn
from parley.conformance.signing_keys import new_key, signed
from parley.model.extensions import Extension
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
    anonymous,
)
from parley.security.key_sets import KeySet, read_keys
from parley.security.signing import keys as key_module
from parley.security.signing.cards import verify
from parley.security.signing.keys import SigningKeys, SigningKeysInvalid
from parley.server.app import Settings
from parley.server.run import serving
from parley.store.memory import MemoryLogs, MemoryTaskStore
from tests.kit.grpc import rpc_to
from tests.kit.http import ask, call, post
from tests.security.signing.key_sets import key_file, key_set, private_jwk

pytestmark = pytest.mark.anyio


JWKS, CARD = "/.well-known/jwks.json", "/.well-known/agent-card.json"
PUBLIC = "https://agents.example.com"
LATEST, OLD = {"A2A-Version": "1.0"}, {"A2A-Version": "0.3"}
TOKEN = {"authorization": "Bearer good"}


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


def judge(card, jwks):
    return verify(card.body, KeySet(read_keys(jwks.json)))


async def test_the_keys_are_at_the_root_for_all_agents():
    keys = SigningKeys.parse(key_set(private_jwk("ES256"), private_jwk("EdDSA", state="next")))
    async with serving(
        app_of(keys, agents={"/a": agent_of(key="a"), "/b": agent_of(key="b")})
    ) as url:
        response = await ask(url, "GET", JWKS)
        assert response.status == 200
        assert response.json == keys.published
        assert len(response.json["keys"]) == 2
        assert "d" not in response.json["keys"][0]
        assert response.headers["content-type"] == "application/jwk-set+json"
        assert response.headers["cache-control"] == "public, max-age=300"
        for path in ("/a", "/b"):
            card = await ask(url, "GET", path + CARD)
            assert judge(card, response).form == "received"


async def test_the_keys_may_be_asked_for_conditionally():
    async with serving(app_of()) as url:
        whole = await ask(url, "GET", JWKS)
        head = await ask(url, "HEAD", JWKS)
        assert (head.status, head.body) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.body))
        same = {"if-none-match": whole.headers["etag"]}
        assert (await ask(url, "GET", JWKS, headers=same)).status == 304
        other = {"if-none-match": '"other"'}
        assert (await ask(url, "GET", JWKS, headers=other)).status == 200
        refused = await ask(url, "POST", JWKS)
        assert refused.status == 405
        assert refused.headers["allow"] == "GET, HEAD"


async def test_without_keys_there_is_nothing():
    async with serving(
        parley.asgi(agent_of(), url=PUBLIC, settings=Settings(allowed_hosts=("*",)))
    ) as url:
        assert (await ask(url, "GET", JWKS)).status == 404
        assert "signatures" not in (await ask(url, "GET", CARD)).json


async def test_a_worker_signs_webhooks_and_publishes_nothing():
    """Its health checks are all of its HTTP: the keys are those of the servers beside it."""
    logs = MemoryLogs()
    async with serving(app_of(store=MemoryTaskStore(logs=logs), role="api")) as url:
        assert (await ask(url, "GET", JWKS)).status == 200
    async with serving(app_of(store=MemoryTaskStore(logs=logs), role="worker")) as url:
        assert (await ask(url, "GET", "/health/live")).status == 200
        for path in (JWKS, CARD):
            refused = await ask(url, "GET", path)
            assert refused.status == 503
            assert b"kty" not in refused.body


async def test_the_keys_can_be_restricted():
    elsewhere = {"restrict": {"jwks": ["192.0.2.0/24"]}}
    async with serving(app_of(settings=elsewhere)) as url:
        assert (await ask(url, "GET", JWKS)).status == 404
    agent = agent_of(security=Bearer({"good": Caller(id="ada")}.get) | anonymous)
    app = app_of(agents=agent, settings={"restrict": {"jwks": "authenticated"}})
    async with serving(app) as url:
        assert (await ask(url, "GET", JWKS)).status == 401
        response = await ask(url, "GET", JWKS, headers=TOKEN)
        assert response.status == 200
        assert "public" not in response.headers["cache-control"]


@pytest.mark.parametrize("version", [{}, LATEST, OLD], ids=["merged", "1.0", "0.3"])
async def test_every_card_is_signed_and_names_the_keys(version):
    async with serving(app_of()) as url:
        verdict = judge(await ask(url, "GET", CARD, headers=version), await ask(url, "GET", JWKS))
        assert verdict.is_trusted
        assert {each.jku for each in verdict.verified} == {PUBLIC + JWKS}
        assert len(verdict.verified) == len(verdict.signatures)


async def test_cards_of_tenants_are_signed():
    async with serving(app_of(tenants={"acme": agent_of(key="acme")})) as url:
        jwks = await ask(url, "GET", JWKS)
        for path in (f"/acme{CARD}", f"{CARD}?tenant=acme"):
            assert judge(await ask(url, "GET", path), jwks).is_trusted


async def test_a_host_of_a_request_is_never_signed():
    async with serving(app_of(settings={"trust_proxy": True})) as url:
        headers = {"Host": "evil.example", "x-forwarded-host": "evil.example"}
        card = await ask(url, "GET", CARD, headers=headers)
        assert b"evil" not in card.body
        assert judge(card, await ask(url, "GET", JWKS)).is_trusted


async def test_without_a_public_address_cards_are_not_signed_and_the_log_says_so_once(caplog):
    caplog.set_level(logging.WARNING)
    async with serving(app_of(url=None)) as url:
        for _ in range(3):
            assert "signatures" not in (await ask(url, "GET", CARD)).json
        assert (await ask(url, "GET", JWKS)).status == 200  # webhooks are signed with them
    said = [each for each in caplog.records if "cards are not signed" in each.message]
    assert len(said) == 1
    assert "url" in said[0].message


@pytest.mark.parametrize(
    ("url", "is_warned"),
    [("http://agents.example", True), (PUBLIC, False), ("http://127.0.0.1:8000", False)],
)
async def test_keys_at_an_address_that_no_client_asks_are_warned_of(url, is_warned, caplog):
    caplog.set_level(logging.WARNING)
    async with serving(app_of(url=url)):
        assert ("clients fetch keys over https only" in caplog.text) == is_warned


async def test_a_card_is_signed_once_and_again_when_the_keys_change(tmp_path, monkeypatch):
    monkeypatch.setattr(key_module, "RELOAD_SECONDS", 0)
    made = []
    sign = key_module.SigningKey.sign
    monkeypatch.setattr(
        key_module.SigningKey, "sign", lambda key, data: made.append(key.kid) or sign(key, data)
    )
    path = key_file(tmp_path / "keys", private_jwk(kid="a"), private_jwk(kid="b", state="next"))
    async with serving(app_of(path)) as url:
        first = await ask(url, "GET", CARD)
        count = len(made)
        assert 1 <= count <= 3
        for _ in range(20):
            assert (await ask(url, "GET", CARD)).body == first.body
        assert len(made) == count
        jwks = await ask(url, "GET", JWKS)
        jwk = private_jwk(kid="b")
        key_file(tmp_path / "new", jwk, private_jwk(kid="c", state="next")).replace(path)
        second = await ask(url, "GET", CARD)
        assert second.headers["etag"] != first.headers["etag"]
        assert {each.kid for each in judge(second, jwks).signatures} == {"b"}
        assert judge(second, await ask(url, "GET", JWKS)).is_trusted


async def test_replicas_with_the_same_keys_write_the_same_card():
    text, bodies, tags = key_set(), set(), set()
    for _ in range(2):
        async with serving(app_of(SigningKeys.parse(text))) as url:
            card = await ask(url, "GET", CARD)
            bodies.add(card.body)
            tags.add(card.headers["etag"])
    assert len(bodies) == len(tags) == 1


async def test_an_expired_card_that_is_made_again_has_the_same_tag():
    async with serving(app_of(settings={"card_max_age": 0})) as url:
        tags = {(await ask(url, "GET", CARD)).headers["etag"] for _ in range(3)}
        assert len(tags) == 1


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


def test_a_card_that_cannot_be_signed_is_refused_at_configuration():
    class Odd(Extension):
        uri = "urn:odd"

    agent = agent_of(extensions=[Odd(params={"n": 2**60})])
    with pytest.raises(ValueError, match=r"card of Bank cannot be signed.*safe integer"):
        app_of(agents=agent)
    parley.asgi(agent, url=PUBLIC)  # unsigned, it may have such a number


def test_keys_that_cannot_be_used_are_refused_at_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLEY_SIGNING_KEYS", "{}")
    with pytest.raises(SigningKeysInvalid, match="PARLEY_SIGNING_KEYS"):
        parley.asgi(agent_of())
    monkeypatch.delenv("PARLEY_SIGNING_KEYS")
    with pytest.raises(SigningKeysInvalid, match="parley keys generate"):
        parley.asgi(agent_of(), signing_keys=tmp_path / "none.json")
    if os.name == "posix":
        with pytest.raises(SigningKeysInvalid, match="chmod 600"):
            parley.asgi(agent_of(), signing_keys=key_file(tmp_path / "open.json", mode=0o644))


# -- protected resource metadata (RFC 9728): a challenge leads to the issuers of an agent ----------


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


@pytest.mark.parametrize(
    ("serve", "path"),
    [
        (
            lambda agent: parley.asgi({"/bank": agent, "/open": resource_agent_of(None, "Open")}),
            "/bank",
        ),
        (lambda agent: parley.asgi([agent]), "/bank"),
        (lambda agent: parley.asgi({"/a/b": agent}), "/a/b"),
    ],
)
async def test_a_challenge_leads_to_the_metadata_of_its_agent(
    serve: Callable[[Agent], Any], path: str
) -> None:
    async with serving(serve(resource_agent_of(oidc()))) as url:
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
    app = parley.asgi(
        tenants={"acme": resource_agent_of(other), "open": resource_agent_of(None, "Open")}
    )
    async with serving(app) as url:
        found = await ask(url, "GET", f"{PATH}/acme")
        assert found.json["resource"] == f"{url}/acme"
        assert found.json["authorization_servers"] == ["https://acme.example"]
        assert (await ask(url, "GET", f"{PATH}/open")).status == 404


async def test_the_address_is_the_public_one() -> None:
    app = parley.asgi(resource_agent_of(oidc()), url="https://bank.example.com")
    async with serving(app) as url:
        response = await post(url, BODY)
        assert challenge_of(response)["resource_metadata"] == f"https://bank.example.com{PATH}"
        assert (await ask(url, "GET", PATH)).json["resource"] == "https://bank.example.com"


async def test_a_host_cannot_write_into_a_challenge() -> None:
    async with serving(parley.asgi(resource_agent_of(oidc()))) as url:
        for host in ('evil.example", error="x', "a b", "", "a,b"):
            response = await ask(url, "GET", "/tasks", headers={"Host": host, "A2A-Version": "1.0"})
            assert "evil" not in response.headers.get("www-authenticate", "")


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


async def test_agents_without_issuers_have_none() -> None:
    judged = Bearer({"t": Caller(id="ada")}.get)
    for agent in (resource_agent_of(None), resource_agent_of(judged)):
        async with serving(parley.asgi(agent)) as url:
            assert (await ask(url, "GET", PATH)).status in (401, 404)
            response = await post(url, BODY)
            assert "resource_metadata" not in response.headers.get("www-authenticate", "")


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
