"""Security declarations in cards, in every form; and OpenID Connect end to end."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import parley
from parley import Agent as ParleyAgent
from parley import Turn
from parley.client import auth, connect
from parley.client.auth.credentials import alternatives, describe, is_unreadable
from parley.client.auth.logins import Logins, SignIn, pick_scheme, sign_in
from parley.client.bindings.binding import is_supported
from parley.client.bindings.http import HttpTransport
from parley.client.errors import AuthenticationRequired
from parley.client.origin import Origin
from parley.model.cards import AgentCard
from parley.security import OpenIdConnect
from parley.testing import Issuer
from parley.wire import versions
from tests.client.auth.declared import served
from tests.kit.scripted_server import Agent, card, talk, task
from tests.kit.servers import grpc_of

pytestmark = pytest.mark.anyio


OLD = {"supportedInterfaces": None, "url": "http://127.0.0.1:9/rpc", "protocolVersion": "0.3.0"}
FORMS = {"1.0": {}, "0.3": OLD}
URLS = {"authorizationUrl": "https://i.example/auth", "tokenUrl": "https://i.example/token"}


def read(version: str, **members: Any) -> AgentCard:
    given = {**card("http://127.0.0.1:9"), **FORMS[version], **members}
    return versions.read_card({name: each for name, each in given.items() if each is not None})


API_KEY = [
    {"type": "apiKey", "in": "header", "name": "X-Own"},
    {"type": "apikey", "in": "Header", "name": "X-Own"},
    {"type": "API_KEY", "location": "header", "name": "X-Own"},
    {"type": "apiKeySecurityScheme", "location": "header", "name": "X-Own"},
    {"apiKeySecurityScheme": {"in": "header", "name": "X-Own"}},
    {"apiKey": {"location": "header", "name": "X-Own"}},
    {"type": "apiKey", "apiKeySecurityScheme": {"location": "header", "name": "X-Own"}},
    {"in": "header", "name": "X-Own"},
]
REQUIREMENTS = [
    {"securityRequirements": [{"schemes": {"k": {"list": []}}}]},
    {"securityRequirements": [{"schemes": {"k": []}}]},
    {"securityRequirements": [{"schemes": {"k": {}}}]},
    {"securityRequirements": [{"schemes": ["k"]}]},
    {"securityRequirements": [{"k": []}]},
    {"security": [{"k": []}]},
    {"security": {"k": []}},
    {"security": ["k"]},
    {"securityRequirements": [], "security": [{"k": []}]},
]


OTHERS = {
    "HTTP bearer": [
        {"type": "http", "scheme": "bearer"},
        {"type": "HTTP", "scheme": "bearer", "bearerFormat": "JWT"},
        {"type": "bearer"},
        {"type": "http", "bearerFormat": "JWT"},
        {"httpAuthSecurityScheme": {"scheme": "bearer"}},
        {"scheme": "bearer"},
    ],
    "HTTP basic": [{"type": "basic"}, {"type": "http", "scheme": "basic"}],
    "OAuth 2.0 (authorization code)": [
        {"type": "oauth2", "flows": {"authorizationCode": {**URLS, "scopes": {"read": ""}}}},
        {"type": "OAuth2", "flows": {"authorization_code": {**URLS, "scopes": ["read"]}}},
        {"type": "oauth2", "flow": "accessCode", **URLS, "scopes": {"read": ""}},
        {"oauth2SecurityScheme": {"flows": {"implicit": URLS, "authorizationCode": URLS}}},
        {"flows": {"authorizationCode": URLS}},
    ],
    "OpenID Connect": [
        {"type": "openIdConnect", "openIdConnectUrl": "https://i.example/"},
        {"type": "openidconnect", "openIdConnectURL": "https://i.example/"},
        {"openIdConnectSecurityScheme": {"open_id_connect_url": "https://i.example/"}},
        {"openIdConnectUrl": "https://i.example/"},
    ],
    "a client certificate": [{"type": "mutualTLS"}, {"type": "mtls"}, {"mtlsSecurityScheme": {}}],
}


@pytest.mark.parametrize("version", FORMS)
@pytest.mark.parametrize("kind", OTHERS)
def test_other_schemes_are_read_in_any_form(version: str, kind: str) -> None:
    for scheme in OTHERS[kind]:
        found = read(version, securitySchemes={"k": scheme}, security=[{"k": []}])
        assert describe(found) == kind, scheme
        assert not is_unreadable(found)


@pytest.mark.parametrize("version", FORMS)
def test_the_security_of_a_skill_is_read_in_any_form(version: str) -> None:
    skill = {"id": "pay", "name": "Pay", "description": "Pays", "tags": ["t"]}
    for required in REQUIREMENTS:
        found = read(version, securitySchemes={"k": API_KEY[0]}, skills=[{**skill, **required}])
        assert alternatives(found, "pay") == [{"k": ()}], required
        assert alternatives(found, "") == []


NOT_UNDERSTOOD: list[dict[str, Any]] = [
    {"securitySchemes": {"k": {"type": "hmac"}}, "security": [{"k": []}]},
    {"securitySchemes": {"k": 5}, "security": [{"k": []}]},
    {"securitySchemes": {"k": {"type": "apiKey", "name": "X-Own"}}, "security": [{"k": []}]},
    {
        "securitySchemes": {"k": {"type": "apiKey", "in": "body", "name": "key"}},
        "security": [{"k": []}],
    },
    {"securitySchemes": {"other": API_KEY[0]}, "securityRequirements": [{"schemes": {"k": {}}}]},
    {"securitySchemes": {"k": API_KEY[0]}, "security": [5]},
    {"securitySchemes": {"k": API_KEY[0]}, "security": True},
    {"securitySchemes": {"k": API_KEY[0]}, "securityRequirements": [{"schemes": 5}]},
    {"securitySchemes": [], "security": [{"k": []}]},
]


@pytest.mark.parametrize("version", FORMS)
@pytest.mark.parametrize("said", NOT_UNDERSTOOD, ids=str)
async def test_what_is_not_understood_is_never_no_credentials(
    version: str, said: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    found = read(version, **said)
    assert is_unreadable(found)
    async with connect(found, auth=False):
        assert "is called without credentials, but requires" in caplog.text
    with pytest.raises(AuthenticationRequired, match="wants"):
        await connect(found, auth=auth.ApiKey("secret"))


async def test_an_alternative_without_schemes_needs_no_credentials() -> None:
    for required in ([{}], [{"schemes": {}}], [{"k": []}, {}]):
        found = read("1.0", securitySchemes={"k": {"type": "hmac"}}, securityRequirements=required)
        assert not is_unreadable(found)


async def test_the_name_of_the_header_is_the_schemes(caplog: pytest.LogCaptureFixture) -> None:
    members = {"securitySchemes": {"k": API_KEY[0]}, "security": [{"k": []}]}
    for options in ({"api_key": "secret"}, {"auth": auth.ApiKey("secret")}):
        async with talk(Agent(task(), **members), **options) as (remote, server):
            await remote.get("t-1")
            sent = server.exchanges[-1].headers
            assert sent["x-own"] == "secret"
            assert "x-api-key" not in sent
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


# -- two lines in the server and a login of the client: OpenID Connect end to end ------------------


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
async def test_a_protected_agent_is_called_after_one_login(binding: str, version: str) -> None:
    if not is_supported(binding):
        pytest.skip(f"{binding} is not installed")
    async with Issuer(audience="bank", device_interval=0) as issuer:
        agent = ParleyAgent("Bank", security=OpenIdConnect(issuer.url, audience="bank"))

        @agent.skill
        async def balance(turn: Turn) -> str:
            return f"{turn.caller.id}: 42"

        async with served(agent) as url:
            trusted = await grpc_of(url)
            async with parley.connect(url) as remote:
                flow, scheme, scopes = pick_scheme(remote.card, "device-code")
            async with HttpTransport() as http:
                kept = await sign_in(
                    SignIn(flow=flow, scheme=scheme, scopes=scopes),
                    Origin.of(url),
                    address=url,
                    http=http,
                    prompt=lambda prompt: issuer.approve(prompt.code, user="grace"),
                )
            Logins().put(kept)
            ways = {"binding": binding, "version": version, "trust_origins": trusted}
            async with parley.connect(url, **ways) as remote:
                assert (await remote.send("how much")).text == "grace: 42"
                assert [event async for event in remote.stream("how much")]
            given = auth.ClientCredentials("service", "secret")
            async with parley.connect(url, auth=given, **ways) as remote:
                assert (await remote.send("how much")).text == "service: 42"
