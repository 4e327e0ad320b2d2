"""What caches are told: to keep cards, by what they depend on, and nothing of tasks."""

import json

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from parley.model.errors import OverloadedError, TaskNotFoundError, UnauthenticatedError
from parley.model.operations import (
    OPERATIONS,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from parley.server.app import Endpoint, Settings, create_app
from parley.server.run import serving
from parley.wire import versions
from tests.kit.http import MESSAGE, ask, call, connection
from tests.kit.scripted import Scripted, app_of, card_of

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"
PARAMS = {
    "SendMessage": {"message": MESSAGE},
    "SendStreamingMessage": {"message": MESSAGE},
    "ListTasks": {},
    "GetExtendedAgentCard": {},
    "CreateTaskPushNotificationConfig": {"taskId": "t-1", "url": "https://h.example"},
    "GetTaskPushNotificationConfig": {"taskId": "t-1", "id": "p-1"},
    "ListTaskPushNotificationConfigs": {"taskId": "t-1"},
    "DeleteTaskPushNotificationConfig": {"taskId": "t-1", "id": "p-1"},
}
FAILURES = [None, TaskNotFoundError(), UnauthenticatedError(), OverloadedError(), RuntimeError()]


async def _config(request, context):
    return TaskPushNotificationConfig(id="p-1", task_id=request.task_id, url="https://h.example")


async def _configs(request, context):
    return ListTaskPushNotificationConfigsResponse()


async def _extended_card(request, context):
    return card_of("Extended", extended_agent_card=True)(())


SCRIPT = {
    "create_task_push_notification_config": _config,
    "get_task_push_notification_config": _config,
    "list_task_push_notification_configs": _configs,
    "get_extended_agent_card": _extended_card,
}


@pytest.fixture(scope="module")
async def whole():
    service = Scripted(**SCRIPT)
    card = card_of(push_notifications=True, extended_agent_card=True)
    settings = Settings(max_body_bytes=2000)
    async with serving(app_of(service, card=card, settings=settings)) as url:
        yield service, url


def failing(failure):
    async def fail(request, context):
        raise failure

    async def fail_streaming(request, context):
        raise failure
        yield

    return fail, fail_streaming


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_no_answer_of_an_operation_may_be_kept(whole, operation, failure, binding):
    service, url = whole
    service.forget()
    service.script.update(SCRIPT)
    if failure is not None:
        fail, fail_streaming = failing(failure)
        service.script[operation.method] = fail_streaming if operation.streaming else fail
    params = PARAMS.get(operation.name, {"id": "t-1"})
    headers = {"A2A-Version": "1.0", "Content-Type": "application/json"}
    if binding == "JSONRPC":
        response = await ask(url, "POST", "/", call(operation.name, params), headers)
    else:
        path = operation.path.replace("{id}", params.get("id", "")).replace("{task_id}", "t-1")
        body = json.dumps(params).encode() if operation.verb == "POST" else b""
        response = await ask(url, operation.verb, path, body, headers)
    assert len(service.asked) == 1
    # Once: two of it are joined by a comma.
    assert response.headers["cache-control"] == "no-store"


REFUSED = [
    ("POST", "/", b"{", {}),
    ("POST", "/", b" " * 3000, {}),
    ("POST", "/", call("Nothing"), {}),
    ("POST", "/", call(id=...), {}),
    ("POST", "/", call("GetTask"), {"A2A-Version": "9"}),
    ("POST", "/", call("tasks/get"), {"A2A-Version": "0.3"}),
    ("POST", "/", call(), {"Content-Type": "text/plain"}),
    ("GET", "/tasks/t-1/nothing", b"", {}),
    ("PUT", "/tasks/t-1", b"", {}),
    ("GET", "/tasks?pageSize=many", b"", {}),
    ("GET", "/tasks/t-1", b"", {"A2A-Version": "9"}),
    ("GET", "/v1/tasks/t-1", b"", {"A2A-Version": "0.3"}),
    ("POST", "/message:send", b"{", {}),
    ("POST", "/message:send", b" " * 3000, {}),
]


@pytest.mark.parametrize(("method", "path", "body", "headers"), REFUSED)
async def test_no_refusal_may_be_kept(whole, method, path, body, headers):
    given = {"A2A-Version": "1.0", "Content-Type": "application/json", **headers}
    response = await ask(whole[1], method, path, body, given)
    assert response.headers["cache-control"] == "no-store"


async def test_a_process_without_agents_lets_nothing_be_kept():
    app = create_app({}, unavailable_message="nobody is here")
    async with serving(app) as url:
        for method, path, body in (("GET", "/tasks/t-1", b""), ("POST", "/", call())):
            response = await ask(url, method, path, body)
            assert (response.status, response.headers["cache-control"]) == (503, "no-store")


@pytest.mark.parametrize(
    ("settings", "url", "varies"),
    [
        (Settings(), None, "A2A-Version, Host"),
        (Settings(), "https://a.example", "A2A-Version"),
        (Settings(trust_proxy=True), "https://a.example", "A2A-Version"),
        (
            Settings(trust_proxy=True),
            None,
            "A2A-Version, Host, X-Forwarded-Host, X-Forwarded-Proto, X-Forwarded-Prefix",
        ),
    ],
)
async def test_a_card_names_the_headers_that_it_depends_on(settings, url, varies):
    tenants = {"acme": Endpoint(Scripted(), card_of("Acme"))}
    endpoint = Endpoint(Scripted(), card_of(), tenants=tenants)
    async with serving(create_app({"": endpoint}, settings=settings, url=url)) as at:
        for path in (CARD, f"/acme{CARD}", f"{CARD}?tenant=acme"):
            card = await ask(at, "GET", path)
            assert card.headers["vary"] == varies
            known = await ask(at, "GET", path, headers={"If-None-Match": card.headers["etag"]})
            assert (known.status, known.headers["vary"]) == (304, varies)
        document = await ask(at, "GET", "/openapi.json")
        assert document.headers.get("vary", "") == varies.removeprefix("A2A-Version").strip(", ")


async def test_what_a_card_depends_on_is_what_it_says():
    """Of all headers that a card could look at, those that change it are those in Vary."""
    other = {
        "Host": "localhost",
        "A2A-Version": "0.3",
        "X-Forwarded-Host": "b.example",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Prefix": "/b",
        "X-Forwarded-For": "10.0.0.9",
        "X-Forwarded-Ssl": "on",
        "Forwarded": "host=b.example;proto=https",
        "Accept": "text/html",
        "Authorization": "Bearer x",
        "User-Agent": "a2a-sdk/0.2",
    }
    for settings in (Settings(), Settings(trust_proxy=True)):
        async with serving(app_of(settings=settings)) as url, connection(url) as http:
            plain = await http.ask("GET", CARD)
            changing = [
                name
                for name, value in other.items()
                if (await http.ask("GET", CARD, b"", {name: value})).body != plain.body
            ]
            named = plain.headers["vary"].split(", ")
            assert sorted(changing) == sorted(named)
            assert versions.read_card(plain.json).name == "Scripted"


async def test_a_list_of_agents_names_the_headers_that_it_depends_on():
    async with serving(create_app({"/time": Endpoint(Scripted(), card_of())})) as url:
        for path in ("/", "/nowhere"):
            assert (await ask(url, "GET", path)).headers["vary"] == "Host"


async def test_an_app_that_another_server_runs_depends_on_who_says_the_scheme():
    app = app_of()
    outer = Starlette(routes=[Mount("/a", app=app)], lifespan=app.lifespan)
    async with serving(outer) as url:
        varies = (await ask(url, "GET", f"/a{CARD}")).headers["vary"]
        assert varies == (
            "A2A-Version, Host, X-Forwarded-Proto, X-Forwarded-Protocol, X-Forwarded-Ssl, Forwarded"
        )
