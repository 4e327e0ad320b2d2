"""JSON-RPC in 0.3: what is understood, what is forgiven, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parley.model.errors import (
    A2AError,
    FieldViolation,
    InvalidAgentResponseError,
    InvalidParamsError,
    JSONParseError,
    PeerError,
    TaskNotFoundError,
)
from parley.model.operations import (
    BY_NAME,
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    Empty,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageConfiguration,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import StreamItem
from parley.model.struct import Timestamp
from parley.model.tasks import (
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
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


def test_each_kind_of_part_is_read():
    parts = [
        {"kind": "text", "text": "a", "metadata": {"x": None}},
        {"kind": "file", "file": {"bytes": "AAH/", "mimeType": "image/png", "name": "a.png"}},
        {"kind": "file", "file": {"uri": "https://a.example/b", "mimeType": "text/plain"}},
        {"kind": "data", "data": {"n": 2**60, "none": None, "f": 1.0}},
    ]
    read = said({**MESSAGE, "parts": parts}).parts
    assert read == (
        Part(text="a", metadata={"x": None}),
        Part(raw=b"\x00\x01\xff", media_type="image/png", filename="a.png"),
        Part(url="https://a.example/b", media_type="text/plain"),
        Part(data={"n": 2**60, "none": None, "f": 1.0}),
    )
    assert type(read[3].data["n"]) is int
    assert type(read[3].data["f"]) is float


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


def test_names_may_be_spelled_as_in_the_proto_and_unknown_ones_are_passed_over():
    read = said(
        {
            "message_id": "m-1",
            "role": "user",
            "parts": [{"text": "a"}],
            "context_id": "c",
            "taskId": None,
            "reference_task_ids": ["t"],
            "new": 1,
        }
    )
    assert read.context_id == "c"
    assert read.reference_task_ids == ("t",)


def test_blocking_is_the_opposite_of_returning_immediately():
    def immediately(**configuration: Any) -> bool:
        params = {"message": MESSAGE, "configuration": configuration}
        answer: bool = asked("message/send", params).configuration.return_immediately
        return answer

    assert immediately(blocking=False) is True
    assert immediately(blocking=True) is False
    assert immediately() is False
    assert asked("message/send", {"message": MESSAGE}).configuration is None


def test_a_configuration_is_read():
    webhook = {
        "url": "https://a.example",
        "token": "t",
        "authentication": {"schemes": ["Bearer", "Basic"], "credentials": "s"},
    }
    configuration = {
        "acceptedOutputModes": ["text/plain"],
        "historyLength": 0,
        "pushNotificationConfig": webhook,
    }
    read = asked("message/stream", {"message": MESSAGE, "configuration": configuration})
    assert read.configuration == SendMessageConfiguration(
        accepted_output_modes=("text/plain",),
        history_length=0,
        task_push_notification_config=TaskPushNotificationConfig(
            id="default",
            url="https://a.example",
            token="t",
            authentication=AuthenticationInfo(scheme="Bearer", credentials="s"),
        ),
    )


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


def test_what_is_not_json_is_refused_as_such():
    with pytest.raises(JSONParseError):
        asked("message/send", b'{"message": NaN}')


def test_deep_nesting_is_refused_and_breaks_nothing():
    deep = b'{"message":{"metadata":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}}"
    with pytest.raises(A2AError):
        asked("message/send", deep)


def test_requests_about_tasks_are_read_and_have_no_tenant():
    read = asked("tasks/get", {"id": "t", "historyLength": 2, "tenant": "x", "metadata": {}})
    assert read == GetTaskRequest(id="t", history_length=2)
    assert asked("tasks/cancel", {"id": "t", "metadata": {"a": 1}}).metadata == {"a": 1}
    assert asked("tasks/resubscribe", {"id": "t"}) == SubscribeToTaskRequest(id="t")
    for method in ("tasks/get", "tasks/cancel", "tasks/resubscribe"):
        with pytest.raises(InvalidParamsError, match="id"):
            asked(method, {})
    card = asked("agent/getAuthenticatedExtendedCard", {})
    assert card == GetExtendedAgentCardRequest()


def test_webhooks_without_an_id_are_the_default_one():
    params = {"taskId": "t", "pushNotificationConfig": {"url": "https://a.example"}}
    read = asked("tasks/pushNotificationConfig/set", params)
    assert read == TaskPushNotificationConfig(id="default", task_id="t", url="https://a.example")
    named = {**params, "pushNotificationConfig": {"url": "https://a.example", "id": "7"}}
    assert asked("tasks/pushNotificationConfig/set", named).id == "7"
    get = GetTaskPushNotificationConfigRequest(task_id="t", id="default")
    assert asked("tasks/pushNotificationConfig/get", {"id": "t"}) == get
    named = {"id": "t", "pushNotificationConfigId": "7"}
    assert asked("tasks/pushNotificationConfig/get", named).id == "7"
    delete = DeleteTaskPushNotificationConfigRequest(task_id="t", id="7")
    assert asked("tasks/pushNotificationConfig/delete", named) == delete
    with pytest.raises(InvalidParamsError, match="pushNotificationConfigId"):
        asked("tasks/pushNotificationConfig/delete", {"id": "t"})
    with pytest.raises(InvalidParamsError, match="taskId"):
        asked("tasks/pushNotificationConfig/set", {"pushNotificationConfig": {"url": "x:y"}})


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
    assert "ListTasks" not in CODEC.names  # no agent of 0.3 is asked for what it cannot have


# -- answers ---------------------------------------------------------------------------------

MOMENT = Timestamp.parse("2026-01-31T12:00:00Z")
STATUS = TaskStatus(state=TaskState.INPUT_REQUIRED, timestamp=MOMENT)
TASK = Task(id="t", context_id="c", status=STATUS)


def written(name: str, answer: Any) -> Any:
    return json.loads(CODEC.write_result(BY_NAME[name], answer))


def test_answers_are_written_as_0_3_has_them():
    message = Message(message_id="r", role=Role.AGENT, parts=(Part(text="hi"),))
    assert written("SendMessage", message) == {
        "kind": "message",
        "messageId": "r",
        "role": "agent",
        "parts": [{"kind": "text", "text": "hi"}],
    }
    assert written("SendMessage", TASK) == {
        "kind": "task",
        "id": "t",
        "contextId": "c",
        "status": {"state": "input-required", "timestamp": "2026-01-31T12:00:00.000Z"},
        "history": [],
    }
    assert CODEC.write_result(BY_NAME["DeleteTaskPushNotificationConfig"], Empty()) == b"null"
    webhook = TaskPushNotificationConfig(
        id="7",
        task_id="t",
        url="https://a.example",
        authentication=AuthenticationInfo(scheme="Bearer", credentials="s"),
    )
    assert written("CreateTaskPushNotificationConfig", webhook) == {
        "taskId": "t",
        "pushNotificationConfig": {
            "id": "7",
            "url": "https://a.example",
            "authentication": {"schemes": ["Bearer"], "credentials": "s"},
        },
    }


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


def test_a_task_or_an_artifact_does_not_end_a_stream():
    artifact = Artifact(artifact_id="a", parts=())
    event = TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact, append=True)
    assert not CODEC.ends_stream(event)
    assert not CODEC.ends_stream(TASK)
    assert json.loads(CODEC.write_event(StreamItem(event))) == {
        "kind": "artifact-update",
        "taskId": "t",
        "contextId": "c",
        "artifact": {"artifactId": "a", "parts": []},
        "append": True,
    }


def test_answers_without_kinds_and_ids_are_understood():
    task = {
        "id": "t",
        "contextId": "c",
        "status": {
            "state": "completed",
            "timestamp": "2025-04-02T16:59:25.331844",
            "message": {"role": "agent", "parts": [{"kind": "text", "text": "done"}]},
        },
        "history": [{"role": "user", "parts": []}],
        "artifacts": None,
    }
    read = answered("SendMessage", task)
    assert read.text == "done"
    assert read.status.message.message_id
    assert str(read.status.timestamp) == "2025-04-02T16:59:25.331Z"
    assert read.history == ()
    assert answered("GetTask", {**task, "kind": "task"}).id == "t"
    message = answered("SendMessage", {"parts": [{"text": "hi"}], "messageId": "m"})
    assert (message.text, message.role) == ("hi", Role.AGENT)


def test_events_without_kinds_are_told_apart():
    status = {"taskId": "t", "contextId": "c", "status": {"state": "working"}}
    assert isinstance(told(status), TaskStatusUpdateEvent)
    artifact = {"taskId": "t", "contextId": "c", "artifact": {"artifactId": "a", "parts": []}}
    assert isinstance(told(artifact), TaskArtifactUpdateEvent)
    assert isinstance(told({"id": "t", "status": {"state": "working"}}), Task)
    assert isinstance(told(MESSAGE), Message)


@pytest.mark.parametrize(
    "answer", [None, 5, "text", [], {}, {"kind": "task"}, {"kind": "nonsense"}, {"kind": 5}]
)
def test_answers_that_are_none_are_the_agents_fault(answer):
    with pytest.raises(InvalidAgentResponseError):
        answered("SendMessage", answer)
    with pytest.raises(InvalidAgentResponseError):
        told(answer)


def test_answers_about_webhooks_are_read():
    webhook = {"taskId": "t", "pushNotificationConfig": {"url": "https://a.example", "id": "7"}}
    assert answered("CreateTaskPushNotificationConfig", webhook).id == "7"
    page = answered("ListTaskPushNotificationConfigs", [webhook])
    assert [config.task_id for config in page.configs] == ["t"]
    assert answered("DeleteTaskPushNotificationConfig", None) == Empty()


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
