"""Files in turns: authors read them from any source, and large ones become references."""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import parley
from parley import Agent, BlockingTurn, Caller, Message, Part, Settings, Task, Turn
from parley.agent import files
from parley.agent.files import TurnFile
from parley.agent.services import RemoteFiles
from parley.client.errors import (
    AddressNotAllowed,
    ClientError,
    Disconnected,
    FileLimitExceeded,
    FileMismatch,
    Timeout,
    UnexpectedStatus,
)
from parley.client.retry import Retry
from parley.files.objects import DiskObjects, FilesUnavailable
from parley.model.struct import encode
from parley.security.egress import Egress
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.client.files.file_host import file_host
from tests.kit.scripted_server import scripted

pytestmark = pytest.mark.anyio

BYTES = bytes(range(256)) * 20
SMALL = Settings(inline_file_bytes=1000)


def caller_of(scope: Any) -> Caller:
    name = dict(scope["headers"]).get(b"x-who", b"").decode()
    return Caller(id=name, authenticated=bool(name))


def reader() -> Agent:
    agent = Agent("Reader")

    @agent.skill(replies="task")
    async def read(turn: Turn) -> dict[str, Any]:
        """Reads its files in all ways."""
        (file,) = turn.files
        content = await file.read()
        async with file.open() as stream:
            chunks = [chunk async for chunk in stream]
            size, name = stream.size, stream.filename
        assert b"".join(chunks) == content
        assert all(isinstance(chunk, bytes) for chunk in chunks)
        return {"sha256": hashlib.sha256(content).hexdigest(), "size": size, "name": name}

    @agent.skill(replies="task")
    def read_in_a_thread(turn: BlockingTurn) -> dict[str, Any]:
        """Reads its files in all ways, blocking."""
        (file,) = turn.files
        content = file.read()
        with file.open() as stream:
            size, name = stream.size, stream.filename
            assert b"".join(stream) == content
            assert stream.media_type
        saved = turn.file(turn.parts[-1]).save(Path(turn.metadata["folder"]))
        assert saved.read_bytes() == content
        return {"sha256": hashlib.sha256(content).hexdigest(), "size": size, "name": name}

    @agent.skill(replies="task")
    async def save(turn: Turn) -> str:
        """Saves its file, and says where."""
        return str(await turn.files[0].save(Path(turn.metadata["folder"])))

    @agent.skill(replies="task")
    async def fail(turn: Turn) -> str:
        """Says why its file cannot be read."""
        try:
            await turn.files[0].read(limit=turn.metadata.get("limit", 1 << 20))
        except ClientError as error:
            return f"{type(error).__name__}: {error}"
        return "read"

    @agent.skill(replies="task")
    async def echo(turn: Turn) -> Part:
        """Returns its file."""
        return turn.files[0]

    return agent


def data_of(task: Task | Message) -> Any:
    assert task.id
    assert task.artifacts, task.status
    return task.artifacts[0].parts[0].data


def text_of(task: Task | Message) -> str:
    assert task.id
    assert task.artifacts, task.status
    return task.artifacts[0].text


@pytest.mark.parametrize("skill", ["read", "read_in_a_thread"])
@pytest.mark.parametrize("kind", ["inline", "own", "elsewhere"])
async def test_a_file_is_read_alike_wherever_it_is(skill: str, kind: str, tmp_path: Path) -> None:
    async with file_host() as host:
        app = parley.asgi(reader(), settings=SMALL, allow_private_files=True)
        async with serving(app) as url, parley.connect(url) as remote:
            part = {
                "inline": lambda: Part(raw=BYTES, filename="a.bin", media_type="x/y"),
                "own": lambda: None,
                "elsewhere": lambda: Part(url=host.put(BYTES, "a.bin")),
            }[kind]()
            if part is None:
                part = await remote.upload(BYTES, filename="a.bin")
                assert part.url is not None
                assert part.url.startswith(url)
            task = await remote.send(
                files=[part], metadata={"skill": skill, "folder": str(tmp_path)}
            )
    digest = hashlib.sha256(BYTES).hexdigest()
    assert data_of(task) == {"sha256": digest, "size": len(BYTES), "name": "a.bin"}


async def test_a_file_of_this_server_that_cannot_be_read_is_an_error_of_reading(
    tmp_path: Path,
) -> None:
    class Failing(DiskObjects):
        async def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
            raise FilesUnavailable("files cannot be kept or read now: the disk fails")
            yield b""

    async with served(reader(), files=Failing(tmp_path / "files")) as remote:
        part = await remote.upload(BYTES)
        said = text_of(await remote.send(files=[part], metadata={"skill": "fail"}))
    assert said == "ClientError: files cannot be kept or read now: the disk fails"


async def test_a_file_of_somebody_else_is_not_read_without_its_signature() -> None:
    app = parley.asgi(reader(), settings=SMALL, caller=caller_of)
    async with serving(app) as url:
        async with parley.connect(url, headers={"X-Who": "ann"}) as ann:
            part = await ann.upload(BYTES)
            assert part.url is not None
            bare = Part(url=part.url.partition("?")[0])
            task = await ann.send(files=[bare], metadata={"skill": "read"})
            assert data_of(task)["size"] == len(BYTES)
        async with parley.connect(url, headers={"X-Who": "bob"}) as bob:
            said = text_of(await bob.send(files=[bare], metadata={"skill": "fail"}))
            assert said.startswith("AddressNotAllowed: ")
            task = await bob.send(files=[part], metadata={"skill": "read"})
            assert data_of(task)["size"] == len(BYTES)


async def test_a_file_compares_and_serializes_like_its_part() -> None:
    part = Part(raw=b"a", filename="a.txt")
    file = TurnFile.of(part, lambda part, limit: pytest.fail("nobody reads"))
    assert file == part
    assert part == file
    assert file == TurnFile.of(part, lambda part, limit: pytest.fail("nobody reads"))
    assert file != Part(raw=b"b")
    assert hash(file) == hash(part)
    assert encode(file) == encode(part)
    assert type(copy.copy(file)) is Part
    assert pickle.loads(pickle.dumps(file)) == part
    with pytest.raises(ValueError, match="is text and no file"):
        TurnFile.of(Part(text="a"), RemoteOnly().open)
    async with serving(parley.asgi(reader())) as url, parley.connect(url) as remote:
        task = await remote.send(files=[part], metadata={"skill": "echo"})
        assert task.id
        assert task.artifacts[0].parts == (part,)


class RemoteOnly:
    """Opens parts as a turn without a server does."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("retry", Retry(calls=2, streams=4, first=0.0, limit=0.0))
        self.files = RemoteFiles(**options)

    def open(self, part: Part, limit: int | None = None) -> Any:
        from parley.agent.context import AgentContexts
        from parley.agent.files import FileAccess
        from parley.agent.services import TurnServices
        from parley.engine.authorizations import Authorizations, Callbacks
        from parley.store.events import Scope
        from parley.store.memory import MemoryTaskStore

        services = TurnServices(
            AgentContexts(keep_history=False),
            Callbacks(MemoryTaskStore(), "a"),
            Authorizations(MemoryTaskStore(), "a"),
            remote_files=self.files,
        )
        return FileAccess(services, Scope(agent="a", owner="ann")).open(part, limit)


# -- the guard against private addresses -------------------------------------------------------


async def test_a_redirect_is_checked_like_the_first_address() -> None:
    async def redirecting(exchange: Any) -> None:
        where = {"/in": "http://169.254.169.254/", "/next": "/file", "/file": ""}[exchange.path]
        if where:
            await exchange.head(302, location=where, content_length="0")
        else:
            await exchange.body_of(b"file")

    access = RemoteOnly(egress=Egress.allowing(["127.0.0.0/8"]))
    async with scripted(redirecting) as server:
        assert await access.open(Part(url=f"{server.url}/next")).read() == b"file"
        with pytest.raises(AddressNotAllowed, match="link-local"):
            await access.open(Part(url=f"{server.url}/in")).read()
    await access.files.close()


async def test_a_huge_file_is_left_as_soon_as_it_shows() -> None:
    sent = 0

    async def endless(exchange: Any) -> None:
        nonlocal sent
        if exchange.path == "/announced":
            await exchange.head(200, content_length="100000000000")
        else:
            await exchange.head(200, transfer_encoding="chunked")
            while True:
                await exchange.chunk(b"x" * 65536)
                sent += 65536

    access = RemoteOnly(egress=Egress(private=True), max_bytes=1_000_000)
    async with scripted(endless) as server:
        with pytest.raises(FileLimitExceeded, match=r"more than 1,000,000 bytes, the limit here"):
            await access.open(Part(url=f"{server.url}/announced")).read()
        assert sent == 0
        with pytest.raises(FileLimitExceeded, match=r"more than 1,000 bytes"):
            await access.open(Part(url=f"{server.url}/f"), 1000).save(Path("/nowhere/at/all"))
        with pytest.raises(FileLimitExceeded, match=r"more than 5,000 bytes.*open\(\)"):
            await access.open(Part(url=f"{server.url}/f")).read(limit=5000)
        await access.files.close()
    assert sent < 100_000_000


async def test_a_slow_server_is_left() -> None:
    async def slow(exchange: Any) -> None:
        await exchange.head(200, content_length="1000", etag='"a"')
        if exchange.path == "/silent":
            await exchange.never()
        for _ in range(1000):
            from tests.kit.waiting import let_time_pass

            await let_time_pass(0.005)
            await exchange.raw(b"x")

    access = RemoteOnly(
        egress=Egress(private=True),
        idle=0.05,
        min_rate=1_000_000,
        grace=0.01,
        retry=Retry(calls=1, first=0.0),
    )
    async with scripted(slow) as server:
        with pytest.raises(Timeout, match="sends less than 1,000,000 bytes a second"):
            await access.open(Part(url=f"{server.url}/f")).read()
        with pytest.raises(Disconnected, match="went silent"):
            await access.open(Part(url=f"{server.url}/silent")).read()
        await access.files.close()


async def test_a_cut_is_resumed_and_no_credentials_are_sent() -> None:
    access = RemoteOnly(egress=Egress(private=True))
    async with file_host() as host:
        host.gives = [1000, 10]
        assert await access.open(Part(url=host.put(BYTES))).read() == BYTES
        assert [e.headers.get("range") for e in host.server.exchanges] == [
            None,
            "bytes=1000-",
            "bytes=1010-",
        ]
        host.gives, host.tag = [1000], "1"

        async def read_what_changes() -> None:
            async for _ in access.open(Part(url=host.put(BYTES))):
                host.tag = "2"

        with pytest.raises(FileMismatch):
            await read_what_changes()
        with pytest.raises(UnexpectedStatus, match="no such file"):
            await access.open(Part(url=f"{host.url}/files/other")).read()
    await access.files.close()


async def test_the_servers_option_decides() -> None:
    async with file_host() as host:
        part = Part(url=host.put(BYTES))
        for allowed, said in ((False, "AddressNotAllowed: "), (["127.0.0.1"], "read")):
            app = parley.asgi(reader(), allow_private_files=allowed)
            async with serving(app) as url, parley.connect(url) as remote:
                task = await remote.send(files=[part], metadata={"skill": "fail"})
                assert text_of(task).startswith(said)


# -- artifacts that a turn makes ---------------------------------------------------------------


def maker(folder: Path) -> Agent:
    agent = Agent("Maker")
    large, small = folder / "large.csv", folder / "small.csv"
    large.write_bytes(BYTES)
    small.write_bytes(b"a,b")

    @agent.skill(replies="task")
    async def artifacts(turn: Turn) -> None:
        """Makes artifacts of every size."""
        await turn.artifact(small, name="small")
        await turn.artifact(large, name="large")
        await turn.artifact(BYTES, name="bytes", filename="b.bin", media_type="x/y")
        await turn.artifact(Part(raw=BYTES), name="ready")

    @agent.skill(replies="task")
    def blocking(turn: BlockingTurn) -> Path:
        """Makes artifacts in a thread."""
        turn.artifact(large, name="large")
        with turn.stream(name="streamed") as out:
            out.write(large)
            out.write(BYTES)
        return large

    @agent.skill
    async def returned(turn: Turn) -> Path:
        """Returns a path at once."""
        return large

    @agent.skill
    async def yielded(turn: Turn) -> AsyncIterator[Path]:
        """Yields paths."""
        yield small
        yield large

    @agent.skill
    def yielded_in_a_thread(turn: BlockingTurn) -> Iterator[Path]:
        """Yields paths."""
        yield large

    @agent.skill
    async def again(turn: Turn) -> None:
        """Makes the same artifact in every attempt."""
        await turn.artifact(large, name="large")
        await turn.ask("Again?")

    return agent


@asynccontextmanager
async def served(agent: Agent, **options: Any) -> AsyncIterator[parley.RemoteAgent]:
    options.setdefault("settings", SMALL)
    async with serving(parley.asgi(agent, **options)) as url, parley.connect(url) as remote:
        yield remote


def kinds(artifacts: Any) -> list[list[str]]:
    return [
        ["url" if part.url is not None else "raw" for part in artifact.parts]
        for artifact in artifacts
    ]


@pytest.mark.parametrize(
    ("skill", "expected"),
    [
        ("blocking", [["url"], ["url", "raw"], ["url"]]),
        ("yielded", [["raw", "url"]]),
        ("yielded_in_a_thread", [["url"]]),
    ],
)
async def test_paths_are_referred_to_wherever_an_author_gives_them(
    skill: str, expected: list[list[str]], tmp_path: Path
) -> None:
    async with served(maker(tmp_path)) as remote:
        task = await remote.send("Go", metadata={"skill": skill})
        assert task.id, task
        assert kinds(task.artifacts) == expected
        for artifact in task.artifacts:
            for part in artifact.parts:
                if part.url is not None:
                    assert await remote.read(part) == BYTES


async def test_without_a_place_for_files_they_stay_in_the_answer_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(maker(tmp_path), files="none") as remote:
        task = await remote.send("Go", metadata={"skill": "artifacts"})
        assert task.id
        assert kinds(task.artifacts) == [["raw"]] * 4
        monkeypatch.setattr(files, "MAX_INLINE_BYTES", 5000)
        task = await remote.send("Go", metadata={"skill": "artifacts"})
        assert task.id
        assert task.state is parley.TaskState.FAILED
    assert "large.csv has 5,120 bytes, and an answer carries at most 5,000" in caplog.text
    assert "files=..." in caplog.text


# -- bindings and versions ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("binding", "version"),
    [
        ("JSONRPC", "1.0"),
        ("HTTP+JSON", "1.0"),
        ("GRPC", "1.0"),
        ("JSONRPC", "0.3"),
        ("GRPC", "0.3"),
    ],
)
async def test_references_go_over_every_binding_and_version(binding: str, version: str) -> None:
    agent = Agent("Copier")

    @agent.skill(replies="task")
    async def copy_file(turn: Turn) -> bytes:
        return await turn.files[0].read()

    app = parley.asgi(agent, settings=SMALL)
    grpc = GrpcOptions(port=0) if binding == "GRPC" else None
    async with (
        serving(app, grpc=grpc) as url,
        parley.connect(url, binding=binding, version=version) as remote,
    ):
        assert remote.inline_bytes == 1000
        task = await remote.send("Copy", files=[BYTES])
        assert task.id
        (part,) = task.artifacts[0].parts
        # Over gRPC a server does not learn its own address; see the next test.
        assert (part.url is not None) == (binding != "GRPC")
        assert await remote.read(part) == BYTES


async def test_a_server_that_knows_its_address_refers_over_grpc_too(tmp_path: Path) -> None:
    app = parley.asgi(maker(tmp_path), settings=SMALL, url="https://agents.example/x")
    async with serving(app, grpc=GrpcOptions(port=0)) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/.well-known/agent-card.json") as answer:
            card = await answer.json()
        (address,) = {
            i["url"] for i in card["supportedInterfaces"] if i["protocolBinding"] == "GRPC"
        }
        card["supportedInterfaces"] = [
            {"url": f"127.0.0.1:{address.rpartition(':')[2]}", "protocolBinding": "GRPC",
             "protocolVersion": "1.0"}
        ]  # fmt: skip
        async with parley.connect(card) as remote:
            task = await remote.send("Go", metadata={"skill": "blocking"})
            assert task.id
            assert str(task.artifacts[0].parts[0].url).startswith("https://agents.example/x/files/")
