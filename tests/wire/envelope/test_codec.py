"""Messages of the envelope protocol as JSON: the codec, its schema, its specification page."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from parley.envelope import cards, codec, messages
from parley.envelope.codec import UnreadableEnvelope, members_of, read_message, write_message
from parley.envelope.declared import MaintenanceWindow
from parley.envelope.messages import ENVELOPE_ERRORS, Envelope
from parley.envelope.server.card import schema, vectors
from parley.model.errors import ERRORS
from parley.model.ids import LONGEST_ID
from parley.wire.json.problems import collecting_problems
from tests.house.documents import ROOT, blocks
from tests.wire.envelope.messages import REQUEST, envelopes, request

VALIDATOR = jsonschema.Draft202012Validator(json.loads(schema()))


def refusal(message: Any, **limits: int) -> UnreadableEnvelope:
    data = message if isinstance(message, str | bytes) else json.dumps(message)
    with pytest.raises(UnreadableEnvelope) as caught:
        read_message(data, **limits)
    return caught.value


def fields(refused: UnreadableEnvelope) -> list[str]:
    return [violation.field for violation in refused.error.violations]


@pytest.mark.slow
@given(envelopes())
@settings(max_examples=80)
def test_a_message_that_is_written_is_the_one_that_is_read(message: Envelope) -> None:
    written = write_message(message)

    read = read_message(written)

    assert replace(read, received=None) == message
    assert json.loads(written) == members_of(message)
    VALIDATOR.validate(json.loads(written))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"messageId": "x" * 513}, "messageId"),
        ({"messageId": "a\0b"}, "messageId"),
        ({"messageId": ["m"]}, "messageId"),
        ({"source__agentId": "line\nbreak"}, "source.agentId"),
        ({"target__agentId": "é" * 257}, "target.agentId"),
        ({"message__correlationId": "x" * 513}, "message.correlationId"),
        ({"payload__metadata": {"taskId": "\0"}}, "payload.metadata.taskId"),
        (
            {"payload__metadata": {"serviceParameters": {"a": 1}}},
            "payload.metadata.serviceParameters.a",
        ),
        ({"payload__action": "a\x7f"}, "payload.action"),
        ({"security__nonce": "n" * 513}, "security.nonce"),
        ({"message": "REQUEST"}, "message"),
        ({"payload": []}, "payload"),
        (
            {"message": {"type": "RESPONSE"}, "payload": {"status": "ok", "results": {}}},
            "payload.results",
        ),
        ({"message": {"type": "EVENT"}, "payload": {"status": 1}}, "payload.status"),
    ],
)
def test_a_member_that_is_wrong_is_refused_by_its_path(change: dict[str, Any], field: str) -> None:
    assert fields(refusal(request(**change))) == [field]


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.0", "1.", "v1", "1.0-beta"])
def test_another_major_version_is_refused_with_those_that_are_known(version: str) -> None:
    refused = refusal(request(version=version))

    assert refused.error.reason == "UNSUPPORTED_VERSION"
    assert refused.error.metadata["supportedVersions"] == "1.0"
    assert refused.message_id == REQUEST["messageId"]


@pytest.mark.parametrize(
    ("data", "reason", "says"),
    [
        (b"", "INVALID_JSON", "it is empty"),
        ("hello", "INVALID_JSON", "not JSON"),
        (b'{"a":"\xff"}', "INVALID_JSON", "not UTF-8"),
        ('{"a":"\ud800"}', "INVALID_JSON", "not UTF-8"),
        ('{"a":NaN}', "INVALID_JSON", "not JSON"),
        ('{"a":1e999}', "INVALID_REQUEST", "too large to be kept"),
        ("[]", "INVALID_REQUEST", "a message is a JSON object"),
        ("null", "INVALID_REQUEST", "a message is a JSON object"),
        ("[" * 101, "INVALID_REQUEST", "nested more than 100 levels deep"),
        ('{"a":' * 100_000, "INVALID_REQUEST", "nested more than 100 levels deep"),
    ],
    ids=str,
)
def test_what_is_no_message_is_refused(data: bytes | str, reason: str, says: str) -> None:
    refused = refusal(data)

    assert refused.error.reason == reason
    assert says in refused.error.message
    assert refused.message_id == ""


@pytest.mark.parametrize(
    "twice",
    [
        '{"messageId":"a","messageId":"b"}',
        '{"payload":{"parameters":[{"x":{"to":"me","to":"you"}}]}}',
        '{"a\\u0062":1,"ab":2}',
        '{"a":"\\"}:{\\"","b":{"c":1,"c":1}}',
    ],
)
def test_a_member_that_stands_twice_is_refused_wherever_it_is(twice: str) -> None:
    assert "stands twice in one object" in str(refusal(twice))


@pytest.mark.parametrize("encoding", ["latin-1", "gzip+base64"])
def test_another_encoding_is_refused_with_the_name_of_the_right_one(encoding: str) -> None:
    refused = refusal(request(payload__metadata={"encoding": encoding}))

    words = f"expected utf-8; got {encoding!r}: send the parameters as JSON"
    assert refused.error.violations == (("payload.metadata.encoding", words),)


# -- the published JSON Schema agrees with the model -----------------------------------------------


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


# -- the specification page agrees with the codec: other developers write clients from it ----------


NAME = "docs/reference/envelope-specification.md"
PAGE = (ROOT / NAME).read_text("utf-8")
EXAMPLES = [each for each in blocks(NAME) if each.language == "json"]
CARD_SCHEMA = {**SCHEMA, "$id": "urn:card", "$ref": "#/$defs/card"}
ROWS = {found[1]: found[0] for found in re.finditer(r"^\| `([^`]+)` \|.*$", PAGE, flags=re.M)}


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda each: f"line {each.line}")
def test_an_example_is_one(block: Any) -> None:
    example = json.loads(block.text)

    if "agentInfo" in example:
        jsonschema.Draft202012Validator(CARD_SCHEMA).validate(example)
        with collecting_problems() as problems:
            card = cards.read_card(example)
        assert not problems
        assert cards.read_card(cards.write_card(card)) == card
        return
    jsonschema.Draft202012Validator(SCHEMA).validate(example)
    written = members_of(read_message(block.text))
    for name in ("messageId", "source", "timestamp"):
        assert written[name] == example[name]


@pytest.mark.parametrize(
    "error", [*ERRORS, *ENVELOPE_ERRORS.values()], ids=lambda error: error.reason
)
def test_an_error_is_in_the_table_with_its_status(error: Any) -> None:
    assert re.search(rf"\| {error.http_status}[ ;]", ROWS[error.reason])


def test_the_worked_example_is_one_of_the_vectors() -> None:
    first, second = json.loads(vectors())["good"][:2]

    assert f"\n{first['canonical']}\n{first['signature']}\n" in PAGE
    assert f"`{second['signature']}`" in PAGE


def test_the_limits_on_the_page_are_those_of_the_codec() -> None:
    assert codec.MAX_BYTES == 10 * 2**20
    assert codec.MAX_DEPTH == 100
    assert cards.MAX_CARD_BYTES == 2**20
    for limit in ("10 MiB", "100 levels", f"{LONGEST_ID} bytes", "1 MiB, 1,000 capabilities"):
        assert limit in PAGE
