"""WebSockets with clients and servers of other people, over TLS and in a mounted app."""

from __future__ import annotations

import json
import ssl

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
from tests.kit.servers import under_uvicorn
from tests.kit.websocket import Held, echo, refused, socket_app

pytestmark = pytest.mark.anyio

AUTHORITY = Authority()
MIB = 1024 * 1024


def ws(url: str) -> str:
    return url.replace("http", "ws", 1)


async def test_websockets_speaks_to_it():
    async with serving(socket_app()) as url:
        offers = ["first", "second"]
        async with connect(f"{ws(url)}/echo", subprotocols=offers, max_size=None) as socket:
            assert socket.subprotocol == "first"
            assert "Sec-WebSocket-Extensions" not in socket.response.headers  # memory
            for text in ("hello", "", "☃" * 1000, "x" * MIB):
                await socket.send(text)
                assert await socket.recv() == text
            await socket.send(["in ", "three ", "frames"])
            assert await socket.recv() == "in three frames"
            await (await socket.ping())
        assert (socket.close_code, socket.close_reason) == (1000, "")
        with pytest.raises(websockets.InvalidStatus) as refusal:
            await connect(f"{ws(url)}/nowhere")
        assert refusal.value.response.status_code == 404


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
