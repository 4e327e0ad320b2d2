"""The SQLite store's files: links are not followed, all files are private, old tasks are pruned."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from parley.model.tasks import TaskState
from parley.store.events import LoggedEvent
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import TaskQuery
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.records import SCOPE, addition, chunk, creation, message, status
from tests.kit.waiting import until
from tests.store.sqlite.test_store import HOLD, opened, refusal

pytestmark = pytest.mark.anyio


NOTES = "These are my notes. They are not to be lost.\n"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "victim"
    path.write_text(NOTES)
    return path


# -- links -----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other links and permissions")
@pytest.mark.parametrize("content", [NOTES, "12\n", ""])
@pytest.mark.parametrize("kind", ["symbolic link", "hard link"])
@pytest.mark.parametrize("ending", [".lock", "-wal", "-shm", "-journal"])
async def test_a_link_in_place_of_a_file_of_the_database_is_not_followed(
    tmp_path: Path, victim: Path, ending: str, kind: str, content: str
) -> None:
    victim.write_text(content)
    victim.chmod(0o644)
    planted = tmp_path / f"tasks.db{ending}"
    if kind == "hard link":
        os.link(victim, planted)
    else:
        planted.symlink_to(victim)
    reason = await refusal(tmp_path / "tasks.db")
    assert f"{planted} is a {kind}" in reason
    assert victim.read_text() == content
    assert stat.S_IMODE(victim.stat().st_mode) == 0o644
    planted.unlink()
    async with opened(tmp_path / "tasks.db") as store:
        await store.append(creation("t"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other links and permissions")
@pytest.mark.parametrize("ending", [".lock", "-wal"])
async def test_a_link_to_nothing_makes_nothing(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"tasks.db{ending}").symlink_to(tmp_path / "made")
    assert "symbolic link" in await refusal(tmp_path / "tasks.db")
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other links and permissions")
async def test_a_database_that_is_named_by_a_symbolic_link_is_the_one_it_names(
    tmp_path: Path,
) -> None:
    """There is one lock for all names of a file."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "tasks.db").symlink_to(tmp_path / "disk" / "real.db")
    async with opened(tmp_path / "tasks.db") as store:
        await store.append(creation("t"))
        assert "in use" in await refusal(tmp_path / "disk" / "real.db")
        names = sorted(p.name for p in (tmp_path / "disk").iterdir())
    assert names == ["real.db", "real.db-shm", "real.db-wal", "real.db.lock", "real.db.sock"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["disk", "tasks.db"]


# -- privacy ---------------------------------------------------------------------------------------


def modes(folder: Path) -> dict[str, int]:
    return {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.iterdir()}


FILES = ("tasks.db", "tasks.db-shm", "tasks.db-wal", "tasks.db.lock")
SOCKET = "tasks.db.sock"
PRIVATE = dict.fromkeys((*FILES, SOCKET), 0o600)


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other links and permissions")
@pytest.mark.parametrize("mask", [0, 0o777, 0o077])
async def test_its_files_are_private_whatever_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        async with opened(tmp_path / "tasks.db") as store:
            await store.append(creation("t"))
            assert modes(tmp_path) == PRIVATE


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other links and permissions")
async def test_files_that_were_open_to_others_are_made_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tasks.db"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        holder.send_signal(signal.SIGKILL)
    assert set(modes(tmp_path)) == {*FILES, SOCKET}
    for name in FILES:
        (tmp_path / name).chmod(0o664)
    with caplog.at_level(logging.WARNING):
        async with opened(path) as store:
            await store.append(creation("t"))
            assert modes(tmp_path) == PRIVATE
    said = sorted(line for line in caplog.messages if str(tmp_path) in line)
    assert said == [
        f"{tmp_path / name} was open to others (mode 664); it is private now" for name in FILES
    ]


# -- a file that is lost while it is in use --------------------------------------------------------


async def until_unavailable(store: SqliteTaskStore, is_so: bool) -> str:
    async with asyncio.timeout(10):
        await until(lambda: bool(store.unavailable_reason) is is_so)
    return store.unavailable_reason


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other links and permissions")
@pytest.mark.parametrize("how", ["moved away", "replaced", "replaced by a link"])
@pytest.mark.parametrize("name", ["tasks.db", "tasks.db-wal"])
async def test_nothing_is_written_to_a_file_that_is_lost(
    tmp_path: Path, name: str, how: str
) -> None:
    path = tmp_path / "tasks.db"
    there, away = tmp_path / name, tmp_path / "away"
    async with opened(path) as store:
        assert await store.append(creation("t")) == 1
        there.rename(away)
        if how == "replaced":
            there.write_bytes(away.read_bytes())
        elif how == "replaced by a link":
            there.symlink_to(away)
        tries = [store.append(addition("t", 1, chunk("t", text))) for text in "abc"]
        for result in await asyncio.gather(*tries, return_exceptions=True):
            assert isinstance(result, StoreUnavailable)
            assert said_of(how) in str(result)
            assert "restart the server" in str(result)
        assert said_of(how) in store.unavailable_reason
        assert str(tmp_path) not in store.unavailable_reason
        with pytest.raises(StoreUnavailable, match="restart the server"):
            await store.load("t")
        away.rename(there)
        # The first append may be written: the loss was detected only afterwards.
        await until_unavailable(store, False)
        record = await store.load("t")
        assert record is not None
        assert record.seq in (1, 2)
        assert await store.append(addition("t", record.seq, chunk("t", "x"))) == record.seq + 1
    async with opened(path) as store:
        again = await store.load("t")
        assert again is not None
        assert again.seq == record.seq + 1


def said_of(how: str) -> str:
    return "was removed or moved away" if how == "moved away" else "another file has replaced"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other links and permissions")
async def test_a_file_that_is_lost_at_the_very_moment_acknowledges_nothing(tmp_path: Path) -> None:
    path, told = tmp_path / "tasks.db", list[LoggedEvent]()

    def tell(records: Sequence[LoggedEvent]) -> None:
        told.extend(records)

    store = SqliteTaskStore(path)
    await store.open(tell)
    await store.append(creation("t"))
    told.clear()

    def move(sql: str) -> None:
        if sql == "COMMIT":
            path.rename(tmp_path / "away")

    assert store._writing is not None
    connection = store._writing.batch_writer.connection  # type: ignore[attr-defined]
    connection.set_trace_callback(move)
    with pytest.raises(StoreUnavailable, match="was removed or moved away"):
        await store.append(addition("t", 1, chunk("t", "x")))
    connection.set_trace_callback(None)
    assert told == []
    await store.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other links and permissions")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_lost_file_is_noticed_by_itself(tmp_path: Path, name: str, how: str) -> None:
    """No write is needed; the check covers more than the database file."""
    there, away = tmp_path / name, tmp_path / "away"
    async with opened(tmp_path / "tasks.db") as store:
        await store.append(creation("t"))
        there.rename(away)
        if how == "replaced":
            there.write_bytes(b"")
        said = await until_unavailable(store, True)
        assert (
            said
            == {
                "removed": f"the {CALLED[name]} was removed or moved away while it is in use",
                "replaced": f"another file has replaced the {CALLED[name]} while it is in use",
            }[how]
        )
        with pytest.raises(StoreUnavailable):
            await store.append(addition("t", 1, chunk("t", "x")))
        with pytest.raises(StoreUnavailable):
            await store.load("t")
        away.rename(there)
        assert await store.append(addition("t", 1, chunk("t", "x"))) == 2
        assert store.unavailable_reason == ""


CALLED = {
    "tasks.db": "database file",
    "tasks.db-wal": "database's write-ahead log",
    "tasks.db-shm": "database's index of the write-ahead log",
    "tasks.db.lock": "database's lock file",
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other links and permissions")
async def test_what_took_the_place_of_a_database_stays_whole(tmp_path: Path) -> None:
    """Closing the replaced database does not touch the new one."""
    path = tmp_path / "tasks.db"
    (tmp_path / "other").mkdir()
    command = [sys.executable, "-c", HOLD, str(tmp_path / "other" / "tasks.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        holder.send_signal(signal.SIGKILL)  # so that it has a write-ahead log
    async with opened(path) as store:
        await store.append(creation("t"))
        for name in ("tasks.db", "tasks.db-wal", "tasks.db-shm"):
            os.replace(tmp_path / "other" / name, tmp_path / name)
        await until_unavailable(store, True)
        kept = {n: (tmp_path / n).read_bytes() for n in ("tasks.db", "tasks.db-wal")}
    assert {n: (tmp_path / n).read_bytes() for n in kept} == kept
    async with opened(path) as store:
        assert await store.load("t") is None


# -- pruning a SQLite store: in small steps, whatever its size -------------------------------------


MEGABYTE = "x" * 1_000_000


def statements(store: SqliteTaskStore) -> list[str]:
    """Record the database's statements."""
    done: list[str] = []
    assert store._writing is not None
    store._writing.batch_writer.connection.set_trace_callback(done.append)  # type: ignore[attr-defined]
    return done


async def committed(done: list[str], times: int) -> None:
    async with asyncio.timeout(20):
        while done.count("COMMIT") < times:
            await asyncio.sleep(0)


def left_in(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    [(count,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    connection.close()
    return int(count)


async def large_task(store: SqliteTaskStore, name: str, records: int) -> None:
    await store.append(creation(name))
    for seq in range(1, records + 1):
        await store.append(addition(name, seq, chunk(name, MEGABYTE)))
    await store.append(addition(name, records + 1, status(name, TaskState.COMPLETED)))


async def test_one_large_log_is_removed_in_slices(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as store:
        await large_task(store, "large", 12)
        done = statements(store)
        assert await store.prune(SCOPE.agent, store.now() + 1000, 10) == 1
        assert done.count("COMMIT") >= 12
        assert await store.load("large") is None
        assert left_in(tmp_path / "tasks.db", "log") == 0


@pytest.mark.slow
async def test_large_tasks_are_removed_one_by_one(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as store:
        for n in range(6):
            await large_task(store, f"t{n}", 1)
        for n in range(100):
            end = status(f"s{n}", TaskState.COMPLETED)
            await store.append(creation(f"s{n}", end))
        done = statements(store)
        assert await store.prune(SCOPE.agent, store.now() + 1000, 200) == 106
        assert 6 <= done.count("COMMIT") < 20
        assert (await store.list(TaskQuery(scope=SCOPE))).total == 0
        assert left_in(tmp_path / "tasks.db", "log") == 0


@pytest.mark.slow
async def test_large_contexts_and_receipts_are_removed_a_few_at_a_time(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as store:
        for n in range(6):
            await store.set_value(SCOPE, f"context{n}", "key", MEGABYTE.encode())
            receipt = Receipt(f"m{n}", b"d", reply=MEGABYTE.encode())
            await store.keep(SCOPE, f"said{n}", receipt=receipt, exchange=[message(MEGABYTE)])
        done = statements(store)
        await store.prune(SCOPE.agent, store.now() + 1000, 10)
        assert done.count("COMMIT") >= 18
        tables = ("contexts", "context_values", "history", "receipts")
        assert [left_in(tmp_path / "tasks.db", table) for table in tables] == [0] * 4


@pytest.mark.slow
async def test_interrupted_pruning_goes_on_when_the_store_is_open_again(tmp_path: Path) -> None:
    """The task disappears at once; its log is still pruned, and its key is not reused."""
    path = tmp_path / "tasks.db"
    async with opened(path) as store:
        await large_task(store, "large", 12)
        done = statements(store)
        pruning = asyncio.create_task(store.prune(SCOPE.agent, store.now() + 1000, 10))
        await committed(done, 3)
        assert await store.append(creation("meanwhile")) == 1
        pruning.cancel()
        await asyncio.gather(pruning, return_exceptions=True)
        assert await store.load("large") is None
    assert 1 < left_in(path, "log") < 13
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM tasks")  # so that nothing else keeps the key
    connection.commit()
    connection.close()
    async with opened(path) as store:
        assert await store.append(creation("new")) == 1
        for seq in range(1, 15):
            assert await store.append(addition("new", seq, chunk("new", "y"))) == seq + 1
        assert len(await store.events("new", 0, 100)) == 15
        assert await store.prune(SCOPE.agent, 0, 10) == 0
        assert left_in(path, "log") == 15 + 1  # and the key of the interrupted "meanwhile"
        record = await store.load("new")
        assert record is not None
        assert record.seq == 15


async def test_pruning_twice_at_once_counts_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "tasks.db") as store:
        for n in range(20):
            await store.append(creation(f"t{n}", status(f"t{n}", TaskState.COMPLETED)))
        await store.append(creation("alive"))
        other = replace(SCOPE, agent="other")
        await store.append(creation("o", status("o", TaskState.COMPLETED), scope=other))
        before, agents = store.now() + 1000, [SCOPE.agent, SCOPE.agent, "other"]
        removed = await asyncio.gather(*[store.prune(agent, before, 100) for agent in agents])
        assert (sum(removed), removed[2]) == (21, 1)
        assert (await store.list(TaskQuery(scope=SCOPE))).total == 1


async def test_a_store_that_is_closed_removes_nothing_more(tmp_path: Path) -> None:
    store = SqliteTaskStore(tmp_path / "tasks.db")
    await store.open(lambda records: None)
    await large_task(store, "large", 12)
    done = statements(store)
    pruning = asyncio.create_task(store.prune(SCOPE.agent, store.now() + 1000, 10))
    await committed(done, 2)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await pruning
    assert done.count("COMMIT") < 10
