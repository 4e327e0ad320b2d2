"""WebSockets over the in-process transport for apps."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from parley.client.bindings.websocket import HandshakeRefused, SocketRefused
from parley.client.errors import ConnectionClosed, Disconnected, ResponseTooLarge, Timeout
from parley.host.in_process import InProcessTransport, Site
from parley.host.in_process_sockets import WAITING_TEXTS
from parley.server.websocket.socket import ServerSocket, SocketClosed
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

URL = "https://agent.test"


def transport(app) -> InProcessTransport:
    return InProcessTransport({URL: Site(app, starts=False)})


async def opened(http, path="/x", **options):
    given = {"handshake": 5.0, "subprotocol": "a", "max_message": 1000, **options}
    return await http.open_socket(f"{URL}{path}", {"X-Given": "yes"}, **given)


async def echo(scope, receive, send):
    socket = ServerSocket(scope, receive, send)
    await socket.accept("a")
    while (text := await socket.receive()) is not None:
        await socket.send(text)


async def test_messages_go_both_ways_and_the_client_closes():
    seen = {}

    async def app(scope, receive, send):
        seen.update(scope)
        await echo(scope, receive, send)
        seen["ended"] = True

    async with transport(app) as http:
        socket = await opened(http, "/a%20b?q=1")
        assert socket.subprotocol == "a"
        await socket.send("one")
        await socket.send("two")
        assert [await socket.receive(), await socket.receive()] == ["one", "two"]
        await socket.close()
        with pytest.raises(Disconnected):
            await socket.send("three")
        await until(lambda: seen.get("ended"), 5)
    assert (seen["type"], seen["scheme"], seen["path"]) == ("websocket", "wss", "/a b")
    assert seen["subprotocols"] == ["a"]
    assert (b"x-given", b"yes") in seen["headers"]


async def test_a_handshake_that_is_refused_says_what_a_server_would():
    async def refuse(scope, receive, send):
        socket = ServerSocket(scope, receive, send)
        status = int(scope["path"][1:])
        headers = [(b"www-authenticate", b"Bearer"), (b"retry-after", b"7")]
        await socket.refuse(status, headers, b"why")

    async def fail(scope, receive, send):
        raise ValueError("broken")

    async with transport(refuse) as http:
        with pytest.raises(HandshakeRefused) as refused:
            await opened(http, "/401")
        assert (refused.value.challenge, refused.value.body) == ("Bearer", b"why")
        with pytest.raises(SocketRefused) as busy:
            await opened(http, "/503")
        assert (busy.value.status, busy.value.retry_after) == (503, 7)
    async with transport(fail) as http:
        with pytest.raises(SocketRefused, match="500"):
            await opened(http)
    async with transport(echo) as http:
        with pytest.raises(SocketRefused, match="does not support b"):
            await opened(http, subprotocol="b")


async def test_an_app_that_closes_or_hangs_is_told_as_over_a_network():
    async def close(scope, receive, send):
        socket = ServerSocket(scope, receive, send)
        await socket.accept("a")
        await socket.send("last")
        await socket.send("x" * 1001)
        await socket.close(4000, "enough")

    async def hang(scope, receive, send):
        await asyncio.Event().wait()

    async with transport(close) as http:
        socket = await opened(http, max_message=10_000)
        assert await socket.receive() == "last"
        assert len(await socket.receive()) == 1001
        with pytest.raises(Disconnected, match="4000 enough"):
            await socket.receive()
        assert socket.close_code == 4000
        small = await opened(http)
        assert await small.receive() == "last"
        with pytest.raises(ResponseTooLarge):
            await small.receive()
    async with transport(hang) as http:
        with pytest.raises(Timeout):
            await opened(http, handshake=0.05)
        socket_task = next(iter(http._open)).task
        socket_task.cancel()


async def test_one_side_waits_for_the_other_and_a_closed_transport_ends_both():
    sent = 0

    async def pour(scope, receive, send):
        nonlocal sent
        socket = ServerSocket(scope, receive, send)
        await socket.accept("a")
        with suppress(SocketClosed):
            while True:
                await socket.send("x")
                sent += 1

    http = transport(pour)
    socket = await opened(http)
    await until(lambda: sent == WAITING_TEXTS, 5)
    assert await socket.receive() == "x"
    await until(lambda: sent == WAITING_TEXTS + 1, 5)
    await http.close()
    for _ in range(WAITING_TEXTS):
        assert await socket.receive() == "x"
    with pytest.raises(ConnectionClosed):
        await socket.receive()
    with pytest.raises(ConnectionClosed):
        await opened(http)
