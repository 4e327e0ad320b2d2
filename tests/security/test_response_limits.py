"""No server that this process calls can block its event loop with its responses."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from parley.client.bindings.http import HttpTransport, Reply
from parley.client.errors import ClientError, Disconnected, ResponseTooLarge, Timeout
from parley.model.operations import TaskPushNotificationConfig
from parley.push.http_sender import DeliveryFailure, HttpSender
from parley.security.egress import Egress
from parley.security.response_limits import (
    MAX_IDLE_BYTES,
    MAX_INTERIM,
    ResponseLimitExceeded,
    bounded_connector,
)
from parley.store.protocols.webhooks import PushRecord
from tests.kit.scripted_server import Exchange, scripted
from tests.kit.waiting import let_time_pass
from tests.security.flooding import KINDS

LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.SelectorEventLoop]
if sys.platform != "win32":
    import uvloop

    LOOPS.append(uvloop.new_event_loop)

LONGEST_TICK = 2.0
"""In seconds. Without bounds, a flood blocks the loop for its whole duration."""

MOST_BYTES = 64 << 20
"""Bytes that a server can send before the cut: the system's buffers hold many of them."""

after_head = {"body", "tiny-chunks", "chunk-extension", "trailers"}
answered = {kind for kind in KINDS if kind.endswith("-after") or kind == "answers"} | after_head


class Flood:
    """A flooding server: its address, and the number of bytes sent in each flood."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{self._line()}/"

    def _line(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    async def sent(self) -> int:
        """Return the number of bytes sent on the next connection, once it is closed."""
        return await asyncio.wait_for(asyncio.to_thread(self._line), 30)


@contextmanager
def flood(kind: str) -> Iterator[Flood]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.security.flooding", kind], stdout=subprocess.PIPE, text=True
    )
    try:
        yield Flood(process)
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """Record how long each iteration of the loop takes."""
    loop = asyncio.get_running_loop()
    gaps: list[float] = []

    async def tick() -> None:
        before = loop.time()
        while True:
            await let_time_pass(0.001)
            now = loop.time()
            gaps.append(now - before)
            before = now

    task = asyncio.create_task(tick())
    await let_time_pass(0.01)
    try:
        yield gaps
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def run(main: Callable[[], Awaitable[None]], make: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60):
            await main()

    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(whole())


@pytest.fixture(params=LOOPS, ids=lambda make: make.__module__.split(".")[0])
def loops(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    return lambda main: run(main, request.param)


Loops = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.mark.parametrize("kind", KINDS)
def test_a_webhook_cannot_take_the_loop(kind: str, loops: Loops) -> None:
    async def main() -> None:
        push = PushRecord(
            config=TaskPushNotificationConfig(url=hostile.url), version="1.0", revision="r"
        )
        poster = HttpSender(Egress.allowing(True), timeout=30)
        async with ticking() as gaps:
            answer = await poster.post(push, b"{}", "t/c/1")
            assert await hostile.sent() < MOST_BYTES
            assert max(gaps) < LONGEST_TICK
        await poster.close()
        if kind in ("noise-after", "trailers"):
            return  # the response or the protocol error may be read first
        if kind in answered:
            assert not isinstance(answer, DeliveryFailure)
        else:
            assert isinstance(answer, DeliveryFailure)
            assert "no answer in" not in answer.reason
            if kind in ("interim", "hints", "empty-lines"):
                assert answer.reason == "its answer exceeds the limits"

    with flood(kind) as hostile:
        loops(main)


@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_that_is_called_cannot_take_the_loop(kind: str, loops: Loops) -> None:
    async def main() -> None:
        expected: type[ClientError] | None = Disconnected
        if kind.endswith("-after") or kind == "answers":
            expected = None
        elif kind in ("body", "tiny-chunks"):
            expected = ResponseTooLarge
        async with HttpTransport(max_response=1 << 20) as http, ticking() as gaps:
            reply = http.send("POST", hostile.url, {}, b"{}", timeout=None)
            [result] = await asyncio.gather(reply, return_exceptions=True)
            if isinstance(result, Reply):
                assert expected is None
                assert result.status == 200
            else:
                assert type(result) is (Disconnected if kind == "noise-after" else expected)
            assert await hostile.sent() < MOST_BYTES
            assert max(gaps) < LONGEST_TICK

    with flood(kind) as hostile:
        loops(main)


@pytest.mark.anyio
async def test_an_upgrade_that_nobody_asked_for_is_cut() -> None:
    """Data after an unrequested upgrade is no response and stays unread: bounded, then cut."""
    sent = 0

    async def upgrade(exchange: Exchange) -> None:
        nonlocal sent
        head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
        await exchange.raw(head)
        while True:
            await exchange.raw(b"\x81" * 65536)
            sent += 65536

    async with scripted(upgrade) as server, HttpTransport() as http:
        with contextlib.suppress(ClientError):
            async with http.open("GET", server.url, {}, None, timeout=5) as answer:
                assert answer.status == 101
                await answer.read()
        await server.until_idle()
    assert sent < MOST_BYTES


@pytest.mark.anyio
async def test_a_connection_holds_its_limits_for_each_response() -> None:
    connector = bounded_connector()

    def reader(*pieces: bytes) -> Any:
        made: Any = connector._factory()
        for piece in pieces:
            if piece.startswith(b"HTTP/"):
                made.set_response_params(timer=None, read_until_eof=True)
            made.data_received(piece)
        return made

    empty = b"HTTP/1.1 204 No Content\r\n\r\n"
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"
    interim = b"HTTP/1.1 102 Processing\r\n\r\n" * (MAX_INTERIM + 1)
    assert reader(empty, empty).exception() is None
    assert isinstance(reader(empty, interim).exception(), ResponseLimitExceeded)
    assert reader(empty + empty)._is_aborted
    assert not reader(upgrade, b"x" * MAX_IDLE_BYTES)._is_aborted
    assert reader(upgrade, b"x" * MAX_IDLE_BYTES, b"x")._is_aborted
    await connector.close()


@pytest.mark.slow
@pytest.mark.anyio
async def test_what_trickles_is_ended_by_the_deadline() -> None:
    async def trickle(exchange: Exchange) -> None:
        with contextlib.suppress(ConnectionError):  # until the caller disconnects
            while True:
                await exchange.raw(b"HTTP/1.1 100 Continue\r\n\r\n")
                await let_time_pass(0.05)

    async with scripted(trickle) as server, HttpTransport() as http:
        with pytest.raises(Timeout):
            await http.send("POST", server.url, {}, b"{}", timeout=0.3)
