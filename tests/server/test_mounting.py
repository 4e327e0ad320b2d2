"""Locations of agents: several on a server, mounted apps, prefixes and slashes."""

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from parley.server.app import Endpoint, create_app
from parley.server.run import serving
from tests.kit.http import JSON, ask, call, connection, post
from tests.kit.scripted import Scripted, app_of, card_of, reply

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"


def named(name):
    """An agent that replies with its name."""

    async def answer(request, context):
        return reply(name)

    return Endpoint(Scripted(send_message=answer), card_of(name))


def text_of(response):
    return response.json["result"]["message"]["parts"][0]["text"]


def url_of(response):
    return response.json["supportedInterfaces"][0]["url"]


def path_of(url):
    return "/" + url.split("/", 3)[3] if url.count("/") > 2 else ""


class Life:
    """Counts starts and stops."""

    def __init__(self):
        self.started = self.stopped = 0

    async def start(self):
        self.started += 1

    async def stop(self):
        self.stopped += 1


@pytest.fixture(scope="module")
async def two():
    app = create_app({"/time": named("time"), "/report/": named("report")})
    async with serving(app) as url:
        yield url


async def test_a_root_without_an_agent_lists_those_there_are(two):
    response = await ask(two, "GET", "/")
    assert response.status == 200
    assert response.json == {
        "agents": [
            {"url": f"{two}/time", "card": f"{two}/time{CARD}"},
            {"url": f"{two}/report", "card": f"{two}/report{CARD}"},
        ]
    }
    assert (await ask(two, "HEAD", "/")).status == 200


@pytest.mark.parametrize("version", ["0.3", "1.0", "", "7.5"])
async def test_who_posts_json_rpc_where_no_agent_is_is_answered_in_json_rpc(two, version):
    """A client that knows only the host posts to its root, and shows only JSON-RPC errors."""
    headers = {"Content-Type": "application/json", "A2A-Version": version}
    for path, status in (("/", 200), ("/times", 404)):
        for body in (call(id="q-7"), call("message/send", id="q-7")):
            response = await ask(two, "POST", path, body, headers)
            assert response.status == status
            assert response.json["id"] == "q-7"
            assert response.error["code"] == -32601
            for agent in ("/time", "/report"):
                assert f"{two}{agent}" in response.error["message"]
            assert response.headers["a2a-version"] == ("1.0" if version == "1.0" else "0.3")


async def test_what_is_not_json_rpc_is_answered_plainly_where_no_agent_is(two):
    for body in (b"", b"{}", b"nonsense", b"[1]"):
        response = await ask(two, "POST", "/", body, JSON)
        assert response.status == 404
        assert len(response.json["agents"]) == 2
    assert (await ask(two, "POST", "/", call(id=...), JSON)).status == 204
    large = await ask(two, "POST", "/", b"", JSON, length=10**12)
    assert large.status == 404


async def test_an_agent_at_the_root_and_one_below_it():
    app = create_app({"/": named("root"), "/a/b": named("below")})
    async with serving(app) as url:
        assert text_of(await post(url, call())) == "root"
        assert text_of(await post(url, call(), path="/a/b")) == "below"
        assert url_of(await ask(url, "GET", f"/a/b{CARD}")) == f"{url}/a/b"


@pytest.mark.parametrize("url", ["agents.example", "ftp://x", "https://x?y", "https://", "/x"])
def test_a_public_address_that_cannot_be_one_is_refused(url):
    with pytest.raises(ValueError, match="https://"):
        app_of(url=url)


def starlette_around(app, **options):
    return Starlette(routes=[Mount("/agents", app=app)], **options)


def fastapi_around(app, **options):
    outer = FastAPI(**options)
    outer.mount("/agents", app)
    return outer


AROUND = pytest.mark.parametrize("around", [starlette_around, fastapi_around])


@AROUND
async def test_several_agents_answer_under_the_prefix_too(around):
    app = create_app({"/time": named("time"), "/report": named("report")})
    async with serving(around(app, lifespan=app.lifespan)) as url:
        path = path_of(url_of(await ask(url, "GET", f"/agents/time{CARD}")))
        assert path == "/agents/time"
        assert text_of(await post(url, call(), path=path)) == "time"
        assert text_of(await post(url, call(), path=f"{path}/")) == "time"
        index = (await ask(url, "GET", "/agents/")).json
        assert index["agents"][1]["url"] == f"{url}/agents/report"


@AROUND
async def test_without_a_lifespan_the_first_request_starts_the_app(around, caplog):
    life = Life()
    app = app_of(startup=life.start, shutdown=life.stop)
    async with serving(around(app)) as url:
        assert life.started == 0
        for _ in range(3):
            assert "result" in (await post(url, call(), path="/agents/")).json
        assert life.started == 1
    assert "lifespan=app.lifespan" in caplog.text


async def test_streams_work_under_a_prefix():
    app = app_of()
    outer = starlette_around(app, lifespan=app.lifespan)
    async with serving(outer) as url, connection(url) as http:
        await http.request("POST", "/agents/", call("SubscribeToTask"), JSON)
        assert (await http.head())[1]["content-type"] == "text/event-stream"
        assert len([frame async for frame in http.frames()]) == 3
