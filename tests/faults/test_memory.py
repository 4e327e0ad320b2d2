"""Endless requests and unread responses: the server's memory stays small, and it serves others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import parley
from parley.client import RemoteAgent
from parley.model.operations import BY_NAME, SendMessageRequest
from parley.model.parts import Part, Role
from parley.wire import versions
from tests.faults.conftest import Served
from tests.kit.grpc import Http2, http2
from tests.kit.http import JSON, call
from tests.kit.waiting import until

SEND = "/lf.a2a.v1.A2AService/SendMessage"
VERSION = ("a2a-version", "1.0")

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform == "win32", reason="there the server cannot tell its memory"),
]

MIB = 2**20
LONG = 60.0
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEADERS = "".join(f"{name}: {value}\r\n" for name, value in JSON.items()).encode()


def asking(skill: str, text: str) -> bytes:
    """Return an HTTP request for a skill."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    body = call("SendMessage", {"message": {**message, "metadata": {"skill": skill}}})
    return (
        b"POST / HTTP/1.1\r\nHost: localhost\r\n"
        + HEADERS
        + b"Content-Length: %d\r\n\r\n" % len(body)
    ) + body


class Attack:
    """Connections that send as much as they can, again and again, and read nothing."""

    def __init__(self) -> None:
        self.sent = 0
        self.tasks: list[asyncio.Task[None]] = []

    async def _send(self, sock: socket.socket, data: bytes, times: int) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            for _ in range(times):
                rest = memoryview(data)
                while rest:
                    await loop.sock_sendall(sock, rest[: 64 * 1024])
                    self.sent += len(rest[: 64 * 1024])
                    rest = rest[64 * 1024 :]

    async def until_stuck(self, honest: Callable[[], Awaitable[object]]) -> None:
        """Wait until the server accepts no more bytes; it serves other callers meanwhile."""
        still = 0
        async with asyncio.timeout(LONG):
            while still < 30:
                before = self.sent
                await honest()
                still = still + 1 if self.sent == before else 0


@asynccontextmanager
async def attacking(
    served: Served, count: int, data: bytes, times: int = 1, addresses: int = 1
) -> AsyncIterator[Attack]:
    """Open ``count`` connections that each send the same data ``times`` times."""
    attack = Attack()
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        try:
            for n in range(count):
                sock = stack.enter_context(socket.socket())
                sock.bind((f"127.0.0.{n % addresses + 1}", 0))
                sock.setblocking(False)
                await loop.sock_connect(sock, ("127.0.0.1", served.port))
                attack.tasks.append(asyncio.create_task(attack._send(sock, data, times)))
            yield attack
        finally:
            for task in attack.tasks:
                task.cancel()
            await asyncio.wait(attack.tasks)


async def memory_of(agent: RemoteAgent) -> int:
    """Return the peak memory of the server."""
    reply = await agent.send("how much?", metadata={"skill": "memory"})
    assert reply.task is None
    return int(reply.text)


async def growth(served: Served, **attack: object) -> int:
    """Return the server's memory growth by an attack, while it also serves other callers."""
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(parley.connect(served.url))
        before = await memory_of(agent)
        async with attacking(served, **attack) as attackers:  # type: ignore[arg-type]
            await attackers.until_stuck(lambda: memory_of(agent))
            during = await memory_of(agent)
        return during - before


@pytest.mark.parametrize(("connections", "times"), [(1, 300), (100, 3)])
async def test_small_requests_at_once_whose_answers_nobody_reads(
    served: Served, connections: int, times: int
) -> None:
    """11 MiB of these requests once needed 400 MiB."""
    grown = await growth(served, count=connections, data=GET * 1000, times=times)
    assert grown < 64 * MIB


async def test_large_answers_that_nobody_reads(served: Served) -> None:
    """A connection gets one answer of 2 MiB at a time, so the server does not begin 400 answers."""
    data = asking("much", str(2 * MIB)) * 400
    grown = await growth(served, count=20, data=data)
    assert grown < 128 * MIB


async def test_all_large_answers_together(served: Served) -> None:
    """The answers have 1.2 GiB, and 256 MiB may wait."""
    data = asking("much", str(20 * MIB))
    grown = await growth(served, count=60, data=data)
    assert grown < 512 * MIB


HALF = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\n" + HEADERS + b"Content-Length: %d\r\n\r\n" % (10 * MIB)
) + b" " * (10 * MIB - 1)


async def test_bodies_that_never_end_from_one_address(served: Served) -> None:
    """The bodies have 1 GiB, and 64 MiB may wait."""
    assert await growth(served, count=100, data=HALF) < 200 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of Linux")
async def test_bodies_that_never_end_from_many_addresses(served: Served) -> None:
    """The bodies have 1 GiB, and 256 MiB may wait."""
    assert await growth(served, count=100, data=HALF, addresses=20) < 512 * MIB


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[Served]:
    """A server that also speaks gRPC."""
    server = Served(tmp_path / "tasks.db", grpc=True)
    await server.start()
    try:
        yield server
    finally:
        await server.end()


async def growth_over_grpc(
    served: Served, attack: Callable[[Http2], Awaitable[object]], window: int = 65535
) -> int:
    """Return the server's memory growth by ten connections, while it also serves other callers."""
    assert served.grpc_port is not None
    async with AsyncExitStack() as stack, asyncio.timeout(LONG):
        connect = parley.connect(served.url, binding="GRPC")
        agent = await stack.enter_async_context(connect)
        before = await memory_of(agent)
        tasks = []
        for _ in range(10):
            http = await stack.enter_async_context(http2(served.grpc_port, window=window))
            tasks.append(asyncio.create_task(attack(http)))
        while not all(task.done() for task in tasks):
            await memory_of(agent)
        for task in tasks:
            await task
        return await memory_of(agent) - before


async def test_messages_that_never_end_over_grpc(both: Served) -> None:
    """The messages have 1 GiB; 60 MiB may wait, and the data of half a second may be added."""

    async def attack(http: Http2) -> None:
        message = b"\0" + (10 * MIB).to_bytes(4, "big") + b"\0" * (10 * MIB - 10)
        streams = [await http.call(SEND, VERSION) for _ in range(10)]
        await asyncio.gather(*(http.data(stream, message) for stream in streams))

    assert await growth_over_grpc(both, attack) < 600 * MIB


async def test_answers_that_nobody_reads_over_grpc(both: Served) -> None:
    """The answers have 1 GiB, and 64 MiB may wait."""
    codec = versions.dialect("1.0").grpc()
    part = Part(text=str(5 * MIB))
    metadata = {"skill": "much"}
    message = parley.Message(message_id="m", role=Role.USER, parts=(part,), metadata=metadata)
    data = codec.write_request(BY_NAME["SendMessage"], SendMessageRequest(message=message))

    async def attack(http: Http2) -> None:
        streams = []
        for _ in range(20):
            streams.append(await http.call(SEND, VERSION))
            framed = b"\0" + len(data).to_bytes(4, "big") + data
            await http.data(streams[-1], framed, ends=True)
        # The server rejects all calls, except the few calls whose answers wait for this client.
        async with asyncio.timeout(20):
            await until(lambda: sum(map(http.gone, streams)) >= 20 - 13)

    assert await growth_over_grpc(both, attack, window=0) < 400 * MIB


async def test_calls_without_a_message_over_grpc(both: Served) -> None:
    """The attack makes 10,000 calls."""

    async def attack(http: Http2) -> None:
        streams = [await http.call(SEND, VERSION) for _ in range(1000)]
        await until(lambda: sum(map(http.gone, streams)) >= 1000 - 6)

    assert await growth_over_grpc(both, attack) < 400 * MIB
