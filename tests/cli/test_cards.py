"""Errors of the commands about invalid cards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.scripted_server import card

NOWHERE = "http://127.0.0.1:9"


def written(folder: Path, members: dict[str, Any]) -> str:
    path = folder / "card.json"
    path.write_text(json.dumps(members))
    return str(path)


def test_credentials_that_a_card_wants_and_does_not_describe_are_told(parley, tmp_path):
    secured = {"securitySchemes": {"k": {"type": "hmac"}}, "security": [{"k": []}]}
    path = written(tmp_path, {**card(NOWHERE), **secured})
    ran = parley("send", "-a", path, "hello")
    assert "warning: the agent requires the scheme 'k'" in ran.stderr
    assert "calling it without credentials" in ran.stderr
    ran = parley("send", "-a", path, "--svc-param", "X-Own: secret", "hello")
    assert "without credentials" not in ran.stderr


def test_the_hint_for_a_version_leads_to_one_that_is_offered(parley, agent):
    agent.card["supportedInterfaces"] = [agent.interface(protocolVersion="1.0")]
    ran = parley("task", "get", "task-1", "-a", agent.url, "--a2a-version", "0.3")
    assert "--a2a-version 1.0" in ran.stderr
    agent.card["supportedInterfaces"] = [agent.interface(protocolVersion="0.1.0")]
    ran = parley("task", "get", "task-1", "-a", agent.url)
    assert "parley supports 1.0 and 0.3; the agent supports neither" in ran.stderr


# -- card validate ---------------------------------------------------------------------------------

SKILL = {"id": "s", "name": "S", "description": "", "tags": []}
OLD = {
    "protocolVersion": "0.3.0",
    "name": "Old",
    "description": "",
    "version": "1",
    "url": "https://agents.example",
    "capabilities": {},
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [SKILL],
}
NEW = {
    **{name: value for name, value in OLD.items() if name not in ("url", "protocolVersion")},
    "supportedInterfaces": [
        {"url": "https://a.example", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
}


def faults(parley, folder: Path, members: Any) -> set[str]:
    """Return the errors of a card, one per line; none if the card is valid."""
    ran = parley("card", "validate", "-a", written(folder, members), "-o", "json")
    assert "more)" not in ran.stderr
    if ran.status == 0:
        return set()
    assert ran.error["code"] == "A2ACLI_ERR_CARD_INVALID"
    first, *lines = ran.error["message"].split("\n")
    assert first == "the card is not valid:"
    return set(lines)


def missing(*names: str) -> set[str]:
    return {f"{name}: required, but missing" for name in names}


def without_hints(lines: set[str]) -> set[str]:
    return {line.partition(" (unknown here")[0] for line in lines}


def test_everything_is_said_at_once_and_as_the_card_names_it(parley, tmp_path):
    shared = {"description", "capabilities", "skills", "defaultInputModes", "defaultOutputModes"}
    url = "https://a.example"
    three = faults(parley, tmp_path, {"name": "A", "url": url, "version": "1"})
    assert three == missing(*shared, "protocolVersion")
    of_none = missing(*shared, "name", "version", "supportedInterfaces")
    assert without_hints(faults(parley, tmp_path, {})) == of_none
    assert faults(parley, tmp_path, {**OLD, "url": "/x"}) == {"url: '/x' is not absolute"}
    lines = faults(
        parley,
        tmp_path,
        {
            **OLD,
            "url": "http://a.example",
            "additionalInterfaces": [{"url": "/x", "transport": "JSONRPC"}, {"url": url}],
            "skills": [SKILL, {"id": "s"}],
            "securitySchemes": {"k": {"type": "apiKey", "in": "body"}, "h": {"type": "hmac"}},
            "security": [{"other": []}],
            "capabilities": {"streaming": "yes"},
        },
    )
    expected = {
        "url: http://a.example is not encrypted",
        "additionalInterfaces[0].url: '/x' is not absolute",
        "additionalInterfaces[1].transport: required, but missing",
        "skills[1].name: required, but missing",
        "skills[1].id: 's' is the id of another skill",
        "securitySchemes.k: name is required, but missing; in: expected one of header",
        "securitySchemes.h.type: expected one of apiKey",
        "security[0]: 'other' is not among the securitySchemes",
        "capabilities.streaming: expected true or false",
    }
    for each in expected:
        assert any(line.startswith(each) for line in lines), each


def test_members_of_0_3_in_a_card_of_1_0_are_named(parley, tmp_path):
    scheme = {"type": "apiKey", "in": "header", "name": "X"}
    secured = {"securitySchemes": {"k": scheme}, "security": [{"k": []}]}
    lines = faults(parley, tmp_path, {**NEW, **secured})
    assert "security: in version 1.0 this is securityRequirements" in lines
    assert any(line.startswith("securitySchemes.k: a security scheme has") for line in lines)
    interface = {"url": "https://a.example", "transport": "JSONRPC", "protocolVersion": "1.0"}
    assert faults(parley, tmp_path, {**NEW, "supportedInterfaces": [interface]}) == {
        "supportedInterfaces[0].protocolBinding: required, but missing (unknown here: 'transport')"
    }


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("send", "hi"),
        ("task", "get", "t-1"),
        ("task", "list"),
        ("card", "get"),
        ("card", "validate"),
    ],
)
def test_a_transport_that_does_not_exist_is_refused(parley, tmp_path, words):
    path = written(tmp_path, NEW)
    for typo in ("jsonrcp", "grpc,jsonrcp"):
        ran = parley(*words, "-a", path, "--transport", typo)
        assert ran.status == 2
        assert "'jsonrcp' is not a known binding; there are JSONRPC, HTTP+JSON, GRPC" in (
            ran.stderr
        )
