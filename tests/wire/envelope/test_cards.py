"""Envelope cards, and their conversion from A2A cards."""

from __future__ import annotations

import copy
import json
import logging
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings

from parley.envelope.cards import (
    EnvelopeCard,
    agent_card_of,
    envelope_card_of,
    read_card,
    windows_of,
    write_card,
)
from parley.envelope.declared import MaintenanceWindow
from parley.envelope.messages import BINDING
from parley.envelope.server.card import schema
from parley.extensions.declared import schemas_on
from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.model.struct import encode
from parley.wire import versions
from tests.kit.strategies import value_of

SCHEMA = jsonschema.Draft202012Validator(
    {**json.loads(schema()), "$id": "urn:card", "$ref": "#/$defs/card"}
)
CARD: dict[str, Any] = {
    "agentInfo": {
        "id": "knowledge-base-001",
        "name": "Knowledge base",
        "type": "knowledge-base",
        "version": "1.2.0",
        "description": "Finds articles.",
        "vendor": "Example",
        "license": "MIT",
    },
    "capabilities": [
        {
            "name": "search",
            "displayName": "Search",
            "description": "Finds articles by words.",
            "inputSchema": {
                "type": "object",
                "properties": {"query": {"type": "string"}, "maxResults": {"type": "integer"}},
                "required": ["query"],
            },
            "outputSchema": {"type": "array"},
            "performance": {
                "averageResponseTime": 200,
                "maxConcurrentRequests": 100,
                "reliability": 0.99,
            },
        }
    ],
    "endpoints": {
        "primary": "wss://kb.example/agent/envelope",
        "backup": "https://kb.example/agent/envelope",
        "healthCheck": "https://kb.example/health",
    },
    "security": {
        "authMethods": ["bearer-token", "mutual-tls"],
        "requiredPermissions": ["kb.read"],
        "dataClassification": "internal",
    },
    "constraints": {
        "rateLimits": {"requestsPerMinute": 1000, "concurrentConnections": 50},
        "availability": {
            "schedule": "24/7",
            "maintenanceWindows": [{"start": "02:00", "end": "04:00", "day": "sunday"}],
        },
    },
    "metadata": {
        "createdAt": "2026-01-15T10:00:00.000Z",
        "updatedAt": "2026-01-16T10:00:00.000Z",
        "tags": ["knowledge", "search"],
        "documentation": "https://kb.example/docs",
    },
}


@pytest.mark.slow
@given(value_of(EnvelopeCard))
@settings(max_examples=40)
def test_a_card_that_is_written_is_the_one_that_is_read(card: EnvelopeCard) -> None:
    written = write_card(card)
    if "\n" in card.agent_info.id or not card.agent_info.id.isprintable():
        return

    assert read_card(written) == card
    SCHEMA.validate(json.loads(written))


def with_windows(*windows: Any) -> dict[str, Any]:
    card = copy.deepcopy(CARD)
    card["constraints"]["availability"]["maintenanceWindows"] = list(windows)
    return card


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("Sunday 02:00-04:00 UTC", MaintenanceWindow(day="sunday", start="02:00", end="04:00")),
        ("Sundays 02:00 to 04:00", MaintenanceWindow(day="sunday", start="02:00", end="04:00")),
        (
            "sat, 23:00 \u2013 01:00 Europe/Berlin",
            MaintenanceWindow(
                day="saturday", start="23:00", end="01:00", time_zone="Europe/Berlin"
            ),
        ),
        ("Daily 03:00-03:15 UTC", MaintenanceWindow(day="daily", start="03:00", end="03:15")),
    ],
)
def test_a_maintenance_window_may_be_a_text(text: str, window: MaintenanceWindow) -> None:
    availability = read_card(with_windows(text)).constraints.availability
    assert availability is not None
    assert availability.maintenance_windows == (window,)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("at night", "such as 'Sunday 02:00-04:00 UTC'"),
        ("Someday 02:00-04:00 UTC", "day is monday"),
        ("Sunday 02:00-04:00 Mars", "time_zone"),
        ("Sunday 25:00-26:00 UTC", "HH:MM"),
        ({"day": "sunday", "start": "02:00", "end": "02:00"}, "another time"),
        (7, "expected an object"),
    ],
)
def test_a_maintenance_window_that_cannot_be_enforced_is_named(wrong: Any, reason: str) -> None:
    with pytest.raises(A2AError, match=reason) as refused:
        windows_of(with_windows("Sunday 02:00-04:00 UTC", wrong))
    assert "constraints.availability.maintenanceWindows[1]" in str(refused.value)


def test_members_that_are_unknown_or_wrong_are_left_out_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    card = copy.deepcopy(CARD)
    card["region"] = "eu"
    card["agentInfo"]["license"] = ["MIT"]
    card["capabilities"][0]["performance"]["reliability"] = 99.9
    card["capabilities"].append("search")
    card["constraints"]["rateLimits"]["requestsPerMinute"] = "many"

    with caplog.at_level(logging.WARNING, "parley.client.answers"):
        read = read_card(card)

    found = read.capability("search")
    assert found is not None
    assert found.performance is not None
    assert (found.performance.average_response_time, found.performance.reliability) == (200, None)
    assert read.agent_info.license == ""
    assert read.constraints.rate_limits is not None
    assert read.constraints.rate_limits.requests_per_minute is None
    for wrong in ("agentInfo.license", "capabilities[1]", "reliability", "requestsPerMinute"):
        assert wrong in caplog.text
    assert "region" not in caplog.text


@pytest.mark.parametrize(
    ("card", "says"),
    [
        (b"", "it is empty"),
        ([], "a card is a JSON object"),
        ({}, "agentInfo.id: required"),
        ({"agentInfo": {"id": 7}}, "agentInfo.id: required"),
        ({"agentInfo": {"id": "a\nb"}}, "agentInfo.id: required"),
        (b'{"agentInfo":{"id":"a","id":"b"}}', "stands twice"),
        ({"agentInfo": {"id": "a"}, "capabilities": [{}] * 1001}, "at most 1000 are read"),
        ({"agentInfo": {"id": "a", "description": "x" * 2**20}}, "the card has 1,048,6.. bytes"),
        (b"[" * 101, "the card is nested more than 100 levels deep"),
    ],
    ids=range(9),
)
def test_what_is_no_card_is_refused(card: Any, says: str) -> None:
    with pytest.raises(A2AError, match=says):
        read_card(card if isinstance(card, bytes) else json.dumps(card))


def test_a_card_becomes_an_a2a_card_and_comes_back_whole() -> None:
    card = read_card(CARD)

    made = agent_card_of(card)

    arrived = versions.read_card(json.loads(encode(made)))
    assert arrived == made
    assert envelope_card_of(arrived) == card
    assert [(each.url, each.protocol_binding) for each in made.supported_interfaces] == [
        ("https://kb.example/agent/envelope", BINDING)
    ]
    assert made.provider is not None
    assert (made.name, made.version, made.provider.organization) == (
        "Knowledge base",
        "1.2.0",
        "Example",
    )
    assert [(each.id, each.name) for each in made.skills] == [("search", "Search")]
    assert schemas_on(made)["search"].input == CARD["capabilities"][0]["inputSchema"]
    assert set(made.security_schemes) == {"bearer-token", "mutual-tls"}
    assert made.security_requirements[0].schemes["bearer-token"].list == ("kb.read",)


@pytest.mark.slow
@given(value_of(AgentCard))
@settings(max_examples=25)
def test_no_a2a_card_breaks_the_conversion(card: AgentCard) -> None:
    made = envelope_card_of(card, agent_id="a")

    assert [each.name for each in made.capabilities] == [each.id for each in card.skills]
    assert read_card(write_card(made)).agent_info == made.agent_info
