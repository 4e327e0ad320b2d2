"""An index is opened by its URL; what is wrong with one is said, without a password."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from parley.database.errors import StoreUnavailable
from parley.registry.index.urls import open_index
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.services.postgres import PostgresServer
from tests.registry.index.making import draft, found, listed

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("url", ["memory:", "memory://"])
async def test_a_registry_in_memory_is_gone_afterwards(url: str) -> None:
    for _ in range(2):
        index = open_index(url)
        await index.open()
        assert index.name == "memory:"
        assert await listed(index) == set()
        await index.put([draft("one", "violin")])
        assert await found(index, "violin") == ["one"]
        await index.close()


async def test_a_file_keeps_a_registry(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/registry.db"
    for _ in range(2):
        index = open_index(url)
        await index.open()
        assert index.name == str(tmp_path / "registry.db")
        await index.put([draft("one")])
        assert await listed(index) == {"one"}
        await index.close()
        await index.close()


async def test_a_registry_has_a_schema_of_its_own(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    index = open_index(url)
    await index.open()
    await index.put([draft("one")])
    await index.close()
    database = url.rpartition("/")[2]
    rows = postgres.execute("SELECT identifier FROM parley_registry.entries", database)
    assert rows == [("urn:air:example.com:agents:one",)]


async def test_an_old_schema_is_refused_unless_it_may_be_migrated(postgres_url: str) -> None:
    with pytest.raises(StoreUnavailable, match="schema version 0"):
        await open_index(postgres_url, migrate=False).open()
    first = open_index(postgres_url)
    await first.open()
    await first.close()
    second = open_index(postgres_url, migrate=False)
    await second.open()
    await second.close()


async def test_the_file_of_a_task_store_is_refused(tmp_path: Path) -> None:
    store = SqliteTaskStore(tmp_path / "tasks.db")
    await store.open(lambda records: None)
    await store.close()
    with pytest.raises(StoreUnavailable, match="another program"):
        await open_index(f"sqlite:///{tmp_path}/tasks.db").open()


async def test_a_registry_that_another_process_has_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/registry.db"
    first = open_index(url)
    await first.open()
    with pytest.raises(StoreUnavailable, match="in use by process"):
        await open_index(url).open()
    await first.close()


async def test_an_index_that_is_not_open_says_so(tmp_path: Path) -> None:
    index = open_index(f"sqlite:///{tmp_path}/registry.db")
    with pytest.raises(StoreUnavailable, match="closed"):
        await index.put([draft("one")])
    with pytest.raises(StoreUnavailable, match="closed"):
        await found(index, "x")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://user:secret@host/db", "no registry index of the kind 'mysql'"),
        ("registry.db", "no registry index of the kind 'registry.db'"),
        ("sqlite:registry.db", "names no file"),
        ("sqlite:///", "names no file"),
        ("postgresql://u:secret@[host/db", "not a URL that libpq knows"),
        ("postgresql://u:secret@host/db?schema=Big", "small letters"),
    ],
)
def test_other_urls_are_refused_with_what_would_be_right(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        open_index(url)
    assert "secret" not in str(refused.value)


async def test_the_name_of_an_index_shows_no_password() -> None:
    index = open_index("postgresql://u:secret@127.0.0.1:1/db")
    assert "secret" not in index.name + repr(index)
    with pytest.raises(StoreUnavailable) as unavailable:
        await index.open()
    assert "secret" not in str(unavailable.value)


async def test_tables_of_both_databases_have_the_same_columns(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    here, there = f"sqlite:///{tmp_path}/registry.db", postgres.url(schema="columns")
    for url in (here, there):
        index = open_index(url)
        await index.open()
        await index.close()
    rows = postgres.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'columns'"
    )
    with closing(sqlite3.connect(tmp_path / "registry.db")) as connection:
        columns = connection.execute(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c"
            " WHERE m.type = 'table'"
        ).fetchall()
    own = {"schema_versions", "entry_words"}
    ours = {row for row in columns if row[0] not in own and not row[0].startswith("entry_words_")}
    assert ours == {row for row in rows if row[0] not in own}
