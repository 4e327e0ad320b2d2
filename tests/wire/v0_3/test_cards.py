"""Agent cards of 0.3, alone and combined with 1.0 cards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from parley.model.cards import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    APIKeySecurityScheme,
    AuthorizationCodeOAuthFlow,
    HTTPAuthSecurityScheme,
    MutualTlsSecurityScheme,
    OAuth2SecurityScheme,
    OAuthFlows,
    OpenIdConnectSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from parley.model.errors import A2AError, InvalidParamsError
from parley.wire import versions
from parley.wire.v0_3.cards import proto_members_of
from tests.wire.v0_3.exchanges import cards

MINIMAL = {"name": "a", "url": "https://a.example"}
FULL = {
    "protocolVersion": "0.3.0",
    "name": "a",
    "description": "d",
    "url": "https://a.example/rpc",
    "preferredTransport": "JSONRPC",
    "additionalInterfaces": [
        {"url": "https://a.example/rpc", "transport": "JSONRPC"},
        {"url": "https://a.example/rest", "transport": "HTTP+JSON"},
        {"url": "a.example:443", "transport": "GRPC"},
    ],
    "provider": {"organization": "o", "url": "https://o.example"},
    "version": "1",
    "capabilities": {"streaming": True, "stateTransitionHistory": True},
    "securitySchemes": {
        "key": {"type": "apiKey", "in": "header", "name": "X-Key", "description": "k"},
        "http": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        "oauth": {
            "type": "oauth2",
            "flows": {
                "implicit": {"authorizationUrl": "https://o.example/i", "scopes": {}},
                "authorizationCode": {
                    "authorizationUrl": "https://o.example/a",
                    "tokenUrl": "https://o.example/t",
                    "scopes": {"read": "to read"},
                },
            },
            "oauth2MetadataUrl": "https://o.example/m",
        },
        "oidc": {"type": "openIdConnect", "openIdConnectUrl": "https://o.example/c"},
        "mtls": {"type": "mutualTLS"},
        "new": {"type": "hologram"},
    },
    "security": [{"oauth": ["read"], "mtls": []}],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "s", "name": "S", "description": "", "tags": [], "security": [{"key": []}]}],
    "supportsAuthenticatedExtendedCard": True,
    "signatures": [{"protected": "p", "signature": "s", "header": {"kid": "1"}}],
    "iconUrl": "https://a.example/icon",
    "documentationUrl": None,
}
SCHEMES = {
    "key": SecurityScheme(
        api_key_security_scheme=APIKeySecurityScheme(
            location="header", name="X-Key", description="k"
        )
    ),
    "http": SecurityScheme(
        http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer", bearer_format="JWT")
    ),
    "oauth": SecurityScheme(
        oauth2_security_scheme=OAuth2SecurityScheme(
            flows=OAuthFlows(
                authorization_code=AuthorizationCodeOAuthFlow(
                    authorization_url="https://o.example/a",
                    token_url="https://o.example/t",
                    scopes={"read": "to read"},
                )
            ),
            oauth2_metadata_url="https://o.example/m",
        )
    ),
    "oidc": SecurityScheme(
        open_id_connect_security_scheme=OpenIdConnectSecurityScheme(
            open_id_connect_url="https://o.example/c"
        )
    ),
    "mtls": SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme()),
}


def offered(card: AgentCard) -> list[tuple[str, str, str]]:
    return [(i.protocol_binding, i.protocol_version, i.url) for i in card.supported_interfaces]


def test_a_card_as_agents_of_0_3_publish_it_is_read():
    card = versions.read_card(FULL)
    assert offered(card) == [
        ("JSONRPC", "0.3.0", "https://a.example/rpc"),
        ("HTTP+JSON", "0.3.0", "https://a.example/rest"),
        ("GRPC", "0.3.0", "a.example:443"),
    ]
    assert card.security_schemes == SCHEMES
    oauth, none = StringList(list=("read",)), StringList()
    assert card.security_requirements == (
        SecurityRequirement(schemes={"oauth": oauth, "mtls": none}),
    )
    assert card.skills[0].security_requirements == (SecurityRequirement(schemes={"key": none}),)
    assert card.capabilities.extended_agent_card is True
    assert card.signatures[0].header == {"kid": "1"}
    assert card.icon_url == "https://a.example/icon"


@pytest.mark.parametrize(
    "wrong", [{"capabilities": 5}, {"skills": 5}, {"skills": [5]}, {"securitySchemes": 5}], ids=str
)
def test_a_card_is_read_without_what_is_wrong_in_it(wrong, caplog):
    assert versions.read_card({**MINIMAL, **wrong}) == versions.read_card(MINIMAL)
    assert "the agent card has problems" in caplog.text


def test_a_card_in_the_form_of_the_proto_is_read():
    card = versions.read_card(FULL)
    assert versions.read_card(proto_members_of(card)) == card


@pytest.mark.parametrize(
    "members",
    [{"name": "a"}, {**MINIMAL, "url": 5}, {**MINIMAL, "name": 5}, {"url": "https://a.example"}],
)
def test_a_card_that_is_none_is_refused(members):
    with pytest.raises(A2AError):
        versions.read_card(members)


def test_a_missing_address_is_named():
    with pytest.raises(InvalidParamsError) as refusal:
        versions.read_card({"name": "a"})
    assert [violation.field for violation in refusal.value.violations] == ["url"]


INTERFACES = (
    AgentInterface(url="https://a.example", protocol_binding="JSONRPC", protocol_version="1.0"),
    AgentInterface(url="https://a.example/", protocol_binding="JSONRPC", protocol_version="0.3"),
    AgentInterface(
        url="https://a.example/t", protocol_binding="JSONRPC", protocol_version="0.3", tenant="t"
    ),
    AgentInterface(url="https://b.example", protocol_binding="HTTP+JSON", protocol_version="0.3.0"),
)
CARD = AgentCard(
    name="a",
    description="d",
    version="1",
    supported_interfaces=INTERFACES,
    capabilities=AgentCapabilities(streaming=True, extended_agent_card=False),
    security_schemes=SCHEMES,
    security_requirements=(SecurityRequirement(schemes={"oauth": StringList(list=("read",))}),),
    default_input_modes=(),
    default_output_modes=(),
    skills=(
        AgentSkill(
            id="s",
            name="S",
            description="",
            tags=(),
            security_requirements=(SecurityRequirement(schemes={"key": StringList()}),),
        ),
    ),
)


def merged(card: AgentCard) -> dict[str, Any]:
    members: dict[str, Any] = json.loads(versions.write_card(card))
    return members


def test_a_merged_card_is_that_of_1_0_with_the_members_of_0_3_beside():
    members, latest = merged(CARD), json.loads(versions.write_card(CARD, "1.0"))
    added = members.keys() - latest.keys()
    assert added == {
        "protocolVersion",
        "url",
        "preferredTransport",
        "additionalInterfaces",
        "security",
        "supportsAuthenticatedExtendedCard",
    }
    for name in latest.keys() - {"securitySchemes", "skills"}:
        assert members[name] == latest[name]
    assert members["protocolVersion"] == "0.3.0"
    assert members["url"] == "https://a.example/"
    assert members["preferredTransport"] == "JSONRPC"
    assert members["additionalInterfaces"] == [
        {"url": "https://a.example/", "transport": "JSONRPC"},
        {"url": "https://b.example", "transport": "HTTP+JSON"},
    ]
    assert members["security"] == [{"oauth": ["read"]}]
    assert members["skills"][0]["security"] == [{"key": []}]
    assert members["supportsAuthenticatedExtendedCard"] is False
    key = {"location": "header", "name": "X-Key", "description": "k"}
    assert members["securitySchemes"]["key"] == {
        "apiKeySecurityScheme": key,
        "type": "apiKey",
        "in": "header",
        "name": "X-Key",
        "description": "k",
    }


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(cards)
def test_a_merged_card_is_read_as_that_of_1_0(card):
    assert versions.read_card(merged(card)) == card


def test_an_agent_that_does_not_speak_0_3_has_no_members_of_0_3():
    card = replace(CARD, supported_interfaces=INTERFACES[:1])
    assert versions.write_card(card) == versions.write_card(card, "1.0")


def test_scopes_of_a_card_may_be_a_plain_list():
    """Servers of the Go SDK (2.4) write one; without it, a card would require nothing."""
    needs = [{"schemes": {"login": ["read"], "key": {"list": []}}}]
    skill = {"id": "pay", "name": "Pay", "description": "Pays.", "tags": []}
    merged = {
        "name": "Bank",
        "description": "Pays.",
        "version": "1",
        "supportedInterfaces": [
            {"url": "https://a.example", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{**skill, "securityRequirements": needs}],
        "securityRequirements": needs,
    }
    card = versions.read_card(merged)
    for [need] in (card.security_requirements, card.skills[0].security_requirements):
        assert {name: scopes.list for name, scopes in need.schemes.items()} == {
            "login": ("read",),
            "key": (),
        }
