"""Tests of the faulty proxy's faults, on which other tests rely."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from tests.kit.services.front_door import front_door
from tests.kit.services.proxy import FaultyProxy, line

pytestmark = pytest.mark.anyio


@pytest.fixture
async def echo() -> AsyncIterator[FaultyProxy]:
    """Open a line to a server that echoes its input, and at the end the number of bytes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        total = 0
        try:
            while data := await reader.read(65536):
                total += len(data)
                writer.write(data)
                await writer.drain()
            writer.write(b"=%d" % total)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with line(server.sockets[0].getsockname()[1]) as made, asyncio.timeout(20):
        yield made
    server.close()


async def open_(made: FaultyProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", made.port)


async def say(
    made: FaultyProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send data and read its echo."""
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"


async def test_a_line_passes_both_ways_and_the_end_too(echo: FaultyProxy) -> None:
    reader, writer = await open_(echo)
    await say(echo, reader, writer)
    writer.write_eof()
    assert await reader.read() == b"=5"
    writer.close()


async def test_a_cut_breaks_what_there_is_and_nothing_else(echo: FaultyProxy) -> None:
    reader, writer = await open_(echo)
    await say(echo, reader, writer)
    echo.cut()
    with pytest.raises(ConnectionResetError):
        await reader.read()
    again = await open_(echo)
    await say(echo, *again)
    again[1].close()


async def test_who_is_refused_is_told_so_until_he_is_accepted_again(echo: FaultyProxy) -> None:
    kept = await open_(echo)
    await say(echo, *kept)
    echo.refuse()
    with pytest.raises(ConnectionRefusedError):
        await open_(echo)
    await say(echo, *kept)
    await echo.accept()
    again = await open_(echo)
    await say(echo, *again)
    for _, writer in (kept, again):
        writer.close()


async def test_a_frozen_line_holds_everything_and_loses_nothing(echo: FaultyProxy) -> None:
    reader, writer = await open_(echo)
    await say(echo, reader, writer)
    echo.freeze()
    writer.write(b"hello")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(1), 0.1)
    echo.thaw()
    assert await reader.readexactly(5) == b"hello"
    writer.close()


async def test_a_connection_is_dropped_after_so_many_bytes_of_the_answer(echo: FaultyProxy) -> None:
    echo.drop_after = 7
    reader, writer = await open_(echo)
    await say(echo, reader, writer)
    writer.write(b"hello")
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(5)


async def test_one_half_closes_and_the_other_still_speaks(echo: FaultyProxy) -> None:
    reader, writer = await open_(echo)
    await say(echo, reader, writer)
    echo.half_close()
    assert await reader.read() == b""
    assert echo.connections == 1
    writer.write(b"is anybody there?")
    await writer.drain()
    writer.close()


@pytest.mark.slow
async def test_a_slow_line_takes_its_time(echo: FaultyProxy) -> None:
    clock = asyncio.get_running_loop().time
    reader, writer = await open_(echo)
    echo.delay = 0.05
    began = clock()
    await say(echo, reader, writer)
    assert clock() - began >= 0.1
    echo.delay, echo.rate = 0.0, 100_000
    began = clock()
    writer.write(bytes(20_000))
    await reader.readexactly(20_000)
    assert clock() - began >= 0.2
    writer.close()


async def test_a_door_spreads_requests_and_passes_over_the_dead() -> None:
    runners = []
    urls = []
    for name in ("a", "b", "c"):

        async def answer(request: web.Request, name: str = name) -> web.Response:
            return web.Response(text=f"{name} {request.path_qs} {request.host}")

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        urls.append(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}")  # type: ignore[union-attr]
        runners.append(runner)
    async with front_door(urls, random.Random(1)) as door, aiohttp.ClientSession() as session:

        async def who() -> str:
            async with session.get(f"{door.url}/x?y=%20z") as answer:
                assert answer.status == 200
                name, path, host = (await answer.text()).split(" ")
                assert (path, f"http://{host}") == ("/x?y=%20z", door.url)
                return name

        assert {await who() for _ in range(60)} == {"a", "b", "c"}
        await runners[1].cleanup()
        assert {await who() for _ in range(60)} == {"a", "c"}
        assert sum(door.served.values()) == 120
        for runner in runners:
            await runner.cleanup()
        async with session.get(door.url) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
