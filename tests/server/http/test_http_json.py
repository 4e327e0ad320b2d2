"""HTTP+JSON requests of version 1.0: paths, query parameters, bodies, responses (§11)."""

import json

import pytest

from parley.model.operations import (
    OPERATIONS,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from parley.server.run import serving
from tests.kit.http import MESSAGE, ask
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
    """A server with a complete card, and its service."""
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
    """Return the fields named in an error, with the descriptions of valid values."""
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


async def test_extensions_are_in_force_and_echoed(url, service):
    response = await ask(url, "GET", "/tasks", b"", {**VERSION, "A2A-Extensions": EXTENSION})
    assert service.context.extensions == {EXTENSION}
    assert response.headers["a2a-extensions"] == EXTENSION


# Paths


async def test_a_tenant_in_the_path_is_decoded(url, service):
    await ask(url, "POST", "/acme%20%26%2F/message:send", SEND, JSON)
    assert service.context.tenant == "acme &/"


async def test_a_refused_path_says_where_messages_go(url):
    response = await ask(url, "POST", "/chat", SEND, JSON)
    assert "/message:send" in response.error["message"]


async def test_a_path_of_any_length_and_depth_is_refused_at_once(url, service):
    for path in ("/tasks/" + "x" * 9000, "/tasks/" + "%41" * 4000):
        response = await ask(url, "GET", path, b"", VERSION)
        assert response.status == response.error["code"] == 414
    response = await ask(url, "GET", "/a" * 4000, b"", VERSION)
    assert response.status == 404
    assert service.asked == []


# Query parameters


# Bodies


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
