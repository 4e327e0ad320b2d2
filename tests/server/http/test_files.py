"""Files over HTTP: resumable uploads, downloads with ranges, and access."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import parley
from parley import Agent, Caller, Settings, Turn
from parley.model.errors import UnauthenticatedError
from parley.server.app import App
from parley.server.run import server_of, serving
from parley.server.sockets import listen
from tests.kit.http import connection
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
BOB, EVE = {"Authorization": "bob"}, {"Authorization": "eve"}


def agent_of(name: str = "Clerk") -> Agent:
    agent = Agent(name)

    @agent.skill
    async def echo(turn: Turn) -> str:
        """Echoes."""
        return turn.text

    return agent


def caller(scope: Mapping[str, Any]) -> Caller:
    name = dict(scope["headers"]).get(b"authorization", b"").decode()
    if not name:
        raise UnauthenticatedError("who are you?")
    return Caller(name, authenticated=True)


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        yield http


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with session() as http:
        yield http


@pytest.fixture(params=["parley", "h11", "httptools"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """A server with files, without authentication, over each HTTP parser."""
    app = parley.asgi(agent_of(), files=tmp_path / "files", drain=0.5)
    serve = (
        serving(app)
        if request.param == "parley"
        else under_uvicorn(app, http=request.param, lifespan="on")
    )
    async with serve as url:
        yield url


@pytest.fixture
async def private(tmp_path: Path) -> AsyncIterator[str]:
    """A server with authentication."""
    app = parley.asgi(agent_of(), files=tmp_path / "files", caller=caller, drain=0.5)
    async with serving(app) as url:
        yield url


async def begin(
    http: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None, **said: Any
) -> dict[str, str]:
    async with http.post(f"{url}/files", json=said, headers=headers) as answer:
        assert answer.status == 201, await answer.text()
        begun: dict[str, str] = await answer.json()
        assert answer.headers["Location"] == begun["uploadUrl"]
        return begun


async def upload(
    http: aiohttp.ClientSession,
    url: str,
    data: bytes,
    headers: Mapping[str, str] | None = None,
    **said: Any,
) -> str:
    """Upload a file; return its address."""
    begun = await begin(http, url, headers, size=len(data), **said)
    async with http.patch(
        begun["uploadUrl"], data=io.BytesIO(data), headers={"Upload-Offset": "0"}
    ) as answer:
        assert answer.status == 204, await answer.text()
        assert answer.headers["Upload-Complete"] == "?1"
    return begun["url"]


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


# -- upload and download ---------------------------------------------------------------------------


async def test_a_file_of_unknown_size_ends_when_its_sender_says_so(
    http: aiohttp.ClientSession, url: str
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for n in range(100):
            yield b"%03d" % n * 1000

    begun = await begin(http, url)
    headers = {"Upload-Offset": "0", "Upload-Complete": "?1"}
    async with http.patch(begun["uploadUrl"], data=pieces(), headers=headers) as answer:
        assert (answer.status, answer.headers["Upload-Offset"]) == (204, "300000")
    async with http.get(begun["url"]) as answer:
        assert await answer.read() == b"".join([b"%03d" % n * 1000 for n in range(100)])


async def test_a_broken_upload_goes_on_after_what_is_durable(
    http: aiohttp.ClientSession, url: str
) -> None:
    data = os.urandom(6 * MIB)
    begun = await begin(http, url, size=len(data))
    async with connection(url) as raw:
        headers = {"Upload-Offset": "0"}
        await raw.request(
            "PATCH", path_of(begun["uploadUrl"]), data[: 5 * MIB], headers, length=len(data)
        )
        await until(lambda: _offset(http, begun))
    # The connection is lost; the server keeps the received part of the current chunk.
    await until(lambda: _is_at_least(http, begun, 4 * MIB + 64 * 1024))
    at = await _offset(http, begun)
    headers = {"Upload-Offset": str(at)}
    async with http.patch(
        begun["uploadUrl"], data=io.BytesIO(data[at:]), headers=headers
    ) as answer:
        assert answer.headers["Upload-Complete"] == "?1"
    async with http.get(begun["url"]) as answer:
        assert await answer.read() == data


async def _offset(http: aiohttp.ClientSession, begun: Mapping[str, str]) -> int:
    async with http.head(begun["uploadUrl"]) as answer:
        return int(answer.headers["Upload-Offset"])


async def _is_at_least(http: aiohttp.ClientSession, begun: Mapping[str, str], size: int) -> bool:
    return await _offset(http, begun) >= size


@pytest.mark.parametrize("size", [5, None])
async def test_more_bytes_than_announced_or_allowed_are_refused(
    http: aiohttp.ClientSession, tmp_path: Path, size: int | None
) -> None:
    settings = Settings(max_file_bytes=5, max_upload_bytes=100)
    async with serving(parley.asgi(agent_of(), files=tmp_path, settings=settings)) as url:
        begun = await begin(http, url, **({} if size is None else {"size": size}))

        async def chunked() -> AsyncIterator[bytes]:
            yield b"123"
            yield b"456"

        for data in (b"123456", chunked()):
            headers = {"Upload-Offset": "0"}
            async with http.patch(begun["uploadUrl"], data=data, headers=headers) as answer:
                assert answer.status == 413
                assert "5 bytes" in (await answer.json())["error"]
        async with http.post(f"{url}/files", json={"size": 6}) as answer:
            assert answer.status == 413


async def test_an_announcement_says_that_it_is_json(
    http: aiohttp.ClientSession, private: str
) -> None:
    async with http.post(f"{private}/files", data=b"{}", headers=BOB) as answer:
        assert answer.status == 415


# -- ranges ----------------------------------------------------------------------------------------

DATA = bytes(range(256)) * 40


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=100-", 100, None),
        ("bytes=-5", -5, None),
        ("bytes=-999999", 0, None),
        ("bytes=5-999999", 5, None),
    ],
)
async def test_a_range_is_sent(
    http: aiohttp.ClientSession, url: str, asked: str, start: int, end: int | None
) -> None:
    address = await upload(http, url, DATA)
    async with http.get(address, headers={"Range": asked}) as answer:
        wanted = DATA[start:end]
        assert (answer.status, await answer.read()) == (206, wanted)
        first = start % len(DATA)
        named = f"bytes {first}-{first + len(wanted) - 1}/{len(DATA)}"
        assert answer.headers["Content-Range"] == named


@pytest.mark.parametrize(
    "asked",
    [
        "bytes=0-1,5-6",
        "bytes=",
        "bytes=-",
        "bytes=5-2",
        "items=0-1",
        "bytes=a-b",
        "0-1",
        "x" * 4000,
    ],
)
async def test_what_is_no_single_range_gets_the_whole(
    http: aiohttp.ClientSession, private: str, asked: str
) -> None:
    address = await upload(http, private, DATA, BOB)
    async with http.get(address, headers={"Range": asked}) as answer:
        assert (answer.status, await answer.read()) == (200, DATA)


@pytest.mark.parametrize("asked", ["bytes=10240-", "bytes=99999-999999", "bytes=-0"])
async def test_a_range_behind_the_end_is_refused(
    http: aiohttp.ClientSession, private: str, asked: str
) -> None:
    address = await upload(http, private, DATA, BOB)
    async with http.get(address, headers={"Range": asked}) as answer:
        assert answer.status == 416
        assert answer.headers["Content-Range"] == f"bytes */{len(DATA)}"


async def test_conditions_of_http_hold(http: aiohttp.ClientSession, private: str) -> None:
    address = await upload(http, private, DATA, BOB)
    etag = f'"{hashlib.sha256(DATA).hexdigest()}"'
    for headers, status, size in (
        ({"If-None-Match": etag}, 304, 0),
        ({"If-None-Match": f'"other", W/{etag}'}, 304, 0),
        ({"If-None-Match": "*"}, 304, 0),
        ({"If-None-Match": '"other"'}, 200, len(DATA)),
        ({"If-Match": '"other"'}, 412, None),
        ({"If-Match": etag}, 200, len(DATA)),
        ({"If-Range": etag, "Range": "bytes=0-9"}, 206, 10),
        ({"If-Range": '"other"', "Range": "bytes=0-9"}, 200, len(DATA)),
        ({"If-Range": "Wed, 21 Oct 2015 07:28:00 GMT", "Range": "bytes=0-9"}, 200, len(DATA)),
    ):
        async with http.get(address, headers=headers) as answer:
            assert answer.status == status, headers
            if size is not None:
                assert len(await answer.read()) == size


# -- access ----------------------------------------------------------------------------------------


async def test_a_signature_is_for_its_own_file_and_purpose(
    http: aiohttp.ClientSession, private: str
) -> None:
    one = await begin(http, private, BOB, size=5)
    other = await upload(http, private, b"other", BOB)
    mine = one["uploadUrl"].partition("?")[2]
    theirs = other.partition("?")[2]
    for method, url in (
        ("GET", f"{other.partition('?')[0]}?{mine}"),
        ("HEAD", f"{one['uploadUrl'].partition('?')[0]}?{theirs}"),
        ("PATCH", f"{one['uploadUrl'].partition('?')[0]}?{theirs}"),
        ("PATCH", f"{other.partition('?')[0]}/upload?{mine}"),
        ("PATCH", one["uploadUrl"].partition("?")[0]),
    ):
        headers = {"Upload-Offset": "0", **EVE}
        async with http.request(method, url, headers=headers) as answer:
            assert answer.status == 404, (method, url)


async def test_an_upload_is_announced_by_who_may(http: aiohttp.ClientSession, private: str) -> None:
    async with http.post(f"{private}/files", json={}) as answer:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert (await answer.json())["error"] == "who are you?"


# -- headers for browsers --------------------------------------------------------------------------


async def test_pages_of_other_origins_may_transfer_files(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    settings = Settings(cors_origins=("https://app.example",))
    async with serving(parley.asgi(agent_of(), files=tmp_path, settings=settings)) as url:
        begun = await begin(http, url, size=1)
        asked = {
            "Origin": "https://app.example",
            "Access-Control-Request-Method": "PATCH",
            "Access-Control-Request-Headers": "upload-offset",
        }
        async with http.options(begun["uploadUrl"], headers=asked) as answer:
            assert answer.status == 200
            assert "PATCH" in answer.headers["Access-Control-Allow-Methods"]
        headers = {"Origin": "https://app.example"}
        async with http.head(begun["uploadUrl"], headers=headers) as answer:
            assert "Upload-Offset" in answer.headers["Access-Control-Expose-Headers"]


# -- the server ------------------------------------------------------------------------------------


async def test_a_mounted_app_has_its_files_below_its_mount(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    app = parley.asgi(agent_of(), files=tmp_path)
    outer = Starlette(routes=[Mount("/agents/clerk", app)], lifespan=app.lifespan)
    async with serving(outer) as url:
        address = await upload(http, f"{url}/agents/clerk", b"hello")
        assert address.startswith(f"{url}/agents/clerk/files/")
        async with http.get(address) as answer:
            assert await answer.read() == b"hello"


async def test_transfers_are_bounded(tmp_path: Path) -> None:
    settings = Settings(max_file_transfers=1)
    app = parley.asgi(agent_of(), files=tmp_path, settings=settings)
    async with serving(app) as url, session() as http:
        begun = await begin(http, url, size=10)
        async with connection(url) as raw:
            headers = {"Upload-Offset": "0"}
            await raw.request("PATCH", path_of(begun["uploadUrl"]), b"12345", headers, length=10)
            other = await begin(http, url, size=1)

            async def is_refused() -> bool:
                async with http.patch(
                    other["uploadUrl"], data=b"", headers={"Upload-Offset": "0"}
                ) as answer:
                    return answer.status == 503 and bool(answer.headers["Retry-After"])

            await until(is_refused)


async def test_a_server_that_drains_tells_where_an_upload_goes_on(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    app = parley.asgi(agent_of(), files=tmp_path, drain=1.0)
    async with serving(app) as url:
        begun = await begin(http, url, size=3 * MIB)
        async with connection(url) as raw:
            headers = {"Upload-Offset": "0"}
            path = path_of(begun["uploadUrl"])
            await raw.request("PATCH", path, b"x" * MIB, headers, length=3 * MIB)
            await until(lambda: app.request_bytes.total >= MIB)
            app.lifecycle.drain()
            await raw.write(b"x" * 1000)
            answer = await raw.response()
            assert answer.status == 503
            assert int(answer.headers["upload-offset"]) >= MIB


async def test_a_download_whose_client_leaves_is_not_read_on(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    app: App = parley.asgi(agent_of(), files=tmp_path)
    async with serving(app) as url:
        address = await upload(http, url, os.urandom(16 * MIB))
        transfers = app._routes._transfers
        async with connection(url) as raw:
            await raw.request("GET", path_of(address))
            await raw.head()
            assert transfers._taken == 1
        await until(lambda: transfers._taken == 0)


async def test_the_log_of_requests_has_no_signature(
    http: aiohttp.ClientSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = parley.asgi(agent_of(), files=tmp_path)
    [sock] = listen("127.0.0.1", 0)
    ready = asyncio.Event()
    server = server_of(app, grace=1, kinds=1, started=ready.set, access_log=True, signals=False)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with app.lifespan():
        task = asyncio.create_task(server.serve([sock]))
        await ready.wait()
        with caplog.at_level(logging.INFO, "uvicorn.access"):
            address = await upload(http, url, b"hello")
            async with http.get(address) as answer:
                assert answer.status == 200
        server.end()
        await task
    assert f"GET {urlsplit(address).path}?signature=... HTTP" in caplog.text
    assert address.partition("=")[2] not in caplog.text


async def test_of_two_uploads_at_once_one_is_taken(http: aiohttp.ClientSession, url: str) -> None:
    begun = await begin(http, url, size=2 * MIB)
    one, other = b"a" * 2 * MIB, b"b" * 2 * MIB

    async def send(data: bytes) -> int:
        headers = {"Upload-Offset": "0"}
        body = io.BytesIO(data)
        async with http.patch(begun["uploadUrl"], data=body, headers=headers) as answer:
            return answer.status

    statuses = await asyncio.gather(send(one), send(other), send(one), send(other))
    assert sorted(statuses) == [204, 409, 409, 409]
    async with http.get(begun["url"]) as answer:
        assert await answer.read() in (one, other)
