"""WebSocket handshakes: permissions, hosts, origins, middleware, drain, logs."""

from __future__ import annotations

import asyncio
import logging

import pytest
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse

from parley.server.app import Settings, create_app
from parley.server.run import server_of, serving
from parley.server.sockets import address_of, listen
from tests.kit.http import connection
from tests.kit.scripted import app_of
from tests.kit.waiting import until
from tests.kit.websocket import (
    CLOSE,
    TEXT,
    Held,
    closing,
    echo,
    frame,
    head_of,
    raw_socket,
    refused,
    socket_app,
)

pytestmark = pytest.mark.anyio


async def test_another_servers_host_is_refused():
    async with serving(socket_app()) as url:
        answer = await refused(url, Host="evil.example")
        assert answer.status == 421
        assert "evil.example" in answer.json["error"]


async def test_a_page_of_another_origin_opens_no_socket():
    settings = Settings(cors_origins=("https://pages.example",))
    async with serving(socket_app(settings=settings)) as url:
        host = url.removeprefix("http://")
        for good in (url, url.upper().replace("HTTP", "http"), "https://pages.example:443"):
            async with raw_socket(url, Host=host, Origin=good) as socket:
                await socket.echoed("hello")
        for bad in (
            "https://evil.example",
            url.replace("http", "https"),
            "null",
            "",
            f"{url}0",
            "x",
        ):
            answer = await refused(url, Host=host, Origin=bad)
            assert answer.status == 403, bad
            assert "cors_origins (parley.Settings)" in answer.json["error"]


async def test_the_public_address_is_an_origin_and_a_star_is_every_one():
    for app in (
        socket_app(url="https://agents.example/all"),
        socket_app(settings=Settings(cors_origins=("*",))),
    ):
        async with serving(app) as url, raw_socket(url, Origin="https://agents.example"):
            pass


async def test_a_proxy_that_is_trusted_says_which_origin_is_its_own():
    app = socket_app(settings=Settings(trust_proxy=True, allowed_hosts=("agents.example",)))
    given = {"X_Forwarded_Host": "agents.example", "X_Forwarded_Proto": "https"}
    async with serving(app) as url:
        async with raw_socket(url, Origin="https://agents.example", **given):
            pass
        assert (await refused(url, Origin="http://agents.example", **given)).status == 403


class Noting:
    def __init__(self, app, seen, name):
        self.app, self.seen, self.name = app, seen, name

    async def __call__(self, scope, receive, send):
        self.seen.append((self.name, scope["type"]))
        await self.app(scope, receive, send)


async def test_every_middleware_is_around_sockets_too():
    seen = []

    async def passes(request, call_next):
        return await call_next(request)

    middleware = [
        Middleware(Noting, seen, "outer"),
        Middleware(BaseHTTPMiddleware, dispatch=passes),
        lambda app: Noting(app, seen, "inner"),
    ]
    async with serving(socket_app(middleware=middleware)) as url:
        async with raw_socket(url) as socket:
            await socket.echoed("hello")
        assert seen == [("outer", "websocket"), ("inner", "websocket")]
        await refused(url, Host="evil.example")  # the error response passes through them as well
        assert seen[2:] == [("outer", "websocket"), ("inner", "websocket")]


async def test_middleware_can_refuse_a_socket():
    class Closed:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})

    class ForRequests(Closed):
        async def __call__(self, scope, receive, send):
            await send({"type": "http.response.start", "status": 401, "headers": [(b"x-a", b"b")]})
            await send({"type": "http.response.body", "body": b"no"})

    held = Held()
    for middleware, expected in ((Closed, (403, b"")), (ForRequests, (401, b"no"))):
        async with serving(socket_app(held, middleware=[middleware])) as url:
            answer = await refused(url)
            assert (answer.status, answer.body) == expected
    assert answer.headers["x-a"] == "b"
    assert held.sockets == []


@pytest.mark.parametrize("changes", [False, True])
async def test_middleware_of_requests_sees_the_handshake(changes):
    """Starlette ignores everything but requests: a guard for agents must guard sockets too."""
    held, seen = Held(), []

    async def guard(request, call_next):
        if request.headers.get("x-key") != "open sesame":
            return PlainTextResponse("no key", 401)
        request.scope["user"] = "ada"
        request.state.mark = 1
        answer = await call_next(request)
        seen.append((request.method, request.url.path, answer.status_code))
        return PlainTextResponse("late", 403) if changes else answer

    middleware = [
        (lambda app: BaseHTTPMiddleware(app, dispatch=guard))
        if changes
        else Middleware(BaseHTTPMiddleware, dispatch=guard)
    ]
    async with serving(socket_app(held, middleware=middleware)) as url:
        answer = await refused(url)
        assert (answer.status, answer.body, held.sockets) == (401, b"no key", [])
        if changes:
            assert (await refused(url, X_Key="open sesame")).body == b"late"
            assert held.sockets == []
        else:
            async with raw_socket(url, X_Key="open sesame"):
                assert held.sockets[0].scope["user"] == "ada"
                assert held.sockets[0].scope["state"]["mark"] == 1
                assert held.sockets[0].scope["type"] == "websocket"
        assert seen == [("GET", "/echo", 101)]


async def test_a_restricted_endpoint_is_restricted_for_sockets():
    elsewhere = Settings(restrict={"agents": ["192.0.2.0/24"]})
    app = app_of(settings=elsewhere)
    app.serve_at("/echo", echo, sockets=True, restrict="agents")
    async with serving(app) as url:
        hidden, nothing = await refused(url), await refused(url, "/nope")
        assert hidden.status == nothing.status == 404
        assert hidden.body.replace(b"/echo", b"/nope") == nothing.body
    here = Settings(restrict={"agents": ["127.0.0.0/8"]})
    app = app_of(settings=here)
    app.serve_at("/echo", echo, sockets=True, restrict="agents")
    async with serving(app) as url, raw_socket(url) as socket:
        await socket.echoed("hello")


async def test_a_server_that_drains_closes_sockets_once_they_have_answered():
    held = Held()
    begun, go_on, told = asyncio.Event(), asyncio.Event(), []

    async def answer(socket, text):
        socket.on_drain(lambda: told.append(text))
        with socket.answering():
            begun.set()
            await go_on.wait()
            await socket.send(f"{text}, answered")

    held.answer = answer
    app = socket_app(held)
    async with serving(app) as url, raw_socket(url) as idle, raw_socket(url) as busy:
        await busy.write(frame(TEXT, b"question"))
        await begun.wait()
        app.lifecycle.drain()
        end = await idle.read()
        assert (end.kind, end.code, end.reason) == (CLOSE, 1012, "the server is shutting down")
        answer_ = await refused(url)
        assert (answer_.status, answer_.headers["retry-after"]) == (503, "1")
        assert told == ["question"]
        go_on.set()
        assert await busy.read() == (TEXT, b"question, answered")
        assert (await busy.read()).code == 1012


async def test_a_handler_that_knows_nothing_of_draining_is_closed():
    async def plain(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    app = socket_app(plain)
    async with serving(app) as url, raw_socket(url) as socket:
        app.lifecycle.drain()
        assert (await socket.read()).code == 1012


@pytest.mark.slow
async def test_the_end_of_the_server_waits_no_longer_than_the_grace_period():
    held = Held()

    async def never(socket, text):
        with socket.answering():
            await asyncio.Event().wait()

    held.answer = never
    async with serving(socket_app(held), grace=1) as url:
        http = connection(url)
        raw = await http.__aenter__()
        await raw.write(head_of() + frame(TEXT, b"x"))
        await raw.head()
        await until(lambda: held.received, 5)
    assert held.ended.is_set()
    await http.__aexit__(None, None, None)


async def test_another_app_than_ours_is_closed_with_the_server():
    ended = asyncio.Event()

    async def app(scope, receive, send):
        if scope["type"] != "websocket":
            return
        assert await receive() == {"type": "websocket.connect"}
        await send({"type": "websocket.accept"})
        message = await receive()
        assert (message["type"], message["code"]) == ("websocket.disconnect", 1012)
        ended.set()

    async with serving(app) as url:
        http = connection(url)
        raw = await http.__aenter__()
        await raw.write(head_of("/any"))
        assert (await raw.head())[0] == 101

        async def confirm():
            await raw.reader.readexactly(2)
            await raw.write(closing(1012))

        confirming = asyncio.create_task(confirm())
    await confirming
    assert ended.is_set()
    await http.__aexit__(None, None, None)


async def test_agents_that_cannot_start_refuse_sockets(caplog):
    async def start():
        raise ValueError("no disk")

    app = socket_app(startup=start)
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    extensions = {"websocket.http.response": {}}
    scope = {"type": "websocket", "path": "/echo", "headers": [], "extensions": extensions}
    await app(scope, receive, send)
    assert sent[0]["status"] == 503
    assert b"cannot start" in sent[1]["body"]
    assert "no disk" in caplog.text
    # A server without response support gets the code and the reason.
    sent.clear()
    await app({**scope, "extensions": {}}, receive, send)
    assert [each["type"] for each in sent] == ["websocket.close"]
    assert "cannot start" in sent[0]["reason"]


async def test_a_server_without_agents_says_so():
    app = create_app({}, unavailable_message="this process only works")
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    extensions = {"websocket.http.response": {}}
    await app(
        {
            "type": "websocket", "path": "/envelope", "headers": [], "extensions": extensions,
        },
        receive,
        send,
    )  # fmt: skip
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 503)
    assert b"this process only works" in sent[1]["body"]


async def test_a_line_of_the_access_log_is_written_for_each_handshake(caplog):
    ready = asyncio.Event()
    app = socket_app()
    caplog.set_level(logging.INFO, "uvicorn.access")
    sockets = listen("127.0.0.1", 0)
    server = server_of(app, grace=1, kinds=1, started=ready.set, access_log=True, signals=False)
    async with app.lifespan():
        running = asyncio.create_task(server.serve(sockets))
        await ready.wait()
        url = address_of("127.0.0.1", sockets, "http")
        async with raw_socket(url, "/echo?key=secret"):
            pass
        await refused(url, Sec_WebSocket_Key="x")
        server.end()
        await running
    lines = [each.getMessage() for each in caplog.records if each.name == "uvicorn.access"]
    assert [line.rpartition(" - ")[2] for line in lines] == [
        '"GET /echo?key=... HTTP/1.1" 101',
        '"GET /echo HTTP/1.1" 400',
    ]
