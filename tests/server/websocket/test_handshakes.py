"""Handshakes: successful and failed upgrades, also with third-party clients and servers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator

import aiohttp
import pytest
import websockets
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.asyncio.client import connect

from parley.server.app import Settings
from parley.server.run import serving
from parley.server.settings import TlsOptions
from tests.kit.certificates import Authority, trusting
from tests.kit.http import WAIT, connection
from tests.kit.servers import under_uvicorn
from tests.kit.websocket import (
    TEXT,
    Held,
    RawSocket,
    echo,
    frame,
    head_of,
    raw_socket,
    refused,
    socket_app,
)

pytestmark = pytest.mark.anyio


CARD = "/.well-known/agent-card.json"


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with serving(socket_app()) as url:
        yield url


async def test_requests_before_the_upgrade_are_answered_first(url):
    """All of them, and the socket's first message, in one write."""
    get = f"GET {CARD} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    async with connection(url) as http:
        await http.write(get * 3 + head_of() + frame(TEXT, b"hello"))
        for _ in range(3):
            assert "name" in (await http.response()).json
        assert (await http.head())[0] == 101
        assert await RawSocket(http).read() == (TEXT, b"hello")


@pytest.mark.parametrize("key", ["short", "not base64 at all ======", "A" * 24, None])
async def test_a_bad_key_is_refused(url, key):
    answer = await refused(url, Sec_WebSocket_Key=key)
    assert answer.status == 400
    assert "Sec-WebSocket-Key" in answer.json["error"]


HTTP = {
    "POST": head_of(method="POST", Content_Length="0"),
    "HTTP/1.0": head_of(version="1.0"),
    "without Connection": head_of(Connection=None),
    "without Upgrade": head_of(Upgrade=None),
    "of something else": head_of(Upgrade="h2c"),
    "of several": head_of(Upgrade="websocket, h2c"),
}


async def test_the_scope_is_that_of_the_request():
    seen = {}

    async def note(scope, receive, send):
        seen.update(scope)
        await echo(scope, receive, send)

    async with (
        serving(socket_app(note)) as url,
        raw_socket(url, "/echo?a=b%20c", Sec_WebSocket_Protocol="x , y", X_Own="caf\xe9"),
    ):
        pass
    assert (seen["type"], seen["scheme"], seen["http_version"]) == ("websocket", "ws", "1.1")
    assert (seen["path"], seen["raw_path"], seen["query_string"]) == ("/echo", b"/echo", b"a=b%20c")
    assert seen["subprotocols"] == ["x", "y"]
    assert (b"x-own", b"caf\xe9") in seen["headers"]
    assert seen["client"][0] == "127.0.0.1"
    assert f"http://{seen['server'][0]}:{seen['server'][1]}" == url
    assert "websocket.http.response" in seen["extensions"]
    assert "method" not in seen


async def test_half_a_head_ends_at_the_timeout_and_a_socket_does_not():
    async with serving(socket_app(settings=Settings(head_timeout=0.1))) as url:
        async with connection(url) as http:
            await http.write(head_of()[:-2])
            assert (await http.response()).status == 408
        async with raw_socket(url) as socket, connection(url) as http:
            await http.write(b"GET")
            assert (await http.response()).status == 408  # so the timeout has passed
            await socket.echoed("still here")


async def test_what_the_app_refuses_with_is_the_answer(url):
    async def refuse(scope, receive, send):
        await receive()
        head = {"type": "websocket.http.response.start", "status": 401}
        await send({**head, "headers": [(b"www-authenticate", b"Bearer")]})
        body = {"type": "websocket.http.response.body"}
        await send({**body, "body": b"not ", "more_body": True})
        await send({**body, "body": b"you"})

    async with serving(socket_app(refuse)) as other, connection(other) as http:
        await http.write(head_of())
        status, headers = await http.head()
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert await asyncio.wait_for(http.reader.read(), WAIT) == b"not you"


# -- WebSockets with third-party clients and servers, over TLS and in a mounted app ----------------


AUTHORITY = Authority()


def ws(url: str) -> str:
    return url.replace("http", "ws", 1)


async def test_aiohttp_speaks_to_it():
    async with serving(socket_app()) as url, aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{url}/echo", protocols=["x"], compress=15) as socket:
            assert socket.protocol == "x"
            await socket.send_json({"a": 1})
            assert await socket.receive_json() == {"a": 1}
            await socket.send_bytes(b"x")
            end = await socket.receive()
            assert (end.type, end.data) == (aiohttp.WSMsgType.CLOSE, 1003)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await http.ws_connect(f"{url}/echo", origin="https://evil.example")
        assert refusal.value.status == 403


async def test_a_socket_over_tls(tmp_path):
    seen = []

    async def note(scope, receive, send):
        seen.append(scope)
        await echo(scope, receive, send)

    cert, key = AUTHORITY.server().write(tmp_path, "server")
    tls = TlsOptions(cert=cert, key=key)
    app = socket_app(note, settings=Settings(trust_proxy=True, max_socket_message_bytes=1000))
    async with serving(app, tls=tls) as url:
        url = url.replace("127.0.0.1", "localhost")
        context = trusting(AUTHORITY)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        async with connect(f"{ws(url)}/echo", ssl=context, origin=url) as socket:
            await socket.send("hello")
            assert await socket.recv() == "hello"
            await socket.send("x" * 1001)
            with pytest.raises(websockets.ConnectionClosedError) as end:
                await socket.recv()
            assert end.value.rcvd.code == 1009
    [scope] = seen
    assert scope["scheme"] == "wss"
    assert scope["extensions"]["tls"]["tls_version"] >= 0x0303
    assert scope["extensions"]["parley.connection"]["client"][0] == "127.0.0.1"


async def test_an_app_that_is_mounted_serves_sockets_under_uvicorn():
    held = Held()
    held.answer = lambda socket, text: socket.send(f"answer to {text}")
    app = socket_app(held, settings=Settings(cors_origins=("https://pages.example",)))
    outer = Starlette(routes=[Mount("/agents", app)], lifespan=app.lifespan)
    async with under_uvicorn(outer, ws="websockets-sansio") as url:
        async with connect(f"{ws(url)}/agents/echo", origin="https://pages.example") as socket:
            await socket.send("question")
            assert await socket.recv() == "answer to question"
            app.lifecycle.drain()
            with pytest.raises(websockets.ConnectionClosedError) as end:
                await socket.recv()
            assert end.value.rcvd.code == 1012
        answer = await refused(url, "/agents/echo")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        for path, changes, status in (
            ("/agents/other", {}, 404),
            ("/agents/echo", {"Origin": "https://evil.example"}, 403),
            ("/agents/echo", {"Host": "evil.example"}, 421),
        ):
            answer = await refused(url, path, **changes)
            assert answer.status == status
            assert json.loads(answer.body)["error"]
        await held.ended.wait()


async def test_a_client_that_leaves_another_server_leaves_no_socket_behind():
    held = Held()
    app = socket_app(held)
    outer = Starlette(routes=[Mount("/agents", app)], lifespan=app.lifespan)
    async with under_uvicorn(outer, ws="websockets-sansio") as url:
        socket = await connect(f"{ws(url)}/agents/echo")
        socket.transport.abort()
        await held.ended.wait()
        assert not held.sockets[0].is_open
        with pytest.raises(ConnectionError):
            await held.sockets[0].send("to nobody")
    assert app.sockets.open == 0
