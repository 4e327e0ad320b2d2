"""HTTP+JSON: the version and agent of a path, and misleading paths."""

import pytest

from parley.model.extensions import Extension, method
from parley.model.operations import GetTaskRequest
from parley.model.tasks import Task
from parley.server.app import Endpoint, create_app
from parley.server.run import serving
from tests.kit.http import ask
from tests.kit.scripted import Scripted, card_of, extension, task

pytestmark = pytest.mark.anyio


JSON = {"Content-Type": "application/json"}


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
