"""The contract of the engines for every application, tested with the notes application."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parley.database.database import Database
from parley.database.errors import StoreUnavailable
from parley.database.sql import SqlFiles
from tests.database.making import LATER, NOTES, Notes, Unwanted

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(
    notes: Notes, files: SqlFiles = NOTES, **options: Any
) -> AsyncIterator[Database[Any]]:
    database = notes.database(files, **options)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


# -- migrations ------------------------------------------------------------------------------------


async def test_migrations_run_once(notes: Notes) -> None:
    async with opened(notes) as database:
        assert database.migrated == ["1 notes"]
        assert await database.write(partial(notes.say, author="ada")) == 1
    async with opened(notes) as database:
        assert database.migrated == []
        assert await database.write(partial(notes.say, author="bob")) == 2
    assert notes.authors() == ["ada", "bob"]


async def test_the_next_version_adds_what_is_missing_and_does_its_step(notes: Notes) -> None:
    async with opened(notes) as database:
        await database.write(partial(notes.say, author="ada"))
    async with opened(notes, LATER) as database:
        assert database.migrated == ["2 colour"]
        await database.write(partial(notes.say, author="bob"))
    found = notes.look("SELECT author, colour FROM {notes} ORDER BY id")
    assert [tuple(row) for row in found] == [("ada", "of ada"), ("bob", "white")]
    assert len(notes.look("SELECT version FROM {versions}")) == 2


async def test_a_migration_whose_step_fails_leaves_nothing(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(notes):
        pass

    def fail(*arguments: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(notes, "paint", fail)
    with pytest.raises(ZeroDivisionError):
        await notes.database(LATER).open()
    assert len(notes.look("SELECT version FROM {versions}")) == 1
    async with opened(notes) as database:
        await database.write(partial(notes.say, author="ada"))
    assert len(notes.look("SELECT * FROM {notes}")[0]) == 3


@pytest.mark.slow
async def test_many_may_open_it_at_once(notes: Notes) -> None:
    """Only one process can open a file, all can open PostgreSQL; the migrations run once."""
    databases = [notes.database() for _ in range(6)]
    results = await asyncio.gather(*[each.open() for each in databases], return_exceptions=True)
    errors = [each for each in results if each is not None]
    assert sum([len(each.migrated) for each in databases]) == 1
    if notes.is_shared:
        assert errors == []
    else:
        assert len(errors) == 5
        assert all([isinstance(each, StoreUnavailable) for each in errors])
        assert all(["is in use by process" in str(each) for each in errors])
    writes = [
        each.write(partial(notes.say, author="ada"))
        for each, result in zip(databases, results, strict=True)
        if result is None
    ]
    assert sorted(await asyncio.gather(*writes)) == list(range(1, len(writes) + 1))
    for each in databases:
        await each.close()
    assert len(notes.look("SELECT version FROM {versions}")) == 1


async def test_a_schema_of_a_later_version_is_refused(notes: Notes) -> None:
    async with opened(notes, LATER):
        pass
    with pytest.raises(StoreUnavailable, match=r"schema version 2, written by a later version"):
        await notes.database().open()
    async with opened(notes, LATER) as database:
        await database.write(partial(notes.say, author="ada"))


async def test_an_application_without_migrations_is_told_so(notes: Notes) -> None:
    with pytest.raises(ValueError, match="has no migration: the first is a file 0001_"):
        await notes.database(SqlFiles("tests.database")).open()


# -- batches ---------------------------------------------------------------------------------------


async def test_what_is_written_at_once_is_written_together(notes: Notes) -> None:
    calls: list[int] = []

    def say(connection: Any) -> int:
        calls.append(notes.say(connection, "ada"))
        return calls[-1]

    async with opened(notes) as database:
        notes.count_commits(database)
        numbers = await asyncio.gather(*[database.write(say) for _ in range(200)])
        assert numbers == calls == list(range(1, 201))
        assert notes.commits(database) < 10


@pytest.mark.slow
async def test_what_was_acknowledged_outlives_a_kill(notes: Notes) -> None:
    """A process writes as fast as it can, and prints acknowledged notes, until it is killed."""
    async with opened(notes):
        pass
    command = [sys.executable, "-c", WRITE, type(notes).__name__, notes.place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writing:
        assert writing.stdout is not None
        said = [writing.stdout.readline().strip() for _ in range(300)]
        writing.send_signal(signal.SIGKILL)
        said += [line.strip() for line in writing.stdout if line.endswith("\n")]
    async with opened(notes) as database:
        await database.write(partial(notes.say, author="after"))
    authors = notes.authors()
    assert all(said)
    assert set(said) <= set(authors)
    assert len(set(authors)) == len(authors)


WRITE = """
import asyncio, itertools, sys
from functools import partial
from pathlib import Path
from tests.database.making import PostgresNotes, SqliteNotes

async def write():
    kind, place = sys.argv[1:]
    notes = SqliteNotes(Path(place)) if kind == "SqliteNotes" else PostgresNotes(place)
    database = notes.database()
    await database.open()
    numbers = itertools.count()

    async def write_on():
        for number in numbers:
            await database.write(partial(notes.say, author=f"w{number}"))
            print(f"w{number}", flush=True)

    await asyncio.gather(*[write_on() for _ in range(16)])

asyncio.run(write())
"""


async def test_a_failing_job_of_a_group_fails_alone(notes: Notes) -> None:
    def reject(connection: Any) -> None:
        notes.say(connection, "rejected")
        raise Unwanted("no notes about this")

    def stumble(connection: Any) -> None:
        notes.say(connection, "stumbled")
        raise ZeroDivisionError

    functions = [partial(notes.say, author=f"a{n}") for n in range(4)]
    functions[1:1] = [reject]  # type: ignore[list-item]
    functions[3:3] = [partial(notes.say, author=""), stumble]  # type: ignore[list-item]
    async with opened(notes) as database:
        results: list[Any] = await asyncio.gather(
            *[database.write(function) for function in functions], return_exceptions=True
        )
        assert isinstance(results[1], Unwanted)
        assert isinstance(results[3], StoreUnavailable)
        assert "reports an error" in str(results[3])
        assert "see its log" in str(results[4])
        assert all([isinstance(results[n], int) for n in (0, 2, 5, 6)])
        assert notes.authors() == ["a0", "a1", "a2", "a3"]
        await database.write(partial(notes.say, author="after"))
    assert notes.authors()[-1] == "after"


async def test_a_full_disk_is_explained(notes: Notes) -> None:
    async with opened(notes) as database:
        await database.write(partial(notes.say, author="before"))
        results: list[Any] = await asyncio.gather(
            database.write(notes.fill_the_disk),
            database.write(partial(notes.say, author="beside")),
            return_exceptions=True,
        )
        assert isinstance(results[0], StoreUnavailable)
        assert "the disk is full; make room on it" in str(results[0])
        assert database.name in str(results[0])
        assert isinstance(results[1], int)
    assert notes.authors() == ["before", "beside"]


async def test_a_write_is_seen_by_the_next_read(notes: Notes) -> None:
    async with opened(notes) as database:
        for n in range(20):
            number = await database.write(partial(notes.say, author=f"a{n}"))
            assert await database.read(lambda connection: 1) == 1
            assert len(notes.authors()) == number


async def test_an_error_of_a_read_reaches_who_asked(notes: Notes) -> None:
    def reject(connection: Any) -> None:
        raise Unwanted("no such note")

    async with opened(notes) as database:
        with pytest.raises(Unwanted):
            await database.read(reject)
        with pytest.raises(StoreUnavailable, match="reports an error"):
            await database.read(lambda connection: connection.execute("SELECT nothing FROM here"))
        assert await database.read(lambda connection: 1) == 1


async def test_a_closed_database_refuses(notes: Notes) -> None:
    database = notes.database()
    with pytest.raises(StoreUnavailable, match="is closed"):
        await database.read(lambda connection: 1)
    await database.open()
    with pytest.raises(RuntimeError, match="open already"):
        await database.open()
    pending = asyncio.ensure_future(database.write(partial(notes.say, author="last")))
    await asyncio.sleep(0)
    await database.close()
    await database.close()
    assert await pending == 1
    with pytest.raises(StoreUnavailable, match="is closed"):
        await database.write(partial(notes.say, author="late"))
    assert notes.authors() == ["last"]
