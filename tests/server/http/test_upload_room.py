"""The memory budget of uploads, and the saved part of an upload beyond it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import parley
from parley import Settings
from parley.files.file_store import UploadWriter
from parley.server.http1.asgi import AsgiExchange
from parley.server.run import serving
from tests.kit.http import connection
from tests.kit.waiting import until
from tests.server.http.test_files import MIB, agent_of, begin, path_of, session
from tests.server.http.test_files import _offset as offset_of

pytestmark = pytest.mark.anyio


@pytest.mark.slow
async def test_uploads_share_the_room_that_a_server_has_for_requests(tmp_path: Path) -> None:
    """Without room for whole chunks, a server writes the received part of an upload early."""
    settings = Settings(max_body_bytes=64 * 1024, max_body_bytes_held=2 * MIB, address_share=1.0)
    app = parley.asgi(agent_of(), files=tmp_path, settings=settings)
    peak = 0
    reserve = app.request_bytes.reserve

    def measured(address: str, size: int) -> None:
        nonlocal peak
        reserve(address, size)
        peak = max(peak, app.request_bytes.total)

    app.request_bytes.reserve = measured  # type: ignore[method-assign]
    async with serving(app) as url, session() as http:
        data = [os.urandom(3 * MIB) for _ in range(4)]
        addresses = await asyncio.gather(*(_insist(http, url, each) for each in data))
        for address, each in zip(addresses, data, strict=True):
            async with http.get(address) as answer:
                assert await answer.read() == each
    assert peak <= 2 * MIB
    assert app.request_bytes.total == 0


async def _insist(http: aiohttp.ClientSession, url: str, data: bytes) -> str:
    """Upload a file; retry while the server has no room."""
    begun = await begin(http, url, size=len(data))
    while (at := await offset_of(http, begun)) < len(data):
        with contextlib.suppress(aiohttp.ClientError):
            headers = {"Upload-Offset": str(at)}
            async with http.patch(
                begun["uploadUrl"], data=io.BytesIO(data[at:]), headers=headers
            ) as answer:
                assert answer.status in (204, 503)
    return begun["url"]


async def test_what_is_kept_of_an_upload_is_kept_before_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its client could query the offset, and resume from there too early."""
    gate, is_refused = asyncio.Event(), asyncio.Event()
    flush, leave = UploadWriter.flush, AsgiExchange.leave

    async def slow(self: UploadWriter) -> None:
        await gate.wait()
        await flush(self)

    def leaves(self: AsgiExchange, then: Any) -> bool:
        is_refused.set()
        return leave(self, then)

    monkeypatch.setattr(UploadWriter, "flush", slow)
    monkeypatch.setattr(AsgiExchange, "leave", leaves)
    settings = Settings(max_body_bytes=64 * 1024, max_body_bytes_held=2 * MIB, address_share=1.0)
    app = parley.asgi(agent_of(), files=tmp_path, settings=settings)
    half = MIB // 2
    async with asyncio.timeout(30), serving(app) as url, connection(url) as raw, session() as http:
        begun = await begin(http, url, size=4 * MIB)
        app.request_bytes.reserve("192.0.2.1", MIB)
        headers = {"Upload-Offset": "0"}
        path = path_of(begun["uploadUrl"])
        await raw.request("PATCH", path, bytes(half), headers, length=4 * MIB)
        await until(lambda: app.request_bytes.total == MIB + half)
        app.request_bytes.reserve("192.0.2.1", half)
        await raw.write(bytes(half))
        await is_refused.wait()
        answering = asyncio.create_task(raw.response())
        assert await offset_of(http, begun) == 0
        assert not answering.done()
        gate.set()
        assert (await answering).status == 503
        assert await offset_of(http, begun) >= half
        app.request_bytes.release("192.0.2.1", MIB + half)
