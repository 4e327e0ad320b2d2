"""Files and failures: a killed server, a full disk, and files of any size."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

import parley
from parley import RemoteAgent
from tests.faults.conftest import Served
from tests.kit.http import connection
from tests.kit.waiting import let_time_pass, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MIB = 1024 * 1024
BLOCK = os.urandom(MIB)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=180)
    async with aiohttp.ClientSession(timeout=timeout, read_bufsize=64 * 1024) as http:
        yield http


def block(n: int) -> bytes:
    """Return the ``n``-th megabyte of a large file."""
    return n.to_bytes(8, "big") + BLOCK[8:]


async def blocks(start: int, end: int) -> AsyncIterator[bytes]:
    """Yield the bytes of a large file from ``start`` up to ``end``."""
    while start < end:
        n, at = divmod(start, MIB)
        data = block(n)[at : at + end - start]
        for piece in range(0, len(data), 64 * 1024):
            yield data[piece : piece + 64 * 1024]
        start += len(data)


async def begin(http: aiohttp.ClientSession, url: str, size: int) -> dict[str, str]:
    async with http.post(f"{url}/files", json={"size": size}) as answer:
        assert answer.status == 201
        begun: dict[str, str] = await answer.json()
        return begun


async def offset(http: aiohttp.ClientSession, begun: dict[str, str]) -> int:
    async with http.head(begun["uploadUrl"]) as answer:
        assert answer.status == 200
        return int(answer.headers["Upload-Offset"])


async def send(http: aiohttp.ClientSession, begun: dict[str, str], start: int, end: int) -> int:
    headers = {"Upload-Offset": str(start), "Content-Length": str(end - start)}
    async with http.patch(begun["uploadUrl"], data=blocks(start, end), headers=headers) as answer:
        return answer.status


async def digest_of(http: aiohttp.ClientSession, url: str) -> str:
    digest = hashlib.sha256()
    async with http.get(url) as answer:
        assert answer.status == 200
        async for piece in answer.content.iter_any():
            digest.update(piece)
    return digest.hexdigest()


async def expected(size: int) -> str:
    digest = hashlib.sha256()
    async for piece in blocks(0, size):
        digest.update(piece)
    return digest.hexdigest()


def resident(served: Served, field: str = "VmRSS") -> int:
    """Return the memory of the server's process, now or at most (``VmHWM``), in bytes."""
    assert served.process is not None
    status = Path(f"/proc/{served.process.pid}/status")
    if not status.exists():
        pytest.skip("the memory of a process is not told here")
    line = next(each for each in status.read_text().splitlines() if each.startswith(field))
    return int(line.split()[1]) * 1024


async def test_an_upload_survives_the_death_of_its_server(
    served: Served, http: aiohttp.ClientSession
) -> None:
    size = 40 * MIB
    begun = await begin(http, served.url, size)
    chance = random.Random()
    at, deaths = 0, 0
    while at < size:
        sending = asyncio.create_task(send(http, begun, at, size))
        if deaths < 4:
            await let_time_pass(chance.uniform(0.0, 0.1))
            await served.end(signal.SIGKILL)
            deaths += 1
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await sending
            await served.start()
        else:
            assert await sending == 204
        now = await offset(http, begun)
        assert now >= at
        at = now
    assert deaths
    assert await digest_of(http, begun["url"]) == await expected(size)


async def test_half_a_gigabyte_goes_in_and_out_in_constant_memory(
    served: Served, http: aiohttp.ClientSession
) -> None:
    warm = await begin(http, served.url, 20 * MIB)
    assert await send(http, warm, 0, 20 * MIB) == 204
    await digest_of(http, warm["url"])
    before = resident(served, "VmHWM")
    size = 500 * MIB
    begun = await begin(http, served.url, size)
    assert await send(http, begun, 0, size) == 204
    assert await digest_of(http, begun["url"]) == await expected(size)
    assert resident(served, "VmHWM") - before < 24 * MIB


async def test_readers_that_do_not_read_cost_little(
    served: Served, http: aiohttp.ClientSession
) -> None:
    begun = await begin(http, served.url, 16 * MIB)
    assert await send(http, begun, 0, 16 * MIB) == 204
    path = begun["url"].removeprefix(served.url)
    before = resident(served)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(60):
            raw = await stack.enter_async_context(connection(served.url))
            await raw.request("GET", path)
            await raw.head()
        await let_time_pass(0.5)
        # Each connection holds one piece from the file and one piece to send.
        assert resident(served) - before < 60 * MIB
        assert await offset(http, begun) == 16 * MIB  # other requests are still served


async def test_a_full_disk_refuses_an_upload_which_goes_on_later(
    served: Served, http: aiohttp.ClientSession
) -> None:
    pytest.importorskip("resource", reason="here no process can be kept from writing")
    size = 10 * MIB
    async with parley.connect(served.url, retries=0) as agent:
        begun = await begin(http, served.url, size)
        assert await send(http, begun, 0, 3 * MIB) == 204
        await limit_files(agent, 2 * MIB)
        async with http.patch(
            begun["uploadUrl"], data=blocks(3 * MIB, size), headers={"Upload-Offset": str(3 * MIB)}
        ) as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"]
            assert "cannot be kept" in (await answer.json())["error"]
        assert await offset(http, begun) == 3 * MIB
        await limit_files(agent, -1)
        assert await send(http, begun, 3 * MIB, size) == 204
        assert await digest_of(http, begun["url"]) == await expected(size)


async def limit_files(agent: RemoteAgent, size: int) -> None:
    await agent.send(str(size), metadata={"skill": "disk"})


async def test_a_download_goes_on_after_the_death_of_its_server(
    served: Served, http: aiohttp.ClientSession
) -> None:
    size = 16 * MIB
    begun = await begin(http, served.url, size)
    assert await send(http, begun, 0, size) == 204
    got = bytearray()
    async with http.get(begun["url"]) as answer:
        etag = answer.headers["ETag"]
        got += await answer.content.readexactly(5 * MIB)
        await served.end(signal.SIGKILL)
    await served.start()
    headers = {"Range": f"bytes={len(got)}-", "If-Range": etag}
    async with http.get(begun["url"], headers=headers) as answer:
        assert answer.status == 206
        got += await answer.read()
    assert hashlib.sha256(got).hexdigest() == await expected(size)


async def test_a_file_is_private_to_the_user_of_the_server(
    served: Served, http: aiohttp.ClientSession
) -> None:
    begun = await begin(http, served.url, 1000)
    assert await send(http, begun, 0, 1000) == 204
    root = served.store.with_name("tasks.db.files")
    assert root.is_dir()
    await until(lambda: any(root.rglob("complete")))
    for path in root.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
