"""What applications made before they had owners of their own stays theirs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Turn
from parley.database.postgres.connection import Address
from parley.model.service import Caller
from parley.store.sql import FILES

pytestmark = pytest.mark.anyio

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
"""SQLite has a later migration, which is done again too."""

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
    """What callers see, who say something first if there is a text."""
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
