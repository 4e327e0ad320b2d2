"""JSON-RPC in 0.3: accepted, tolerated and rejected requests and responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parley.model.errors import (
    FieldViolation,
    InvalidAgentResponseError,
    InvalidParamsError,
    PeerError,
    TaskNotFoundError,
)
from parley.model.operations import BY_NAME, ListTasksRequest, SubscribeToTaskRequest
from parley.model.parts import Message, Part
from parley.model.service import StreamItem
from parley.model.struct import Timestamp
from parley.model.tasks import Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.wire.v0_3.http_json import HttpJson
from parley.wire.v0_3.json import JsonRpc

CODEC = JsonRpc()
MESSAGE = {
    "kind": "message",
    "messageId": "m-1",
    "role": "user",
    "parts": [{"kind": "text", "text": "hello"}],
}


def asked(method: str, params: Any) -> Any:
    data = params if isinstance(params, bytes) else json.dumps(params).encode()
    return CODEC.read_request(CODEC.methods[method], data)


def said(message: Any, **more: Any) -> Message:
    read: Message = asked("message/send", {"message": message, **more}).message
    return read


def answered(name: str, result: Any) -> Any:
    return CODEC.read_result(BY_NAME[name], json.dumps(result).encode())


def told(event: Any) -> Any:
    return CODEC.read_event(json.dumps(event).encode())


# -- requests --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "read"),
    [
        ({"text": "a"}, Part(text="a")),
        ({"type": "text", "text": "a"}, Part(text="a")),
        ({"type": "data", "data": {}}, Part(data={})),
        ({"file": {"uri": "x:y"}}, Part(url="x:y")),
        ({"data": {"kind": "text"}}, Part(data={"kind": "text"})),
        ({"kind": "text", "text": "a", "file": None, "new": 1}, Part(text="a")),
        ({"kind": "data", "data": {}, "text": "a"}, Part(data={})),
    ],
)
def test_a_part_whose_content_is_plain_is_understood(part, read):
    assert said({**MESSAGE, "parts": [part]}).parts == (read,)


REFUSED = {
    "nothing": ({}, ["message"]),
    "no members": ({"message": {}}, ["message.messageId", "message.role", "message.parts"]),
    "no id": ({"message": {**MESSAGE, "messageId": ""}}, ["message.messageId"]),
    "no parts": ({"message": {**MESSAGE, "parts": []}}, ["message.parts"]),
    "parts that are none": ({"message": {**MESSAGE, "parts": "x"}}, ["message.parts"]),
    "a role of 1.0": ({"message": {**MESSAGE, "role": "ROLE_USER"}}, ["message.role"]),
    "another kind": ({"message": {**MESSAGE, "kind": "task"}}, ["message.kind"]),
    "unknown parts": (
        {"message": {**MESSAGE, "parts": [{"kind": "song"}, {"type": "song", "text": "a"}]}},
        ["message.parts[0].kind", "message.parts[1].type"],
    ),
    "parts without content": (
        {"message": {**MESSAGE, "parts": [{"kind": "text"}, {"kind": "file"}, {}]}},
        ["message.parts[0].text", "message.parts[1].file", "message.parts[2]"],
    ),
    "an ambiguous part": (
        {"message": {**MESSAGE, "parts": [{"text": "a", "data": {}}]}},
        ["message.parts[0]"],
    ),
    "data that is no object": (
        {"message": {**MESSAGE, "parts": [{"kind": "data", "data": [1]}]}},
        ["message.parts[0].data"],
    ),
    "a file that is none": (
        {"message": {**MESSAGE, "parts": [{"kind": "file", "file": {"name": "a"}}]}},
        ["message.parts[0].file"],
    ),
    "bytes that are not base64": (
        {"message": {**MESSAGE, "parts": [{"kind": "file", "file": {"bytes": "%"}}]}},
        ["message.parts[0].file.bytes"],
    ),
    "a webhook without an address": (
        {"message": MESSAGE, "configuration": {"pushNotificationConfig": {"id": "x"}}},
        ["configuration.pushNotificationConfig.url"],
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_named_as_the_caller_names_it(what):
    params, fields = REFUSED[what]
    with pytest.raises(InvalidParamsError) as refusal:
        asked("message/send", params)
    assert [violation.field for violation in refusal.value.violations] == fields


@pytest.mark.parametrize("number", [b"1e400", b"-1e999"])
def test_numbers_that_cannot_be_kept_are_refused(number):
    params = json.dumps({"message": {**MESSAGE, "metadata": {"n": 0}}}).encode()
    with pytest.raises(InvalidParamsError) as refusal:
        asked("message/send", params.replace(b": 0", b": " + number))
    assert [violation.field for violation in refusal.value.violations] == ["message.metadata.n"]


# -- older names -----------------------------------------------------------------------------

OLDER = {"role": "user", "parts": [{"type": "text", "text": "hello"}]}


def test_a_message_of_older_texts_is_read():
    params = {
        "id": "t-1",
        "sessionId": "s-1",
        "message": OLDER,
        "acceptedOutputModes": ["text/plain"],
        "pushNotification": {"url": "https://a.example"},
        "historyLength": 3,
        "metadata": {"a": 1},
    }
    read = asked("tasks/send", params)
    message = read.message
    assert (message.task_id, message.context_id, message.text) == ("t-1", "s-1", "hello")
    assert message.message_id
    assert read.configuration.accepted_output_modes == ("text/plain",)
    assert read.configuration.task_push_notification_config.url == "https://a.example"
    assert read.configuration.history_length == 3
    assert read.configuration.return_immediately is False
    assert read.metadata == {"a": 1}
    assert asked("tasks/sendSubscribe", {"message": OLDER}).message.task_id == ""


def test_an_older_name_takes_a_message_of_0_3_as_it_is():
    params = {"message": MESSAGE, "configuration": {"blocking": False}}
    read = asked("tasks/send", params)
    assert read.message == said(MESSAGE)
    assert read.configuration.return_immediately is True


def test_ids_beside_a_message_mean_something_only_under_older_names():
    assert said(MESSAGE, id="t-1", sessionId="s-1").task_id == ""
    with pytest.raises(InvalidParamsError, match="messageId"):
        asked("message/send", {"id": "t-1", "message": OLDER})
    with pytest.raises(InvalidParamsError, match=r"message\.parts"):
        asked("tasks/send", {"id": "t-1", "message": {**OLDER, "parts": []}})


def test_other_older_names_mean_the_same_operations():
    assert asked("tasks/subscribe", {"id": "t"}) == SubscribeToTaskRequest(id="t")
    set_params = {"id": "t", "pushNotificationConfig": {"url": "https://a.example"}}
    assert asked("tasks/pushNotification/set", set_params).task_id == "t"
    assert asked("tasks/pushNotification/get", {"id": "t"}).task_id == "t"
    assert CODEC.methods["tasks/send"].name == "SendMessage"
    assert CODEC.methods["tasks/sendSubscribe"].streaming


def test_tasks_are_listed_with_the_states_of_0_3():
    params = {
        "contextId": "c",
        "status": "input-required",
        "pageSize": 3,
        "statusTimestampAfter": "2026-01-31T12:00:00Z",
    }
    assert asked("tasks/list", params) == ListTasksRequest(
        context_id="c",
        status=TaskState.INPUT_REQUIRED,
        page_size=3,
        status_timestamp_after=Timestamp.parse("2026-01-31T12:00:00Z"),
    )
    assert asked("tasks/list", {}) == ListTasksRequest()
    with pytest.raises(InvalidParamsError, match="statusTimestampAfter"):
        asked("tasks/list", {"statusTimestampAfter": "yesterday"})
    assert "ListTasks" not in CODEC.names  # 0.3 agents get no requests for unsupported features


# -- answers ---------------------------------------------------------------------------------

MOMENT = Timestamp.parse("2026-01-31T12:00:00Z")
STATUS = TaskStatus(state=TaskState.INPUT_REQUIRED, timestamp=MOMENT)
TASK = Task(id="t", context_id="c", status=STATUS)


def written(name: str, answer: Any) -> Any:
    return json.loads(CODEC.write_result(BY_NAME[name], answer))


@pytest.mark.parametrize(
    ("state", "final"),
    [
        ("SUBMITTED", False),
        ("WORKING", False),
        ("AUTH_REQUIRED", False),
        ("INPUT_REQUIRED", True),
        ("COMPLETED", True),
        ("FAILED", True),
        ("CANCELED", True),
        ("REJECTED", True),
    ],
)
def test_the_last_update_is_final_and_ends_the_stream(state, final):
    status = TaskStatus(state=TaskState[state])
    event = TaskStatusUpdateEvent(task_id="t", context_id="c", status=status)
    update = json.loads(CODEC.write_event(StreamItem(event)))
    assert update["final"] is final
    assert update["kind"] == "status-update"
    assert update["status"]["state"] == state.lower().replace("_", "-")
    assert CODEC.ends_stream(event) is final


@pytest.mark.parametrize(
    "answer", [None, 5, "text", [], {}, {"kind": "task"}, {"kind": "nonsense"}, {"kind": 5}]
)
def test_answers_that_are_none_are_the_agents_fault(answer):
    with pytest.raises(InvalidAgentResponseError):
        answered("SendMessage", answer)
    with pytest.raises(InvalidAgentResponseError):
        told(answer)


def test_errors_are_read_by_their_code_whatever_comes_with_them():
    assert isinstance(CODEC.read_error(b'{"code":-32001,"message":"no"}'), TaskNotFoundError)
    error = CODEC.read_error(b'{"code":-32001,"message":"no","data":"details"}')
    assert isinstance(error, TaskNotFoundError)
    assert isinstance(CODEC.read_error(b'{"code":-1,"message":"no"}'), PeerError)


@pytest.mark.parametrize(
    ("codec", "webhook", "parts"),
    [
        (CODEC, "configuration.pushNotificationConfig.url", "message.parts[1]"),
        (HttpJson(), "configuration.pushNotification.url", "message.content[1]"),
    ],
)
def test_what_an_agent_finds_wrong_is_named_as_the_caller_named_it(codec, webhook, parts):
    fields = ("configuration.taskPushNotificationConfig.url", "message.parts[1]")
    violations = tuple(FieldViolation(field, "is wrong") for field in fields)
    error = InvalidParamsError(f"{fields[0]}: is wrong", violations=violations)
    written = json.loads(codec.write_error(error))
    assert [each["field"] for each in written["data"][1]["fieldViolations"]] == [webhook, parts]
    assert written["message"] == f"{webhook}: is wrong"
