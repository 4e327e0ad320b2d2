"""A server verifies the credentials and scopes that a card requires, or does not serve the card."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from parley.integrations.a2a_sdk.agent import check_extended, security_of
from parley.model.cards import AgentCard
from parley.security import Bearer
from parley.wire.versions import read_card

CARD = {
    "name": "Bank",
    "description": "",
    "version": "1",
    "supportedInterfaces": [
        {"url": "https://bank", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "securitySchemes": {"bearer": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}},
    "securityRequirements": [{"schemes": {"bearer": {"list": ["read"]}}}],
    "skills": [
        {
            "id": "pay",
            "name": "Pay",
            "description": "Pays.",
            "tags": ["money"],
            "securityRequirements": [{"schemes": {"bearer": {"list": ["write"]}}}],
        }
    ],
}


def bank() -> AgentCard:
    return read_card(CARD)


def test_scopes_stay_on_the_card_where_something_else_verifies_them() -> None:
    security, skills = security_of(bank(), None, verified_elsewhere=True)
    assert security is not None
    [needs] = security.security.declared()
    assert needs.schemes["bearer"].list == ("read",)
    [of_skill] = skills["pay"].declared()
    assert of_skill.schemes["bearer"].list == ("write",)
    assert {*security.security.schemes, *skills["pay"].schemes} == set(skills["pay"].schemes)
    assert skills["pay"].schemes[0].verify(None).scopes == {"read", "write"}  # type: ignore


def test_what_a_skill_requires_is_verified_by_the_scheme_of_its_name() -> None:
    bearer = Bearer(lambda token: "ada", name="bearer")
    security, skills = security_of(bank(), bearer, verified_elsewhere=False)
    assert security is bearer
    [needs] = skills["pay"].alternatives
    assert [(each.scheme, each.scopes) for each in needs] == [(bearer, ("write",))]


def test_what_no_scheme_verifies_is_not_served() -> None:
    other = Bearer(lambda token: "ada", name="other")
    with pytest.raises(ValueError, match="the skill pay of the card requires bearer"):
        security_of(bank(), other, verified_elsewhere=False)


def test_an_extended_card_requires_what_the_card_requires() -> None:
    check_extended(bank(), bank())
    silent = replace(bank(), security_requirements=(), skills=())
    check_extended(bank(), silent)
    with pytest.raises(ValueError, match="the extended card requires bearer, unlike the card"):
        check_extended(silent, bank())
    [pay] = bank().skills
    weaker = replace(bank(), skills=(replace(pay, security_requirements=()),))
    with pytest.raises(ValueError, match="the skill pay of the extended card requires bearer"):
        check_extended(weaker, bank())
