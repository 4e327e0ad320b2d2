"""A database that is damaged, locked, in use or on a full disk: clear errors, and no lost data."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, RemoteAgent, TaskState, Turn
from parley.model.errors import OverloadedError
from parley.server.run import serving
from parley.store.sqlite.store import SqliteTaskStore
from tests.faults.conftest import SERVED, Served
from tests.faults.test_kill import WHOLE, check_log, text_of
from tests.kit.http import ask
from tests.kit.waiting import let_time_pass, until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


# -- a full disk -----------------------------------------------------------------------------------


@pytest.fixture
async def impatient(served: Served) -> AsyncIterator[RemoteAgent]:
    """A caller that sees every failure (no retries) and requests no receipts."""
    pytest.importorskip("resource", reason="here no process can be kept from writing")
    async with (
        parley.connect(served.url, retries=0, idempotent=False) as agent,
        asyncio.timeout(60),
    ):
        yield agent


async def fill_disk(served: Served, agent: RemoteAgent, more: int = 0) -> None:
    """Let the server's log grow by no more than ``more`` bytes."""
    size = served.store.with_name("tasks.db-wal").stat().st_size
    await agent.send(str(size + more), metadata={"skill": "disk"})


async def free_disk(agent: RemoteAgent) -> None:
    await agent.send("-1", metadata={"skill": "disk"})


async def test_what_a_full_disk_does_not_take_is_refused_and_leaves_nothing(
    served: Served, impatient: RemoteAgent
) -> None:
    kept = await impatient.send("go", metadata={"skill": "chat"})
    assert kept.id
    await fill_disk(served, impatient)
    for skill in ("steps", "report", "chat"):
        with pytest.raises(OverloadedError, match="task log does not work") as refused:
            await impatient.send("go", metadata={"skill": skill})
        assert refused.value.retry_after
        with pytest.raises(OverloadedError):
            await anext(impatient.stream("go", metadata={"skill": skill}))
    with pytest.raises(OverloadedError):
        await impatient.send("an answer", task=kept)
    with pytest.raises(OverloadedError):
        await impatient.cancel(kept.id)
    # Operations that need no room still work: reads and direct replies.
    assert await impatient.get(kept.id) == kept
    assert (await impatient.list()).total_size == 1
    assert (await impatient.send("?", metadata={"skill": "memory"})).task is None
    await free_disk(impatient)
    answered = await impatient.send("an answer", task=kept)
    assert answered.id
    assert [m.text for m in answered.history] == ["go", "Question 0?", "an answer"]
    await served.end()
    await served.start()
    assert await impatient.get(kept.id) == answered
    assert (await impatient.list()).total_size == 1


async def test_tasks_that_a_full_disk_interrupted_go_on_when_there_is_room(
    served: Served, impatient: RemoteAgent
) -> None:
    """The tasks resume by themselves, with every event once and in order, and no step repeated."""
    numbers: list[int] = []

    async def read() -> list[Any]:
        stream = impatient.stream("go", metadata={"skill": "report"})
        events = []
        async for event in stream:
            events.append(event)
            numbers.append(stream.seq or 0)
        return events

    reader = asyncio.create_task(read())
    stepping = await impatient.send("go", metadata={"skill": "steps"}, return_immediately=True)
    assert stepping.id
    async with asyncio.timeout(10):
        await until(lambda: len(numbers) >= 20)
    await fill_disk(served, impatient, more=20_000)
    async with asyncio.timeout(10):
        await until(lambda: b"could not be written" in served.log.read_bytes())
    assert not reader.done()
    await free_disk(impatient)
    events = await asyncio.wait_for(reader, 20)
    assert numbers == list(range(1, len(events) + 1))
    assert text_of(events) == WHOLE
    done = await impatient.wait(stepping.id, timeout=20)
    assert (done.state, done.text) == (TaskState.COMPLETED, "0 1 2 3 4 5 6 7 8 9")
    acts = served.store.with_name("tasks.db.acts").read_text().splitlines()
    assert len(set(acts)) == 10
    assert len(acts) <= 12  # a step without room for its log entry runs again
    await served.end()
    for task_id in (events[0].id, stepping.id):
        await check_log(served, task_id)


async def test_a_server_killed_on_a_full_disk_leaves_whole_tasks_only(
    served: Served, impatient: RemoteAgent
) -> None:
    tasks = [
        await impatient.send("go", metadata={"skill": skill}, return_immediately=True)
        for skill in ("report", "steps", "report")
    ]
    await fill_disk(served, impatient, more=30_000)
    async with asyncio.timeout(10):
        await until(lambda: b"could not be written" in served.log.read_bytes())
    await served.end()
    await served.start()
    async with parley.connect(served.url) as agent:
        assert (await agent.list()).total_size == len(tasks)
        for task in tasks:
            assert task.id
            assert (await agent.wait(task.id, timeout=20)).state is TaskState.COMPLETED
    await served.end()
    for task in tasks:
        assert task.id
        await check_log(served, task.id)


async def test_a_patient_caller_notices_a_full_disk_as_a_delay(
    served: Served, impatient: RemoteAgent
) -> None:
    await impatient.send("go", metadata={"skill": "chat"})
    await fill_disk(served, impatient)
    async with parley.connect(served.url) as agent:
        sender = asyncio.create_task(agent.send("go", metadata={"skill": "steps"}))
        async with asyncio.timeout(10):
            await until(lambda: b"could not be written" in served.log.read_bytes())
        await free_disk(impatient)
        done = await asyncio.wait_for(sender, 30)
        assert done.id
        assert done.state is TaskState.COMPLETED
        assert (await agent.list()).total_size == 2


# -- a locked database -----------------------------------------------------------------------------

LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on the database from another program."""
    command = [sys.executable, "-c", LOCK, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"locked"
        try:
            yield
        finally:
            other.stdin.close()
            other.wait(10)


async def test_a_lock_of_another_program_delays_tasks_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.engine.maintenance.SWEEP_SECONDS", 0.05)
    agent = Agent("Locked out")
    go_on = asyncio.Event()

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        await go_on.wait()
        return f"attempt {turn.attempt}"

    @agent.skill(replies="message")
    async def greet(turn: Turn) -> str:
        return "hello"

    path = tmp_path / "tasks.db"
    app = parley.asgi(agent, store=SqliteTaskStore(path, busy_timeout=0.1))
    async with serving(app) as url, parley.connect(url, retries=0, idempotent=False) as remote:
        started = await remote.send("go", return_immediately=True)
        assert started.id
        stream = remote.subscribe(started.id)
        await anext(stream)
        with locked(path):
            with pytest.raises(OverloadedError, match="task log does not work"):
                await remote.send("go", return_immediately=True)
            go_on.set()
            reply = await remote.send("hi", metadata={"skill": "greet"})
            assert reply.text == "hello"
            assert (await remote.list()).total_size == 1
            assert not (await remote.get(started.id)).state.is_terminal
        rest = await asyncio.wait_for(collect(stream), 20)
        assert rest[-1].status.state is TaskState.COMPLETED
        assert (await remote.get(started.id)).text.startswith("attempt ")
        assert (await remote.send("go")).task
        assert (await remote.list()).total_size == 2


async def collect(stream: Any) -> list[Any]:
    return [event async for event in stream]


# -- a database that is lost -----------------------------------------------------------------------


async def readiness(url: str, status: int) -> dict[str, str]:
    """Ask until the status matches, and return the response."""
    async with asyncio.timeout(10):
        while (answer := await ask(url, "GET", "/health/ready")).status != status:
            await let_time_pass(0.02)
    assert isinstance(answer.json, dict)
    return answer.json


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps files that are in use")
async def test_a_database_that_is_moved_away_is_noticed_and_loses_no_task(tmp_path: Path) -> None:
    """Readiness reports it, the server rejects requests, and tasks resume after the return."""
    agent = Agent("Bereft")
    go_on = asyncio.Event()

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        await go_on.wait()
        return "done"

    path, away = tmp_path / "tasks.db", tmp_path / "away.db"
    app = parley.asgi(agent, store=f"sqlite:///{path}")
    async with serving(app) as url, parley.connect(url, retries=0, idempotent=False) as remote:
        started = await remote.send("go", return_immediately=True)
        assert started.id
        path.rename(away)
        said = await readiness(url, 503)
        reason = "the database file was removed or moved away while it is in use"
        assert said == {"status": "unavailable", "reason": reason}
        assert (await ask(url, "GET", "/health/live")).status == 200
        go_on.set()
        for asked in (remote.send("go"), remote.get(started.id), remote.list()):
            with pytest.raises(OverloadedError, match="task log does not work"):
                await asked
        assert not path.exists()
        away.rename(path)
        await readiness(url, 200)
        assert (await remote.wait(started.id, timeout=20)).state is TaskState.COMPLETED
        assert (await remote.send("go")).task
        assert (await remote.list()).total_size == 2


# -- a database that cannot be served --------------------------------------------------------------


def serve_in_vain(store: Path, before: str = "") -> str:
    """Serve on this store, expect exit status 1, and return the error output."""
    script = f"{before}\nimport runpy, sys\nrunpy.run_path(sys.argv.pop(1), run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", script, SERVED, "0", f"sqlite:///{store}"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
async def database(served: Served) -> Path:
    """The database of a stopped server that had some tasks."""
    async with parley.connect(served.url) as agent:
        for _ in range(3):
            await agent.send("go", metadata={"skill": "report"})
    await served.end(signal.SIGTERM)
    return served.store


async def test_a_damaged_database_is_not_served(database: Path) -> None:
    content = bytearray(database.read_bytes())
    for page in range(3, len(content) // 4096, 2):
        content[page * 4096 : page * 4096 + 200] = b"\x99" * 200
    database.write_bytes(content)
    said = serve_in_vain(database)
    assert str(database) in said
    assert "damaged" in said
    assert "restore it from a backup" in said
    assert database.read_bytes() == content


@pytest.mark.parametrize("share", [0.5, 0.9, 0.01])
async def test_a_truncated_database_is_not_served(database: Path, share: float) -> None:
    content = database.read_bytes()
    database.write_bytes(content[: int(len(content) * share)])
    said = serve_in_vain(database)
    assert str(database) in said
    assert "damaged" in said or "not a SQLite database" in said


async def test_a_file_of_another_kind_is_not_served_and_not_touched(tmp_path: Path) -> None:
    notes = tmp_path / "notes.db"
    notes.write_text("These are my notes.\n" * 500)
    assert "not a SQLite database" in serve_in_vain(notes)
    assert notes.read_text() == "These are my notes.\n" * 500
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE bookmarks (url)")
    other.close()
    assert "another program" in serve_in_vain(tmp_path / "other.db")
    assert "no directory" in serve_in_vain(tmp_path / "missing" / "tasks.db")


async def test_a_locked_database_is_not_served(database: Path) -> None:
    with locked(database):
        assert "locked" in serve_in_vain(database)


async def test_a_second_server_on_one_database_is_told_who_has_it(served: Served) -> None:
    said = serve_in_vain(served.store)
    assert served.process is not None
    assert f"in use by process {served.process.pid}" in said
    async with parley.connect(served.url) as agent:  # and the first server still works
        assert (await agent.send("go", metadata={"skill": "report"})).task


async def test_a_disk_that_is_full_at_the_start_is_said(tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="here no process can be kept from writing")
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))"
    said = serve_in_vain(tmp_path / "tasks.db", full)
    assert "disk" in said
    assert "full" in said


async def test_the_command_says_it_in_one_line(database: Path) -> None:
    pytest.importorskip("typer")
    database.write_text("These are my notes.\n" * 500)
    done = subprocess.run(
        [sys.executable, "-m", "parley.cli", "serve", SERVED, "--port", "0",
         "--store", f"sqlite:///{database}"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "not a SQLite database" in done.stderr
