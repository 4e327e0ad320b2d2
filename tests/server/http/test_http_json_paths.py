"""Paths of HTTP+JSON that look like others: empty segments, dots, quoted slashes (§11.3)."""

import json

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from parley.server.app import Endpoint, create_app
from parley.server.run import serving
from tests.kit.http import MESSAGE, ask
from tests.kit.scripted import Scripted, card_of

pytestmark = pytest.mark.anyio

VERSION = {"A2A-Version": "1.0"}
JSON = {**VERSION, "Content-Type": "application/a2a+json"}
SEND = json.dumps({"message": MESSAGE}).encode()

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
    response = await ask(url, "POST", path, SEND, JSON)
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
