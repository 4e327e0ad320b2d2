"""HTTP+JSON: the version and agent of a path, and misleading paths."""

import json

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from parley.model.extensions import Extension, method
from parley.model.operations import GetTaskRequest
from parley.model.tasks import Task
from parley.server.app import Endpoint, create_app
from parley.server.run import serving
from tests.kit.http import MESSAGE, ask
from tests.kit.scripted import Scripted, card_of, extension, task

pytestmark = pytest.mark.anyio


JSON = {"Content-Type": "application/json"}


SEND = json.dumps({"message": MESSAGE}).encode()


async def test_a_version_in_the_query_counts_here_too(url):
    assert (await ask(url, "GET", "/tasks?A2A-Version=1.0")).status == 200
    assert (await ask(url, "GET", "/tasks?a2a-version=0.3")).status == 400


async def test_a_task_of_0_3_is_read_by_its_path(url, service):
    response = await ask(url, "GET", "/v1/tasks/a%2Fb?history_length=2")
    assert response.status == 200
    request = service.asked[0].request
    assert (request.id, request.history_length) == ("a/b", 2)


# Agents and tenants


# Methods of extensions


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


# -- misleading HTTP+JSON paths: empty segments, dots, quoted slashes (§11.3) ----------------------


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
    "//openapi.json",
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
