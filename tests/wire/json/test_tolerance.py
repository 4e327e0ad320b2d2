"""Responses are read without their invalid fields; requests are not."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from parley.model.errors import A2AError, InvalidAgentResponseError, InvalidParamsError
from parley.model.operations import BY_NAME, OPERATIONS, Empty, SendMessageResponse, StreamResponse
from parley.model.parts import Message, Part, Role
from parley.model.service import StreamItem
from parley.model.struct import Timestamp
from parley.model.tasks import TaskState
from parley.wire import versions
from tests.kit.strategies import value_of

CODECS = {
    f"{binding} {version}": getattr(versions.dialect(version), binding)
    for binding in ("jsonrpc", "http_json")
    for version in versions.SUPPORTED_VERSIONS
}
ANSWERS = [each for each in OPERATIONS if each.response is not Empty and not each.extension]
# Redundant members of a card: a change to one affects the meaning of the others.
INTERFACES = ("supportedInterfaces", "url", "preferredTransport", "additionalInterfaces")
WRONG = [None, 5, -1.5, True, "", "nonsense", [], [5], [None], {}, {"x": 1}, [[]]]


def read(codec: Any, name: str, members: Any) -> Any:
    data = json.dumps(members).encode()
    if BY_NAME[name].streaming:
        return codec.read_event(data)
    return codec.read_result(BY_NAME[name], data)


def written(codec: Any, name: str, value: Any) -> Any:
    if BY_NAME[name].streaming:
        return json.loads(codec.write_event(StreamItem(value)))
    return json.loads(codec.write_result(BY_NAME[name], value))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every path in a JSON value, except within free JSON, where everything is valid."""
    found = []
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if key in ("metadata", "params", "header", "data"):
            found.append((*path, key))
            continue
        found.append((*path, key))
        if isinstance(item, dict | list):
            found += places(item, (*path, key))
    return found


def break_at(value: Any, path: tuple[Any, ...], by: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    if by is ...:
        del value[path[-1]]
    else:
        value[path[-1]] = by


def check_beside(before: Any, after: Any, path: tuple[Any, ...]) -> None:
    """Check that everything outside ``path`` is unchanged; its list item may be removed."""
    key, *rest = path
    if isinstance(before, list):
        if len(after) == len(before):
            others = [each for place, each in enumerate(after) if place != key]
            if rest:
                check_beside(before[key], after[key], tuple(rest))
        else:
            # A message without parts is meaningless; only a one-member object may be removed.
            said = before[key] if rest and isinstance(before[key], dict) else {}
            assert len(said) <= 1 or rest[0] in ("parts", "content"), path
            others = after
        assert others == [each for place, each in enumerate(before) if place != key], path
        return
    if before.get("kind") in ("text", "data", "file") or key in ("flows", "scheme"):
        after = {**before, **after} if after.keys() <= before.keys() else after
    follows = {key, "final"}  # derived from the state, as a webhook's name from its id
    if key == "pushNotificationConfig":
        follows.add("name")
    assert {k: v for k, v in before.items() if k not in follows} == {
        k: v for k, v in after.items() if k not in follows and (k in before or v)
    }, (path, before, after)
    if rest and key in after and isinstance(before[key], dict | list):
        assert isinstance(after[key], type(before[key]))
        check_beside(before[key], after[key], tuple(rest))


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in ANSWERS])
@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_one_wrong_field_takes_nothing_else_with_it(codec: str, name: str, data: Any) -> None:
    spoken = CODECS[codec]
    response = BY_NAME[name].response
    value = data.draw(value_of(response))
    if isinstance(value, SendMessageResponse | StreamResponse):
        value = value.payload
    try:
        members = written(spoken, name, value)
        assume(written(spoken, name, read(spoken, name, members)) == members)
    except (A2AError, ValueError):  # a value that the version cannot represent
        assume(False)
    # The rest of the outermost object must identify the response's type.
    wrapped = isinstance(members, dict) and response in (SendMessageResponse, StreamResponse)
    outer = 1 if wrapped and len(members) == 1 else 0
    found = [path for path in places(members) if len(path) > outer]
    if not outer and isinstance(members, dict) and len(members) == 1:
        found = [path for path in found if len(path) > 1]
    assume(found)
    path = data.draw(st.sampled_from(found))
    by = data.draw(st.sampled_from([..., *WRONG]))
    broken = deepcopy(members)
    break_at(broken, path, by)
    got = read(spoken, name, broken)
    if "securitySchemes" not in path and path[0] not in INTERFACES:
        try:
            again = written(spoken, name, got)
        except ValueError:  # a webhook without a task, which 0.3 cannot represent
            return
        check_beside(members, again, path)


# -- decoded values --------------------------------------------------------------------------------

SAID = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}
DONE = {"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}}


def got(members: Any, name: str = "GetTask", codec: str = "jsonrpc 1.0") -> Any:
    return read(CODECS[codec], name, members)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"text": 5}, Part(text="5")),
        ({"text": ["x"], "metadata": {"a": 1}}, Part(text="", metadata={"a": 1})),
        ({"text": "x", "url": "", "raw": None}, Part(text="x")),
        ({"text": "x", "data": {}}, Part(text="x")),
        ({"raw": "YQ ==\n", "filename": "a"}, Part(raw=b"a", filename="a")),
        ({"raw": "%", "filename": "a"}, Part(url="", filename="a")),
        ({"text": "x", "mediaType": []}, Part(text="x")),
    ],
    ids=str,
)
def test_a_part_keeps_what_is_right_in_it(part: Any, expected: Part) -> None:
    artifact = {"artifactId": "a", "parts": [part, {"text": "beside"}]}
    task = got({**DONE, "artifacts": [artifact]})
    assert task.artifacts[0].parts == (expected, Part(text="beside"))


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"kind": "video", "text": "x"}, Part(text="x")),
        ({"kind": "text"}, Part(text="")),
        ({"kind": "file", "file": {"name": "a", "bytes": "%"}}, Part(url="", filename="a")),
        ({"kind": "data", "data": "x"}, Part(data={})),
        ({"kind": "text", "text": None, "metadata": {"a": 1}}, Part(text="", metadata={"a": 1})),
    ],
    ids=str,
)
def test_a_part_of_0_3_keeps_what_is_right_in_it(part: Any, expected: Part) -> None:
    said = {"kind": "message", "messageId": "m", "role": "agent", "parts": [part]}
    assert got(said, "SendMessage", "jsonrpc 0.3").parts == (expected,)


@pytest.mark.parametrize("state", ["", "nonsense", "TASK_STATE_NONSENSE", 5, None, []])
@pytest.mark.parametrize("name", ["GetTask", "CancelTask", "SendMessage"])
def test_what_is_said_in_a_state_that_is_unknown_is_read_in_either_form(
    state: object, name: str
) -> None:
    for parts in ("content", "parts"):
        message = {"messageId": "m", "role": "ROLE_AGENT", parts: [{"text": "hi"}]}
        task: Any = {"id": "t", "status": {"state": state, "message": message}}
        wrapped = {"task": task} if name == "SendMessage" else task
        assert got(wrapped, name, "http_json 0.3").status.message.text == "hi"


@pytest.mark.parametrize("role", ["ROLE_UNSPECIFIED", "ROLE_SYSTEM", 7, None, [], "assistant"])
def test_whoever_speaks_in_an_answer_is_the_agent_unless_it_is_the_user(role: Any) -> None:
    assert got({"message": {**SAID, "role": role}}, "SendMessage").role is Role.AGENT
    assert got({"message": {**SAID, "role": "user"}}, "SendMessage").role is Role.USER


def test_a_message_that_says_nothing_is_one_all_the_same() -> None:
    message = got({"message": {"role": "ROLE_AGENT", "parts": None}}, "SendMessage")
    assert isinstance(message, Message)
    assert message.message_id
    assert message.text == ""


@pytest.mark.parametrize("codec", ["jsonrpc 1.0", "jsonrpc 0.3"])
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (rb"cut \ud83d", "cut \ufffd"),
        (rb"\ud83d\ude00 \\ud83d", "\U0001f600 \\ud83d"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_text_that_no_encoding_has_is_replaced(codec: str, said: bytes, expected: str) -> None:
    state = b"completed" if codec.endswith("0.3") else b"TASK_STATE_COMPLETED"
    kind = b'"kind":"text",' if codec.endswith("0.3") else b""
    made = b'{"artifactId":"a","parts":[{%b"text":"%b"}]}' % (kind, said)
    data = b'{"id":"t","status":{"state":"%b"},"artifacts":[%b]}' % (state, made)
    task = CODECS[codec].read_result(BY_NAME["GetTask"], data)
    assert task.text == expected


def test_numbers_that_json_does_not_have_are_no_fault_of_the_rest() -> None:
    data = (
        b'{"id":"t","status":{"state":"TASK_STATE_COMPLETED"},"metadata":{"a":NaN,"b":1e400,"c":1}}'
    )
    task = CODECS["jsonrpc 1.0"].read_result(BY_NAME["GetTask"], data)
    assert task.metadata == {"a": None, "b": "1e400", "c": 1}


def test_what_is_left_out_is_logged_once_and_within_bounds(caplog: Any) -> None:
    history = [{**SAID, "extensions": 5} for _ in range(1000)]
    task = got({**DONE, "history": history})
    assert len(task.history) == 1000
    (record,) = [each for each in caplog.records if each.name != "parley.engine"]
    assert (record.levelno, record.name) == (logging.WARNING, "parley.client.answers")
    assert "the answer to GetTask" in record.getMessage()
    assert "history[0].extensions: expected an array, got a number" in record.getMessage()
    assert len(record.getMessage()) < 3000


@pytest.mark.parametrize("members", [None, 5, "text", [], {}, {"nothing": 1}])
def test_what_does_not_show_what_it_is_is_no_answer(members: Any) -> None:
    for codec in CODECS:
        with pytest.raises(InvalidAgentResponseError):
            got(members, codec=codec)


@pytest.mark.parametrize(
    ("name", "members", "field"),
    [
        ("SendMessage", {"message": {**SAID, "role": "ROLE_SYSTEM"}}, "message.role"),
        ("SendMessage", {"message": {**SAID, "parts": [{"text": 5}]}}, "message.parts[0].text"),
        ("SendMessage", {"message": {**SAID, "extensions": 5}}, "message.extensions"),
        ("ListTasks", {"statusTimestampAfter": "2026-01-31T12:00:00"}, "statusTimestampAfter"),
        ("ListTasks", {"status": "ARCHIVED"}, "status"),
    ],
)
def test_requests_are_read_as_strictly_as_before(name: str, members: Any, field: str) -> None:
    data = json.dumps(members).encode()
    with pytest.raises(InvalidParamsError) as refused:
        CODECS["jsonrpc 1.0"].read_request(BY_NAME[name], data)
    assert field in [violation.field for violation in refused.value.violations]


def test_a_moment_in_any_form_of_iso_8601_is_read() -> None:
    noon = Timestamp.parse("2026-01-31T12:00:00Z")
    for text in ("2026-01-31T12:00:00", "2026-01-31 12:00", "2026-01-31T14:00:00+02:00"):
        for codec, state in (("jsonrpc 1.0", "TASK_STATE_WORKING"), ("jsonrpc 0.3", "working")):
            status = {"state": state, "timestamp": text}
            task = got({"id": "t", "status": status}, codec=codec)
            assert task.id
            assert (task.state, task.status.timestamp) == (TaskState.WORKING, noon)
