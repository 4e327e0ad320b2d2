"""The in-process transport for apps carries all that a socket would."""

from __future__ import annotations

import asyncio

import pytest

from parley.client.errors import (
    ClientError,
    ConnectionClosed,
    Disconnected,
    ResponseTooLarge,
    Timeout,
    Unreachable,
)
from parley.host.in_process import BUFFER_BYTES, InProcessTransport, Site

pytestmark = pytest.mark.anyio

URL = "https://agent.test"


def transport(app, **options) -> InProcessTransport:
    return InProcessTransport({URL: Site(app, starts=False)}, **options)


async def start(send, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def test_the_longest_address_counts_and_its_path_is_the_mount() -> None:
    async def named(scope, receive, send) -> None:
        await start(send)
        where = f"{scope['root_path']} {scope['path']}".encode()
        await send({"type": "http.response.body", "body": where})

    sites = {URL: Site(named, starts=False), f"{URL}/agents/a": Site(named, starts=False)}
    async with InProcessTransport(sites) as http:
        assert (await http.get(f"{URL}/agents/ab", {})).body == b" /agents/ab"
        assert (await http.get(f"{URL}/agents/a/x", {})).body == b"/agents/a /agents/a/x"
        with pytest.raises(Unreachable, match=r"no app of this process answers at https://else"):
            await http.get("https://else.test/", {})
        with pytest.raises(ClientError, match="is not an address"):
            await http.get("https://agent.test:port/", {})


async def test_a_body_can_be_sent_in_pieces() -> None:
    async def app(scope, receive, send) -> None:
        pieces = []
        while True:
            message = await receive()
            pieces.append(message["body"])
            if not message["more_body"]:
                break
        await start(send)
        await send({"type": "http.response.body", "body": b"|".join(pieces)})

    async def body():
        yield b"one"
        yield b"two"

    async with transport(app) as http, http.open("POST", URL, {}, body()) as answer:
        assert await answer.read() == b"one|two|"


async def test_a_body_that_fails_disconnects_and_is_no_error_of_the_app(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noticed: list[str] = []

    async def app(scope, receive, send) -> None:
        while (message := await receive())["type"] == "http.request":
            noticed.append(message["body"])
        noticed.append(message["type"])

    async def body():
        yield b"one"
        raise LookupError("no more bytes")

    async with transport(app) as http:
        with pytest.raises(Disconnected, match="the body of the request") as error:
            async with http.open("POST", URL, {}, body()):
                pass
        assert isinstance(error.value.__cause__, LookupError)
    assert noticed == [b"one", "http.disconnect"]
    assert not caplog.records


async def test_an_app_waits_for_a_reader_that_is_slow() -> None:
    sent = 0

    async def app(scope, receive, send) -> None:
        nonlocal sent
        await start(send)
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * 8192, "more_body": True})
            sent += 8192
        await send({"type": "http.response.body"})

    async with transport(app) as http, http.open("GET", URL, {}, None) as answer:
        for _ in range(50):
            await asyncio.sleep(0)
        assert sent <= BUFFER_BYTES
        assert len(await answer.read()) == 100 * 8192
    assert sent == 100 * 8192


async def test_headers_come_before_the_body() -> None:
    go_on = asyncio.Event()

    async def app(scope, receive, send) -> None:
        await start(send)
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"late"})

    async with transport(app) as http, http.open("GET", URL, {}, None) as answer:
        assert answer.status == 200
        go_on.set()
        assert await answer.read() == b"late"


async def test_silence_and_slowness_are_bounded() -> None:
    async def app(scope, receive, send) -> None:
        if scope["path"] == "/begun":
            await start(send)
        await receive()
        await receive()

    async with transport(app) as http:
        with pytest.raises(Timeout):
            await http.send("GET", URL, {}, None, timeout=0.01)
        with pytest.raises(Timeout):
            await http.send("GET", f"{URL}/begun", {}, None, timeout=0.01)
        async with http.open("GET", f"{URL}/begun", {}, None, idle=0.01) as answer:
            with pytest.raises(Disconnected, match="silent"):
                await answer.read()


async def test_a_response_is_bounded() -> None:
    async def app(scope, receive, send) -> None:
        await start(send, 200, (b"content-length", b"1000"))
        await send({"type": "http.response.body", "body": b"x" * 1000})

    async with transport(app, limit=999) as http:
        with pytest.raises(ResponseTooLarge, match="999"):
            await http.send("GET", URL, {}, None)


async def test_closing_ends_the_calls_under_way() -> None:
    ended: list[str] = []

    async def app(scope, receive, send) -> None:
        await start(send)
        await receive()
        ended.append((await receive())["type"])

    http = transport(app)
    async with http.open("GET", URL, {}, None) as answer:
        await http.close()
        with pytest.raises(ConnectionClosed):
            await answer.read()
    assert ended == ["http.disconnect"]
    with pytest.raises(ConnectionClosed):
        await http.send("GET", URL, {}, None)
    await http.close()


async def test_redirects_are_followed_by_get() -> None:
    async def app(scope, receive, send) -> None:
        if scope["path"] == "/from":
            await start(send, 302, (b"location", b"/to"))
        else:
            await start(send)
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    async with transport(app) as http:
        reply = await http.get(f"{URL}/from", {})
    assert (reply.body, reply.url) == (b"/to", f"{URL}/to")
