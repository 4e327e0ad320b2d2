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
from parley.envelope.messages import (
    ENVELOPE_ERRORS,
    TASK_ERRORS,
    Envelope,
    RequestPayload,
    ResponsePayload,
)
from parley.envelope.server.card import schema, vectors
from parley.model.errors import ERRORS, PeerError
from parley.model.ids import LONGEST_ID
from parley.model.operations import OPERATIONS
from parley.model.struct import Timestamp
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


def test_the_message_that_users_print_is_read_with_all_its_members() -> None:
    message = read_message(json.dumps(REQUEST))

    assert isinstance(message.payload, RequestPayload)
    assert message.payload.parameters["category"] == "customer-service"
    assert message.payload.metadata.timeout == 5000
    assert message.source.instance_id == "instance-7"
    assert message.message.correlation_id == "conversation-1"
    assert message.timestamp == Timestamp.parse("2026-01-15T10:30:00Z")
    assert message.security is not None
    assert message.security.nonce == "5f2b1c0a"
    assert message.received == REQUEST


def test_only_six_members_are_required() -> None:
    message = read_message(
        '{"version":"1.0","messageId":"m","timestamp":"2026-01-15T10:30:00+01:00",'
        '"source":{"agentId":"a"},"message":{"type":"REQUEST"},"payload":{"action":"search"}}'
    )

    assert isinstance(message.payload, RequestPayload)
    assert message.payload.parameters == {}
    assert message.payload.metadata.encoding == "utf-8"
    assert (message.message.sub_type, message.message.priority) == ("query", "normal")
    assert message.target.routing_strategy == "direct"
    assert message.security is None
    assert message.received is None
    for name in ("version", "messageId", "timestamp", "source", "message", "payload"):
        assert name in fields(refusal(request(**{name: ...})))


def test_null_leaves_a_member_out_if_it_has_a_default() -> None:
    message = read_message(
        json.dumps(
            request(
                security=None,
                target=None,
                payload__metadata=None,
                payload__parameters=None,
                source__agentType=None,
            )
        )
    )

    assert isinstance(message.payload, RequestPayload)
    assert message.payload.parameters == {}
    assert message.security is None
    assert fields(refusal(request(source__agentId=None))) == ["source.agentId"]


def test_every_wrong_member_is_named_with_what_would_be_right() -> None:
    refused = refusal(
        request(
            timestamp="yesterday",
            source__agentId="",
            message__priority="shouting",
            target__routingStrategy="anycast",
            payload__action=7,
            payload__metadata={"timeout": "5000", "stream": 1, "retryCount": -1},
            security__timestamp=1768473000,
        )
    )

    assert refused.error.reason == "INVALID_REQUEST"
    assert refused.message_id == REQUEST["messageId"]
    assert dict(refused.error.violations) == {
        "timestamp": "'yesterday' is not a timestamp such as 2026-01-31T12:00:00.000Z",
        "source.agentId": "must not be empty",
        "message.priority": "expected one of low, normal, high, urgent; got 'shouting'",
        "target.routingStrategy": "expected one of direct, broadcast, load-balance; got 'anycast'",
        "payload.action": "expected a string, got a number",
        "payload.metadata.timeout": "expected an integer from 0 to 9007199254740991, got 5000",
        "payload.metadata.stream": "expected true or false, got a number",
        "payload.metadata.retryCount": "expected an integer from 0 to 9007199254740991, got -1",
        "security.timestamp": "expected a string, got a number",
    }
    assert not VALIDATOR.is_valid(request(message__priority="shouting"))


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


def test_every_1_x_is_read_and_members_of_later_versions_are_kept_or_ignored() -> None:
    message = read_message(
        json.dumps(
            request(
                version="1.12",
                trace={"id": "t"},
                source__region="eu",
                payload__metadata={"cache": "no", "timeout": 1e3},
            )
        )
    )

    assert message.further == {"trace": {"id": "t"}}
    assert isinstance(message.payload, RequestPayload)
    assert message.payload.metadata.timeout == 1000
    assert json.loads(write_message(message))["trace"] == {"id": "t"}


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.0", "1.", "v1", "1.0-beta"])
def test_another_major_version_is_refused_with_those_that_are_known(version: str) -> None:
    refused = refusal(request(version=version))

    assert refused.error.reason == "UNSUPPORTED_VERSION"
    assert refused.error.metadata["supportedVersions"] == "1.0"
    assert refused.message_id == REQUEST["messageId"]


def test_payloads_of_other_types_stay_as_they_are() -> None:
    beat = read_message(json.dumps(request(message={"type": "HEARTBEAT"}, payload={"load": 0.5})))
    assert isinstance(beat.payload, msgspec.Raw)
    assert json.loads(bytes(beat.payload)) == {"load": 0.5}

    unknown = request(message={"type": "INVENTORY", "priority": "whatever"}, payload={"n": None})
    assert members_of(read_message(json.dumps(unknown)))["payload"] == {"n": None}

    for payload, kind in (
        ({"status": "partial", "action": "a"}, ResponsePayload),
        ({"action": "a"}, RequestPayload),
        ({"temperature": 21}, msgspec.Raw),
    ):
        event = request(message={"type": "EVENT"}, payload=payload)
        assert isinstance(read_message(json.dumps(event)).payload, kind)


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


def test_colons_and_quotes_in_strings_are_no_members() -> None:
    odd = {'a":"b': '\\":{"\\', "c\\": ":", ":": [':"', "\\\\"]}

    message = read_message(json.dumps(request(payload__parameters=odd)))

    assert isinstance(message.payload, RequestPayload)
    assert message.payload.parameters == odd


def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    refused = refusal(b'{"a":"' + b"x" * 1000, max_bytes=500)

    assert refused.error.message == "the message has 1,006 bytes; at most 500 are read"


@pytest.mark.parametrize("encoding", ["latin-1", "gzip+base64"])
def test_another_encoding_is_refused_with_the_name_of_the_right_one(encoding: str) -> None:
    refused = refusal(request(payload__metadata={"encoding": encoding}))

    words = f"expected utf-8; got {encoding!r}: send the parameters as JSON"
    assert refused.error.violations == (("payload.metadata.encoding", words),)


def test_a_number_that_json_does_not_have_is_not_written() -> None:
    message = read_message(json.dumps(request()))
    assert isinstance(message.payload, RequestPayload)
    wrong = replace(message, payload=replace(message.payload, parameters={"a": [float("nan")]}))

    with pytest.raises(ValueError, match=r"payload\.parameters\.a\.0 is nan"):
        write_message(wrong)


# -- the published JSON Schema says what the model says --------------------------------------------


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


# -- the specification page says what the codec does: strangers write clients from it --------------


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


def test_the_page_names_every_member_and_choice() -> None:
    codes = {*TASK_ERRORS.values(), PeerError.reason}
    choices = [*messages.MessageType, *messages.SubType, *messages.Priority, *messages.Status]
    named = {*codes, *choices, *messages.RoutingStrategy, codec.UTF_8}
    kinds = [
        value
        for module in (messages, cards)
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__.startswith("parley.envelope")
    ]
    members = {field.encode_name for kind in kinds for field in msgspec.structs.fields(kind)} - {
        "further",
        "received",
    }
    assert len(members) > 70

    missing = {
        name
        for name in named | members
        if not re.search(rf"[`.\[\"]{re.escape(name)}[`.\"\[]", PAGE)
    }
    assert missing == set()
    for name in (messages.SUBPROTOCOL, messages.BINDING):
        assert f"`{name}`" in PAGE


def test_the_page_has_a_row_for_each_operation() -> None:
    for operation in OPERATIONS:
        row = ROWS[f"{messages.OPERATION_PREFIX}{operation.name}"]
        assert operation.request.__name__ in row
        if operation.streaming:
            assert "EVENTs with a `StreamResponse` each" in row


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
