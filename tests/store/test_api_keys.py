"""API keys and their owners, on every store."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import parley
from parley import Agent, Turn
from parley.database.postgres.connection import Address
from parley.host.store_urls import open_admin
from parley.model.service import Caller
from parley.security.api_keys import STORE_SECRET, ApiKeyRecord, new_key
from parley.security.schemes.api_key import create_key
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols import tables
from parley.store.protocols.tables import ENDED_KEPT, DuplicateApiKey, TooManyApiKeys
from parley.store.sql import FILES
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.waiting import Clock

pytestmark = pytest.mark.anyio


def record(**given: Any) -> ApiKeyRecord:
    values: dict[str, Any] = {"owner": "ada", "now": 1000} | given
    return new_key(b"s" * 32, **values)[1]


async def test_a_store_is_given_the_hash_of_a_key_and_never_the_key(
    store: TaskStore, tmp_path: Path
) -> None:
    key, created = await create_key(store, owner="ada", scopes=["read"], expires_in=60)
    assert created.expires_at == store.now() + 60_000
    secret = key.rpartition("_")[2]
    assert secret not in repr(await store.api_keys())
    if isinstance(store, SqliteTaskStore):
        await store.close()
        assert all(secret.encode() not in file.read_bytes() for file in tmp_path.glob("tasks.db*"))


async def test_the_keys_of_an_owner_are_listed_the_oldest_first(store: TaskStore) -> None:
    first, second = record(now=1000), record(now=2000, label="new")
    other = record(owner="bob", now=1500)
    for each in (second, first, other):
        await store.add_api_key(each)
    assert list(await store.api_keys("ada")) == [first, second]
    assert list(await store.api_keys()) == [first, other, second]
    assert list(await store.api_keys("eve")) == []


async def test_a_key_ends_earlier_but_never_later(store: TaskStore) -> None:
    added = record(expires_at=5000)
    await store.add_api_key(added)
    ended = await store.end_api_key(added.id, expires_at=9000)
    assert ended is not None
    assert ended.expires_at == 5000
    ended = await store.end_api_key(added.id, expires_at=3000, revoked_at=2000)
    assert ended == await store.api_key(added.id)
    assert ended is not None
    assert (ended.expires_at, ended.revoked_at, ended.ended_at()) == (3000, 2000, 2000)
    ended = await store.end_api_key(added.id, revoked_at=2500)
    assert ended is not None
    assert ended.revoked_at == 2000
    assert await store.end_api_key("other", revoked_at=1) is None


async def test_adding_a_key_again_counts_once(store: TaskStore) -> None:
    added = record()
    await store.add_api_key(added)
    await store.add_api_key(added)
    assert list(await store.api_keys()) == [added]
    with pytest.raises(DuplicateApiKey, match=added.id):
        await store.add_api_key(replace(added, digest="0" * 64))
    assert await store.api_key(added.id) == added


async def test_the_number_of_keys_is_limited_also_for_those_who_add_at_once(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.store.tables.MAX_API_KEYS", 3)
    adding = [store.add_api_key(record(now=1_000_000)) for _ in range(5)]
    results = await asyncio.gather(*adding, return_exceptions=True)
    assert sorted([type(each) for each in results], key=str) == [
        *([type(None)] * 3),
        *([TooManyApiKeys] * 2),
    ]
    assert len(await store.api_keys()) == 3


async def test_keys_that_ended_long_ago_make_room(
    store: TaskStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.store.tables.MAX_API_KEYS", 2)
    old, valid = record(), record(expires_at=clock.now + 10 * ENDED_KEPT)
    await store.add_api_key(old)
    await store.add_api_key(valid)
    await store.end_api_key(old.id, revoked_at=clock.now)
    with pytest.raises(TooManyApiKeys, match="30 days"):
        await store.add_api_key(record())
    clock.now += ENDED_KEPT + 1
    new = record(now=clock.now)
    await store.add_api_key(new)
    assert list(await store.api_keys()) == [valid, new]


async def test_this_process_hears_of_its_changes(store: TaskStore) -> None:
    heard: list[str] = []
    store.listen_api_keys(heard.append)
    added = record()
    await store.add_api_key(added)
    await store.end_api_key(added.id, revoked_at=5)
    assert heard == [added.id, added.id]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"owner": ""}, "the owner of a key"),
        ({"owner": "a\x1fb"}, "no control character"),
        ({"label": "x" * 201}, "up to 200 printable"),
        ({"label": "a\nb"}, "printable"),
        ({"scopes": ("a b",)}, "without spaces"),
        ({"scopes": [str(n) for n in range(101)]}, "up to 100 scopes"),
        ({"expires_at": 1000}, "expires after it was created"),
    ],
)
async def test_what_cannot_be_stored_is_refused_with_a_reason(
    store: TaskStore, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        record(**given)
    valid = record()
    values = given | {"scopes": tuple(given.get("scopes", ()))}
    values.setdefault("created_at", 1000)
    with pytest.raises(ValueError, match=words):
        await store.add_api_key(replace(valid, **values))
    assert list(await store.api_keys()) == []


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def test_an_operator_works_without_a_server(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:////{tmp_path}/tasks.db"
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")
    admin = open_admin(url)
    admin.migrate()
    secret = admin.secret(STORE_SECRET)
    added = record(scopes=("read",))
    admin.add_api_key(added)
    admin.add_api_key(added)
    assert admin.api_keys() == [added]
    with pytest.raises(DuplicateApiKey):
        admin.add_api_key(replace(added, digest="0" * 64, created_at=admin.now()))
    assert admin.end_api_key(added.id, expires_at=2000) == replace(added, expires_at=2000)
    assert admin.end_api_key("none", expires_at=2000) is None
    monkeypatch.setattr("parley.store.tables.MAX_API_KEYS", 1)
    fresh = replace(added, id="x" * 16, created_at=admin.now(), expires_at=None)
    admin.add_api_key(fresh)  # the other one ended long ago
    with pytest.raises(TooManyApiKeys):
        admin.add_api_key(replace(fresh, id="y" * 16))
    store = SqliteTaskStore(tmp_path / "tasks.db") if kind == "sqlite" else PostgresTaskStore(url)
    await store.open(lambda records: None)
    assert await store.secret(STORE_SECRET) == secret
    assert await store.api_key(fresh.id) == fresh
    await store.close()


async def test_replicas_see_the_keys_of_each_other() -> None:
    logs = MemoryLogs()
    one, two = MemoryTaskStore(logs=logs), MemoryTaskStore(logs=logs)
    await one.open(lambda records: None)
    await two.open(lambda records: None)
    added = record()
    await one.add_api_key(added)
    assert await two.api_key(added.id) == added
    assert await one.secret(STORE_SECRET) == await two.secret(STORE_SECRET)
    await one.close()
    await two.close()


def test_the_limits_are_said_in_the_error() -> None:
    assert str(tables.MAX_API_KEYS) in str(TooManyApiKeys())


# -- data that applications created before they had their own owners stays theirs ------------------


AS_BEFORE = (
    "UPDATE {schema}tasks SET owner = rtrim(owner, {chr}(31))",
    "UPDATE {schema}contexts SET owner = rtrim(owner, {chr}(31))",
    "UPDATE {schema}receipts SET owner = rtrim(owner, {chr}(31))",
    "DELETE FROM {schema}schema_versions WHERE version = {version}",
)

SMALL_TABLES_AS_BEFORE = """
    DROP TABLE rows;
    CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE audit_cursors (
        destination TEXT PRIMARY KEY, seq INTEGER, holder TEXT, until INTEGER);
    DELETE FROM schema_versions WHERE version > 10;
"""
"""SQLite's later migration runs again too."""

agent = Agent("Notes")


@agent.skill(replies="task")
async def note(turn: Turn) -> str:
    before = await turn.recall("before", "nothing")
    await turn.remember("before", turn.text)
    return f"{turn.text} after {before}"


def who(scope: Any) -> Caller:
    id, client = dict(scope["headers"])[b"x-user"].decode().split("/")
    return Caller(id=id, issuer="https://id.example", client=client, authenticated=True)


async def asked(url: str, names: list[str], text: str = "") -> dict[str, list[str]]:
    """Return the data that callers see, after a message if there is a text."""
    seen = {}
    app = parley.asgi(agent, store=url, caller=who)
    async with app.lifespan(app):
        for name in names:
            async with parley.connect(app, headers={"x-user": name}) as remote:
                if text:
                    await remote.send(f"{text} of {name}", context_id=name.replace("/", "-"))
                tasks = (await remote.list(include_artifacts=True)).tasks
                seen[name] = sorted(task.text for task in tasks)
                for task in tasks:
                    assert (await remote.get(task.id)).text == task.text
    return seen


async def check(url: str, execute: Any) -> None:
    names = ["ada/shop", "shop/shop", "shop/app", "bob/"]
    before = await asked(url, names, "first")
    assert before == {name: [f"first of {name} after nothing"] for name in names}
    execute()
    assert await asked(url, names) == before
    for name in names:
        expected = [*before[name], f"then of {name} after first of {name}"]
        assert await asked(url, [name], "then") == {name: expected}
    assert await asked(url, ["ada/ada"]) == {"ada/ada": []}


@pytest.mark.slow
async def test_tasks_of_applications_stay_theirs_in_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "tasks.db"

    def execute() -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            for sql in AS_BEFORE:
                connection.execute(sql.format(schema="", chr="char", version=10))
            later = [each.sql for each in FILES.migrations("sqlite") if each.version in (6, 9)]
            connection.executescript("".join([SMALL_TABLES_AS_BEFORE, *later]))

    await check(f"sqlite:///{path}", execute)


@pytest.mark.service
async def test_tasks_of_applications_stay_theirs_in_postgres(postgres: Any) -> None:
    import psycopg

    url = postgres.new_url()
    address = Address.of(url)

    def execute() -> None:
        with psycopg.connect(address.conninfo, autocommit=True) as connection:
            for sql in AS_BEFORE:
                connection.execute(
                    sql.format(schema=f"{address.schema}.", chr="chr", version=8).encode()
                )

    await check(url, execute)
