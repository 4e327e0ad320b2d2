"""Costs depend only on the size of a request, measured in queries, rows and bytes.

Each test does the same work with little and with much existing data, on SQLite and PostgreSQL. It
compares the reads of the store's queries and the contents of its tables.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from parley import Agent, CallContext, Execution, Turn
from parley.engine import maintenance
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.model.operations import SubscribeToTaskRequest
from parley.model.tasks import Task, TaskState
from parley.store.events import Scope
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.engine.talk import Talk
from tests.kit.records import creation, status
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


class Cost(NamedTuple):
    """The reads of some work, and the growth of the tables."""

    queries: int
    rows_read: int
    bytes_read: int
    rows_stored: int
    bytes_stored: int


BACKGROUND = {"active_pushes", "due_tasks", "held_tasks", "next_wake", "positions", "unclaimed"}
"""The queries that a server runs at intervals, independent of callers."""


class Meter:
    """A store with counted queries and countable tables."""

    def __init__(self, store: TaskStore, sizes: Callable[[], tuple[int, int]]) -> None:
        self.store = store
        self._sizes = sizes
        self._read = [0, 0, 0]
        read_rows = store._rows  # type: ignore[attr-defined]

        async def counted(
            name: str, values: Sequence[Any] | Mapping[str, Any]
        ) -> Sequence[Sequence[Any]]:
            rows: Sequence[Sequence[Any]] = await read_rows(name, values)
            if name in BACKGROUND:
                return rows
            self._read[0] += 1
            self._read[1] += len(rows)
            self._read[2] += sum(len(v) for row in rows for v in row if isinstance(v, bytes | str))
            return rows

        store._rows = counted  # type: ignore[attr-defined]

    @contextmanager
    def measured(self) -> Iterator[list[Cost]]:
        """Yield a list that contains the block's cost after the block."""
        costs: list[Cost] = []
        read, (rows, size) = list(self._read), self._sizes()
        yield costs
        now, (rows_now, size_now) = self._read, self._sizes()
        costs.append(
            Cost(*[b - a for a, b in zip(read, now, strict=True)], rows_now - rows, size_now - size)
        )


def sizes_of_sqlite(path: Path) -> tuple[int, int]:
    """Return the number of rows and bytes in the tables."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        return _sizes(
            lambda sql: connection.execute(sql).fetchall(),
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
            "SELECT count(*), coalesce(sum({lengths}), 0) FROM {table}",
            lambda table: [
                f"coalesce(length(cast({column} AS BLOB)), 0)"
                for (column,) in connection.execute(
                    f"SELECT name FROM pragma_table_info('{table}')"
                )
            ],
        )


def sizes_of_postgres(url: str) -> tuple[int, int]:
    """Return the number of rows and bytes in the tables."""
    database, _, schema = url.partition("?schema=")
    with psycopg.connect(database, autocommit=True) as connection:
        return _sizes(
            lambda sql: connection.execute(sql).fetchall(),
            "SELECT schemaname || '.' || tablename FROM pg_tables"
            f" WHERE schemaname = '{schema}'",  # other schemas grow during the run
            "SELECT count(*), coalesce(sum({lengths}), 0) FROM {table} AS kept",
            lambda table: ["length(kept::text)"],
        )


def _sizes(
    query: Callable[[str], Sequence[Sequence[Any]]],
    tables: str,
    total: str,
    lengths_of: Callable[[str], Sequence[str]],
) -> tuple[int, int]:
    rows = size = 0
    for (table,) in query(tables):
        [(count, held)] = query(
            total.format(table=table, lengths=" + ".join(lengths_of(table)) or "0")
        )
        rows, size = rows + count, size + int(held)
    return rows, size


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def new_meter(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Meter]:
    """A maker of metered stores, each with its own database."""
    if request.param == "sqlite":
        paths = (tmp_path / f"{n}.db" for n in range(100))

        def on_sqlite() -> Meter:
            path = next(paths)
            store = SqliteTaskStore(path, synchronous="OFF")
            return Meter(store, lambda: sizes_of_sqlite(path))

        return on_sqlite

    def on_postgres() -> Meter:
        from parley.store.postgres.store import PostgresTaskStore

        url = request.getfixturevalue("postgres").new_url()
        return Meter(PostgresTaskStore(url), lambda: sizes_of_postgres(url))

    return on_postgres


@asynccontextmanager
async def served(agent: Agent, meter: Meter) -> AsyncIterator[Talk]:
    host = Host(placed(agent), meter.store, ServerOptions(drain=0.0))
    await host.start()
    try:
        yield Talk(host.services[""], host)
    finally:
        await host.stop()


def patient() -> Agent:
    agent = Agent("Patient", execution=Execution(max_waiting_messages=1000))

    @agent.skill(replies="task")
    async def talk_on(turn: Turn) -> str:
        """Asks until it is told to end."""
        while (await turn.ask("More?")).text != "end":
            pass
        return "done"

    return agent


async def test_a_turn_costs_no_more_than_what_the_task_remembers(
    new_meter: Callable[[], Meter],
) -> None:
    meter, costs = new_meter(), []
    async with served(patient(), meter) as caller:
        task = await caller.task("go")
        for _ in range(40):
            with meter.measured() as cost:
                await caller.task("w" * 1000, task_id=task.id, history_length=0)
            costs.append(cost[0])
            # A message that arrives before the turn is released would find the turn's memory.
            await until(lambda: not caller.executor.running)
    # Queries of background work may count too, so compare the medians.
    early, late = (
        Cost(*[sorted(each)[2] for each in zip(*some, strict=True)])
        for some in (costs[5:10], costs[35:])
    )
    assert late.queries == early.queries
    assert late.rows_stored == early.rows_stored
    assert late.bytes_stored <= early.bytes_stored * 1.1
    assert late.bytes_read <= early.bytes_read * 6.6, "six times as many answers, each read once"


async def test_the_address_that_a_task_began_with_adds_no_row(
    new_meter: Callable[[], Meter],
) -> None:
    meter, rows = new_meter(), []
    async with served(patient(), meter) as caller:
        for address in ("", "", "https://agent.example"):
            context = CallContext(base_url=address)
            with meter.measured() as cost:
                task = await caller.task("go", context=context)
            rows.append(cost[0].rows_stored)
            record = await caller.store.load(task.id)
            assert record is not None
            assert record.base_url == address
    assert rows[2] == rows[1]


async def test_messages_that_wait_cost_once_each(
    new_meter: Callable[[], Meter], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A poll between two turns would claim the task and read it once more.
    monkeypatch.setattr(maintenance, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(maintenance, "SWEEP_SECONDS", 3600.0)
    costs = {}
    for count in (10, 80):
        meter, agent, gate = (
            new_meter(),
            Agent("Busy", execution=Execution(max_waiting_messages=1000)),
            asyncio.Event(),
        )

        @agent.skill(replies="task")
        async def work(turn: Turn, count: int = count, gate: asyncio.Event = gate) -> str:
            """Asks as often as messages wait."""
            await gate.wait()
            for n in range(count):
                await turn.ask(f"{n}?")
            return "done"

        async with served(agent, meter) as caller:
            task = await caller.task("go", return_immediately=True)
            events = caller.service.subscribe_to_task(
                SubscribeToTaskRequest(id=task.id), caller.context
            )
            await anext(events)
            for _ in range(count):
                await caller.task("w" * 1000, task_id=task.id, return_immediately=True)
            with meter.measured() as cost:
                gate.set()
                async with asyncio.timeout(60):
                    async for _ in events:
                        pass
            costs[count] = cost[0]
    # The work is eightfold: linear cost is 8, quadratic cost 64.
    for name, few, many in zip(Cost._fields, costs[10], costs[80], strict=True):
        assert many <= 12 * few, f"{name}: {costs}"


async def test_retired_agents_cost_those_that_are_served_nothing(
    new_meter: Callable[[], Meter],
) -> None:
    costs = {}
    for count in (30, 300):
        meter = new_meter()
        await meter.store.open(lambda records: None)
        for n in range(count):
            last = status(f"old{n}", TaskState.INPUT_REQUIRED, "?")
            await meter.store.append(
                creation(f"old{n}", last, scope=Scope("retired"), turn_open=bool(n % 2))
            )
        await meter.store.close()
        with meter.measured() as cost:
            async with served(patient(), meter) as caller:
                task = await caller.task("go")
                await caller.task("end", task_id=task.id)
        costs[count] = cost[0]
    beside_few, beside_many = costs[30], costs[300]
    assert beside_many.queries <= beside_few.queries + 3
    assert beside_many.rows_read <= beside_few.rows_read + 5
    assert beside_many.bytes_read <= beside_few.bytes_read + 1000
    assert beside_many.rows_stored <= beside_few.rows_stored


async def test_open_readers_read_the_store_no_more_often_than_one(
    new_meter: Callable[[], Meter],
) -> None:
    costs = {}
    for count in (1, 20):
        meter, agent, gate = new_meter(), Agent("Writer"), asyncio.Event()

        @agent.skill(replies="task")
        async def write(turn: Turn, gate: asyncio.Event = gate) -> None:
            """Writes a long artifact."""
            await turn.working()
            await gate.wait()
            async with turn.stream("text") as out:
                for n in range(100):
                    await out.write(f"{n} " * 100)
                    await asyncio.sleep(0)

        async def read(caller: Talk, task: Task, ready: asyncio.Event) -> int:
            seen = 0
            request = SubscribeToTaskRequest(id=task.id)
            async for _ in caller.service.subscribe_to_task(request, caller.context):
                seen += 1
                ready.set()
            return seen

        async with served(agent, meter) as caller, asyncio.timeout(60):
            task = await caller.task("go", return_immediately=True)
            ready = [asyncio.Event() for _ in range(count)]
            readers = [asyncio.create_task(read(caller, task, each)) for each in ready]
            for each in ready:
                await each.wait()
            with meter.measured() as cost:
                gate.set()
                seen = await asyncio.gather(*readers)
            # A reader that starts early may see the task before its work starts.
            assert max(seen) - 1 <= min(seen) > 100
            costs[count] = cost[0]
    one, twenty = costs[1], costs[20]
    assert twenty.queries <= one.queries + 20, "at most one query per reader"
    assert twenty.rows_read <= one.rows_read + 40
    # A measurement may include a heartbeat, or a chunk that a timer writes.
    assert abs(twenty.rows_stored - one.rows_stored) <= 10
