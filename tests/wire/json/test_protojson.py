"""JSON from other implementations: read as ProtoJSON allows, or rejected with the field's name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from parley.model.cards import AgentCard, ClientCredentialsOAuthFlow, SecurityScheme
from parley.model.errors import InvalidParamsError, JSONParseError
from parley.model.operations import (
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    StreamResponse,
    TaskPushNotificationConfig,
)
from parley.model.parts import Artifact, Part
from parley.model.tasks import Task
from parley.wire.json.protojson import decode, encode
from tests.kit.strategies import any_message


def message(part: str) -> bytes:
    """Return a SendMessageRequest with one part."""
    return b'{"message":{"messageId":"m","role":"ROLE_USER","parts":[%b]}}' % part.encode()


def part_of(part: str) -> Part:
    return decode(message(part), SendMessageRequest).message.parts[0]


@pytest.mark.slow
@given(any_message())
def test_what_we_write_is_read_back_equal(value):
    assert decode(encode(value), type(value)) == value


@pytest.mark.slow
@given(any_message())
def test_the_slow_way_reads_what_the_fast_way_reads(value):
    members = json.loads(encode(value))
    assert decode(json.dumps(members | {"?": 1}).encode(), type(value)) == value


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ('{"text":"a"}', Part(text="a")),
        ('{"text":""}', Part(text="")),
        ('{"text":"a","metadata":null,"filename":null}', Part(text="a")),
        ('{"text":"a","raw":null,"url":null}', Part(text="a")),
        ('{"text":"a","media_type":"text/plain"}', Part(text="a", media_type="text/plain")),
        ('{"text":"a","kind":"text","unknown":{"deep":[1]}}', Part(text="a")),
        ('{"text":"\\ud83d\\ude00"}', Part(text="😀")),
        ('{"raw":""}', Part(raw=b"")),
        ('{"raw":"+/8="}', Part(raw=b"\xfb\xff")),
        ('{"raw":"+/8"}', Part(raw=b"\xfb\xff")),
        ('{"raw":"-_8="}', Part(raw=b"\xfb\xff")),
        ('{"raw":"-_8"}', Part(raw=b"\xfb\xff")),
        ('{"data":null}', Part(data=None)),
        ('{"data":null,"text":null}', Part(data=None)),
        ('{"data":{"a":null,"b":[null]},"x":1}', Part(data={"a": None, "b": [None]})),
        ('{"data":{"message_id":1,"x":null},"x":1}', Part(data={"message_id": 1, "x": None})),
        ('{"text":"a","metadata":{"a":null},"x":1}', Part(text="a", metadata={"a": None})),
    ],
)
def test_a_part_is_read_in_every_spelling(part, expected):
    assert part_of(part) == expected


@pytest.mark.parametrize("extra", ["", ',"x":1'], ids=["fast", "slow"])
@pytest.mark.parametrize(
    ("number", "kind"),
    [
        ("0", int),
        ("-5", int),
        ("9007199254740993", int),
        ("123456789012345678901234567890", int),
        ("1.0", float),
        ("1e2", float),
        ("-0.0", float),
        ("1.7976931348623157e308", float),
        ("5e-324", float),
        ("true", bool),
    ],
)
def test_numbers_in_data_stay_what_they_are(number, kind, extra):
    data = part_of(f'{{"data":{number}{extra}}}').data
    assert type(data) is kind
    assert repr(data) == repr(json.loads(number))
    assert json.loads(encode(Part(data=data)))["data"] == data


@pytest.mark.parametrize(
    ("body", "kind", "canonical"),
    [
        ('{"id":"t","history_length":5}', GetTaskRequest, '{"id":"t","historyLength":5}'),
        ('{"id":"t","historyLength":"5"}', GetTaskRequest, '{"id":"t","historyLength":5}'),
        ('{"id":"t","historyLength":5.0}', GetTaskRequest, '{"id":"t","historyLength":5}'),
        ('{"id":"t","historyLength":5e0}', GetTaskRequest, '{"id":"t","historyLength":5}'),
        ('{"id":"t","historyLength":0}', GetTaskRequest, '{"id":"t","historyLength":0}'),
        ('{"id":"t","historyLength":null}', GetTaskRequest, '{"id":"t"}'),
        ('{"id":"t","tenant":null}', GetTaskRequest, '{"id":"t"}'),
        ('{"status":2}', ListTasksRequest, '{"status":"TASK_STATE_WORKING"}'),
        ('{"status":2.0}', ListTasksRequest, '{"status":"TASK_STATE_WORKING"}'),
        ('{"status":0}', ListTasksRequest, "{}"),
        ('{"status":"TASK_STATE_UNSPECIFIED"}', ListTasksRequest, "{}"),
        (
            '{"contextId":"","pageToken":"","includeArtifacts":false}',
            ListTasksRequest,
            '{"includeArtifacts":false}',
        ),
        (
            '{"status_timestamp_after":"2026-01-31T12:00:00.123456789+02:00"}',
            ListTasksRequest,
            '{"statusTimestampAfter":"2026-01-31T10:00:00.123Z"}',
        ),
        ("{}", ListTasksResponse, '{"tasks":[],"nextPageToken":"","pageSize":0,"totalSize":0}'),
        (
            '{"tasks":null,"page_size":1}',
            ListTasksResponse,
            '{"tasks":[],"nextPageToken":"","pageSize":1,"totalSize":0}',
        ),
        ('{"id":"t","status":{}}', Task, '{"id":"t","status":{"state":"TASK_STATE_UNSPECIFIED"}}'),
        ('{"artifactId":"a"}', Artifact, '{"artifactId":"a","parts":[]}'),
        (
            '{"statusUpdate":{"taskId":"t","status":{"state":1},"final":true}}',
            StreamResponse,
            '{"statusUpdate":{"taskId":"t","contextId":"","status":{"state":"TASK_STATE_SUBMITTED"}}}',
        ),
        (
            '{"task":{"id":"t","status":{"state":3}},"message":null}',
            StreamResponse,
            '{"task":{"id":"t","status":{"state":"TASK_STATE_COMPLETED"}}}',
        ),
        (
            '{"url":"https://x","authentication":{"scheme":"Bearer","x":1}}',
            TaskPushNotificationConfig,
            '{"url":"https://x","authentication":{"scheme":"Bearer"}}',
        ),
        (
            '{"oauth2_security_scheme":{"flows":{"device_code":{"token_url":"t"}}}}',
            SecurityScheme,
            '{"oauth2SecurityScheme":{"flows":{"deviceCode":{"deviceAuthorizationUrl":"",'
            '"tokenUrl":"t","scopes":{}}}}}',
        ),
        (
            '{"name":"n","capabilities":{}}',
            AgentCard,
            '{"name":"n","description":"","supportedInterfaces":[],"version":"","capabilities":{},'
            '"defaultInputModes":[],"defaultOutputModes":[],"skills":[]}',
        ),
    ],
)
def test_lenient_input_is_read_as_its_canonical_form(body, kind, canonical):
    value = decode(body.encode(), kind)
    assert encode(value).decode() == canonical
    assert decode(canonical.encode(), kind) == value


ROLES = "expected one of ROLE_USER, ROLE_AGENT; got "
INT = "expected an integer from -2147483648 to 2147483647, got "
ONE = "a part has exactly one of text, raw, url and data; this one has "


@pytest.mark.parametrize(
    ("part", "field", "description"),
    [
        ("{}", "", ONE + "none of them"),
        ('{"txt":"a"}', "", ONE + "none of them (unknown here: 'txt')"),
        ('{"text":null}', "", ONE + "none of them"),
        ('{"text":"a","raw":"YQ=="}', "", ONE + "text and raw"),
        ('{"text":"a","data":null}', "", ONE + "text and data"),
        ('{"text":"a","url":"u","x":1}', "", ONE + "text and url (unknown here: 'x')"),
        ("null", "", "expected an object, got null"),
        ('"text"', "", "expected an object, got a string"),
        ('{"text":5}', ".text", "expected a string, got a number"),
        ('{"text":["a"]}', ".text", "expected a string, got an array"),
        ('{"text":true}', ".text", "expected a string, got a boolean"),
        ('{"raw":"Y"}', ".raw", "expected base64, but it is malformed"),
        ('{"raw":"YQ=Q"}', ".raw", "expected base64, but it is malformed"),
        ('{"raw":"Y Q="}', ".raw", "expected base64, but it is malformed"),
        ('{"raw":"é"}', ".raw", "expected base64, but it is malformed"),
        ('{"raw":[1]}', ".raw", "expected a string, got an array"),
        ('{"text":"a","metadata":[]}', ".metadata", "expected an object, got an array"),
        ('{"text":"a","mediaType":{}}', ".mediaType", "expected a string, got an object"),
        (
            '{"text":"a","mediaType":"x","media_type":"x"}',
            ".mediaType",
            "given twice, also as media_type",
        ),
        (
            '{"data":[1,{"x":1e400}]}',
            ".data[1].x",
            "the number is too large to be kept; send it as a string",
        ),
        ('{"data":-1e400}', ".data", "the number is too large to be kept; send it as a string"),
        (
            '{"data":' + "9" * 5000 + "}",
            ".data",
            "the number is too large to be kept; send it as a string",
        ),
    ],
)
def test_a_wrong_part_is_refused_with_its_place(part, field, description):
    with pytest.raises(InvalidParamsError) as caught:
        part_of(part)
    assert caught.value.violations == (("message.parts[0]" + field, description),)
    assert caught.value.message == f"message.parts[0]{field}: {description}"


@pytest.mark.parametrize(
    ("body", "kind", "violations"),
    [
        ("[]", GetTaskRequest, [("", "expected an object, got an array")]),
        ("5", GetTaskRequest, [("", "expected an object, got a number")]),
        ("null", GetTaskRequest, [("", "expected an object, got null")]),
        ("{}", GetTaskRequest, [("id", "required, but missing")]),
        ('{"id":null}', GetTaskRequest, [("id", "required, but missing")]),
        ('{"id":""}', GetTaskRequest, [("id", "must not be empty")]),
        ('{"ID":"x"}', GetTaskRequest, [("id", "required, but missing (unknown here: 'ID')")]),
        ('{"id":"t","historyLength":"x"}', GetTaskRequest, [("historyLength", INT + "x")]),
        ('{"id":"t","historyLength":" 5"}', GetTaskRequest, [("historyLength", INT + " 5")]),
        ('{"id":"t","historyLength":5.5}', GetTaskRequest, [("historyLength", INT + "5.5")]),
        ('{"id":"t","historyLength":true}', GetTaskRequest, [("historyLength", INT + "True")]),
        (
            '{"id":"t","historyLength":2147483648}',
            GetTaskRequest,
            [("historyLength", INT + "2147483648")],
        ),
        (
            '{"includeArtifacts":"true"}',
            ListTasksRequest,
            [("includeArtifacts", "expected true or false, got a string")],
        ),
        (
            '{"statusTimestampAfter":"yesterday"}',
            ListTasksRequest,
            [
                (
                    "statusTimestampAfter",
                    "'yesterday' is not a timestamp such as 2026-01-31T12:00:00.000Z",
                )
            ],
        ),
        (
            '{"statusTimestampAfter":5}',
            ListTasksRequest,
            [("statusTimestampAfter", "expected a string, got a number")],
        ),
        ("{}", SendMessageRequest, [("message", "required, but missing")]),
        ('{"message":null}', SendMessageRequest, [("message", "required, but missing")]),
        (
            '{"message":{}}',
            SendMessageRequest,
            [
                ("message.messageId", "required, but missing"),
                ("message.role", "required, but missing"),
                ("message.parts", "required, but missing"),
            ],
        ),
        (
            '{"message":{"messageId":"","role":"user","parts":[]}}',
            SendMessageRequest,
            [
                ("message.messageId", "must not be empty"),
                ("message.role", ROLES + "'user'"),
                ("message.parts", "must not be empty"),
            ],
        ),
        (
            '{"message":{"messageId":"m","role":"ROLE_UNSPECIFIED","parts":[{"text":"a"}]}}',
            SendMessageRequest,
            [("message.role", "expected ROLE_USER or ROLE_AGENT, got ROLE_UNSPECIFIED")],
        ),
        (
            '{"message":{"messageId":"m","role":3,"parts":{"text":"a"}}}',
            SendMessageRequest,
            [
                ("message.role", ROLES + "a number"),
                ("message.parts", "expected an array, got an object"),
            ],
        ),
        (
            '{"message":{"messageId":"m","role":1,"parts":[{"text":1},{"text":"a"},{"url":2}]}}',
            SendMessageRequest,
            [
                ("message.parts[0].text", "expected a string, got a number"),
                ("message.parts[2].url", "expected a string, got a number"),
            ],
        ),
        (
            '{"securitySchemes":{"key":{"apiKeySecurityScheme":{"name":1}}},"name":"n",'
            '"capabilities":{"streaming":1}}',
            AgentCard,
            [
                (
                    "securitySchemes.key.apiKeySecurityScheme.name",
                    "expected a string, got a number",
                ),
                ("capabilities.streaming", "expected true or false, got a number"),
            ],
        ),
        (
            '{"task":{"id":"t"},"message":{}}',
            StreamResponse,
            [
                ("task.status", "required, but missing"),
                ("message.messageId", "required, but missing"),
                ("message.role", "required, but missing"),
                ("message.parts", "required, but missing"),
            ],
        ),
        (
            "{}",
            StreamResponse,
            [
                (
                    "",
                    "a StreamResponse has exactly one of task, message, statusUpdate and "
                    "artifactUpdate",
                )
            ],
        ),
    ],
)
def test_every_wrong_field_is_named(body, kind, violations):
    with pytest.raises(InvalidParamsError) as caught:
        decode(body.encode(), kind)
    assert list(caught.value.violations) == violations
    field, description = violations[0]
    assert caught.value.message.startswith(f"{field}: {description}" if field else description)
    assert ("more)" in caught.value.message) is (len(violations) > 1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON: it is empty"),
        (b"  ", "not JSON: it is empty"),
        (b'{"id":', "not JSON: it ends too early"),
        (b'{"id":"t"} x', "not JSON: trailing characters (byte 12)"),
        (b'{"id":"t",}', "not JSON: trailing comma in object (byte 10)"),
        (b"{'id':1}", "not JSON: object keys must be strings (byte 1)"),
        (b'{"id":NaN}', "not JSON: invalid character (byte 6)"),
        (b'{"id":"a\nb"}', "not JSON: invalid character (byte 8)"),
        (b'{"id":"\\ud800"}', "not JSON: it ends too early, or has half of a surrogate pair"),
        (b'{"id":"\xff"}', "not UTF-8: invalid start byte at byte 7"),
        (b'{"id":"\xed\xa0\x80"}', "not UTF-8: invalid continuation byte at byte 7"),
        (b'{"id":"t","x":"\xff"}', "not UTF-8: invalid start byte at byte 15"),
        (b'\xef\xbb\xbf{"id":"t"}', "not JSON: invalid character (byte 0)"),
        ('{"id":"t"}'.encode("utf-16"), "not UTF-8: invalid start byte at byte 0"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(body, message):
    with pytest.raises(JSONParseError) as caught:
        decode(body, GetTaskRequest)
    assert caught.value.message == message


@pytest.mark.parametrize("depth", [100_000, 1_000_000])
@pytest.mark.parametrize("member", ["data", "unknown", "metadata"])
def test_nesting_that_is_too_deep_is_refused_clearly(member, depth):
    body = message(f'{{"text":"a","{member}":{"[" * depth}1{"]" * depth}}}')
    with pytest.raises(InvalidParamsError, match="nested too deeply"):
        decode(body, SendMessageRequest)


def test_values_share_nothing_that_can_change():
    body = b'{"tokenUrl":"t"}'
    first, second = (decode(body, ClientCredentialsOAuthFlow) for _ in range(2))
    assert first == second
    assert first.scopes is not second.scopes
