"""Memory that clients can make a server hold: incomplete requests, unread responses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from parley.model.parts import Message, Part, Role
from parley.model.service import StreamItem
from parley.server import run
from parley.server.app import App, Settings
from parley.server.run import serving
from tests.kit.http import JSON, Connection, call, connection, post
from tests.kit.scripted import Scripted, app_of, chunk, task
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio

LONG = 60.0
MIB = 2**20
SMALL = Settings(max_body_bytes=MIB, max_body_bytes_held=4 * MIB)
HEADERS = "".join(f"{name}: {value}\r\n" for name, value in JSON.items()).encode()

several_addresses = pytest.mark.skipif(
    sys.platform != "linux", reason="127.0.0.2 is an address of Linux"
)


def posted(body: bytes, more: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST / HTTP/1.1\r\nHost: localhost\r\n" + HEADERS + more + length + b"\r\n" + body


def chunked(body: bytes, size: int = 3000) -> bytes:
    pieces = [body[n : n + size] for n in range(0, len(body), size)]
    return (
        b"POST / HTTP/1.1\r\nHost: localhost\r\n"
        + HEADERS
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        + b"0\r\n\r\n"
    )


@asynccontextmanager
async def connected(
    url: str, address: str = "127.0.0.1", room: int | None = None
) -> AsyncIterator[Connection]:
    """Connect from an address, with a reader buffer of a given size."""
    with socket.socket() as sock:
        if room is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        sock.bind((address, 0))
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", int(url.rpartition(":")[2])))
        limit = 64 * 1024 if room is None else room
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
        try:
            yield Connection(reader, writer)
        finally:
            writer.transport.abort()


async def saying(request: Any, context: Any) -> Message:
    """Respond with the number of the message, and a requested number of characters."""
    text = request.message.parts[0].text.split()
    filled = text[0] + " " + "x" * (int(text[1]) if len(text) > 1 else 0)
    return Message(message_id="r", role=Role.AGENT, parts=(Part(text=filled),))


def asking(words: str, padding: int = 0) -> bytes:
    part = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": words}]}
    return call("SendMessage", {"message": part}) + b" " * padding


def said(body: bytes) -> str:
    text: str = json.loads(body)["result"]["message"]["parts"][0]["text"]
    return text


async def all_of(http: Connection) -> bytes:
    """Return the rest of a connection's data until the server closes it, with unread input."""
    received = b""
    async with asyncio.timeout(LONG):
        with contextlib.suppress(ConnectionError):
            while piece := await http.reader.read(65536):
                received += piece
    return received


def is_back_to_nothing(app: App) -> bool:
    return not (
        app.request_bytes.total
        or app.request_bytes.by_address._held
        or app.unsent_bytes.total
        or app.unsent_bytes.by_address._held
    )


@pytest.mark.parametrize("size", [1, 100, 4096, 70_000, 10**9])
async def test_requests_that_come_at_once_are_answered_in_their_order(size: int) -> None:
    """Short and long requests, in pieces of any size, with responses that are read late."""
    app = app_of(Scripted(send_message=saying))
    paddings = [0, 10, 5000, 0, 200_000, 0, 0, 70_000, 1] * 3
    if size == 1:
        paddings = [0, 10, 300, 0]
    sent = b"".join(
        (chunked if n % 3 == 1 else posted)(asking(f"{n} {padding}", padding))
        for n, padding in enumerate(paddings)
    )
    async with serving(app) as url, connected(url) as http, asyncio.timeout(LONG):

        async def send() -> None:
            for n in range(0, len(sent), size):
                http.writer.write(sent[n : n + size])
                await http.writer.drain()

        sending = asyncio.create_task(send())
        for n, padding in enumerate(paddings):
            assert said((await http.response()).body) == f"{n} " + "x" * padding
        await sending
        assert (await http.ask("POST", "/", asking("more"), JSON)).status == 200
        await until(lambda: is_back_to_nothing(app))


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
async def test_who_sends_ahead_for_long_is_answered_as_long_as_that_goes_on() -> None:
    async def takes_time(request: Any, context: Any) -> Message:
        await let_time_pass(0.002)
        return await saying(request, context)

    app = app_of(Scripted(send_message=takes_time))
    async with serving(app) as url, connected(url) as http, asyncio.timeout(LONG):
        for n in range(1000):  # all of 400 KB, which takes longer than the idle timeout
            http.writer.write(posted(asking(str(n), 200)))
        for n in range(1000):
            assert said((await http.response()).body) == f"{n} "


async def test_one_address_holds_only_its_share_of_unfinished_bodies() -> None:
    app = app_of(settings=SMALL)
    whole = posted(call() + b" " * 900_000)
    half = whole[:-1]
    async with serving(app) as url, connected(url) as one, connected(url) as two:
        one.writer.write(half)
        await until(lambda: app.request_bytes.total > 600_000)
        two.writer.write(half)
        refused = await two.response()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.error["code"] == -32012
        assert "for your address" in refused.error["message"]
        assert app.request_bytes.total <= MIB
        # Smaller requests succeed, and the first one too.
        assert "result" in (await post(url, call())).json
        one.writer.write(whole[-1:])
        assert "result" in (await one.response()).json
        await until(lambda: is_back_to_nothing(app))
        assert "result" in (await post(url, call() + b" " * 900_000)).json


@several_addresses
async def test_all_addresses_together_hold_only_so_much_of_unfinished_bodies() -> None:
    app = app_of(settings=SMALL)
    whole = posted(call() + b" " * 900_000)
    async with serving(app) as url, AsyncExitStack() as stack:
        answers = []
        for n in range(12):
            http = await stack.enter_async_context(connected(url, f"127.0.0.{n + 1}"))
            http.writer.write(whole[:-1])
            answers.append(asyncio.create_task(http.response()))
            if n < 4:
                await until(lambda n=n: app.request_bytes.total > 600_000 * (n + 1))
        refused = [await answer for answer in answers[4:]]
        assert {response.status for response in refused} == {503}
        assert all("this server holds" in response.error["message"] for response in refused)
        assert 2 * MIB < app.request_bytes.total <= 4 * MIB
        assert "result" in (await post(url, call())).json
        for answer in answers:
            answer.cancel()
        await stack.aclose()
        await until(lambda: is_back_to_nothing(app))


@pytest.mark.slow
async def test_answers_that_nobody_reads_make_room_for_those_that_are_read() -> None:
    app = app_of(Scripted(send_message=saying), settings=Settings(max_unsent_bytes=16 * MIB))
    much = posted(asking(f"1 {10 * MIB}"))
    async with serving(app, grace=0) as url, AsyncExitStack() as stack:
        deaf = [await stack.enter_async_context(connected(url, room=4096)) for _ in range(10)]
        for http in deaf:
            http.writer.write(much)
            assert (await http.head())[0] == 200
            assert app.unsent_bytes.total <= 16 * MIB
        async with asyncio.timeout(LONG):
            answer = await post(url, asking(f"2 {10 * MIB}"))
            assert len(said(answer.body)) == 10 * MIB + 2
            whole = 0
            for http in deaf:
                with contextlib.suppress(ConnectionError):
                    rest = await http.reader.read(-1) if http is deaf[0] else b""
                    whole += len(rest) > 10 * MIB
        assert whole == 0
        await stack.aclose()
        await until(lambda: is_back_to_nothing(app))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_IDLE_CONNECTION", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
async def test_a_response_under_way_that_nobody_reads_is_ended() -> None:
    async def endless(request: Any, context: Any) -> AsyncIterator[StreamItem]:
        yield StreamItem(task(), 1)
        for n in itertools.count(2):
            yield StreamItem(chunk("x" * 10_000), n)

    app = app_of(Scripted(subscribe_to_task=endless))
    async with serving(app, grace=0) as url, connected(url, room=4096) as deaf:
        deaf.writer.write(posted(call("SubscribeToTask")))
        await until(lambda: app.unsent_bytes.total)
        await until(lambda: is_back_to_nothing(app))
        assert "result" in (await post(url, call())).json


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
async def test_a_slow_reader_gets_everything() -> None:
    """This takes longer than the timeout for clients that do not read."""
    app = app_of(Scripted(send_message=saying))
    async with serving(app, grace=0) as url, connected(url, room=65536) as slow:
        size = 20 * MIB
        for n in range(2):
            slow.writer.write(posted(asking(f"{n} {size}")))
        async with asyncio.timeout(LONG):
            for _ in range(2):
                _, headers = await slow.head()
                body = b""
                while len(body) < int(headers["content-length"]):
                    rest = int(headers["content-length"]) - len(body)
                    body += await slow.reader.readexactly(min(MIB // 2, rest))
                    await let_time_pass(0.05)
                assert len(said(body)) == size + 2
        await until(lambda: is_back_to_nothing(app))


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
async def test_much_that_waits_behind_a_long_request_is_not_kept_for_ever() -> None:
    gate = asyncio.Event()

    async def waits(request: Any, context: Any) -> Message:
        await gate.wait()
        return Message(message_id="r", role=Role.AGENT, parts=(Part(text="noon"),))

    app = app_of(Scripted(send_message=waits))
    async with serving(app) as url, connected(url) as gone, connected(url) as stays:
        for http in (gone, stays):
            http.writer.write(posted(call()) * 2000)
        await until(lambda: app.request_bytes.total > 200_000)
        gone.writer.transport.abort()
        await until(lambda: is_back_to_nothing(app))
        gate.set()
        assert (await all_of(stays)).count(b"HTTP/1.1 200") <= 1


async def test_connections_that_send_much_before_their_answer_are_closed() -> None:
    """Pipelined bytes count towards the memory limit."""
    gate = asyncio.Event()

    async def waits(request: Any, context: Any) -> Message:
        await gate.wait()
        return Message(message_id="r", role=Role.AGENT, parts=(Part(text="noon"),))

    settings = Settings(max_body_bytes=1024, max_body_bytes_held=300_000)
    app = app_of(Scripted(send_message=waits), settings=settings)
    async with serving(app) as url, AsyncExitStack() as stack:
        many = [await stack.enter_async_context(connection(url)) for _ in range(20)]
        for http in many:
            http.writer.write(posted(call()))
            http.writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10_000)
        for _ in range(20):
            assert (await post(url, call("GetTask"))).status == 200
        assert app.request_bytes.total <= 300_000
        gate.set()
        await stack.aclose()
        await until(lambda: is_back_to_nothing(app))


async def test_many_small_requests_at_once_are_all_answered() -> None:
    app = app_of()
    async with serving(app) as url, connected(url) as http, asyncio.timeout(LONG):
        http.writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000)
        for _ in range(20_000):
            assert (await http.response()).status == 200
        await until(lambda: is_back_to_nothing(app))
