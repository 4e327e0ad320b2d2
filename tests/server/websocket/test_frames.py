"""Frames and messages: what is taken, what fails a socket, and how sockets end."""

from __future__ import annotations

import asyncio
import socket as sockets
import struct
from collections.abc import AsyncIterator

import pytest

from parley.server.app import Settings
from parley.server.run import serving
from parley.server.websocket import serving as shared
from tests.kit.waiting import until
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
    socket_app,
)

pytestmark = pytest.mark.anyio

SMALL = Settings(max_socket_message_bytes=1000)


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with serving(socket_app(settings=SMALL)) as url:
        yield url


async def test_a_message_in_fragments_is_one_and_control_frames_come_between(url):
    async with raw_socket(url) as socket:
        snowman = "☃".encode()
        await socket.write(
            frame(TEXT, b"one " + snowman[:1], fin=False),
            frame(PING, b"there?"),
            frame(CONT, snowman[1:], fin=False),
            frame(PONG, b"nobody asked"),
            frame(CONT, b"", fin=False),
            frame(CONT, b" three"),
        )
        assert await socket.read() == (PONG, b"there?")
        assert await socket.read() == (TEXT, "one ☃ three".encode())


async def test_a_message_may_have_as_many_bytes_as_the_limit(url):
    async with raw_socket(url) as socket:
        await socket.echoed("x" * 1000)


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


async def test_who_goes_on_sending_still_reads_why_it_failed(url):
    async with raw_socket(url) as socket:
        for _ in range(20):
            await socket.write(frame(TEXT, b"x" * 50_000))
        assert (await socket.read()).code == 1009


async def test_the_client_closes(url):
    for data, echoed in ((closing(4321, b"done"), b"\x10\xe1done"), (frame(CLOSE), b"")):
        async with raw_socket(url) as socket:
            await socket.echoed("last")
            await socket.write(data, frame(TEXT, b"too late"))
            assert await socket.read() == (CLOSE, echoed)
            await socket.at_end()


async def test_messages_before_a_close_reach_the_app_and_the_code_does():
    held = Held()
    held.reads.clear()
    async with serving(socket_app(held)) as url, raw_socket(url) as socket:
        await socket.write(frame(TEXT, b"a"), frame(TEXT, b"b"), closing(4000))
        assert (await socket.read()).code == 4000
        held.reads.set()
        await held.ended.wait()
    assert held.received == ["a", "b"]
    assert held.sockets[0].close_code == 4000


async def test_the_app_closes_and_waits_for_the_client():
    held = Held()

    async def close(socket, text):
        await socket.close(4001, "r" * 200)
        await socket.close(4002)

    held.answer = close
    async with serving(socket_app(held)) as url, raw_socket(url) as socket:
        await socket.write(frame(TEXT, b"bye"), frame(TEXT, b"not read any more"))
        end = await socket.read()
        assert (end.code, end.reason) == (4001, "r" * 123)
        assert not held.ended.is_set()
        await socket.write(closing(4001))
        await socket.at_end()
        await held.ended.wait()
    assert (held.received, held.sockets[0].close_code) == (["bye"], 4001)


async def test_a_client_that_does_not_confirm_the_end_is_cut_off(monkeypatch):
    monkeypatch.setattr(shared, "CLOSE_TIMEOUT", 0.1)
    held = Held()
    held.answer = lambda socket, text: socket.close(4001)
    async with serving(socket_app(held)) as url, raw_socket(url) as socket:
        await socket.write(frame(TEXT, b"bye"))
        assert (await socket.read()).code == 4001
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await socket.read()
        await held.ended.wait()
    assert held.sockets[0].close_code == 1006


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


async def test_an_app_that_fails_closes_the_socket(caplog):
    held = Held()

    async def fail(socket, text):
        raise ValueError("broken")

    held.answer = fail
    async with serving(socket_app(held)) as url, raw_socket(url) as socket:
        await socket.write(frame(TEXT, b"x"))
        end = await socket.read()
        assert (end.code, "broken" in end.reason) == (1011, False)
        assert "broken" in caplog.text


async def test_an_app_that_returns_closes_the_socket():
    async def brief(scope, receive, send):
        await receive()
        await send({"type": "websocket.accept"})

    async with serving(socket_app(brief)) as url, raw_socket(url) as socket:
        assert (await socket.read()).code == 1000


async def test_many_tasks_send_whole_messages():
    held = Held()

    async def answer(socket, text):
        async with asyncio.TaskGroup() as tasks:
            for n in range(20):
                tasks.create_task(socket.send(str(n) * 20_000))

    held.answer = answer
    async with serving(socket_app(held)) as url, raw_socket(url) as socket:
        await socket.write(frame(TEXT, b"go"))
        got = sorted([(await socket.read()).data.decode() for _ in range(20)])
        assert got == sorted(str(n) * 20_000 for n in range(20))


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
