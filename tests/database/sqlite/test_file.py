"""The SQLite file of an application other than the task store."""

from __future__ import annotations

from functools import partial

import pytest

from parley.database.errors import StoreUnavailable
from parley.database.sqlite.file import SqliteSchema
from parley.store.sqlite.store import SqliteTaskStore
from tests.database.making import APPLICATION_ID, NOTES, SqliteNotes
from tests.database.test_contract import opened
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


async def test_the_file_of_another_application_is_refused(sqlite_notes: SqliteNotes) -> None:
    store = SqliteTaskStore(sqlite_notes.path)
    await store.open(lambda records: None)
    await store.close()
    with pytest.raises(StoreUnavailable, match="a SQLite database of another program"):
        await sqlite_notes.database().open()
    sqlite_notes.path.unlink()
    async with opened(sqlite_notes):
        pass
    with pytest.raises(StoreUnavailable, match="a SQLite database of another program"):
        await store.open(lambda records: None)


async def test_readers_cannot_write(sqlite_notes: SqliteNotes) -> None:
    async with opened(sqlite_notes) as database:
        with pytest.raises(StoreUnavailable, match="cannot be written to"):
            await database.read(partial(sqlite_notes.say, author="ada"))


@pytest.mark.slow
async def test_nothing_is_written_to_a_file_that_is_lost(sqlite_notes: SqliteNotes) -> None:
    path, away = sqlite_notes.path, sqlite_notes.path.with_name("away")
    async with opened(sqlite_notes) as database:
        await database.write(partial(sqlite_notes.say, author="ada"))
        path.rename(away)
        with pytest.raises(StoreUnavailable, match="was removed or moved away"):
            await database.write(partial(sqlite_notes.say, author="bob"))
        assert "was removed or moved away" in database.unavailable_reason
        away.rename(path)
        await until(lambda: not database.unavailable_reason)
        await database.write(partial(sqlite_notes.say, author="eve"))
    assert sqlite_notes.authors() in (["ada", "eve"], ["ada", "bob", "eve"])


def test_its_settings_are_those_of_the_schema() -> None:
    schema = SqliteSchema(APPLICATION_ID, NOTES)
    settings = schema.sql("configure_writer", synchronous="NORMAL")
    assert f"application_id = {APPLICATION_ID}" in settings
    assert "cache_size = -32768" in settings
    assert "synchronous = NORMAL" in settings
    assert "{" not in settings
