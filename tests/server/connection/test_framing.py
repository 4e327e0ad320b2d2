"""The end of a request: ambiguous requests are rejected, and nothing after them is read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from parley.server.http1.connection import HttpConnection
from parley.server.run import serving
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import until
from tests.server.connection.corpus import BEHIND, CHUNKED, RIGHT, SMUGGLED, STRICTER, get, post
from tests.server.connection.wire import WAIT, Wire, answers, echo, said, serving_of, undated

pytestmark = pytest.mark.anyio

SIZES = (1, 2, 3, 7, 64)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("name", RIGHT | SMUGGLED | STRICTER)
async def test_in_whatever_pieces_a_request_comes_it_is_the_same(name: str) -> None:
    data = (RIGHT | SMUGGLED | STRICTER)[name] + BEHIND
    whole = answers((await said([data]))[0])
    for size in SIZES:
        assert answers((await said(pieces(data, size)))[0]) == whole, size


@pytest.mark.parametrize("name", SMUGGLED | STRICTER)
async def test_what_could_be_read_in_two_ways_ends_the_connection(name: str) -> None:
    """The app may have started with a body whose chunks are wrong, but never sees all of it."""
    answered, has_ended = await said([(SMUGGLED | STRICTER)[name] + BEHIND])
    (only,) = answers(answered)
    assert only[0] in (400, 501, 505)
    assert has_ended
    assert b"connection: close" in answered


async def test_what_is_refused_behind_a_request_does_not_cost_its_answer() -> None:
    for data in SMUGGLED.values():
        statuses = [status for status, _ in answers((await said([get() + data + BEHIND]))[0])]
        assert statuses in ([200], [200, 400], [200, 501]), data


async def test_an_absolute_target_names_the_host() -> None:
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["path"], scope["query_string"], dict(scope["headers"])[b"host"]))
        await echo(scope, receive, send)

    for target, path, query in (
        (b"http://evil.example/a?b", "/a", b"b"),
        (b"http://evil.example:80", "/", b""),
        (b"HTTPS://evil.example?b", "/", b"b"),
    ):
        await said([get(b"GET " + target + b" HTTP/1.1")], app)
        name = b"evil.example:80" if b":80" in target else b"evil.example"
        assert seen.pop() == (path, query, name)


async def test_a_body_that_is_not_read_is_not_the_next_request() -> None:
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    for body in (
        post(b"Content-Length: %d\r\n" % len(BEHIND), BEHIND),
        post(CHUNKED, b"%x\r\n%b\r\n0\r\n\r\n" % (len(BEHIND), BEHIND)),
    ):
        for size in (5, 60, 10**6):
            answered, _ = await said(pieces(body + get(), size), app)
            assert answered.count(b"HTTP/1.1 200") == 2


async def test_who_expects_to_be_told_and_is_refused_is_not_read_on() -> None:
    """After the rejection, the body or the next request may follow; neither may be read."""

    async def app(scope, receive, send):
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    head = post(b"Content-Length: 50\r\nExpect: 100-continue\r\n", b"")
    answered, has_ended = await said([head, BEHIND], app)
    assert (answered.count(b"HTTP/1.1"), has_ended) == (1, True)
    assert b"connection: close" in answered


async def test_who_expects_to_be_told_is_told_once_the_app_reads() -> None:
    head = post(b"Content-Length: 5\r\nExpect: 100-continue\r\n", b"")
    answered, _ = await said([head, b"hello"])
    assert answered.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert not (await said([head + b"hello"]))[0].startswith(b"HTTP/1.1 100")


LONG = {
    "a target": b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a field": get(more=b"A: " + b"y" * 70_000 + b"\r\n"),
    "many fields": get(more=b"A: b\r\n" * 300),
    "trailers": post(CHUNKED, b"0\r\n" + (b"A: " + b"y" * 4000 + b"\r\n") * 20 + b"\r\n"),
    "an extension": post(CHUNKED, b"1;" + b"y" * 5000 + b"\r\nx\r\n0\r\n\r\n"),
    "extensions": post(CHUNKED, (b"1;" + b"y" * 4000 + b"\r\nx\r\n") * 20 + b"0\r\n\r\n"),
}


@pytest.mark.parametrize("name", LONG)
async def test_what_is_beside_a_body_is_bounded(name: str) -> None:
    for size in (1000, 10**6):
        answered, has_ended = await said(pieces(LONG[name], size))
        assert answers(answered)[-1][0] in (400, 431)
        assert has_ended


# -- deadlines ---------------------------------------------------------------------------------


def connected(wire: Wire, **more: Any) -> HttpConnection:
    """A connection of an app that echoes its requests."""
    connection = HttpConnection(serving_of(echo, **more), asyncio.get_running_loop())
    connection.connection_made(wire)
    return connection


async def test_a_line_end_behind_a_request_does_not_keep_its_connection() -> None:
    wire = Wire()
    connected(wire, idle_timeout=0).data_received(get() + b"\r\n")
    await until(lambda: wire.has_ended)
    assert answers(b"".join(wire.written))[0][0] == 200


async def test_who_reads_slowly_is_not_blamed_for_the_request_behind_the_answer() -> None:
    wire = Wire()
    connection = connected(wire)
    wire.on_write = connection.pause_writing
    connection.data_received(get() + get())
    await until(lambda: wire.written)
    for wire.unsent in (3, 2, 1):
        connection._expire()
    assert not wire.has_ended
    wire.unsent = 0
    connection.resume_writing()
    await until(lambda: len(wire.written) == 2)
    wire.unsent = 9  # more than the remainder of the previous response
    connection._expire()
    assert not wire.has_ended
    assert [status for status, _ in answers(b"".join(wire.written))] == [200, 200]
    connection.connection_lost(None)


# -- compared with uvicorn -----------------------------------------------------------------------


@pytest.fixture(scope="module")
async def both() -> AsyncIterator[tuple[str, str]]:
    """The same app on our connections and on uvicorn's."""
    theirs = under_uvicorn(echo, http="httptools", ws="none", lifespan="off", server_header=False)
    async with serving(echo) as url, theirs as other:
        yield url, other


async def told(url: str, data: bytes) -> bytes:
    """Return all of a server's response to data, until it ends or falls silent."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    received = b""
    try:
        writer.write(data + get(b"GET /last HTTP/1.1", b"Connection: close\r\n"))
        async with asyncio.timeout(WAIT):
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(65536):
                    received += piece
    finally:
        writer.close()
    return undated(received)


@pytest.mark.parametrize("name", RIGHT)
async def test_a_right_request_is_read_as_uvicorn_reads_it(both, name: str) -> None:
    if name == "an upgrade":
        pytest.skip("uvicorn reads nothing behind one: tests/server/http/test_upgrades.py")
    ours, theirs = [await told(url, RIGHT[name]) for url in both]
    assert answers(ours) == answers(theirs)
