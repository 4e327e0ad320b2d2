"""The overhead of a group of appends, in transactions, statements and wake-ups.

It is the same for four appends as for 256. Nothing is timed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from parley.database.database import GroupWriter
from parley.database.postgres.connection import BoundedConnection
from parley.model.tasks import TaskState
from parley.store.events import LoggedEvent
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.task_log import Append
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import (
    SCOPE,
    addition,
    all_events,
    chunk,
    creation,
    numbers,
    pieces,
    status,
    task,
)

pytestmark = pytest.mark.anyio

SIZES = (4, 64, 256)

Counts = Counter[str]


@pytest.fixture
def wake_ups(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Count how often a writer's thread calls the loop."""
    counts: Counts = Counter()
    call = GroupWriter._call_on_loop

    def counted(self: GroupWriter[Any], *arguments: Any, **options: Any) -> bool:
        counts["wake-ups"] += 1
        return call(self, *arguments, **options)

    monkeypatch.setattr(GroupWriter, "_call_on_loop", counted)
    return counts


def creations(names: Sequence[str]) -> list[Append]:
    return [creation(name, context_id="c") for name in names]


def endings(names: Sequence[str]) -> list[Append]:
    """Appends that work on tasks, add an artifact, and complete them."""
    appends = []
    for name in names:
        result = chunk(name, "a result", append=False, last=True)
        working = status(name, TaskState.WORKING)
        completed = status(name, TaskState.COMPLETED)
        events = (working, result, completed)
        stored = pieces(task(name), result)
        appends.append(addition(name, 1, *events, artifacts=stored, turn_open=False))
    return appends


class Asked:
    """Counts calls of an authorizer: SQLite calls it only when it prepares a statement."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.count = 0
        connection.set_authorizer(self._allow)

    def _allow(self, *action: Any) -> int:
        self.count += 1
        return sqlite3.SQLITE_OK


def ignore(records: Sequence[LoggedEvent]) -> None:
    pass


async def all_at_once(store: TaskStore, appends: Sequence[Append]) -> list[int]:
    return list(await asyncio.gather(*[store.append(append) for append in appends]))


class TestSqlite:
    @pytest.fixture
    def connection(self, sqlite: SqliteTaskStore) -> sqlite3.Connection:
        assert sqlite._file is not None
        return sqlite._file.writer

    async def statements_of(
        self, connection: sqlite3.Connection, store: TaskStore, appends: Sequence[Append]
    ) -> list[str]:
        """Return the statements that write some appends, without their values."""
        done: list[str] = []
        connection.set_trace_callback(done.append)
        await all_at_once(store, appends)
        connection.set_trace_callback(None)
        return [" ".join(sql.split()[:3]) for sql in done]

    async def test_a_group_is_one_transaction_few_statements_and_one_wake_up(
        self, sqlite: SqliteTaskStore, connection: sqlite3.Connection, wake_ups: Counts
    ) -> None:
        costs = []
        for size in SIZES:
            names = [f"{size}-{n}" for n in range(size)]
            for appends in (creations(names), endings(names)):
                before = wake_ups["wake-ups"]
                statements = await self.statements_of(connection, sqlite, appends)
                assert (statements[0], statements[-1]) == ("BEGIN IMMEDIATE", "COMMIT")
                assert statements.count("COMMIT") == 1
                assert wake_ups["wake-ups"] - before == 1
                costs.append(len(statements))
        created, ended = costs[::2], costs[1::2]
        assert len(set(created)) == 1
        # Three records an append: two statements, and four for 3 x 256 rows.
        assert max(ended) - min(ended) <= 2
        assert max(costs) <= 10

    async def test_an_append_of_many_events_costs_no_further_statement(
        self, sqlite: SqliteTaskStore, connection: sqlite3.Connection, wake_ups: Counts
    ) -> None:
        await sqlite.append(creation("t"))
        costs, seq = [], 1
        for count in (1, 16, 256):
            events = [chunk("t", "x") for _ in range(count)]
            costs.append(
                await self.statements_of(connection, sqlite, [addition("t", seq, *events)])
            )
            seq += count
        assert costs[0] == costs[1] == costs[2]
        assert wake_ups["wake-ups"] == 4
        assert numbers(await all_events(sqlite, "t")) == list(range(1, seq + 1))

    async def test_what_comes_while_a_group_is_written_is_the_next_group(
        self, sqlite: SqliteTaskStore, connection: sqlite3.Connection, wake_ups: Counts
    ) -> None:
        commits: list[str] = []
        connection.set_trace_callback(commits.append)
        begun, gate, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
        assert sqlite._writing is not None
        write = sqlite._writing.batch_writer.write
        is_held = True

        def held(group: Sequence[Any]) -> Any:
            nonlocal is_held
            if is_held:
                is_held = False
                loop.call_soon_threadsafe(begun.set)
                asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(10)
            return write(group)

        sqlite._writing.batch_writer.write = held  # type: ignore[method-assign]
        waiting = [asyncio.ensure_future(sqlite.append(creation("first")))]
        await begun.wait()  # the thread may take its first group late, and then all of them
        for n in range(50):  # one append in each iteration of the loop
            waiting.append(asyncio.ensure_future(sqlite.append(creation(f"later-{n}"))))
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*waiting)
        assert commits.count("COMMIT") == wake_ups["wake-ups"] == 2

    async def test_a_group_prepares_no_statement_anew(
        self, sqlite: SqliteTaskStore, connection: sqlite3.Connection
    ) -> None:
        asked = Asked(connection)
        for number in (1, 2, 3):
            names = [f"{number}-{n}" for n in range(8)]
            before = asked.count
            await all_at_once(sqlite, creations(names))
            await all_at_once(sqlite, endings(names))
        assert asked.count == before > 0

    async def test_a_load_is_one_statement_that_each_reader_prepares_once(
        self, sqlite: SqliteTaskStore
    ) -> None:
        assert sqlite._file is not None
        readers = sqlite._file.readers
        await all_at_once(sqlite, creations(["t", "u"]))
        done: list[str] = []
        asked = [Asked(reader) for reader in readers]
        for reader in readers:
            reader.set_trace_callback(done.append)
        await sqlite.load("t", scope=SCOPE)
        once = sum([each.count for each in asked])
        for n in range(40):
            await sqlite.load("tu"[n % 2], history=n, artifacts=n % 3 == 0)
        assert len(done) == 41
        assert 0 < once <= sum([each.count for each in asked]) <= len(readers) * once


@pytest.mark.service
class TestPostgres:
    async def test_a_group_is_one_round_trip(
        self, postgres_url: str, wake_ups: Counts, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[str] = []
        execute = BoundedConnection.execute

        def counted(self: BoundedConnection, sql: str, values: Any = None) -> Any:
            asked.append(sql)
            return execute(self, sql, values)

        store = PostgresTaskStore(postgres_url)
        await store.open(ignore)
        writer: Any = store._writing
        own = writer.batch_writer.connection
        monkeypatch.setattr(own, "execute", partial(counted, own))
        try:
            for size in SIZES:
                names = [f"{size}-{n}" for n in range(size)]
                for appends in (creations(names), endings(names)):
                    asked.clear()
                    wake_ups.clear()
                    assert len(set(await all_at_once(store, appends))) == 1
                    assert (len(asked), wake_ups["wake-ups"]) == (1, 1)
        finally:
            await store.close()
