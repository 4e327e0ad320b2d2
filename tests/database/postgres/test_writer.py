"""The batch writer for PostgreSQL: nothing is lost or written twice, whatever breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from parley.database.errors import StoreUnavailable
from parley.database.postgres.connection import Address, BoundedConnection
from parley.store.postgres.store import PostgresTaskStore
from tests.database.making import LATER, USUAL_SCHEMA, PostgresNotes
from tests.database.test_contract import opened
from tests.kit.services.postgres import PostgresServer, running

pytestmark = [pytest.mark.anyio, pytest.mark.service]


@pytest.mark.parametrize("is_sent", [True, False])
async def test_a_connection_that_is_lost_at_the_commit_loses_and_doubles_nothing(
    postgres_notes: PostgresNotes, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    real, losses = BoundedConnection.execute, iter([True])

    def execute(self: BoundedConnection, sql: str, values: Any = None) -> Any:
        if sql != "COMMIT" or not next(losses, False):
            return real(self, sql, values)
        if is_sent:
            real(self, sql, values)
        self.disconnect()
        raise psycopg.OperationalError("the connection is lost")

    async with opened(postgres_notes) as database:
        monkeypatch.setattr(BoundedConnection, "execute", execute)
        says = [partial(postgres_notes.say, author=f"a{n}") for n in range(3)]
        numbers = await asyncio.gather(*[database.write(say) for say in says])
        assert next(losses, False) is False
    assert postgres_notes.authors() == ["a0", "a1", "a2"]
    assert [number for (number,) in postgres_notes.look("SELECT id FROM {notes} ORDER BY id")] == (
        numbers
    )


async def test_when_the_outcome_stays_unknown_the_error_says_so(
    postgres_notes: PostgresNotes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lost = BoundedConnection.execute, list[bool]()

    def execute(self: BoundedConnection, sql: str, values: Any = None) -> Any:
        if sql == "COMMIT" or lost:
            lost.append(True)
            self.disconnect()
            raise psycopg.OperationalError("the connection is lost")
        return real(self, sql, values)

    async with opened(postgres_notes, timeout=0.2) as database:
        monkeypatch.setattr(BoundedConnection, "execute", execute)
        with pytest.raises(StoreUnavailable, match="it is unknown whether it was written"):
            await database.write(partial(postgres_notes.say, author="ada"))
        monkeypatch.setattr(BoundedConnection, "execute", real)
        await database.write(partial(postgres_notes.say, author="bob"))
    assert postgres_notes.authors() == ["bob"]


async def test_connections_that_are_cut_under_load_lose_and_double_nothing(
    postgres: PostgresServer, postgres_notes: PostgresNotes
) -> None:
    acknowledged: list[str] = []

    async def write(name: str) -> None:
        await database.write(partial(postgres_notes.say, author=name))
        acknowledged.append(name)

    async with opened(postgres_notes) as database, asyncio.timeout(60):
        for n in range(30):
            writes = [asyncio.ensure_future(write(f"w{n}-{i}")) for i in range(20)]
            if n % 3 == 0:
                await asyncio.to_thread(postgres.cut_connections)
            await asyncio.gather(*writes)
    assert len(acknowledged) == 600
    assert sorted(postgres_notes.authors()) == sorted(acknowledged)


async def test_an_operation_that_hides_a_lost_transaction_is_not_acknowledged(
    postgres_notes: PostgresNotes,
) -> None:
    def hide(connection: BoundedConnection) -> None:
        connection.execute("ROLLBACK")

    async with opened(postgres_notes) as database:
        with pytest.raises(StoreUnavailable, match="see its log"):
            await database.write(hide)
        await database.write(partial(postgres_notes.say, author="ada"))
    assert postgres_notes.authors() == ["ada"]


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


async def test_a_server_that_is_away_is_waited_for_and_explained(
    own_server: PostgresServer,
) -> None:
    notes = PostgresNotes(own_server.url())
    async with opened(notes, timeout=0.5) as database:
        await database.write(partial(notes.say, author="ada"))
        own_server.stop()
        with pytest.raises(StoreUnavailable, match="the database cannot be reached"):
            await database.write(partial(notes.say, author="bob"))
        own_server.start()
        await database.write(partial(notes.say, author="eve"))
    assert notes.authors() == ["ada", "eve"]


# -- schemas ---------------------------------------------------------------------------------------


async def test_two_applications_share_a_database(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    notes, store = PostgresNotes(url), PostgresTaskStore(url)
    await store.open(lambda records: None)
    async with opened(notes) as database:
        await database.write(partial(notes.say, author="ada"))
    await store.close()
    schemas = postgres.execute("SELECT nspname FROM pg_namespace", url.rpartition("/")[2])
    assert {("parley",), (USUAL_SCHEMA,)} <= set(schemas)


async def test_the_schema_of_another_application_is_refused(postgres_url: str) -> None:
    store = PostgresTaskStore(postgres_url)
    await store.open(lambda records: None)
    await store.close()
    with pytest.raises(StoreUnavailable, match="holds the tables of another program"):
        await PostgresNotes(postgres_url).database().open()


async def test_without_migrating_an_older_schema_is_refused(postgres_notes: PostgresNotes) -> None:
    async with opened(postgres_notes):
        pass
    waiting = postgres_notes.database(LATER, migrates=False)
    with pytest.raises(StoreUnavailable, match=r"version 1, .*needs 2: bring it up to date"):
        await waiting.open()
    async with opened(postgres_notes, migrates=False):
        pass


def test_the_usual_schema_is_the_applications() -> None:
    url = "postgresql://host/agents"
    usual = Address.of(url, schema=USUAL_SCHEMA)
    assert usual.schema == USUAL_SCHEMA
    assert "schema=" not in usual.name
    other = Address.of(f"{url}?schema=mine", schema=USUAL_SCHEMA)
    assert other.schema == "mine"
    assert other.name.endswith("?schema=mine")
    with pytest.raises(ValueError, match=f"schema={USUAL_SCHEMA}"):
        Address.of(f"{url}?schema=Mine", schema=USUAL_SCHEMA)
