"""The SQLite store's file: opening, damage, full disks, other programs, other processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from parley.database.sql import SqlFiles
from parley.model.tasks import TaskState
from parley.store.events import LoggedEvent, Scope
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import TaskQuery
from parley.store.sql import migrations, queries
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.records import (
    SCOPE,
    addition,
    all_events,
    chunk,
    creation,
    left,
    message,
    numbers,
    pieces,
    private_records,
    received,
    status,
    task,
)
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def ignore(records: Sequence[LoggedEvent]) -> None:
    pass


@asynccontextmanager
async def opened(path: Path, **options: float) -> AsyncIterator[SqliteTaskStore]:
    store = SqliteTaskStore(path, **options)  # type: ignore[arg-type]
    await store.open(ignore)
    try:
        yield store
    finally:
        await store.close()


async def refusal(path: Path, **options: float) -> str:
    """Return why the store cannot be opened; a failed attempt must leave no obstacle behind."""
    reasons = []
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as failure:
            await SqliteTaskStore(path, **options).open(ignore)  # type: ignore[arg-type]
        reasons.append(str(failure.value))
    assert reasons[0] == reasons[1]
    return reasons[0]


async def test_everything_is_there_again_after_it_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with opened(path) as store:
        began = {"exchange": [message("a")], "base_url": "https://agent.example"}
        await store.append(creation("t", received("a"), **began))
        await store.append(addition("t", 1, chunk("t", "x"), receipts=[Receipt("m", b"d")]))
        await store.append(creation("u"))
        await store.claim("t")
        await store.set_value(SCOPE, "c", "k", b"v")
        record = await store.load("t")
        before = (
            record and record.task,
            await private_records(store, "t"),
            await store.events("t", 0, 10),
            await store.list(TaskQuery(scope=SCOPE, artifacts=True)),
            await store.receipt(SCOPE, "m"),
            await store.history(SCOPE, "context-t", 10),
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tasks.db", "tasks.db.lock"]
    async with opened(path) as store:
        record = await store.load("t")
        assert record is not None
        assert (record.seq, record.lease_owner, record.epoch) == (2, "", 3)
        assert record.base_url == "https://agent.example"
        assert before == (
            record.task,
            await private_records(store, "t"),
            await store.events("t", 0, 10),
            await store.list(TaskQuery(scope=SCOPE, artifacts=True)),
            await store.receipt(SCOPE, "m"),
            await store.history(SCOPE, "context-t", 10),
        )
        assert await store.get_value(SCOPE, "c", "k") == b"v"
        assert await left(store) == ([], 2)  # their lease owner is dead, and fenced
        claimed = await store.claim_batch("agent", 10)
        assert [(task.task_id, task.epoch) for task in claimed] == [("t", 4), ("u", 3)]
        assert await store.append(addition("t", 2, chunk("t", "y"), epoch=4)) == 3
        assert await store.append(creation("v")) == 1


async def test_a_store_can_be_opened_again_after_it_was_closed(tmp_path: Path) -> None:
    store = SqliteTaskStore(tmp_path / "tasks.db")
    for n in range(3):
        await store.open(ignore)
        await store.append(creation(f"t{n}"))
        await store.close()
    await store.open(ignore)
    assert (await store.list(TaskQuery(scope=SCOPE))).total == 3
    await store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
async def test_its_files_are_for_their_owner_only(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as store:
        await store.append(creation("t"))
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    modes.setdefault("tasks.db.sock", 0o600)  # unless its path is too long there
    files = {"tasks.db", "tasks.db-wal", "tasks.db-shm", "tasks.db.lock", "tasks.db.sock"}
    assert set(modes) == files
    assert set(modes.values()) == {0o600}


@pytest.mark.L5
async def test_reading_goes_on_while_a_write_waits(sqlite: SqliteTaskStore, tmp_path: Path) -> None:
    await sqlite.append(creation("t"))
    other = sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.ensure_future(sqlite.append(addition("t", 1, chunk("t", "x"))))
    record = await sqlite.load("t")
    assert record is not None
    assert record.seq == 1
    other.execute("ROLLBACK")
    other.close()
    await asyncio.gather(writing, return_exceptions=True)


READ = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM tasks").fetchone()
print("reading", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
async def test_a_reader_that_takes_its_time_holds_up_no_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write-ahead log grows meanwhile; it is truncated by itself after the reader ends."""
    limit = 1 << 20
    monkeypatch.setattr("parley.database.sqlite.database.WAL_BYTES", limit)
    path, wal = tmp_path / "tasks.db", tmp_path / "tasks.db-wal"
    done: list[str] = []
    async with opened(path) as store, asyncio.timeout(60):
        await store.append(creation("t"))
        assert store._writing is not None
        connection = store._writing.batch_writer.connection  # type: ignore[attr-defined]
        command = [sys.executable, "-c", READ, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == b"reading\n"
            connection.set_trace_callback(done.append)
            await store.append(addition("t", 1, chunk("t", "x" * 2 * limit)))
            for seq in range(2, 202):
                await store.append(addition("t", seq, chunk("t", "x")))
            while_read = len(done)
            assert wal.stat().st_size > limit
            other.stdin.close()
        await until(lambda: wal.stat().st_size <= limit)
    assert 1 <= len([sql for sql in done[:while_read] if "wal_checkpoint" in sql]) < 50
    asked = [sql for sql in done if "wal_checkpoint" in sql or "busy_timeout =" in sql]
    patience = "PRAGMA busy_timeout = 0", "PRAGMA busy_timeout = 5000"
    assert (set(asked[::3]), set(asked[2::3])) == ({patience[0]}, {patience[1]})
    assert len(asked) % 3 == 0


FILL = """
import asyncio, resource, sys
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.protocols.errors import StoreUnavailable
from tests.kit.records import addition, chunk, creation

async def main():
    store = SqliteTaskStore(sys.argv[1])
    await store.open(lambda records: None)
    await store.append(creation("t"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
    seq = 1
    try:
        while True:
            seq = await store.append(addition("t", seq, *[chunk("t", "x" * 5000)] * 3))
    except StoreUnavailable as error:
        print(seq, error)
    record = await store.load("t")
    assert record.seq == seq
    await store.close()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit of file sizes")
async def test_a_disk_that_takes_no_more_leaves_whole_appends_only(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    done = subprocess.run(
        [sys.executable, "-c", FILL, path], capture_output=True, text=True, timeout=60, check=True
    )
    seq, said = done.stdout.split(maxsplit=1)
    assert "disk" in said
    assert "full" in said
    async with opened(path) as store:
        assert numbers(await all_events(store, "t")) == list(range(1, int(seq) + 1))
        assert int(seq) % 3 == 1
        assert int(seq) > 1
        [claimed] = await store.claim_batch("agent", 1)
        more = addition("t", int(seq), chunk("t", "x" * 50_000), epoch=claimed.epoch)
        assert await store.append(more) > int(seq)


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    path.write_text("These are my notes. " * 500)
    assert "not a SQLite database" in await refusal(path)
    assert path.read_text().startswith("These are my notes.")


async def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with opened(path) as store:
        for n in range(50):
            await store.append(creation(f"t{n}", chunk(f"t{n}", "x" * 3000)))
    damaged = bytearray(path.read_bytes())
    for page in range(3, len(damaged) // 4096, 2):
        damaged[page * 4096 : page * 4096 + 200] = b"\x99" * 200
    path.write_bytes(damaged)
    assert "damaged" in await refusal(path)
    path.write_bytes(damaged[: len(damaged) // 2])
    assert "damaged" in await refusal(path)


async def test_damage_that_shows_only_later_is_said_then(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with opened(path) as store:
        await store.append(creation("t", *[chunk("t", "x" * 3000) for _ in range(50)]))
    async with opened(path) as store:
        damaged = bytearray(path.read_bytes())
        for page in range(1, len(damaged) // 4096):
            damaged[page * 4096 : page * 4096 + 200] = b"\x99" * 200
        path.write_bytes(damaged)
        with pytest.raises(StoreUnavailable, match="damaged"):
            await store.events("t", 0, 100)


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    async with opened(path):
        pass
    other = sqlite3.connect(path)
    other.execute("INSERT INTO schema_versions VALUES (99, 'later', '')")
    other.commit()
    other.close()
    reason = await refusal(path)
    assert "version 99" in reason
    assert "later version of Parley" in reason


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere"
)
async def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert "cannot be written to" in await refusal(tmp_path / "tasks.db")
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.slow
async def test_a_file_is_open_once_in_a_process(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db"):
        reason = await refusal(tmp_path / "tasks.db")
    assert f"in use by process {os.getpid()}" in reason
    async with opened(tmp_path / "tasks.db"):
        pass


HOLD = """
import asyncio, sys
from parley.store.sqlite.store import SqliteTaskStore

async def main():
    await SqliteTaskStore(sys.argv[1]).open(lambda records: None)
    print("open", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
async def test_a_file_is_open_in_one_process_until_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"open\n"
            assert f"in use by process {holder.pid};" in await refusal(path)
        finally:
            holder.send_signal(signal.SIGKILL)
    async with opened(path) as store:
        await store.append(creation("t"))


async def test_an_older_schema_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tasks.db"
    async with opened(path) as store:
        await store.append(creation("t"))
    last = migrations("sqlite")[-1]
    later = last._replace(
        version=last.version + 1, name="later", sql="ALTER TABLE tasks ADD COLUMN colour TEXT;"
    )
    broken = later._replace(
        version=last.version + 2, sql="CREATE TABLE half (a); CREATE TABLE half (a);"
    )
    known = [*migrations("sqlite"), later]
    monkeypatch.setattr(SqlFiles, "migrations", lambda files, name: [*known, broken])
    assert "SQLite reports an error" in await refusal(path)
    monkeypatch.setattr(SqlFiles, "migrations", lambda files, name: known)
    async with opened(path) as store:
        assert await store.append(addition("t", 1, chunk("t", "x"), epoch=2)) == 2
    other = sqlite3.connect(path)
    found = other.execute("SELECT max(version) FROM schema_versions").fetchone()
    assert found == (later.version,)
    assert other.execute("SELECT name FROM sqlite_master WHERE name = 'half'").fetchall() == []
    other.close()


async def test_every_query_uses_an_index(sqlite: SqliteTaskStore) -> None:
    """No query of a running server reads a whole table."""
    connection = sqlite._writing.batch_writer.connection  # type: ignore[union-attr]
    found = queries("sqlite")
    pieces = {name: found.pop(name) for name in ("found_in_state", "found_in_context")}
    whole = found.pop("found")
    for name, piece in pieces.items():
        found[f"found, {name}"] = whole.replace("{found}", piece.replace("{state}", "'x'"))
    for name, sql in found.items():
        named = set(re.findall(r":(\w+)", sql))
        numbered = [int(n) for n in re.findall(r"\?(\d)", sql)]
        count = max(numbered) if numbered else sql.count("?")
        values = dict.fromkeys(named, 1) if named else ["[]"] * count
        plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, values)]
        for step in plan:
            is_scan = re.match(r"SCAN (tasks|log|[tlchvmap]|receipts|contexts|pushes)\b", step)
            assert not is_scan or "tasks_under_way" in step, (name, step)


async def test_a_list_of_many_tasks_is_answered_by_the_index(sqlite: SqliteTaskStore) -> None:
    await asyncio.gather(
        *[sqlite.append(creation(f"t{n:04}", at=n, scope=SCOPE)) for n in range(1000)],
        *[sqlite.append(creation(f"o{n:04}", scope=Scope("other"))) for n in range(100)],
    )
    page = await sqlite.list(TaskQuery(scope=SCOPE, before=(500, "t0500"), limit=3))
    assert [t.id for t in page.tasks] == ["t0499", "t0498", "t0497"]
    assert (page.total, page.more) == (1000, True)


@pytest.mark.slow
@pytest.mark.L7
async def test_the_work_of_an_append_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """L7: ten thousand chunks are ten thousand small writes."""
    if not os.path.exists("/proc/self/io"):
        pytest.skip("this system does not count what a process writes")

    def written() -> int:
        text = Path("/proc/self/io").read_text()
        return int(re.findall(r"wchar: (\d+)", text)[0])

    costs = []
    async with opened(tmp_path / "tasks.db") as store:
        events = [task("t")]
        await store.append(creation("t", first=events[0]))
        seq = 1
        for _ in range(10):
            before = written()
            for _ in range(20):
                await asyncio.gather(
                    *[store.append(addition("t", seq + n, chunk("t", "x" * 50))) for n in range(50)]
                )
                seq += 50
            costs.append(written() - before)
        assert max(costs[1:]) < 2.5 * min(costs[1:])
        record = await store.load("t")
        assert record is not None
        assert len(record.task.artifacts[0].parts) == 10_000


@pytest.mark.L7
async def test_a_snapshot_is_written_once_and_not_with_every_append(tmp_path: Path) -> None:
    if not os.path.exists("/proc/self/io"):
        pytest.skip("this system does not count what a process writes")
    async with opened(tmp_path / "tasks.db") as store:
        large = chunk("t", "x" * 1_000_000, append=False)
        whole = pieces(task("t"), large)
        await store.append(creation("t", large, artifacts=whole))
        before = int(re.findall(r"wchar: (\d+)", Path("/proc/self/io").read_text())[0])
        for seq in range(2, 22):
            await store.append(addition("t", seq, status("t", TaskState.WORKING)))
        after = int(re.findall(r"wchar: (\d+)", Path("/proc/self/io").read_text())[0])
        assert after - before < 1_000_000
