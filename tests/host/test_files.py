"""Where a host keeps files, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Message, Part, Retention, Task, Turn
from parley.files.layout import FileRecord, FileScope
from parley.files.objects import DiskObjects, FilesUnavailable, NoSuchFile, ObjectEntry
from parley.files.turn_files import TurnFiles, address
from parley.host.files import open_files
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.model.operations import SendMessageRequest
from parley.model.parts import Role
from parley.model.service import CallContext, Caller
from parley.server.run import serving
from parley.server.settings import Settings
from parley.store.memory import MemoryTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.files.conftest import uploaded
from tests.kit.waiting import Clock, until
from tests.store.conftest import PostgresAtOurTime

BOB = Caller("bob", authenticated=True)
URL = "https://example.com/clerk"


# -- addresses -------------------------------------------------------------------------------------


def test_replicas_have_no_files_by_default() -> None:
    assert open_files(None, "postgresql://host/tasks") is None


def test_a_place_may_be_named() -> None:
    assert open_files("none", "memory:") is None
    for given in ("files", Path("files")):
        objects = open_files(given, "postgresql://host/tasks")
        assert isinstance(objects, DiskObjects)
        assert (objects.root, objects.is_lazy) == (Path("files"), False)
    objects = DiskObjects(Path("files"))
    assert open_files(objects, "memory:") is objects


def test_files_may_be_in_s3() -> None:
    s3 = pytest.importorskip("parley.files.s3", reason="the package obstore is not installed")
    objects = open_files("s3://bucket/prefix", "memory:")
    assert isinstance(objects, s3.S3Objects)


def test_s3_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parley.host.files.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"need the package obstore: .*parley-a2a\[s3\]"):
        open_files("s3://bucket/prefix", "memory:")


@pytest.mark.parametrize("place", ["gs://bucket/x", "https://example.com/x", "", " ", "s3://"])
def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="a directory, s3://bucket/prefix, or none"):
        open_files(place, "memory:")


@pytest.mark.anyio
async def test_a_place_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("")
    app = parley.asgi(agent_of(), files=tmp_path / "files")
    with pytest.raises(FilesUnavailable, match="not a directory"):
        async with serving(app):
            pass


# -- tasks -----------------------------------------------------------------------------------------


def agent_of() -> Agent:
    agent = Agent("Clerk", retention=Retention(tasks=timedelta(days=7)))

    @agent.skill(replies="task")
    async def keep(turn: Turn) -> str:
        """Ends."""
        return "kept"

    @agent.skill(replies="message")
    async def answer(turn: Turn) -> str:
        """Answers."""
        return "answered"

    @agent.skill(replies="task")
    async def ask(turn: Turn) -> str:
        """Asks."""
        return (await turn.ask("Which?")).text

    return agent


class Hosted:
    """A host with a clock that the test moves."""

    def __init__(self, host: Host, clock: Clock) -> None:
        self.host = host
        self.service = host.services[""]
        assert host.files is not None
        assert host._sweeps is not None
        self.files = host.files
        self.sweep = host._sweeps.sweep
        self._clock = clock

    async def send(
        self, record: FileRecord, skill: str, task_id: str = "", caller: Caller = BOB
    ) -> Task | Message:
        message = Message(
            message_id=str(self._clock.now),
            role=Role.USER,
            parts=(Part(text="see"), Part(url=address(self.files, URL, record.id))),
            metadata={"skill": skill},
            task_id=task_id,
        )
        return await self.service.send_message(
            SendMessageRequest(message=message), CallContext(caller=caller)
        )

    async def passes(self, **time: float) -> int:
        """Move the clock, prune old tasks, and sweep; return how many files were deleted."""
        self._clock.now += timedelta(**time) // timedelta(milliseconds=1)
        before = self._clock.now - timedelta(days=7) // timedelta(milliseconds=1)
        await self.host.store.prune("clerk", before, 100)
        return await self.sweep()

    async def is_there(self, record: FileRecord) -> bool:
        try:
            await self.files.find(record.id, record.scope)
        except NoSuchFile:
            return False
        return True


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def hosted(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Hosted]:
    clock = Clock(1_700_000_000_000)
    store: TaskStore
    if request.param == "memory":
        store = MemoryTaskStore(clock=clock)
    elif request.param == "sqlite":
        store = SqliteTaskStore(tmp_path / "tasks.db", clock=clock)
    else:
        store = PostgresAtOurTime(request.getfixturevalue("postgres_url"), clock=clock)
    host = Host(
        placed(agent_of()),
        store,
        ServerOptions(settings=Settings(upload_timeout=3600)),
        files=DiskObjects(tmp_path / "files"),
    )
    await host.start()
    try:
        yield Hosted(host, clock)
    finally:
        await host.stop()


SCOPE = FileScope("clerk", "", "bob")


@pytest.mark.anyio
async def test_a_file_that_a_later_message_names_is_kept_too(hosted: Hosted) -> None:
    record = await uploaded(hosted.files, b"first", SCOPE)
    task = await hosted.send(record, "ask")
    assert task.id
    hosted._clock.now += 1
    later = await uploaded(hosted.files, b"later", SCOPE)
    await hosted.send(later, "ask", task.id)
    await hosted.passes(days=5)
    assert await hosted.is_there(later)


# -- turns -----------------------------------------------------------------------------------------


@pytest.fixture
def turn_files(hosted: Hosted) -> TurnFiles:
    return TurnFiles(hosted.files, "clerk", 3600.0)


@pytest.mark.anyio
async def test_a_turn_stores_a_path_bytes_or_an_iterator(
    hosted: Hosted, turn_files: TurnFiles, tmp_path: Path
) -> None:
    path = tmp_path / "report.pdf"
    path.write_bytes(b"%PDF" * 300_000)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"a" * 10
        yield b"b" * 10

    for source, name, media_type, data in (
        (path, "report.pdf", "application/pdf", b"%PDF" * 300_000),
        (b"hello", "a.txt", "text/plain", b"hello"),
        (pieces(), "x", "application/octet-stream", b"a" * 10 + b"b" * 10),
    ):
        part = await turn_files.store(
            source,
            filename="" if source is path else name,
            owner="bob",
            task_id="0" * 32,
            base_url=URL,
        )
        assert (part.filename, part.media_type) == (name, media_type)
        assert part.url is not None
        assert part.url.startswith(f"{URL}/files/")
        stored = await turn_files.open(part, owner="bob")
        assert stored is not None
        assert (stored.size, stored.filename) == (len(data), name)
        assert b"".join([piece async for piece in stored.read()]) == data
        assert b"".join([piece async for piece in stored.read(2, 5)]) == data[2:5]
    assert await hosted.passes(hours=3) == 3  # their task does not exist


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_turn_whose_source_fails_leaves_no_part_of_a_file(
    hosted: Hosted, turn_files: TurnFiles
) -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"a" * 5_000_000
        raise RuntimeError("the camera is off")

    async def never() -> AsyncIterator[bytes]:
        yield b"a" * 5_000_000
        storing.cancel()
        yield b"b"

    async def store(source: AsyncIterator[bytes]) -> None:
        await turn_files.store(source, owner="bob", task_id="0" * 32, base_url=URL)

    with pytest.raises(RuntimeError, match="the camera is off"):
        await store(breaks())
    storing = asyncio.create_task(store(never()))
    await asyncio.wait({storing})
    assert storing.cancelled()
    assert await hosted.files.objects.list("files") == []


@pytest.mark.anyio
async def test_a_turn_opens_what_is_its_callers_or_signed(
    hosted: Hosted, turn_files: TurnFiles
) -> None:
    record = await uploaded(hosted.files, b"secret", SCOPE)
    plain = f"{URL}/files/{record.id}"
    signed = address(hosted.files, URL, record.id)
    for url, owner, found in (
        (plain, "bob", True),
        (plain, "eve", False),
        (signed, "eve", True),
        (f"{plain}?signature=x", "eve", False),
        (f"{URL}/files/{'0' * 48}", "bob", False),
        ("https://other.example/report.pdf", "bob", False),
        ("http://[", "bob", False),
        (f"{plain}/upload", "bob", False),
    ):
        part = Part(url=url)
        assert (await turn_files.open(part, owner=owner) is not None) == found, url


@pytest.mark.anyio
async def test_without_an_address_of_the_server_there_is_none_of_a_file(
    hosted: Hosted, turn_files: TurnFiles
) -> None:
    with pytest.raises(ValueError, match="does not carry the address"):
        await turn_files.store(b"x", owner="bob", task_id="0" * 32, base_url="")


@pytest.mark.anyio
async def test_a_tenants_file_is_below_the_tenants_address(
    hosted: Hosted, turn_files: TurnFiles
) -> None:
    for base, tenant, begins in (
        (URL, "acme", f"{URL}/acme/files/"),
        (f"{URL}/acme", "acme", f"{URL}/acme/files/"),
        (URL, "", f"{URL}/files/"),
    ):
        part = await turn_files.store(
            b"x", tenant=tenant, owner="bob", task_id="0" * 32, base_url=base
        )
        assert part.url is not None
        assert part.url.startswith(begins)


# -- sweeps ----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_turn_has_its_files_until_its_grace_period_is_over(tmp_path: Path) -> None:
    agent, begun, stops = Agent("Clerk"), asyncio.Event(), asyncio.Event()
    happened: list[object] = []

    @agent.skill(replies="task")
    async def slow(turn: Turn) -> str:
        begun.set()
        await stops.wait()
        happened.append(await turn.files[0].read())
        return "read"

    class Objects(DiskObjects):
        async def close(self) -> None:
            happened.append("closed")
            await super().close()

    objects = Objects(tmp_path / "files", is_lazy=True, is_temporary=True)
    host = Host(placed(agent), MemoryTaskStore(), ServerOptions(drain=30), files=objects)
    await host.start()
    assert host.files is not None
    await host.files.open()
    record = await uploaded(host.files, b"hello", SCOPE)
    part = Part(url=address(host.files, URL, record.id))
    request = SendMessageRequest(message=Message(message_id="m", role=Role.USER, parts=(part,)))
    sending = asyncio.create_task(host.services[""].send_message(request, CallContext(caller=BOB)))
    await begun.wait()
    stopping = asyncio.create_task(host.stop())
    for _ in range(50):
        await asyncio.sleep(0)
    stops.set()
    await stopping
    await sending
    assert happened == [b"hello", "closed"]
    assert not objects.root.exists()


@pytest.mark.anyio
async def test_a_running_host_sweeps_by_itself_and_survives_a_store_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(DiskObjects):
        fails = True
        asked = 0

        async def list(self, folder: str, *given: Any) -> Sequence[ObjectEntry]:
            self.asked += folder == "due"
            if folder == "due" and self.fails:
                raise FilesUnavailable("files cannot be kept or read now: the disk fails")
            return await super().list(folder, *given)

    monkeypatch.setattr("parley.host.files.SWEEP_SECONDS", 0.01)
    clock = Clock(1_700_000_000_000)
    objects = Failing(tmp_path / "files")
    host = Host(placed(agent_of()), MemoryTaskStore(clock=clock), files=objects)
    await host.start()
    try:
        hosted = Hosted(host, clock)
        record = await uploaded(hosted.files, b"hello", SCOPE)
        clock.now += timedelta(days=2) // timedelta(milliseconds=1)
        await until(lambda: objects.asked > 3)
        assert caplog.text.count("files are not swept until") == 1
        objects.fails = False

        async def is_gone() -> bool:
            return not await hosted.is_there(record)

        await until(is_gone)
    finally:
        await host.stop()
