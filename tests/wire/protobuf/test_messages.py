"""gRPC messages: the facts behind them, and values of the data model in them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.model.errors import (
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
)
from parley.model.operations import BY_NAME, OPERATIONS, GetTaskRequest, SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.model.service import StreamItem
from parley.model.tasks import Task, TaskState, TaskStatus
from parley.wire import versions
from parley.wire.json import protojson
from parley.wire.json.problems import InvalidValue
from parley.wire.protobuf.messages import DEEPEST, POOL, Messages
from parley.wire.protobuf.structs import EXACT, Structs
from tests.kit.strategies import MESSAGES, value_of

DATA = Path(__file__).parents[2] / "data"
MADE = Messages("lf.a2a.v1")
STRUCTS = Structs(MADE)
CODEC = versions.dialect("1.0").grpc()
SEND = BY_NAME["SendMessage"]
GET = BY_NAME["GetTask"]

# Additions to the 0.3 proto after 0.3.0.
LATER = {
    "Part": [{"name": "metadata", "json": "metadata", "number": 4}],
    "FilePart": [{"name": "name", "json": "name", "number": 4}],
    "AgentCard": [{"name": "icon_url", "json": "iconUrl", "number": 18}],
}
TYPES = {
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_INT32: "int32",
}


def facts(name: str) -> dict[str, Any]:
    return json.loads((DATA / name).read_text("utf-8"))


def described(field: Any) -> dict[str, Any]:
    """Return a field in the form of the fact files."""
    kind = field.message_type or field.enum_type
    fact: dict[str, Any] = {
        "name": field.name,
        "json": field.json_name,
        "number": field.number,
        "type": kind.full_name if kind else TYPES[field.type],
        "label": "repeated" if field.is_repeated else "optional",
    }
    oneof = field.containing_oneof
    if oneof is not None and oneof.name == f"_{field.name}":
        fact["presence"] = True
    elif oneof is not None:
        fact["oneof"] = oneof.name
    return fact


@pytest.mark.parametrize(
    ("file", "later"),
    [("a2a_v1_messages.json", {}), ("a2a_v0_3_messages.json", LATER)],
    ids=["1.0", "0.3"],
)
def test_every_message_is_as_specified(file, later):
    wanted = facts(file)
    package = wanted["package"]
    shipped = POOL.FindFileByName(f"parley/{package}.proto").message_types_by_name
    assert {*shipped} == {name for name in wanted["messages"] if "." not in name}
    for name, message in wanted["messages"].items():
        descriptor = POOL.FindMessageTypeByName(f"{package}.{name}")
        fields = {field.name: described(field) for field in descriptor.fields}
        for more in later.get(name, ()):
            assert more.items() <= fields.pop(more["name"]).items()
        for fact in message["fields"]:
            fact.pop("required", None)
        assert fields == {fact["name"]: fact for fact in message["fields"]}
    for name, values in wanted["enums"].items():
        enum = POOL.FindEnumTypeByName(f"{package}.{name}")
        assert {value.name: value.number for value in enum.values} == values
    service = POOL.FindServiceByName(f"{package}.A2AService")
    assert [
        {
            "name": method.name,
            "input": method.input_type.full_name,
            "output": method.output_type.full_name,
            "server_streaming": method.server_streaming,
        }
        for method in service.methods
    ] == wanted["service"]["methods"]


@pytest.mark.slow
def test_nothing_is_put_where_others_look_for_their_own_messages():
    script = (
        "from parley.wire import versions\n"
        "for version in versions.SUPPORTED_VERSIONS: versions.dialect(version).grpc()\n"
        "from google.protobuf import descriptor_pool\n"
        "pool = descriptor_pool.Default()\n"
        "for name in ('lf.a2a.v1.Task', 'a2a.v1.Task', 'google.rpc.Status'):\n"
        "    try: pool.FindMessageTypeByName(name)\n"
        "    except KeyError: continue\n"
        "    raise SystemExit(f'{name} is there')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_written_is_read_back_and_is_what_json_says(name):
    kind = MESSAGES[name]

    @settings(max_examples=25)
    @given(value_of(kind))
    def check(value):
        data = STRUCTS.encode(value, name)
        message = MADE.parse(name, data)
        assert STRUCTS.read(message, kind) == value
        assert protojson.decode(json_format.MessageToJson(message), kind) == value
        of_json = json_format.Parse(protojson.encode(value), MADE[name](), descriptor_pool=POOL)
        assert of_json == message

    check()


@pytest.mark.slow
@settings(max_examples=300)
@given(st.sampled_from(OPERATIONS), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(operation, data):
    with suppress(InvalidParamsError, InvalidRequestError):
        CODEC.read_request(operation, data)
    with suppress(InvalidAgentResponseError):
        CODEC.read_result(operation, data)


@pytest.mark.slow
@settings(max_examples=300)
@given(value_of(SendMessageRequest), st.data())
def test_spoiled_bytes_are_read_or_refused(value, data):
    spoiled = bytearray(CODEC.write_request(SEND, value))
    place = data.draw(st.integers(0, len(spoiled) - 1))
    spoiled[place] = data.draw(st.integers(0, 255))
    with suppress(InvalidParamsError, InvalidRequestError):
        CODEC.read_request(SEND, bytes(spoiled))


def sent(**fields: Any) -> bytes:
    """Return a request to send a message, made of unchecked proto fields."""
    given = {"message_id": "m", "role": 1, "parts": [{"text": "hi"}], **fields}
    message = MADE["SendMessageRequest"]()
    json_format.ParseDict({"message": given}, message, descriptor_pool=POOL)
    return message.SerializeToString()


def refusal(data: bytes) -> InvalidParamsError:
    with pytest.raises(InvalidParamsError) as refused:
        CODEC.read_request(SEND, data)
    return refused.value


def value_in(data: bytes) -> Any:
    return CODEC.read_request(SEND, data).message.parts[0].data


@pytest.mark.parametrize(
    ("fields", "field", "description"),
    [
        ({"message_id": ""}, "message.messageId", "required, but missing"),
        ({"role": 0}, "message.role", "required, but missing"),
        ({"parts": []}, "message.parts", "required, but missing"),
        ({"role": 7}, "message.role", "expected one of ROLE_USER, ROLE_AGENT; got the number 7"),
        (
            {"parts": [{"text": "a"}, {"filename": "b"}]},
            "message.parts[1]",
            "a part has exactly one of text, raw, url and data; this one has none of them",
        ),
    ],
)
def test_a_field_that_is_wrong_is_named_as_in_json(fields, field, description):
    error = refusal(sent(**fields))
    assert error.violations == ((field, description),)
    assert error.message == f"{field}: {description}"


def test_an_answer_that_is_wrong_is_the_agents_fault():
    for data in (b"\xff", CODEC.write_request(GET, GetTaskRequest(id="t"))):
        with pytest.raises(InvalidAgentResponseError, match="the answer to GetTask is not a Task"):
            CODEC.read_result(GET, data)


@pytest.mark.parametrize("number", [0, -1, 7, EXACT, -EXACT, 1.5, -0.25])
def test_a_number_stays_what_it_is(number):
    data = CODEC.write_request(SEND, request(Part(data={"n": number})))
    read = value_in(data)["n"]
    assert (type(read), read) == (type(number), number)


def request(*parts: Part, **fields: Any) -> SendMessageRequest:
    return SendMessageRequest(
        message=Message(message_id="m", role=Role.USER, parts=parts, **fields)
    )


def test_a_whole_number_beyond_what_a_double_holds_exactly_is_read_as_one():
    read = value_in(CODEC.write_request(SEND, request(Part(data=2**60 + 1))))
    assert (type(read), read) == (float, 2.0**60)


def test_a_number_that_no_double_holds_is_refused_where_it_is_written():
    with pytest.raises(InvalidParamsError) as refused:
        CODEC.write_request(SEND, request(Part(data={"a": [1, 10**400]})))
    (violation,) = refused.value.violations
    assert violation.field == "message.parts[0].data.a[1]"
    task = Task(id="t", status=TaskStatus(state=TaskState.WORKING), metadata={"n": 10**400})
    with pytest.raises(InternalError, match=r"cannot be sent over gRPC: metadata\.n: .*too large"):
        CODEC.write_result(GET, task)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_have_is_refused_where_it_is_read(number):
    message = MADE["SendMessageRequest"]()
    message.ParseFromString(sent(parts=[{"data": {"a": [1, 2]}}]))
    inner = message.message.parts[0].data.struct_value.fields["a"].list_value
    inner.values[1].number_value = number
    error = refusal(message.SerializeToString())
    (violation,) = error.violations
    assert violation.field == "message.parts[0].data.a[1]"
    assert "JSON has no number" in violation.description


def test_a_number_that_json_does_not_have_is_written_as_null_as_in_json():
    assert (
        value_in(CODEC.write_request(SEND, request(Part(data=[math.nan, math.inf])))) == [None] * 2
    )


@pytest.mark.parametrize(("seconds", "nanos"), [(0, -1), (0, 10**9), (10**12, 0), (-(10**12), 0)])
def test_a_moment_that_cannot_be_is_refused(seconds, nanos):
    message = MADE["TaskStatus"](state=2)
    message.timestamp.seconds, message.timestamp.nanos = seconds, nanos
    with pytest.raises(InvalidValue, match="no moment"):
        STRUCTS.read(message, TaskStatus)


def test_a_message_with_too_many_parts_is_refused_before_it_is_decoded():
    data = sent(parts=[{"text": "a"}] * 5 + [{}])
    with pytest.raises(InvalidParamsError, match="has more than 5 parts") as refused:
        CODEC.read_request(SEND, data, max_parts=5)
    assert refused.value.violations[0].field == "message.parts"
    assert len(CODEC.read_request(SEND, sent(parts=[{"text": "a"}] * 5), max_parts=5).message.parts)


@pytest.mark.parametrize("version", versions.SUPPORTED_VERSIONS)
def test_a_request_is_refused_exactly_when_it_is_deeper_than_the_limit(version):
    codec = versions.dialect(version).grpc()
    data = {"a": [[{"b": [1]}]]}  # depth 5, below an object, its message, parts and a part
    written = codec.write_request(SEND, request(Part(data=data)))
    codec.read_request(SEND, written, max_depth=9)
    with pytest.raises(InvalidParamsError, match="nested more than 8 levels"):
        codec.read_request(SEND, written, max_depth=8)


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_what_protobuf_takes_is_never_deeper_than_the_default_limit(wrap):
    data: Any = 1
    taken = 0
    for depth in range(1, 100):
        data = wrap(data)
        with suppress(InvalidRequestError):
            CODEC.read_request(SEND, CODEC.write_request(SEND, request(Part(data=data))))
            taken = depth
    assert 30 <= taken < DEEPEST - 4  # the enclosing levels are four deep


def test_an_event_is_read_as_it_was_written():
    task = Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING))
    assert CODEC.read_event(CODEC.write_event(StreamItem(task, 1))) == task
    assert not CODEC.ends_stream(task)
