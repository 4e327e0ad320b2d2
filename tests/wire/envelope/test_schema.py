"""The published JSON Schema says what the model says."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from parley.envelope import cards, messages
from parley.envelope.declared import MaintenanceWindow
from parley.envelope.server.card import schema

SCHEMA = json.loads(schema())
DEFINED: dict[str, type[Any]] = {
    "source": messages.MessageSource,
    "target": messages.Target,
    "messageInfo": messages.MessageInfo,
    "security": messages.MessageSecurity,
    "requestPayload": messages.RequestPayload,
    "requestMetadata": messages.RequestMetadata,
    "responsePayload": messages.ResponsePayload,
    "responseMetadata": messages.ResponseMetadata,
    "error": messages.EnvelopeError,
    "violation": messages.WrongMember,
    "card": cards.EnvelopeCard,
    "agentInfo": cards.CardAgentInfo,
    "capability": cards.CardCapability,
    "performance": cards.CardPerformance,
    "endpoints": cards.CardEndpoints,
    "cardSecurity": cards.CardSecurity,
    "constraints": cards.CardConstraints,
    "rateLimits": cards.CardRateLimits,
    "availability": cards.CardAvailability,
    "maintenanceWindow": MaintenanceWindow,
    "cardMetadata": cards.CardMetadata,
}


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("name", DEFINED)
def test_a_definition_has_the_members_of_its_struct(name: str) -> None:
    fields = msgspec.structs.fields(DEFINED[name])
    defined = SCHEMA["$defs"][name]

    assert list(defined["properties"]) == [each.encode_name for each in fields]
    assert defined.get("required", []) == [each.encode_name for each in fields if each.required]


def test_the_choices_of_a_request_are_those_of_the_model() -> None:
    chosen = SCHEMA["$defs"]["message"]["allOf"][0]["then"]["properties"]

    assert chosen["message"]["properties"]["subType"]["enum"] == list(messages.SubType)
    assert chosen["message"]["properties"]["priority"]["enum"] == list(messages.Priority)
    strategies = chosen["target"]["properties"]["routingStrategy"]["enum"]
    assert strategies == list(messages.RoutingStrategy)
