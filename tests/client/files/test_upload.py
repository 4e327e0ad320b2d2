"""Uploads: the requests, resumption after a broken connection, rejection before sending."""

from __future__ import annotations

import asyncio
import hashlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

import parley
from parley.client.auth import Bearer
from parley.client.errors import (
    AuthenticationRequired,
    ClientError,
    FileLimitExceeded,
    FileMismatch,
    Timeout,
)
from parley.client.files import upload
from parley.client.files.transfer import MAX_INLINE
from parley.client.retry import Retry
from parley.model.parts import Part
from tests.client.files.file_host import file_host

pytestmark = pytest.mark.anyio

AT_ONCE = Retry(calls=3, streams=8, first=0.0, limit=0.0)
BYTES = bytes(range(256)) * 20


@pytest.fixture
async def host():
    async with file_host() as host:
        yield host


@pytest.fixture
async def remote(host):
    async with parley.connect(host.url, retries=AT_ONCE) as remote:
        yield remote


async def in_pieces():
    for begin in range(0, len(BYTES), 100):
        yield BYTES[begin : begin + 100]


@pytest.mark.parametrize("kind", ["path", "string", "bytes", "file", "async", "iterator"])
async def test_every_kind_of_content_arrives(host, remote, kind, tmp_path):
    path = tmp_path / "report.pdf"
    path.write_bytes(BYTES)
    given = {
        "path": path,
        "string": str(path),
        "bytes": BYTES,
        "file": io.BytesIO(BYTES),
        "async": in_pieces(),
        "iterator": iter([BYTES[:10], BYTES[10:]]),
    }[kind]
    part = await remote.upload(given, media_type="application/pdf")
    (file,) = host.files.values()
    assert file["content"] == BYTES
    assert file["complete"]
    assert part == Part(
        url=f"{host.url}/files/u0?sig=d",
        filename="report.pdf" if kind in ("path", "string") else "",
        media_type="application/pdf",
    )
    if kind in ("path", "string", "bytes", "file"):
        assert file["size"] == len(BYTES)
        assert file["sha256"] == hashlib.sha256(BYTES).hexdigest()


async def test_an_open_file_is_sent_from_where_it_stands(host, remote):
    file = io.BytesIO(BYTES)
    file.seek(1000)
    await remote.upload(file)
    assert host.files["u0"]["content"] == BYTES[1000:]


async def test_the_timeout_of_a_message_bounds_its_uploads(host, remote):
    host.hangs = True
    async with asyncio.timeout(5):
        with pytest.raises(Timeout, match=r"no answer within 0\.05 s"):
            await remote.send("Look", files=[BYTES], timeout=0.05)
    assert host.messages == []


@pytest.mark.slow
@given(cuts=st.lists(st.integers(0, 6000), max_size=7), sized=st.booleans())
def test_an_upload_goes_on_where_a_connection_broke(cuts, sized):
    async def main():
        async with file_host() as host:
            host.takes = list(cuts)
            async with parley.connect(host.url, retries=AT_ONCE) as remote:
                seen = []
                await remote.upload(
                    BYTES if sized else in_pieces(), progress=lambda n, all: seen.append((n, all))
                )
        assert host.files["u0"]["content"] == BYTES
        assert host.files["u0"]["complete"]
        assert len(host.files) == 1
        assert seen[-1] == (len(BYTES), len(BYTES) if sized else None)

    asyncio.run(main())


async def test_of_an_iterator_only_pieces_are_in_memory(host, remote, monkeypatch):
    monkeypatch.setattr(upload, "PIECE", 1000)
    host.takes = [300, 0]
    await remote.upload(in_pieces())
    assert host.files["u0"]["content"] == BYTES
    patches = [len(e.body) for e in host.server.exchanges if e.method == "PATCH"]
    assert max(patches) == 1000
    assert patches[:3] == [1000, 700, 700]


async def test_a_server_that_takes_nothing_and_says_so_is_left(host, remote):
    host.acknowledges = 0
    with pytest.raises(parley.ClientError, match="accepted no bytes of the file"):
        await remote.upload(BYTES)
    patches = [each for each in host.server.exchanges if each.method == "PATCH"]
    assert len(patches) == AT_ONCE.streams + 1


async def test_a_server_that_loses_what_it_acknowledged_is_found_out(host, remote, monkeypatch):
    monkeypatch.setattr(upload, "PIECE", 1000)

    async def losing():
        yield BYTES[:2000]
        host.files["u0"]["content"] = b""
        yield BYTES[2000:]

    with pytest.raises(FileMismatch, match="has acknowledged"):
        await remote.upload(losing())


@pytest.mark.parametrize("after", [BYTES[:3000], b"x" + BYTES])
async def test_a_file_that_changes_meanwhile_is_refused(host, remote, tmp_path, monkeypatch, after):
    monkeypatch.setattr(upload, "PIECE", 1000)
    path = tmp_path / "growing.log"
    path.write_bytes(BYTES)

    def change(sent, _):
        if sent == 1000:
            path.write_bytes(after)

    with pytest.raises(FileMismatch, match=r"growing\.log changed while"):
        await remote.upload(path, progress=change)
    assert not host.files["u0"]["complete"]


async def test_an_error_of_the_progress_function_is_the_callers(host, remote):
    def give_up(sent, _):
        raise LookupError("stopped by the user")

    with pytest.raises(LookupError, match="stopped by the user"):
        await remote.upload(BYTES, progress=give_up)
    assert len([each for each in host.server.exchanges if each.method == "PATCH"]) <= 1


async def test_an_agent_without_file_transfer_is_named(host):
    host.params = None
    async with parley.connect(host.url) as remote:
        with pytest.raises(ClientError, match=r"declares no file transfer .*Part\(url=\.\.\.\)"):
            await remote.upload(BYTES)


async def test_text_is_no_file(remote):
    with pytest.raises(TypeError, match="mode 'rb'"):
        await remote.upload(io.StringIO("text"))
    with pytest.raises(TypeError, match="an int cannot be uploaded"):
        await remote.upload(5)


# -- with a message --------------------------------------------------------------------------------


async def test_what_is_small_goes_in_the_message_and_what_is_large_by_reference(
    host, remote, tmp_path
):
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    small.write_bytes(b"x" * 1000)
    large.write_bytes(b"y" * 1001)
    await remote.send("Read these", files=[small, str(large), b"z" * 1001, Part(raw=b"r" * 2000)])
    (message,) = host.messages
    kinds = [sorted(set(part) & {"text", "raw", "url"}) for part in message["parts"]]
    assert kinds == [["text"], ["raw"], ["url"], ["url"], ["raw"]]
    assert message["parts"][2]["filename"] == "large.txt"
    assert message["parts"][2]["mediaType"] == "text/plain"
    assert [file["content"] for file in host.files.values()] == [b"y" * 1001, b"z" * 1001]


async def test_without_transfer_a_large_file_is_refused_before_anything_is_sent(host):
    host.params = None
    async with parley.connect(host.url) as remote:
        await remote.send(files=[bytes(MAX_INLINE)])
        with pytest.raises(FileLimitExceeded, match=r"7,340,033 bytes; a message .* Part\(url"):
            await remote.send(files=[bytes(MAX_INLINE + 1)])
        await remote.send(files=[Part(raw=bytes(MAX_INLINE + 1))])
        assert not host.files
    assert len(host.messages) == 2


# -- credentials -----------------------------------------------------------------------------------


async def test_credentials_go_to_the_agents_own_origin_only(host):
    async with file_host() as other:
        host.params["uploadUrl"] = f"{other.url}/files"
        async with parley.connect(host.url, bearer="secret") as remote:
            with pytest.raises(parley.ClientError, match="nothing was sent there"):
                await remote.upload(BYTES)
        assert not other.server.exchanges
        async with parley.connect(host.url, bearer="secret", trust_origins=[other.url]) as remote:
            await remote.upload(BYTES)
        created = next(e for e in other.server.exchanges if e.method == "POST")
        assert created.headers["authorization"] == "Bearer secret"
        patched = next(e for e in other.server.exchanges if e.method == "PATCH")
        assert "authorization" not in patched.headers


@pytest.mark.parametrize("helps", [True, False])
async def test_a_refusal_is_answered_with_other_credentials_once(host, helps):
    def token():
        return f"token-{host.refused if helps else -host.refused}"

    host.token = "token-1"
    async with parley.connect(host.url, auth=Bearer(token), retries=AT_ONCE) as remote:
        if helps:
            part = await remote.upload(BYTES, filename="a")
            assert part.url == f"{host.url}/files/u0?sig=d"
            assert host.refused == 1
        else:
            with pytest.raises(AuthenticationRequired):
                await remote.upload(BYTES, filename="a")
            assert host.refused == 2
