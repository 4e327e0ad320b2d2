"""Requests for another protocol are handled as any other request (RFC 9110 §7.8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from parley.server.run import serving
from tests.kit.http import JSON, WAIT, call, connection
from tests.kit.scripted import app_of
from tests.server.test_forwarded import uvicorn

pytestmark = pytest.mark.anyio

HELLO = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
BODY = call("SendMessage", {"message": HELLO})
GIVEN = "Host: localhost\r\n" + "".join(f"{name}: {value}\r\n" for name, value in JSON.items())
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
SOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def posted(more: str, *, version: str = "1.1", body: bytes = BODY) -> bytes:
    head = f"POST / HTTP/{version}\r\n{GIVEN}{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def chunked(more: str) -> bytes:
    head = f"POST / HTTP/1.1\r\n{GIVEN}{more}Transfer-Encoding: chunked\r\n\r\n".encode()
    first, rest = BODY[:10], BODY[10:]
    return head + b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(first), first, len(rest), rest)


ASKING = {
    "h2c": posted(H2C),
    "h2c, in chunks": chunked(H2C),
    "websocket": posted(SOCKET),
    "websocket, in chunks": chunked(SOCKET),
    "several": posted("Connection: Upgrade\r\nUpgrade: foo/2, h2c, TLS/1.0\r\n"),
    "two of Connection": posted(
        "Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: h2c\r\n"
    ),
    "lower case": posted("connection: upgrade, http2-settings\r\nupgrade: H2C\r\n"),
    "large": posted(H2C, body=BODY.replace(b"hello", b"hello" * 40_000)),
}
NOT_QUITE = {
    "Upgrade alone": posted("Upgrade: h2c\r\n"),
    "Connection alone": posted("Connection: Upgrade\r\n"),
}
CARDS = {
    asked: f"GET /.well-known/agent-card.json HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()
    for asked, more in (("h2c", H2C), ("websocket", SOCKET))
}


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    """Our server."""
    async with serving(app_of()) as url:
        yield url


@pytest.mark.parametrize("size", [1, 7, 100, 10**9])
@pytest.mark.parametrize("data", (ASKING | NOT_QUITE).values(), ids=ASKING | NOT_QUITE)
async def test_the_body_is_read_and_the_connection_goes_on(url, data, size):
    if size == 1 and len(data) > 10_000:
        size = 1000
    async with connection(url) as http:
        for n in range(0, len(data), size):
            await http.write(data[n : n + size])
        for _ in range(2):
            answer = await http.response()
            assert (answer.status, "message" in answer.json["result"]) == (200, True)
            await http.write(posted(""))
        assert (await http.response()).status == 200


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("data", (ASKING | NOT_QUITE).values(), ids=ASKING | NOT_QUITE)
@pytest.mark.parametrize("behind", [PREFACE, b"garbage", posted("")[:-1] + PREFACE])
async def test_what_is_no_http_behind_a_request_does_not_cost_its_answer(url, data, behind):
    async with connection(url) as http:
        await http.write(data + behind)
        answer = await http.response()
        assert (answer.status, "message" in answer.json["result"]) == (200, True)
        await asyncio.wait_for(http.reader.read(), WAIT)  # and the connection closes


async def test_what_is_no_http_behind_an_answer_is_refused(url):
    async with connection(url) as http:
        await http.write(posted(H2C))
        assert (await http.response()).status == 200
        await http.write(PREFACE)
        assert (await http.response()).status == 400


async def test_who_expects_to_be_told_to_go_on_is(url):
    head, _, body = posted(f"{H2C}Expect: 100-continue\r\n").partition(b"\r\n\r\n")
    async with connection(url) as http:
        await http.write(head + b"\r\n\r\n")
        assert (await http.head())[0] == 100
        await http.write(body)
        assert (await http.response()).status == 200


# Other servers turn these into WebSockets themselves, even for a POST.
UNDER_UVICORN = {ask: data for ask, data in ASKING.items() if "websocket" not in ask}
WITH_H11 = UNDER_UVICORN | NOT_QUITE


@pytest.mark.slow
@pytest.mark.parametrize("data", WITH_H11.values(), ids=WITH_H11)
async def test_nothing_is_lost_under_uvicorn_with_h11(h11, data):
    async with connection(h11) as http:
        for _ in range(2):
            await http.write(data)
            answer = await http.response()
            assert (answer.status, "message" in answer.json["result"]) == (200, True)


SENT_AT_ONCE = {ask: data for ask, data in UNDER_UVICORN.items() if ask != "large"}
"""uvicorn closes the connection with its response: a client that still sends may miss it."""


@pytest.mark.slow
@pytest.mark.parametrize("data", SENT_AT_ONCE.values(), ids=SENT_AT_ONCE)
async def test_who_loses_a_body_to_uvicorn_is_told_so(httptools, data):
    """Uvicorn's parser always drops the body; the error names the cause and a fix."""
    async with connection(httptools) as http:
        await http.write(data)
        answer = await http.response()
        assert (answer.status, answer.error["code"]) == (200, -32600)
        assert "drops the body" in answer.error["message"]
        assert "--http h11" in answer.error["message"]
    path = data.replace(b"POST / ", b"POST /message:send ")
    async with connection(httptools) as http:
        await http.write(path)
        answer = await http.response()
        assert (answer.status, answer.json["error"]["code"]) == (400, 400)
        assert "drops the body" in answer.json["error"]["message"]


@pytest.mark.parametrize("data", [*NOT_QUITE.values(), CARDS["h2c"]])
async def test_what_has_no_body_to_lose_is_answered_under_uvicorn(httptools, data):
    async with connection(httptools) as http:
        await http.write(data)
        assert "error" not in (await http.response()).json


@pytest.fixture(scope="module")
def h11(tmp_path_factory):
    """The address of an app under uvicorn, with the pure-Python parser."""
    with uvicorn(tmp_path_factory.mktemp("h11"), "app", "--http", "h11") as url:
        yield url


@pytest.fixture(scope="module")
def httptools(tmp_path_factory):
    """The address of an app under uvicorn, with the default parser."""
    with uvicorn(tmp_path_factory.mktemp("httptools"), "app") as url:
        yield url
