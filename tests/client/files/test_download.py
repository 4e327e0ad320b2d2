"""Downloads: complete content, resumption after a broken connection, addresses never contacted."""

from __future__ import annotations

import asyncio
import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import parley
from parley.client.auth import Bearer
from parley.client.errors import (
    AuthenticationRequired,
    FileLimitExceeded,
    FileMismatch,
    UnexpectedStatus,
)
from parley.client.retry import Retry
from parley.model.parts import Artifact, Part
from parley.model.tasks import Task, TaskState, TaskStatus
from tests.client.files.file_host import file_host
from tests.kit.scripted_server import scripted

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


async def test_raw_parts_are_read_alike_without_asking_anybody(host, remote, tmp_path):
    part = Part(raw=BYTES, filename="a.bin")
    before = len(host.server.exchanges)
    assert await remote.read(part) == BYTES
    assert (await remote.download(part, tmp_path)).read_bytes() == BYTES
    assert len(host.server.exchanges) == before
    with pytest.raises(ValueError, match=r"is text and no file; its content is part\.text"):
        await remote.read(Part(text="a"))
    with pytest.raises(ValueError, match="expected an address of the form https"):
        await remote.read(Part(url="file:///etc/passwd"))


def may_be_survived(cuts):
    """Return whether a byte arrives before the tries of the first request are used up."""
    return len(cuts) <= AT_ONCE.calls or any(cuts[: AT_ONCE.calls + 1])


@pytest.mark.slow
@given(cuts=st.lists(st.integers(0, 6000), max_size=7).filter(may_be_survived))
def test_a_download_goes_on_where_a_connection_broke(cuts):
    async def main():
        async with file_host() as host:
            host.gives = list(cuts)
            async with parley.connect(host.url, retries=AT_ONCE) as remote:
                assert await remote.read(Part(url=host.put(BYTES))) == BYTES
            asked = [e.headers.get("range") for e in host.server.exchanges if "files" in e.path]
            assert asked[0] is None
            begins = [int(each[6:-1]) for each in asked if each]
            assert begins == sorted(begins)

    asyncio.run(main())


async def test_a_file_that_changes_between_two_requests_is_not_mixed(host, remote):
    part = Part(url=host.put(BYTES))
    host.gives = [1000]

    async def read():
        async with remote.open(part) as stream:
            async for _ in stream:
                host.put(b"x" * len(BYTES))

    with pytest.raises(FileMismatch, match="changed after 1,000 bytes"):
        await read()


async def test_without_a_validator_nothing_is_resumed():
    async def handle(exchange):
        await exchange.head(200, content_length="5000")
        await exchange.raw(b"x" * 100)
        exchange.hang_up()

    async with scripted(handle) as server, parley.connect(CARD, retries=AT_ONCE) as remote:
        with pytest.raises(parley.ClientError, match="broke"):
            await remote.read(Part(url=f"{server.url}/f"))
        assert len(server.exchanges) == 1


CARD = {
    "name": "Agent on this machine",
    "description": "",
    "version": "1",
    "capabilities": {},
    "defaultInputModes": [],
    "defaultOutputModes": [],
    "skills": [],
    "supportedInterfaces": [
        {"url": "http://127.0.0.1:1/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
}


@pytest.mark.parametrize("digest", ["of the file", "of another", "no digest"])
async def test_an_announced_digest_is_checked(digest):
    hashed = hashlib.sha256(BYTES if digest == "of the file" else b"another").digest()
    header = (
        "nothing" if digest == "no digest" else f"sha-256=:{base64.b64encode(hashed).decode()}:"
    )

    async def handle(exchange):
        await exchange.body_of(BYTES, repr_digest=header)

    async with scripted(handle) as server, parley.connect(CARD) as remote:
        if digest == "of another":
            with pytest.raises(FileMismatch, match="do not have the announced SHA-256"):
                await remote.read(Part(url=f"{server.url}/f"))
        else:
            assert await remote.read(Part(url=f"{server.url}/f")) == BYTES


async def test_read_has_a_limit(host, remote):
    part = Part(url=host.put(BYTES))
    assert await remote.read(part, limit=len(BYTES)) == BYTES
    with pytest.raises(FileLimitExceeded, match=r"more than 5,119 bytes.*open\(\)"):
        await remote.read(part, limit=len(BYTES) - 1)


async def test_refusals_say_what_would_be_right(host, remote):
    with pytest.raises(UnexpectedStatus, match="has no such file"):
        await remote.read(Part(url=f"{host.url}/files/nothing"))

    async def refuse(exchange):
        await exchange.json({}, status=403)

    async with scripted(refuse) as server:
        with pytest.raises(AuthenticationRequired, match="its address has expired"):
            await remote.read(Part(url=f"{server.url}/f"))


# -- redirects and credentials -----------------------------------------------------------------


async def test_credentials_stay_at_the_agents_origin_also_after_redirects(host):
    async def elsewhere(exchange):
        if exchange.path == "/back":
            await exchange.head(302, location=f"{host.url}/files/f", content_length="0")
        else:
            await exchange.body_of(b"elsewhere")

    async with scripted(elsewhere) as other:
        async with parley.connect(host.url, bearer="secret", api_key="key") as remote:
            own = host.put(BYTES)
            assert await remote.read(Part(url=own)) == BYTES
            assert await remote.read(Part(url=f"{other.url}/f?sig=1")) == b"elsewhere"
            assert await remote.read(Part(url=f"{other.url}/back")) == BYTES
        files = [e.headers for e in host.server.exchanges if "files" in e.path]
        assert [h.get("authorization") for h in files] == ["Bearer secret", None]
        for exchange in other.exchanges:
            assert not {"authorization", "x-api-key", "cookie"} & set(exchange.headers)


async def test_redirects_end(host, remote):
    async def around(exchange):
        await exchange.head(302, location="/again", content_length="0")

    async with scripted(around) as server:
        with pytest.raises(UnexpectedStatus, match="redirects more than 3 times"):
            await remote.read(Part(url=f"{server.url}/f"))


# -- to disk -----------------------------------------------------------------------------------


async def test_all_files_of_a_task_go_into_a_folder_under_safe_names(host, remote, tmp_path):
    def artifact(number, *parts):
        return Artifact(artifact_id=str(number), parts=parts)

    task = Task(
        id="t",
        context_id="c",
        status=TaskStatus(state=TaskState.COMPLETED),
        artifacts=(
            artifact(1, Part(text="no file"), Part(raw=b"1", filename="../../etc/passwd")),
            artifact(2, Part(raw=b"2", filename="passwd"), Part(raw=b"3", media_type="image/png")),
            artifact(3, Part(url=host.put(BYTES, "../x/.hidden"))),
        ),
    )
    folder = tmp_path / "new" / "out"
    paths = await remote.download(task, folder)
    assert [(p.parent, p.name) for p in paths] == [
        (folder, "passwd"),
        (folder, "passwd (2)"),
        (folder, "file.png"),
        (folder, "hidden"),
    ]
    assert [p.read_bytes() for p in paths] == [b"1", b"2", b"3", BYTES]
    assert len(list(folder.iterdir())) == 4
    assert await remote.download(task.artifacts[0], folder) == [folder / "passwd (3)"]


def test_the_blocking_client_does_the_same(tmp_path):
    import threading

    ready, stop, hosts = threading.Event(), threading.Event(), []

    async def serve():
        async with file_host() as host:
            host.put(BYTES, "a.bin")
            hosts.append(host)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(5)
    try:
        with parley.connect_sync(hosts[0].url) as remote:
            part = remote.upload(BYTES, filename="b.bin")
            assert hosts[0].files["u1"]["content"] == BYTES
            assert remote.read(part) == BYTES
            with remote.open(part) as stream:
                assert (stream.size, stream.filename) == (len(BYTES), "b.bin")
                assert b"".join(stream) == BYTES
            assert remote.download(part, tmp_path) == tmp_path / "b.bin"
            assert remote.download(Artifact(artifact_id="a", parts=(part,)), tmp_path) == [
                tmp_path / "b (2).bin"
            ]
            assert remote.open(part).save(tmp_path / "c").read_bytes() == BYTES
            assert remote.open(part).read() == BYTES
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("helps", [True, False])
async def test_a_refusal_is_answered_with_other_credentials_once(host, helps):
    def token():
        return f"token-{host.refused if helps else -host.refused}"

    host.token = "token-1"
    async with parley.connect(host.url, auth=Bearer(token), retries=AT_ONCE) as remote:
        if helps:
            assert await remote.read(Part(url=host.put(BYTES))) == BYTES
            assert host.refused == 1
        else:
            with pytest.raises(AuthenticationRequired):
                await remote.read(Part(url=host.put(BYTES)))
            assert host.refused == 2
