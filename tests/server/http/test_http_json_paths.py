"""HTTP+JSON: which version and which agent a path is of, and paths that look like others."""

import json

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from parley.model.extensions import Extension, method
from parley.model.operations import GetTaskRequest
from parley.model.tasks import Task
from parley.server.app import Endpoint, Settings, create_app
from parley.server.run import serving
from parley.wire import versions
from tests.kit.http import MESSAGE, ask, connection, data_of
from tests.kit.scripted import Scripted, app_of, card_of, extension, reply, task

pytestmark = pytest.mark.anyio


JSON = {"Content-Type": "application/json"}
SEND = json.dumps({"message": MESSAGE}).encode()
OLDER = json.dumps(
    {"message": {"message_id": "m-1", "role": "ROLE_USER", "content": [{"text": "Hello"}]}}
).encode()


async def test_a_path_of_1_0_without_a_version_is_told_the_header_to_send(url, service):
    response = await ask(url, "POST", "/message:send", SEND, JSON)
    assert response.status == 400
    assert response.json["error"]["details"][0]["reason"] == "VERSION_NOT_SUPPORTED"
    assert "A2A-Version: 1.0" in response.json["error"]["message"]
    assert service.asked == []


async def test_a_setting_serves_paths_of_1_0_without_a_version(service):
    app = app_of(service, settings=Settings(missing_version="1.0"))
    async with serving(app) as url:
        response = await ask(url, "POST", "/message:send", SEND, JSON)
        assert (response.status, response.headers["a2a-version"]) == (200, "1.0")
        assert (await ask(url, "GET", "/v1/tasks/t-1")).headers["a2a-version"] == "0.3"


async def test_a_version_in_the_query_counts_here_too(url):
    assert (await ask(url, "GET", "/tasks?A2A-Version=1.0")).status == 200
    assert (await ask(url, "GET", "/tasks?a2a-version=0.3")).status == 400


@pytest.mark.parametrize("named", [{}, {"A2A-Version": "0.3"}, {"A2A-Version": ""}])
async def test_a_path_of_0_3_is_served_as_0_3(url, service, named):
    response = await ask(url, "POST", "/v1/message:send", OLDER, {**JSON, **named})
    assert response.status == 200
    assert response.headers["a2a-version"] == "0.3"
    assert response.headers["content-type"] == "application/json"
    assert service.context.version == "0.3"
    assert service.asked[0].request.message.text == "Hello"


async def test_a_task_of_0_3_is_read_by_its_path(url, service):
    response = await ask(url, "GET", "/v1/tasks/a%2Fb?history_length=2")
    assert response.status == 200
    request = service.asked[0].request
    assert (request.id, request.history_length) == ("a/b", 2)


@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_a_task_of_0_3_is_subscribed_to_by_get_and_by_post(url, verb):
    async with connection(url) as http:
        await http.request(verb, "/v1/tasks/t-1:subscribe")
        status, headers = await http.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        frames = [frame async for frame in http.frames()]
    assert data_of(frames[0])["task"]["id"] == "t-1"


@pytest.mark.parametrize(
    ("verb", "path", "asked"),
    [
        ("POST", "/tasks/send", "send_message"),
        ("POST", "/tasks/sendStream", "send_streaming_message"),
        ("POST", "/tasks/t-1/cancel", "cancel_task"),
        ("GET", "/tasks/t-1/subscribe", "subscribe_to_task"),
    ],
)
async def test_paths_of_older_texts_are_understood(url, service, verb, path, asked):
    parts = [{"type": "text", "text": "Hello"}]
    body = {"id": "t-1", "message": {"role": "user", "parts": parts}} if "send" in path else {}
    response = await ask(url, verb, path, json.dumps(body).encode(), JSON)
    assert (response.status, response.headers["a2a-version"]) == (200, "0.3")
    assert service.asked[0].method == asked


@pytest.mark.parametrize(
    ("verb", "path", "named", "right"),
    [
        ("POST", "/message:send", "0.3", "POST /v1/message:send"),
        ("GET", "/tasks/t-1", "0.3", "GET /v1/tasks/{id}"),
        ("POST", "/v1/message:send", "1.0", "POST /message:send"),
        ("POST", "/tasks/send", "1.0", "POST /message:send"),
        ("GET", "/v1/card", "1.0", "GET /extendedAgentCard"),
    ],
)
async def test_a_path_of_another_version_than_is_named_is_refused_with_the_right_one(
    url, service, verb, path, named, right
):
    headers = {**JSON, "A2A-Version": named}
    response = await ask(url, verb, path, SEND if verb == "POST" else b"", headers)
    assert response.status == 400
    assert f"in version {named}, which the request names, it is {right}" in response.body.decode()
    assert service.asked == []


async def test_an_unsupported_version_is_refused_in_the_version_of_the_path(url):
    headers = {"A2A-Version": "99.0"}
    response = await ask(url, "GET", "/tasks/t-1", b"", headers)
    assert response.status == response.json["error"]["code"] == 400
    assert "1.0, 0.3" in response.json["error"]["message"]
    older = await ask(url, "GET", "/v1/tasks/t-1", b"", headers)
    assert (older.status, older.headers["a2a-version"]) == (400, "0.3")
    assert "1.0, 0.3" in older.json["message"]


async def test_what_is_at_no_path_is_refused_in_the_version_that_is_named(url):
    assert "error" in (await ask(url, "GET", "/nothing")).json
    assert "error" in (await ask(url, "GET", "/nothing", b"", {"A2A-Version": "99"})).json
    assert "code" in (await ask(url, "GET", "/nothing", b"", {"A2A-Version": "0.3"})).json


def test_no_path_of_one_version_is_also_one_of_another():
    seen = {}
    for version in versions.SUPPORTED_VERSIONS:
        for route in versions.dialect(version).http_json.routes:
            shape = (route.verb, *("*" if "{" in s else s for s in route.path.split("/")))
            if "{" in route.path and ":" in route.path:
                shape = (route.verb, route.path)
            assert seen.setdefault(shape, version) == version
    assert set(seen.values()) == set(versions.SUPPORTED_VERSIONS)


# Where agents and tenants are


def named(name, **options):
    async def answer(request, context):
        return reply(f"{name} {context.tenant}".strip())

    return Endpoint(Scripted(send_message=answer), card_of(name), **options)


async def said(url, path):
    headers = {**JSON, "A2A-Version": "1.0"}
    return (await ask(url, "POST", path, SEND, headers)).json["message"]["parts"][0]["text"]


async def test_each_agent_has_the_paths_below_its_own():
    async with serving(
        create_app({"/a": named("a"), "/a/b": named("b"), "": named("root")})
    ) as url:
        assert await said(url, "/message:send") == "root"
        assert await said(url, "/a/message:send") == "a"
        assert await said(url, "/a/b/message:send") == "b"
        assert await said(url, "/a/x/message:send") == "a x"
        assert await said(url, "/x/message:send") == "root x"


async def test_tenants_have_the_paths_of_both_versions():
    endpoint = named("front", tenants={"acme": named("acme")})
    async with serving(create_app({"": endpoint})) as url:
        assert await said(url, "/acme/message:send") == "acme acme"
        assert await said(url, "/message:send") == "front"
        response = await ask(url, "POST", "/acme/v1/message:send", OLDER, JSON)
        assert "acme acme" in response.body.decode()


async def test_an_app_that_is_mounted_has_its_paths_below_the_mount():
    service = Scripted()
    app = app_of(service)
    around = Starlette(routes=[Mount("/mounted/here", app)], lifespan=app.lifespan)
    async with serving(around) as url:
        headers = {"A2A-Version": "1.0"}
        response = await ask(url, "GET", "/mounted/here/tasks/a%2Fb", b"", headers)
        assert response.status == 200
        assert service.asked[0].request.id == "a/b"


# Methods that extensions add


async def _state(service, request, context):
    return task()


COUNT = "urn:example:count:v1"


class Counting(Extension):
    uri = COUNT
    methods = (
        method(COUNT, "count/one", GetTaskRequest, Task, _state, path="/counts/{id}", verb="GET"),
        method(COUNT, "count/all", GetTaskRequest, Task, _state, path="/counts/{id}:all"),
    )


@pytest.mark.parametrize("tenant", ["", "/acme"])
@pytest.mark.parametrize(("verb", "path"), [("GET", "/counts/c-1"), ("POST", "/counts/c-1:all")])
async def test_a_method_of_an_extension_is_served_at_its_path(tenant, verb, path):
    card = card_of(extensions=(extension(uri=COUNT),))
    endpoint = Endpoint(Scripted(), card, extensions=(Counting(),))
    async with serving(create_app({"": endpoint})) as url:
        headers = {**JSON, "A2A-Version": "1.0", "A2A-Extensions": COUNT}
        response = await ask(url, verb, tenant + path, b"", headers)
        assert (response.status, response.json["id"]) == (200, "t-1")
        del headers["A2A-Extensions"]
        assert (await ask(url, verb, tenant + path, b"", headers)).status == 400


# -- paths of HTTP+JSON that look like others: empty segments, dots, quoted slashes (§11.3) --------


VERSION = {"A2A-Version": "1.0"}
PATHS_JSON = {**VERSION, "Content-Type": "application/a2a+json"}

NO_PATHS = [
    "//tasks",
    "//tasks/t-1",
    "///tasks/t-1",
    "/tasks//",
    "/tasks//t-1",
    "/tasks/t-1//",
    "/tasks//pushNotificationConfigs",
    "/tasks/t-1/pushNotificationConfigs//",
    "//extendedAgentCard",
    "//v1/tasks/t-1",
    "/v1//tasks/t-1",
    "/acme//tasks",
    "//acme/tasks",
    "/./tasks",
    "/../tasks",
    "/acme/../tasks",
    "/tasks/.",
    "/tasks/..",
    "/%2Ftasks",
    "/%2ftasks/t-1",
    "/%2F/tasks/t-1/x",
    "/%2E/tasks",
    "/%2e%2E/tasks/t-1",
    "/tasks%2Ft-1",
    "/acme%2Ftasks",
    "/v1%2Ftasks",
    "/v1%2Ftasks%2Ft-1",
    "/health%2Flive",
    "//health/live",
    "/.well-known%2Fagent-card.json",
    "//.well-known/agent-card.json",
    "//docs",
]


@pytest.mark.parametrize("path", NO_PATHS)
async def test_an_empty_segment_is_none_and_a_quoted_slash_parts_none(url, service, path):
    for version in ("1.0", "0.3"):
        response = await ask(url, "GET", path, b"", {"A2A-Version": version})
        assert response.status == 404
    assert service.asked == []


@pytest.mark.parametrize("path", ["//", "//message:send", "/%2Fmessage:send", "/./message:send"])
async def test_nothing_is_sent_to_a_path_with_an_empty_segment(url, service, path):
    response = await ask(url, "POST", path, SEND, PATHS_JSON)
    assert (response.status, response.headers["content-type"]) == (404, "application/a2a+json")
    assert service.asked == []


async def test_empty_segments_are_none_below_a_path_and_a_mount():
    service = Scripted()
    app = create_app({"/time": Endpoint(service, card_of()), "": Endpoint(Scripted(), card_of())})
    outer = Starlette(routes=[Mount("/agents", app=app)], lifespan=app.lifespan)
    async with serving(app) as url, serving(outer) as around:
        for root in (url, f"{around}/agents"):
            base, _, mount = root.removeprefix("http://").partition("/")
            mount = f"/{mount}" if mount else ""
            for path in (
                "/time//tasks",
                "/time/./tasks",
                "/time/%2Ftasks",
                "/time%2Ftasks",
                "/time%2Facme/tasks",
                "//time/tasks",
                "/time%2F.well-known%2Fagent-card.json",
                "/a2a%2Ftime/tasks",
            ):
                response = await ask(f"http://{base}", "GET", mount + path, b"", VERSION)
                assert response.status == 404, (root, path, response)
            assert service.asked == []
            for path in ("/time/tasks", "/time/acme/tasks", "/time/tasks/a%2Fb", "/a2a/time/tasks"):
                response = await ask(f"http://{base}", "GET", mount + path, b"", VERSION)
                assert response.status == 200, (root, path, response)
            assert service.asked[-2].request.id == "a/b"
            service.forget()


async def test_an_assistant_whose_name_has_a_slash_is_found_by_its_quoted_name():
    service = Scripted()
    app = create_app({"/time": Endpoint(service, card_of(), key="of/it")})
    async with serving(app) as url:
        assert (await ask(url, "GET", "/a2a/of%2Fit/tasks/t-1", b"", VERSION)).status == 200
        assert service.asked[-1].request.id == "t-1"
        assert (await ask(url, "GET", "/a2a%2Fof%2Fit/tasks/t-1", b"", VERSION)).status == 404
