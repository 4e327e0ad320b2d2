"""Middleware around the app: in order, around every HTTP request, and around nothing else."""

from __future__ import annotations

import pytest
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse

import parley
from parley import Agent, Caller, Turn
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.kit.http import ask, call, post
from tests.kit.scripted import Scripted, app_of
from tests.kit.servers import grpc_of

pytestmark = pytest.mark.anyio

CARD = "/.well-known/agent-card.json"


class Noting:
    """Adds its name to a header of every answer."""

    def __init__(self, app, name, told=None):
        self.app, self.name, self.told = app, name, told if told is not None else []

    async def __call__(self, scope, receive, send):
        self.told.append(scope["type"])

        async def named(message):
            if message["type"] == "http.response.start":
                headers = dict(message["headers"])
                way = [headers[b"x-way"]] if b"x-way" in headers else []
                headers[b"x-way"] = b", ".join([*way, self.name.encode()])
                message["headers"] = list(headers.items())
            await send(message)

        await self.app(scope, receive, named)


async def get(url, path):
    return await ask(url, "GET", path)


def agent_of(**options):
    agent = Agent("Told", **options)

    @agent.skill(default=True)
    async def stream(turn: Turn):
        for n in range(5):
            yield f"{n} "

    @agent.skill(replies="message")
    async def whose(turn: Turn) -> str:
        return turn.caller.id

    return agent


async def test_the_first_is_outermost():
    told = []
    middleware = [Middleware(Noting, "outer", told=told), lambda app: Noting(app, "inner", told)]
    async with serving(app_of(Scripted(), middleware=middleware)) as url:
        for answer in (await post(url, call()), await get(url, CARD), await get(url, "/nowhere")):
            assert answer.headers["x-way"] == "inner, outer"
    assert told == ["http"] * 6


async def test_streams_and_calls_go_through():
    agent = agent_of()
    app = parley.asgi(agent, middleware=[Middleware(Noting, "one"), GZipMiddleware])
    async with serving(app) as url, parley.connect(url) as remote:
        events = [event async for event in remote.stream("go")]
        assert events[-1].status.state.is_terminal
        assert (await remote.send("go")).text == "0 1 2 3 4 "


async def test_middleware_of_requests_and_responses_may_stand_there():
    """Starlette's BaseHTTPMiddleware, which FastAPI's ``@app.middleware`` makes."""

    async def guard(request, call_next):
        if "x-key" not in request.headers:
            return PlainTextResponse("no key", 401)
        answer = await call_next(request)
        answer.headers["x-way"] = "guarded"
        return answer

    app = parley.asgi(agent_of(), middleware=[Middleware(BaseHTTPMiddleware, dispatch=guard)])
    async with serving(app) as url:
        assert (await get(url, CARD)).status == 401
        async with parley.connect(url, headers={"x-key": "1"}) as remote:
            events = [event async for event in remote.stream("go")]
            assert events[-1].status.state.is_terminal


async def test_it_may_say_who_calls():
    """``caller`` reads what middleware wrote into the scope, as with Starlette's own."""

    class Login:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            scope["user"] = dict(scope["headers"])[b"x-user"].decode()
            await self.app(scope, receive, send)

    def who(scope):
        return Caller(scope["user"], True)

    app = parley.asgi(agent_of(), middleware=[Middleware(Login)], caller=who)
    headers = {"x-user": "ada"}
    async with serving(app) as url, parley.connect(url, headers=headers) as remote:
        assert (await remote.send("who?", metadata={"skill": "whose"})).text == "ada"


async def test_the_app_stays_what_it_is():
    """It can be mounted, drained, and served over gRPC, which middleware is not around."""
    told = []
    app = parley.asgi(agent_of(), middleware=[Middleware(Noting, "one", told=told)])
    assert app.lifespan
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        trusted = await grpc_of(url)
        told.clear()
        async with parley.connect(url, binding="GRPC", trust_origins=trusted) as remote:
            cards = len(told)
            assert (await remote.send("go")).text == "0 1 2 3 4 "
            assert told == ["http"] * cards
        assert (await get(url, "/health/ready")).status == 200
        app.lifecycle.drain()
        assert (await post(url, call("SendMessage"))).json["error"]["message"]


async def dispatch(request, call_next): ...


async def forgets_to_return(app): ...


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Middleware(Noting, "one"), r"is a list: write middleware=\[Middleware\(Noting, ...\)\]"),
        (Noting, r"is a list: write middleware=\[Noting\]"),
        ([("gzip", 3)], "a middleware is Starlette's"),
        ([Middleware(Noting)], r"Middleware\(Noting, ...\) cannot be made: .*'name'"),
        ([dispatch], "dispatch cannot be made: .*BaseHTTPMiddleware, dispatch"),
        ([forgets_to_return], "forgets_to_return returned .*coroutine"),
        ([lambda app: None], "returned None"),
    ],
)
def test_what_is_no_middleware_is_refused_at_once(given, words):
    with pytest.raises(TypeError, match=words):
        parley.asgi(agent_of(), middleware=given)
