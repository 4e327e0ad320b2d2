"""HTTP+JSON in 0.3: bodies of the proto and of the text, and the paths of both."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from parley.model.errors import (
    InvalidAgentResponseError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    VersionNotSupportedError,
)
from parley.model.operations import (
    BY_NAME,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import StreamItem
from parley.model.tasks import (
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.wire.v0_3.http_json import HttpJson
from parley.wire.v0_3.proto import decode_content

CODEC = HttpJson()
ROUTES = {(route.verb, route.path): route for route in CODEC.routes}
CONTENT = {"messageId": "m-1", "role": "ROLE_USER", "content": [{"text": "hello"}]}
PARTS = {"messageId": "m-1", "role": "user", "parts": [{"kind": "text", "text": "hello"}]}
CONFIGS = "/v1/tasks/{id}/pushNotificationConfigs"


def asked(verb: str, path: str, body: Any = None, query: str = "", **ids: str) -> Any:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    pairs = [tuple(pair.split("=")) for pair in query.split("&") if pair]
    return CODEC.read_request(ROUTES[verb, path], ids, pairs, data)


def sent(body: Any, path: str = "/v1/message:send") -> SendMessageRequest:
    read: SendMessageRequest = asked("POST", path, body)
    return read


@pytest.mark.parametrize(
    "body",
    [
        {"message": CONTENT},
        {"request": CONTENT},
        {"message": {"message_id": "m-1", "role": 1, "content": [{"text": "hello"}]}},
        {"message": PARTS},
        {"request": {**PARTS, "kind": "message"}},
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/message:send", "/v1/message:stream", "/tasks/send", "/tasks/sendStream"]
)
def test_a_message_is_read_in_either_form(body, path):
    read = sent(body, path)
    assert read.message == Message(message_id="m-1", role=Role.USER, parts=(Part(text="hello"),))


def test_older_paths_take_messages_of_older_texts():
    older = {"role": "user", "parts": [{"type": "text", "text": "hello"}]}
    read = sent({"id": "t", "sessionId": "c", "message": older}, "/tasks/send")
    assert (read.message.task_id, read.message.context_id) == ("t", "c")
    with pytest.raises(InvalidParamsError, match="messageId"):
        sent({"message": older})


@pytest.mark.parametrize("raw", [b"\x89PNG\r\n\x1a\n\x00", b"hello, world", b"", b"\x00"])
def test_bytes_are_read_whichever_way_a_peer_puts_them_there(raw):
    for given in (raw, base64.b64encode(raw)):
        file = {"fileWithBytes": base64.b64encode(given).decode(), "mimeType": "image/png"}
        read = sent({"message": {**CONTENT, "content": [{"file": file}]}})
        assert read.message.parts[0].raw == raw


@pytest.mark.parametrize("raw", [b"test", b"deadbeefdeadbeef", b"abc", b"Zm9v\n"])
def test_text_that_only_looks_like_base64_stays_what_it_is(raw):
    assert decode_content(raw, "text/plain") == raw


@pytest.mark.parametrize(
    "peer", ["python-httpx/0.28.1", "Go-http-client/1.1", "Java-http-client/17.0.15"]
)
def test_official_clients_that_read_text_are_told_files_as_they_read_them(peer):
    message = Message(message_id="m", role=Role.AGENT, parts=(Part(raw=b"\x00\x01\xff"),))
    artifact = Artifact(artifact_id="a", parts=message.parts)
    task = Task(
        id="t",
        status=TaskStatus(state=TaskState.WORKING, message=message),
        artifacts=(artifact,),
        history=(message,),
    )
    codec = CODEC.for_peer(peer)
    text = base64.b64encode(b"AAH/").decode()
    for answer in (message, task):
        body = codec.write_result(BY_NAME["SendMessage"], answer)
        assert body.count(b"fileWithBytes") == body.count(text.encode()) > 0
        assert codec.write_event(StreamItem(answer)) == body
        assert CODEC.read_event(body) == answer
    update = TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=artifact)
    assert text.encode() in codec.write_event(StreamItem(update))
    status = TaskStatusUpdateEvent(task_id="t", context_id="c", status=task.status)
    assert text.encode() in codec.write_event(StreamItem(status))
    page = ListTasksResponse(tasks=(task,), next_page_token="", page_size=1, total_size=1)
    assert codec.write_result(BY_NAME["ListTasks"], page).count(text.encode()) == 3
    assert CODEC.for_peer("node") is CODEC


REFUSED = {
    "nothing": ({}, ["message"]),
    "no members": ({"message": {}}, ["message.messageId", "message.role", "message.content"]),
    "no content": ({"message": {**CONTENT, "content": []}}, ["message.content"]),
    "no role": ({"message": {**CONTENT, "role": "ROLE_UNSPECIFIED"}}, ["message.role"]),
    "an empty part": ({"message": {**CONTENT, "content": [{}]}}, ["message.content[0]"]),
    "data that is none": (
        {"message": {**CONTENT, "content": [{"data": {"data": 5}}]}},
        ["message.content[0].data.data"],
    ),
    "parts of the text": (
        {"message": {**PARTS, "parts": [{"kind": "song"}]}},
        ["message.parts[0].kind"],
    ),
    "no object": ([], [""]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_wrong_is_named_as_the_caller_names_it(what):
    body, fields = REFUSED[what]
    with pytest.raises(InvalidParamsError) as refusal:
        sent(body)
    assert [violation.field for violation in refusal.value.violations] == fields


def test_requests_about_tasks_are_in_the_path():
    assert asked("GET", "/v1/tasks/{id}", id="t") == GetTaskRequest(id="t")
    for query in ("historyLength=2", "history_length=2", "historyLength=2&A2A-Version=0.3"):
        read = asked("GET", "/v1/tasks/{id}", query=query, id="t")
        assert read == GetTaskRequest(id="t", history_length=2)
    with pytest.raises(InvalidParamsError, match="historyLength"):
        asked("GET", "/v1/tasks/{id}", query="historyLength=two", id="t")
    for body in (None, b"null", {}, {"name": "tasks/t"}):
        for path in ("/v1/tasks/{id}:cancel", "/tasks/{id}/cancel"):
            assert asked("POST", path, body, id="t") == CancelTaskRequest(id="t")
    subscribe = SubscribeToTaskRequest(id="t")
    assert asked("POST", "/v1/tasks/{id}:subscribe", b"{}", id="t") == subscribe
    assert asked("GET", "/v1/tasks/{id}:subscribe", id="t") == subscribe
    assert asked("GET", "/tasks/{id}/subscribe", id="t") == subscribe
    read = asked("GET", "/v1/tasks", query="contextId=c&status=working&includeArtifacts=true")
    assert read == ListTasksRequest(
        context_id="c", status=TaskState.WORKING, include_artifacts=True
    )


WEBHOOK = {"url": "https://a.example", "id": "7"}


@pytest.mark.parametrize(
    "body",
    [
        {"parent": "tasks/t", "configId": "7", "config": {"pushNotificationConfig": WEBHOOK}},
        {"config_id": "7", "config": {"push_notification_config": {"url": "https://a.example"}}},
        {"name": "tasks/t/pushNotificationConfigs/7", "pushNotificationConfig": WEBHOOK},
        {"taskId": "t", "pushNotificationConfig": {**WEBHOOK, "authentication": {}}},
    ],
)
def test_a_webhook_is_read_in_every_form_that_clients_send(body):
    read = asked("POST", CONFIGS, body, id="t")
    assert read == TaskPushNotificationConfig(id="7", task_id="t", url="https://a.example")


def test_a_webhook_for_another_task_than_the_path_is_refused():
    body = {"parent": "tasks/other", "config": {"pushNotificationConfig": WEBHOOK}}
    with pytest.raises(InvalidParamsError, match="parent"):
        asked("POST", CONFIGS, body, id="t")


def test_answers_and_events_are_in_the_form_of_the_proto():
    status = TaskStatus(state=TaskState.CANCELED)
    task = Task(id="t", context_id="c", status=status)
    members = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_CANCELLED"}}
    assert json.loads(CODEC.write_result(BY_NAME["SendMessage"], task)) == {"task": members}
    assert json.loads(CODEC.write_result(BY_NAME["GetTask"], task)) == members
    event = TaskStatusUpdateEvent(task_id="t", context_id="c", status=status)
    update = json.loads(CODEC.write_event(StreamItem(event)))["statusUpdate"]
    assert update["final"] is True
    assert CODEC.ends_stream(event)


# -- errors ----------------------------------------------------------------------------------


def test_errors_are_told_as_json_rpc_tells_them_without_an_envelope():
    body = json.loads(CODEC.write_error(TaskNotFoundError("there is none")))
    assert (body["code"], body["message"]) == (-32001, "there is none")
    assert body["data"][0]["reason"] == "TASK_NOT_FOUND"
    assert json.loads(CODEC.write_error(VersionNotSupportedError()))["code"] == -32009
    error = InvalidParamsError("no", violations=())
    assert isinstance(CODEC.read_error(400, CODEC.write_error(error)), InvalidParamsError)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (404, {"message": "no"}, TaskNotFoundError),
        (409, {"message": "no"}, TaskNotCancelableError),
        (422, {"message": "no"}, InvalidParamsError),
        (500, {"code": -32001, "message": "no"}, TaskNotFoundError),
        (409, {"code": 409, "message": "no"}, TaskNotCancelableError),
        (404, {"error": {"code": -32001, "message": "no"}}, TaskNotFoundError),
    ],
)
def test_refusals_are_understood_with_and_without_a_code(status, body, kind):
    error = CODEC.read_error(status, json.dumps(body).encode())
    assert type(error) is kind
    assert error.message == "no"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"error":5}', b'{"message":5}'])
def test_what_no_agent_says_is_no_refusal(body):
    with pytest.raises(InvalidAgentResponseError):
        CODEC.read_error(500, body)


def test_an_error_within_a_stream_is_raised():
    with pytest.raises(TaskNotFoundError):
        CODEC.read_event(b'{"code":-32001,"message":"no"}')
    with pytest.raises(InvalidAgentResponseError):
        CODEC.read_event(b'{"task":{}}')
