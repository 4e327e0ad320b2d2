"""Frames and messages: valid ones, protocol errors, and memory limits."""

from __future__ import annotations

import socket as sockets
import struct
from collections.abc import AsyncIterator

import pytest

from parley.server.app import Settings
from parley.server.run import serving
from tests.kit.waiting import let_time_pass, until
from tests.kit.websocket import (
    BINARY,
    CLOSE,
    CONT,
    PING,
    PONG,
    TEXT,
    Held,
    closing,
    frame,
    raw_socket,
    refused,
    socket_app,
)

pytestmark = pytest.mark.anyio


SMALL = Settings(max_socket_message_bytes=1000)


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with serving(socket_app(settings=SMALL)) as url:
        yield url


WRONG = {
    "not masked": (frame(TEXT, b"x", mask=False), 1002),
    "a reserved bit": (frame(TEXT, b"x", rsv=0x40), 1002),
    "an unknown kind": (frame(3, b"x"), 1002),
    "an unknown control frame": (frame(11), 1002),
    "a large ping": (frame(PING, b"x" * 126), 1002),
    "a fragmented ping": (frame(PING, b"x", fin=False), 1002),
    "a continuation of nothing": (frame(CONT, b"x"), 1002),
    "a message within another": (frame(TEXT, b"x", fin=False) + frame(TEXT, b"y"), 1002),
    "a close with one byte": (frame(CLOSE, b"x"), 1002),
    "a code that is not for the wire": (closing(1006), 1002),
    "a reason that is no UTF-8": (closing(1000, b"\xff"), 1007),
    "no UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "no UTF-8, in fragments": (frame(TEXT, b"\xe2", fin=False) + frame(CONT, b"x"), 1007),
    "half a surrogate pair": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "too large": (frame(TEXT, b"x" * 1001), 1009),
    "too large, announced": (frame(TEXT, b"x" * 70_000)[:10], 1009),
    "too large together": (frame(TEXT, b"x" * 600, fin=False) + frame(CONT, b"x" * 401), 1009),
    "bytes": (frame(BINARY, b"x"), 1003),
}


@pytest.mark.parametrize(("data", "code"), WRONG.values(), ids=WRONG)
async def test_a_wrong_frame_fails_the_socket_with_its_code(url, data, code):
    async with raw_socket(url) as socket:
        await socket.write(data)
        end = await socket.read()
        assert (end.kind, end.code) == (CLOSE, code)
        await socket.write(closing(code))
        await socket.at_end()


@pytest.mark.parametrize("reset", [True, False])
async def test_a_connection_that_breaks_ends_the_socket(reset):
    held = Held()
    async with serving(socket_app(held)) as url, raw_socket(url) as socket:
        await socket.write(frame(TEXT, b"half", fin=False))
        writer = socket.http.writer
        if reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(
                sockets.SOL_SOCKET, sockets.SO_LINGER, linger
            )
        writer.close()
        await held.ended.wait()
        assert held.sockets[0].close_code == 1006
        with pytest.raises(ConnectionError):
            await held.sockets[0].send("to nobody")


async def test_an_app_that_returns_closes_the_socket():
    async def brief(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})

    async with serving(socket_app(brief)) as url, raw_socket(url) as socket:
        assert (await socket.read()).code == 1000


async def test_a_silent_handler_keeps_nothing_of_a_socket_that_ended():
    held = Held()
    held.reads.clear()
    app = socket_app(held)
    async with serving(app) as url:
        async with raw_socket(url) as socket:
            await socket.write(frame(TEXT, b"x" * 100_000))
            await until(lambda: app.request_bytes.total >= 100_000, 5)
        held.reads.set()
        await held.ended.wait()
        await until(lambda: app.request_bytes.total == 0 and app.sockets.open == 0, 5)


# -- memory, time and sockets that a client can make the server use over a WebSocket ---------------


KIB, MIB = 1024, 1024 * 1024


async def test_messages_that_are_unfinished_share_the_budget_of_requests():
    """The socket that asks for more than the rest of the budget is closed; the others continue."""
    settings = Settings(max_body_bytes_held=200_000, max_body_bytes=150_000, address_share=1)
    app = socket_app(settings=settings)
    async with (
        serving(app) as url,
        raw_socket(url) as first,
        raw_socket(url) as second,
        raw_socket(url) as third,
    ):
        await first.write(frame(TEXT, b"x" * 140_000)[:130_000])
        await until(lambda: app.request_bytes.total > 100_000, 5)
        await second.write(frame(TEXT, b"x" * 140_000)[:130_000])
        end = await second.read()
        assert (end.kind, end.code) == (CLOSE, 1013)
        await third.echoed("small ones pass")
        assert app.request_bytes.total < 140_000


async def test_a_client_that_does_not_read_makes_the_app_wait_and_is_cut_off():
    held = Held()
    sent = 0

    async def pour(socket, text):
        nonlocal sent
        while True:
            await socket.send("x" * 100_000)
            sent += 100_000

    held.answer = pour
    app = socket_app(held, settings=Settings(max_unsent_bytes=50_000))
    async with serving(app) as url, raw_socket(url) as slow, raw_socket(url) as other:
        await slow.write(frame(TEXT, b"go"))
        await until(lambda: app.unsent_bytes.total > 0, 5)
        before = sent
        await let_time_pass(0.05)
        assert sent == before
        for each in (slow, other):
            each.http.writer.transport.pause_reading()
        await other.write(frame(TEXT, b"go"))
        await until(held.ended.is_set, 5)  # either of the two must close
        await until(lambda: app.sockets.open == 1, 5)


async def test_pings_of_a_client_that_does_not_read_are_not_all_answered():
    held = Held()
    app = socket_app(held)
    held.answer = lambda socket, text: socket.send("x" * 8 * MIB)
    async with serving(app) as url, raw_socket(url) as socket:
        await socket.write(frame(TEXT, b"go"))
        await until(lambda: app.unsent_bytes.total > 0, 5)
        before = app.unsent_bytes.total
        for n in range(200):
            await socket.write(b"".join(frame(PING, b"%d" % m) for m in range(n * 50, n * 50 + 50)))
        await let_time_pass(0.05)
        assert app.unsent_bytes.total <= before
        assert (await socket.read()).kind == TEXT
        pongs = [await socket.read()]
        while pongs[-1].data != b"9999":
            pongs.append(await socket.read())
        assert all(each.kind == PONG for each in pongs)
        assert len(pongs) < 5000


async def test_a_message_that_takes_too_long_fails_its_socket():
    app = socket_app(settings=Settings(body_timeout=0.2))
    async with serving(app) as url, raw_socket(url) as slow, raw_socket(url) as idle:
        await slow.write(frame(TEXT, b"never finished", fin=False))
        end = await slow.read()
        assert (end.code, "in time" in end.reason) == (1008, True)
        await idle.echoed("no message, no hurry")


PINGED = Settings(socket_ping_interval=0.1, socket_ping_timeout=0.1)


@pytest.mark.slow
async def test_a_client_that_answers_no_ping_is_cut_off_and_one_that_does_is_not():
    held = Held()
    async with (
        serving(socket_app(held, settings=PINGED)) as url,
        raw_socket(url) as silent,
        raw_socket(url) as lively,
    ):
        for _ in range(6):
            ping = await lively.read()
            assert ping == (PING, b"")
            await lively.write(frame(PONG, ping.data))
        assert held.ended.is_set()
        assert [socket.is_open for socket in held.sockets] == [False, True]
        assert held.sockets[0].close_code == 1006
        assert (await silent.read()).kind == PING


@pytest.mark.slow
async def test_a_client_whose_app_does_not_read_is_not_blamed_for_it():
    held = Held()
    held.reads.clear()
    async with serving(socket_app(held, settings=PINGED)) as url, raw_socket(url) as socket:
        await socket.write(frame(TEXT, b"x" * KIB) * 100)
        await let_time_pass(0.5)
        held.reads.set()
        await until(lambda: len(held.received) == 100, 5)


async def test_sockets_are_bounded_for_all_and_for_each_address():
    settings = Settings(max_sockets=2, max_sockets_per_address=2)
    app = socket_app(settings=settings)
    async with serving(app) as url, raw_socket(url):
        async with raw_socket(url) as socket:
            answer = await refused(url)
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            assert "2 sockets are open" in answer.json["error"]
            await socket.write(closing(1000))
            await socket.read()
        await until(lambda: app.sockets.open == 1, 5)
        async with raw_socket(url):
            pass


async def test_another_address_has_sockets_of_its_own():
    settings = Settings(max_sockets_per_address=1, trust_proxy=True)
    async with (
        serving(socket_app(settings=settings)) as url,
        raw_socket(url, X_Forwarded_For="2001:db8::1"),
    ):
        assert (await refused(url, X_Forwarded_For="2001:db8::2")).status == 429
        async with raw_socket(url, X_Forwarded_For="2001:db8:0:1::1"):
            pass
