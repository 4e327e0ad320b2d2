"""HTTP+JSON requests of version 1.0: paths, query parameters, bodies, answers (§11)."""

import json

import pytest

from parley.model.errors import (
    OverloadedError,
    TaskNotFoundError,
    UnauthenticatedError,
    UnsupportedOperationError,
)
from parley.model.operations import (
    OPERATIONS,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from parley.model.parts import Part, Role
from parley.model.service import Caller
from parley.model.struct import Timestamp
from parley.model.tasks import TaskState
from parley.server.app import Settings
from parley.server.run import serving
from tests.kit.http import MESSAGE, ask, connection, data_of, id_of
from tests.kit.scripted import EXTENSION, Scripted, app_of, card_of, extension

pytestmark = pytest.mark.anyio

VERSION = {"A2A-Version": "1.0"}
JSON = {**VERSION, "Content-Type": "application/a2a+json"}
SEND = json.dumps({"message": MESSAGE}).encode()
WEBHOOK = {"url": "https://hooks.example/a2a"}


async def _config(request, context):
    return TaskPushNotificationConfig(id="p-1", task_id=request.task_id, url="https://h.example")


async def _configs(request, context):
    return ListTaskPushNotificationConfigsResponse()


async def _extended_card(request, context):
    return card_of("Extended", extended_agent_card=True)(())


PUSH = {
    "create_task_push_notification_config": _config,
    "get_task_push_notification_config": _config,
    "list_task_push_notification_configs": _configs,
    "get_extended_agent_card": _extended_card,
}
EVERYTHING = card_of(push_notifications=True, extended_agent_card=True, extensions=(extension(),))


@pytest.fixture(scope="module")
async def whole():
    """A server whose card declares everything, and the service behind it."""
    service = Scripted(**PUSH)
    async with serving(app_of(service, card=EVERYTHING)) as address:
        yield service, address


@pytest.fixture
def service(whole):
    whole[0].forget()
    whole[0].script.update(PUSH)
    return whole[0]


@pytest.fixture
def url(whole, service):
    return whole[1]


def violations(response):
    """The fields that a refusal names, with what would be right."""
    bad = [d for d in response.error["details"] if d["@type"].endswith("BadRequest")]
    return {v["field"]: v["description"] for each in bad for v in each["fieldViolations"]}


def reason(response):
    return response.error["details"][0]["reason"]


# Every operation has its path, below the agent and below a tenant

BODIES = {
    "SendMessage": {"message": MESSAGE},
    "SendStreamingMessage": {"message": MESSAGE},
    "CreateTaskPushNotificationConfig": WEBHOOK,
}


def path_of(operation):
    return operation.path.replace("{id}", "x-1").replace("{task_id}", "x-2")


@pytest.mark.parametrize("tenant", ["", "acme"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_every_operation_is_served_at_its_path(url, service, operation, tenant):
    body = json.dumps(BODIES[operation.name]).encode() if operation.name in BODIES else b""
    path = f"/{tenant}{path_of(operation)}" if tenant else path_of(operation)
    response = await ask(url, operation.verb, path, body, JSON)
    assert response.status == 200
    assert response.headers["a2a-version"] == "1.0"
    streams = "text/event-stream" if operation.streaming else "application/a2a+json"
    assert response.headers["content-type"] == streams
    asked = service.asked[0]
    assert asked.method == operation.method
    assert asked.context.tenant == asked.request.tenant == tenant
    assert asked.context.version == "1.0"
    if "{id}" in operation.path:
        assert asked.request.id == "x-1"
    if "{task_id}" in operation.path:
        assert asked.request.task_id == "x-2"


async def test_a_message_is_answered_without_an_envelope(url, service):
    response = await ask(url, "POST", "/message:send", SEND, JSON)
    assert response.json["message"]["parts"] == [{"text": "It is noon."}]
    assert service.asked[0].request.message.text == "What time is it?"


async def test_a_stream_carries_events_with_their_numbers(url):
    async with connection(url) as http:
        await http.request("POST", "/message:stream", SEND, JSON)
        status, headers = await http.head()
        frames = [frame async for frame in http.frames()]
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    assert [id_of(frame) for frame in frames] == ["1", "2", "3"]
    assert [next(iter(data_of(frame))) for frame in frames] == [
        "task",
        "artifactUpdate",
        "artifactUpdate",
    ]


@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_a_task_is_subscribed_to_by_get_and_by_post(url, service, verb):
    headers = {**VERSION, "Last-Event-ID": "7"}
    response = await ask(url, verb, "/tasks/t-1:subscribe", b"", headers)
    assert response.headers["content-type"] == "text/event-stream"
    assert service.asked[0].request.id == "t-1"
    assert service.context.last_event_id == "7"


async def test_deleting_a_webhook_answers_with_an_empty_object_whatever_comes_with_it(url):
    path = "/tasks/t-1/pushNotificationConfigs/p-1"
    for body in (b"", b"{}", b"not json"):
        response = await ask(url, "DELETE", path, body, VERSION)
        assert (response.status, response.json) == (200, {})


async def test_extensions_are_in_force_and_echoed(url, service):
    response = await ask(url, "GET", "/tasks", b"", {**VERSION, "A2A-Extensions": EXTENSION})
    assert service.context.extensions == {EXTENSION}
    assert response.headers["a2a-extensions"] == EXTENSION


# Paths


@pytest.mark.parametrize(
    ("path", "id"),
    [
        ("/tasks/t-1", "t-1"),
        ("/tasks/t-1/", "t-1"),
        ("/tasks/a%2Fb", "a/b"),
        ("/tasks/a%2Fb%2F", "a/b/"),
        ("/tasks/urn:x:1", "urn:x:1"),
        ("/tasks/gr%C3%BC%C3%9Fe", "grüße"),
        ("/tasks/a%20b", "a b"),
        ("/tasks/a+b", "a+b"),
        ("/tasks/a%25b", "a%b"),
        ("/tasks/...", "..."),
        ("/tasks/tasks", "tasks"),
        ("/tasks/extendedAgentCard", "extendedAgentCard"),
        ("/acme/tasks/t-1", "t-1"),
    ],
)
async def test_an_id_in_a_path_is_what_was_quoted(url, service, path, id):
    response = await ask(url, "GET", path, b"", VERSION)
    assert response.status == 200
    assert service.asked[0].request.id == id


@pytest.mark.parametrize(
    "path", ["/tasks/a:b:cancel", "/tasks/a%3Ab%3Acancel", "/t/tasks/a:b:cancel"]
)
async def test_an_action_is_seen_before_an_id(url, service, path):
    response = await ask(url, "POST", path, b"", VERSION)
    assert response.status == 200
    assert (service.asked[0].method, service.asked[0].request.id) == ("cancel_task", "a:b")


async def test_a_tenant_in_the_path_is_decoded(url, service):
    await ask(url, "POST", "/acme%20%26%2F/message:send", SEND, JSON)
    assert service.context.tenant == "acme &/"


async def test_a_tenant_may_be_in_the_query_or_the_body(url, service):
    await ask(url, "GET", "/tasks?tenant=acme", b"", VERSION)
    assert service.context.tenant == "acme"
    await ask(
        url, "POST", "/message:send", json.dumps({"message": MESSAGE, "tenant": "b"}).encode(), JSON
    )
    assert service.context.tenant == "b"


async def test_a_tenant_that_contradicts_the_path_is_refused(url, service):
    response = await ask(url, "GET", "/acme/tasks?tenant=other", b"", VERSION)
    assert response.status == 400
    assert "tenant" in violations(response)
    assert service.asked == []


@pytest.mark.parametrize(
    "path", ["/nothing", "/tasks/a/b", "/a/b/c/d/e/f/g", "/message:sing", "/%ff"]
)
async def test_a_path_that_there_is_not_is_refused_with_what_there_is(url, service, path):
    response = await ask(url, "POST", path, SEND, JSON)
    assert response.status == response.error["code"] == 404
    assert response.error["status"] == "NOT_FOUND"
    assert reason(response) == "METHOD_NOT_FOUND"
    assert response.headers["content-type"] == "application/a2a+json"
    assert service.asked == []


async def test_a_refused_path_says_where_messages_go(url):
    response = await ask(url, "POST", "/chat", SEND, JSON)
    assert "/message:send" in response.error["message"]


@pytest.mark.parametrize(
    ("verb", "path", "allowed"),
    [
        ("GET", "/message:send", "POST"),
        ("PUT", "/tasks/t-1", "GET"),
        ("GET", "/tasks/t-1:cancel", "POST"),
        ("DELETE", "/tasks/t-1:subscribe", "GET, POST"),
        ("PATCH", "/acme/tasks/t-1/pushNotificationConfigs", "GET, POST"),
        ("HEAD", "/tasks", "GET"),
        ("HEAD", "/tasks/t-1/pushNotificationConfigs/p-1", "DELETE, GET"),
    ],
)
async def test_another_verb_is_refused_with_those_that_there_are(url, verb, path, allowed):
    response = await ask(url, verb, path, b"", VERSION)
    assert response.status == 405
    assert response.headers["allow"] == allowed
    if verb != "HEAD":
        assert response.error["code"] == 405
        assert allowed.replace(", ", " or ") in response.error["message"]


async def test_options_tell_the_verbs(url):
    response = await ask(url, "OPTIONS", "/tasks/t-1:subscribe")
    assert (response.status, response.headers["allow"]) == (204, "GET, POST")


async def test_a_path_of_any_length_and_depth_is_refused_at_once(url, service):
    for path in ("/tasks/" + "x" * 9000, "/tasks/" + "%41" * 4000):
        response = await ask(url, "GET", path, b"", VERSION)
        assert response.status == response.error["code"] == 414
    response = await ask(url, "GET", "/a" * 4000, b"", VERSION)
    assert response.status == 404
    assert service.asked == []


# Query parameters


async def test_query_parameters_have_the_types_of_their_fields(url, service):
    query = (
        "contextId=c%201&status=TASK_STATE_INPUT_REQUIRED&pageSize=7&pageToken=next%3D"
        "&historyLength=0&statusTimestampAfter=2026-01-31T12:00:00.5Z&includeArtifacts=true"
    )
    assert (await ask(url, "GET", f"/tasks?{query}", b"", VERSION)).status == 200
    request = service.asked[0].request
    assert request.context_id == "c 1"
    assert request.status is TaskState.INPUT_REQUIRED
    assert request.page_size == 7
    assert request.page_token == "next="
    assert request.history_length == 0
    assert request.status_timestamp_after == Timestamp.parse("2026-01-31T12:00:00.500Z")
    assert request.include_artifacts is True


async def test_names_may_be_spelled_as_in_the_proto(url, service):
    query = "context_id=c&page_size=7&include_artifacts=false&history_length=2"
    await ask(url, "GET", f"/tasks?{query}", b"", VERSION)
    request = service.asked[0].request
    assert (request.context_id, request.page_size, request.history_length) == ("c", 7, 2)
    assert request.include_artifacts is False


@pytest.mark.parametrize(("version", "path"), [("1.0", "/tasks"), ("0.3", "/v1/tasks")])
async def test_a_list_is_narrowed_by_the_name_that_the_go_sdk_sends(url, service, version, path):
    moment = "2026-01-31T12:00:00Z"
    asked = f"{path}?lastUpdatedAfter={moment}"
    assert (await ask(url, "GET", asked, b"", {"A2A-Version": version})).status == 200
    assert service.asked[0].request.status_timestamp_after == Timestamp.parse(moment)
    asked = f"{path}?lastUpdatedAfter=yesterday"
    assert (await ask(url, "GET", asked, b"", {"A2A-Version": version})).status == 400


async def test_an_offset_in_a_timestamp_need_not_be_quoted(url, service):
    await ask(url, "GET", "/tasks?statusTimestampAfter=2026-01-31T13:00:00+01:00", b"", VERSION)
    moment = service.asked[0].request.status_timestamp_after
    assert moment == Timestamp.parse("2026-01-31T12:00:00Z")


async def test_unknown_parameters_are_passed_over(url, service):
    response = await ask(url, "GET", "/tasks/t-1?key=secret&historyLength=1&x=1&x=2", b"", VERSION)
    assert response.status == 200
    assert service.asked[0].request.history_length == 1


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("pageSize=many", "pageSize"),
        ("pageSize=", "pageSize"),
        ("pageSize=1.5", "pageSize"),
        ("pageSize=2147483648", "pageSize"),
        ("historyLength=1&historyLength=1", "historyLength"),
        ("historyLength=1&history_length=1", "historyLength"),
        ("status=working", "status"),
        ("statusTimestampAfter=yesterday", "statusTimestampAfter"),
        ("includeArtifacts=1", "includeArtifacts"),
        ("includeArtifacts=True", "includeArtifacts"),
    ],
)
async def test_a_wrong_parameter_is_refused_by_its_name(url, service, query, field):
    response = await ask(url, "GET", f"/tasks?{query}", b"", VERSION)
    assert response.status == response.error["code"] == 400
    assert response.error["status"] == "INVALID_ARGUMENT"
    assert reason(response) == "INVALID_PARAMS"
    assert list(violations(response)) == [field]
    assert response.error["message"].startswith(f"{field}: ")
    assert service.asked == []


async def test_every_wrong_parameter_is_named(url):
    query = (
        "pageSize=x&status=y&statusTimestampAfter=z&includeArtifacts=maybe&pageToken=a&pageToken=b"
    )
    response = await ask(url, "GET", f"/tasks?{query}", b"", VERSION)
    assert set(violations(response)) == {
        "pageSize",
        "status",
        "statusTimestampAfter",
        "includeArtifacts",
        "pageToken",
    }


async def test_a_parameter_that_contradicts_the_path_is_refused(url):
    response = await ask(url, "GET", "/tasks/t-1?id=t-2", b"", VERSION)
    assert list(violations(response)) == ["id"]
    assert (await ask(url, "GET", "/tasks/t-1?id=t-1", b"", VERSION)).status == 200


async def test_a_query_that_is_no_text_or_has_no_end_is_refused(url):
    for query in ("contextId=%ff", "&".join(f"a{n}=1" for n in range(200))):
        response = await ask(url, "GET", f"/tasks?{query}", b"", VERSION)
        assert (response.status, reason(response)) == (400, "INVALID_PARAMS")


# Bodies


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b" null\n"])
async def test_a_body_may_be_empty_where_the_path_says_it_all(url, service, body):
    headers = JSON if body else VERSION
    for path in ("/tasks/t-1:cancel", "/tasks/t-1:subscribe"):
        assert (await ask(url, "POST", path, body, headers)).status == 200
    assert [asked.request.id for asked in service.asked] == ["t-1", "t-1"]


async def test_a_body_adds_to_the_path(url, service):
    body = b'{"metadata":{"why":12345678901234567890}}'
    await ask(url, "POST", "/tasks/t-1:cancel", body, JSON)
    request = service.asked[0].request
    assert (request.id, request.metadata) == ("t-1", {"why": 12345678901234567890})


@pytest.mark.parametrize("also", [{}, {"taskId": "t-1"}, {"task_id": "t-1"}, {"taskId": ""}])
async def test_the_path_says_which_task_a_webhook_is_for(url, service, also):
    body = json.dumps({**WEBHOOK, **also}).encode()
    response = await ask(url, "POST", "/tasks/t-1/pushNotificationConfigs", body, JSON)
    assert response.status == 200
    assert service.asked[0].request == TaskPushNotificationConfig(task_id="t-1", **WEBHOOK)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tasks/t-1:cancel", {"id": "t-2"}, "id"),
        ("/tasks/t-1:subscribe", {"id": 1}, "id"),
        ("/tasks/t-1/pushNotificationConfigs", {**WEBHOOK, "taskId": "t-2"}, "taskId"),
        ("/tasks/t-1/pushNotificationConfigs", {**WEBHOOK, "task_id": "t-2"}, "taskId"),
    ],
)
async def test_a_field_that_contradicts_the_path_is_refused(url, service, path, body, field):
    response = await ask(url, "POST", path, json.dumps(body).encode(), JSON)
    assert (response.status, reason(response)) == (400, "INVALID_PARAMS")
    assert list(violations(response)) == [field]
    assert service.asked == []


async def test_every_wrong_field_of_a_body_is_named(url):
    body = {
        "message": {"role": "USER", "parts": [{"text": 1}, {}]},
        "configuration": {"historyLength": "x"},
    }
    response = await ask(url, "POST", "/message:send", json.dumps(body).encode(), JSON)
    assert set(violations(response)) == {
        "message.messageId",
        "message.role",
        "message.parts[0].text",
        "message.parts[1]",
        "configuration.historyLength",
    }


@pytest.mark.parametrize("body", [b"", b"null", b"{}"])
async def test_a_message_that_is_missing_is_named(url, body):
    response = await ask(url, "POST", "/message:send", body, JSON)
    assert list(violations(response)) == ["message"]


@pytest.mark.parametrize(
    ("path", "body", "wrong"),
    [
        ("/message:send", b"{", "INVALID_JSON"),
        ("/message:send", b'{"a":"\xff"}', "INVALID_JSON"),
        ("/message:send", b"[]", "INVALID_PARAMS"),
        ("/tasks/t-1:cancel", b"{", "INVALID_JSON"),
        ("/tasks/t-1:cancel", b"[1]", "INVALID_PARAMS"),
        ("/tasks/t-1:cancel", b"[" * 50_000, "INVALID_PARAMS"),
    ],
)
async def test_a_body_that_is_no_request_is_refused(url, service, path, body, wrong):
    response = await ask(url, "POST", path, body, JSON)
    assert (response.status, reason(response)) == (400, wrong)
    assert service.asked == []


async def test_a_parts_limit_holds_here_too(url):
    body = json.dumps({"message": {**MESSAGE, "parts": [{"text": "x"}] * 1001}}).encode()
    response = await ask(url, "POST", "/message:send", body, JSON)
    assert list(violations(response)) == ["message.parts"]


@pytest.mark.parametrize("given", ["application/json", "Application/JSON; charset=utf-8"])
async def test_plain_json_is_taken_too(url, given):
    headers = {**VERSION, "Content-Type": given}
    assert (await ask(url, "POST", "/message:send", SEND, headers)).status == 200


@pytest.mark.parametrize("given", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_of_another_type_is_refused(url, service, given):
    headers = {**VERSION, **({"Content-Type": given} if given else {})}
    response = await ask(url, "POST", "/message:send", SEND, headers)
    assert response.status == response.error["code"] == 415
    assert "application/a2a+json" in response.error["message"]
    assert service.asked == []


async def test_a_body_that_is_too_large_is_refused_in_the_same_form():
    async with serving(app_of(settings=Settings(max_body_bytes=1024))) as url:
        response = await ask(url, "POST", "/message:send", b" " * 1025, JSON)
    assert response.status == response.error["code"] == 413
    assert "1024" in response.error["message"]


# Answers


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        (None, "application/a2a+json"),
        ("*/*", "application/a2a+json"),
        ("application/*", "application/a2a+json"),
        ("application/json", "application/json"),
        ("text/html, application/json;q=0.9", "application/json"),
        ("application/json, application/a2a+json", "application/a2a+json"),
        ("application/json, */*;q=0.1", "application/json"),
        ("text/html", "application/json"),
    ],
)
async def test_the_type_of_an_answer_is_one_that_the_caller_takes(url, accept, answered):
    headers = {**VERSION, **({"Accept": accept} if accept else {})}
    assert (await ask(url, "GET", "/tasks", b"", headers)).headers["content-type"] == answered
    response = await ask(url, "GET", "/nothing", b"", headers)
    assert response.headers["content-type"] == answered


async def test_an_error_of_the_service_is_told_as_a_status(url, service):
    async def lost(request, context):
        raise TaskNotFoundError("there is no task t-1", metadata={"taskId": "t-1"})

    service.script["get_task"] = lost
    response = await ask(url, "GET", "/tasks/t-1", b"", VERSION)
    assert response.status == 404
    assert response.json == {
        "error": {
            "code": 404,
            "status": "NOT_FOUND",
            "message": "there is no task t-1",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "TASK_NOT_FOUND",
                    "domain": "a2a-protocol.org",
                    "metadata": {"taskId": "t-1"},
                }
            ],
        }
    }


async def test_an_overloaded_server_says_when_to_come_again(url, service):
    async def busy(request, context):
        raise OverloadedError("busy", retry_after=2.5)

    service.script["send_message"] = busy
    response = await ask(url, "POST", "/message:send", SEND, JSON)
    assert (response.status, response.headers["retry-after"]) == (503, "3")
    assert response.error["status"] == "UNAVAILABLE"
    assert response.error["details"][1] == {
        "@type": "type.googleapis.com/google.rpc.RetryInfo",
        "retryDelay": "2.5s",
    }


async def test_an_exception_is_told_only_by_its_reference(url, service, caplog):
    async def broken(request, context):
        raise RuntimeError("the password is hunter2")

    service.script["get_task"] = broken
    response = await ask(url, "GET", "/tasks/t-1", b"", VERSION)
    assert (response.status, response.error["status"]) == (500, "INTERNAL")
    assert b"hunter2" not in response.body
    assert "hunter2" in caplog.text


async def test_who_is_not_known_is_told_so_before_anything_else(service):
    def identify(scope):
        raise UnauthenticatedError("a token is needed")

    async with serving(app_of(service, identify=identify)) as url:
        for path in ("/tasks", "/nothing"):
            response = await ask(url, "GET", path, b"", VERSION)
            assert (response.status, response.error["code"]) == (401, 401)
            assert response.headers["www-authenticate"] == "Bearer"


async def test_the_service_is_told_who_asks(service):
    async with serving(app_of(service, identify=lambda scope: Caller(id="bob"))) as url:
        await ask(url, "GET", "/tasks", b"", VERSION)
    assert service.context.caller.id == "bob"


async def test_a_stream_that_fails_before_its_first_event_is_a_plain_refusal(url, service):
    async def refused(request, context):
        raise UnsupportedOperationError("the task has ended")
        yield

    service.script["subscribe_to_task"] = refused
    response = await ask(url, "POST", "/tasks/t-1:subscribe", b"", VERSION)
    assert response.status == 400
    assert response.headers["content-type"] == "application/a2a+json"
    assert reason(response) == "UNSUPPORTED_OPERATION"


async def test_a_stream_that_fails_later_ends_with_the_error(url, service):
    first = service.script["send_streaming_message"]

    async def failing(request, context):
        async for item in first(request, context):
            yield item
        raise TaskNotFoundError("the task is gone")

    service.script["send_streaming_message"] = failing
    async with connection(url) as http:
        await http.request("POST", "/message:stream", SEND, JSON)
        await http.head()
        frames = [frame async for frame in http.frames()]
    assert data_of(frames[-1])["error"]["code"] == 404
    assert id_of(frames[-1]) is None


async def test_what_the_card_does_not_declare_is_refused():
    async with serving(app_of(card=card_of(streaming=False))) as url:
        for verb, path in (
            ("POST", "/message:stream"),
            ("POST", "/tasks/t-1:subscribe"),
            ("GET", "/tasks/t-1/pushNotificationConfigs"),
            ("GET", "/extendedAgentCard"),
        ):
            response = await ask(url, verb, path, SEND if verb == "POST" else b"", JSON)
            assert response.status == 400
            assert response.headers["content-type"] == "application/a2a+json"
            assert response.error["status"] == "FAILED_PRECONDITION"


async def test_the_extended_card_says_where_the_agent_is_offered(url):
    card = (await ask(url, "GET", "/extendedAgentCard", b"", VERSION)).json
    assert card["name"] == "Extended"
    offered = [(i["protocolBinding"], i["url"]) for i in card["supportedInterfaces"]]
    assert ("HTTP+JSON", url) in offered


async def test_bytes_travel_as_base64(url, service):
    part = {"raw": "AAH/", "filename": "a.bin"}
    body = json.dumps({"message": {**MESSAGE, "parts": [part]}}).encode()
    await ask(url, "POST", "/message:send", body, JSON)
    message = service.asked[0].request.message
    assert message.role is Role.USER
    assert message.parts == (Part(raw=b"\x00\x01\xff", filename="a.bin"),)


async def test_requests_follow_each_other_on_a_connection_whatever_became_of_them(url):
    async with connection(url) as http:
        for verb, path, body, status in (
            ("POST", "/message:send", b"{", 400),
            ("GET", "/nothing", b"", 404),
            ("DELETE", "/tasks/t-1/pushNotificationConfigs/p-1", b"whatever", 200),
            ("GET", "/tasks", b"a body that nobody reads", 200),
            ("POST", "/message:send", SEND, 200),
        ):
            assert (await http.ask(verb, path, body, JSON)).status == status
