"""The JSON-RPC envelope: ids are returned byte for byte, and errors state the cause."""

from __future__ import annotations

import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.errors import (
    ERRORS,
    A2AError,
    InvalidAgentResponseError,
    InvalidRequestError,
    JSONParseError,
    TaskNotFoundError,
)
from parley.model.operations import BY_NAME, StreamResponse
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import StreamItem
from parley.model.tasks import (
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.wire import jsonrpc, versions
from parley.wire.json.protojson import encode
from tests.kit.strategies import json_values, texts

codec = versions.dialect(versions.LATEST).jsonrpc
WORKING = TaskStatus(state=TaskState.WORKING)
EVENTS = (
    Task(id="t", context_id="c", status=WORKING),
    Message(message_id="m", role=Role.AGENT, parts=(Part(text="hi"),)),
    TaskStatusUpdateEvent(task_id="t", context_id="c", status=WORKING),
    TaskArtifactUpdateEvent(
        task_id="t", context_id="c", artifact=Artifact(artifact_id="a", parts=(Part(text="x"),))
    ),
)


def refused(id: msgspec.Raw | bytes | None, error: A2AError) -> bytes:
    return jsonrpc.error_response(id, codec.write_error(error))


def call(id: str = "1", **members: str) -> bytes:
    """Return a request; members are JSON."""
    whole = {"jsonrpc": '"2.0"', "id": id, "method": '"GetTask"'} | members
    return ("{" + ",".join(f'"{name}":{json}' for name, json in whole.items()) + "}").encode()


@pytest.mark.parametrize(
    "id",
    [
        "1",
        "0",
        "-5",
        "9007199254740993",
        "123456789012345678901234567890",
        '"a"',
        '""',
        '"\\u00e9\\n"',
        '"é"',
        "null",
    ],
)
def test_an_id_is_echoed_byte_for_byte(id):
    request = jsonrpc.parse_request(call(id))
    answer = jsonrpc.response(request.id, b"{}")
    assert answer == b'{"jsonrpc":"2.0","id":%b,"result":{}}' % id.encode()
    assert not request.is_notification


def test_a_request_without_an_id_is_a_notification():
    request = jsonrpc.parse_request(b'{"jsonrpc":"2.0","method":"CancelTask"}')
    assert request.is_notification
    assert request.id == msgspec.Raw()


@pytest.mark.parametrize("params", [{}, {"params": "null"}])
def test_parameters_may_be_absent_or_null(params):
    assert not jsonrpc.parse_request(call(**params)).params


def test_members_that_are_unknown_are_passed_over():
    request = jsonrpc.parse_request(call(params="[]", trace='{"a":[1]}'))
    assert (request.method, bytes(request.params), bytes(request.id)) == ("GetTask", b"[]", b"1")


VERSION = 'jsonrpc must be the string "2.0"'
METHOD = "method must be a string: the name of an operation"
ID = "id must be a string, an integer or null"
BATCH = "A2A has no batches: send each request alone"


@pytest.mark.parametrize(
    ("body", "error", "message", "id"),
    [
        (b"", JSONParseError, "not JSON: it is empty", None),
        (b"{", JSONParseError, "not JSON: it ends too early", None),
        (b"\xff", JSONParseError, "not UTF-8: invalid start byte at byte 0", None),
        (b'{"id":1,"x":"\xff"', JSONParseError, "not UTF-8: invalid start byte at byte 13", None),
        (
            call('"\\ud800"'),
            JSONParseError,
            "not JSON: unexpected end of hex escape (byte 29)",
            None,
        ),
        (b"nul", JSONParseError, "not JSON: it ends too early", None),
        (call() + b"x", JSONParseError, "not JSON: trailing characters (byte 44)", None),
        (b"[1", JSONParseError, "not JSON: it ends too early", None),
        (b'"GetTa', JSONParseError, "not JSON: it ends too early", None),
        (b"[]", InvalidRequestError, BATCH, None),
        (b" \n[" + call() + b"]", InvalidRequestError, BATCH, None),
        (b"5", InvalidRequestError, "a request must be a JSON object", None),
        (b'"GetTask"', InvalidRequestError, "a request must be a JSON object", None),
        (b"null", InvalidRequestError, "a request must be a JSON object", None),
        (b"{}", InvalidRequestError, VERSION, None),
        (call("7", jsonrpc='"1.0"'), InvalidRequestError, VERSION, b"7"),
        (call('"a"', jsonrpc="2.0"), InvalidRequestError, VERSION, b'"a"'),
        (call(jsonrpc="null"), InvalidRequestError, VERSION, b"1"),
        (b'{"jsonrpc":"2.0","id":"\xc3\xa9"}', InvalidRequestError, METHOD, '"é"'.encode()),
        (call(method="5"), InvalidRequestError, METHOD, b"1"),
        (call(method="null"), InvalidRequestError, METHOD, b"1"),
        (call("1.5"), InvalidRequestError, ID, None),
        (call("1.0"), InvalidRequestError, ID, None),
        (call("1e3"), InvalidRequestError, ID, None),
        (call("1e400"), InvalidRequestError, ID, None),
        (call("true"), InvalidRequestError, ID, None),
        (call("[1]"), InvalidRequestError, ID, None),
        (call("{}"), InvalidRequestError, ID, None),
        (
            call("[" * 1_000_000 + "]" * 1_000_000),
            InvalidRequestError,
            "the request is nested too deeply",
            None,
        ),
        (
            call(params="[" * 1_000_000 + "]" * 1_000_000),
            InvalidRequestError,
            "the request is nested too deeply",
            None,
        ),
    ],
)
def test_what_is_no_request_is_refused_with_its_id_where_it_can_be_read(body, error, message, id):
    with pytest.raises(error) as caught:
        jsonrpc.parse_request(body)
    assert type(caught.value) is error
    assert caught.value.message == message
    found = jsonrpc.request_id(body)
    assert (found and bytes(found)) == id
    answer = json.loads(refused(found, caught.value))
    assert answer["id"] == (json.loads(id) if id else None)
    assert answer["error"]["code"] == error.code


def test_an_id_that_is_not_utf8_is_a_parse_error():
    body = b'{"jsonrpc":"2.0","id":"\xff","method":"GetTask"}'
    with pytest.raises(JSONParseError, match="invalid start byte at byte 23"):
        jsonrpc.parse_request(body)
    assert jsonrpc.request_id(body) is None


@pytest.mark.slow
@given(
    st.binary(max_size=60)
    | json_values.map(lambda value: json.dumps(value).encode())
    | st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "params"]),
        json_values | st.sampled_from(["2.0", "GetTask"]),
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_bytes_whatever_raise_anything_but_a2a_errors(body):
    with suppress(A2AError):
        request = jsonrpc.parse_request(body)
        assert json.loads(jsonrpc.response(request.id, b"1"))["id"] == json.loads(body).get("id")
    jsonrpc.request_id(body)
    with suppress(A2AError):
        jsonrpc.parse_response(body)


@given(st.integers() | texts, texts, json_values)
def test_a_request_that_we_write_is_read_back(id, method, params):
    request = jsonrpc.parse_request(jsonrpc.request(id, method, msgspec.json.encode(params)))
    assert msgspec.json.decode(request.id) == id
    assert request.method == method
    assert (msgspec.json.decode(request.params) if request.params else None) == params


@given(json_values)
def test_a_result_is_passed_as_the_bytes_that_it_is(result):
    written = msgspec.json.encode(result)
    assert bytes(jsonrpc.parse_response(jsonrpc.response(b"1", written))) == written


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_is_wrapped_without_being_written_again(event):
    written = b'{"as" : "is"}'
    member = next(iter(json.loads(encode(StreamResponse.of(event))))).encode()
    assert codec.write_event(StreamItem(event, 1, written)) == b'{"%b":%b}' % (member, written)


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: type(e).__name__)
def test_an_event_of_a_stream_is_read_back(event):
    answer = jsonrpc.response(None, codec.write_event(StreamItem(event)))
    assert codec.read_event(jsonrpc.parse_response(answer)) == event


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_an_error_arrives_as_itself(error):
    sent = error("what was wrong", metadata={"taskId": "t"}, retry_after=1.5)
    with pytest.raises(error) as caught:
        jsonrpc.parse_response(refused(b"1", sent))
    assert type(caught.value) is error
    assert caught.value.message == "what was wrong"
    assert caught.value.metadata == {"taskId": "t"}
    assert caught.value.retry_after == 1.5


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"\xff",
        b"[]",
        b"{}",
        b'{"jsonrpc":"1.0","result":1}',
        b'{"jsonrpc":"2.0","error":"no"}',
        b'{"jsonrpc":"2.0","error":{}}',
        b'{"jsonrpc":"2.0","error":{"code":"x","message":"y"}}',
    ],
)
def test_what_is_no_answer_is_the_agents_fault(body):
    with pytest.raises(InvalidAgentResponseError, match="the answer"):
        jsonrpc.parse_response(body)


def read_apart(operation, body, id):
    """Return a result decoded in two steps, the envelope first."""
    return codec.read_result(operation, jsonrpc.parse_response(body, codec.read_error, id=id))


MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.sampled_from(["2.0", "2.0", "2.0", "1.0", None]),
        "id": st.sampled_from([1, 1, 1, "1", 1.0, None, 2, True]),
        "error": st.sampled_from([None, {"code": -32001, "message": "gone"}, {}]),
        "other": json_values,
        "result": st.sampled_from(
            [
                {"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "x"}]}},
                {"task": {"id": "t", "status": {"state": "TASK_STATE_WORKING"}}},
                {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}},
                {"kind": "message", "messageId": "m", "role": "agent", "parts": []},
                {"task": {"id": "t", "status": {"state": "working"}}, "message": None},
                {"task": None},
                None,
                [],
            ]
        ),
    },
)


@given(MEMBERS, st.permutations(["jsonrpc", "id", "error", "other", "result"]))
def test_an_answer_read_at_once_is_the_one_that_is_read_apart(members, order):
    body = json.dumps({name: members[name] for name in order if name in members}).encode()
    for operation in (BY_NAME["SendMessage"], BY_NAME["GetTask"]):
        at_once = codec.read_answer(operation, body, 1)
        if at_once is not None:
            assert at_once == read_apart(operation, body, 1)
    event = codec.read_event_answer(body, 1)
    if event is not None:
        result = jsonrpc.parse_response(body, codec.read_error, id=1)
        assert event == codec.read_event(result)


def test_answers_of_this_library_are_read_at_once():
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(text="x"),))
    task = Task(id="t", context_id="c", status=WORKING)
    for name, answer in (("SendMessage", message), ("SendMessage", task), ("GetTask", task)):
        body = jsonrpc.response(b"7", codec.write_result(BY_NAME[name], answer))
        assert codec.read_answer(BY_NAME[name], body, 7) == answer
        assert codec.read_answer(BY_NAME[name], body, 8) is None
    for event in (message, task):
        body = jsonrpc.response(b"7", codec.write_event(StreamItem(event)))
        assert codec.read_event_answer(body, 7) == event
    refusal = jsonrpc.error_response(b"7", jsonrpc.error_object(TaskNotFoundError("gone")))
    assert codec.read_answer(BY_NAME["GetTask"], refusal, 7) is None


def test_an_older_version_reads_no_answer_at_once():
    older = versions.dialect("0.3").jsonrpc
    body = jsonrpc.response(b"7", codec.write_event(StreamItem(Task(id="t", status=WORKING))))
    assert older.read_answer(BY_NAME["GetTask"], body, 7) is None
    assert older.read_event_answer(body, 7) is None
