"""The task store of a fleet: PostgreSQL, which any number of replicas use at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from msgspec.structs import asdict

from parley.database.database import GilYielder, GroupWriter, ReaderPool
from parley.database.postgres.connection import (
    Address,
    BoundedConnection,
    Texts,
    explain,
    ints,
    texts,
)
from parley.database.postgres.database import PostgresReadConnection
from parley.store.audit.trail import LAST
from parley.store.events import Scope, steady_clock
from parley.store.postgres.background import PRUNED_CONTEXTS, PRUNED_RECORDS, Heartbeat, Pruner
from parley.store.postgres.schema import SCHEMA, audit_sql, sql_for
from parley.store.postgres.tables import PostgresRows, complete_event, recover_completion
from parley.store.postgres.writer import BackgroundOperation, PostgresBatchWriter
from parley.store.protocols.claims import Claimed, Lease, Replica
from parley.store.protocols.errors import PrunedElsewhere, StoreUnavailable
from parley.store.protocols.tables import EventCompleted, checked_event
from parley.store.protocols.task_log import Committed, LogPosition, TaskPage, TaskQuery
from parley.store.sql import queries
from parley.store.sql.batch import FailedWriters, head_from_row
from parley.store.sql.rows import SqlRows
from parley.store.sql.store import (
    STATES,
    SqlTaskStore,
    list_values,
    positions_from_rows,
    stored_task_from_row,
)

T = TypeVar("T")

READERS = 4
"""The number of reader threads, each with a connection: a read is mostly a round trip."""

TIMEOUT_SECONDS = 15.0
"""The time that reads and writes wait for an unavailable database."""


CLOSE_SECONDS = 1.0
"""The time that ``close`` waits for pruning to stop."""

_PRUNE_MORE = {
    "prune_receipts": PRUNED_RECORDS,
    "prune_events": PRUNED_RECORDS,
    "prune_contexts": PRUNED_CONTEXTS,
}
"""The statements that remove rows other than tasks, and the number of rows per transaction."""

Rows = Sequence[Sequence[Any]]

_SQL = queries(
    "postgres", "pieces.sql", "queries.sql", "replicas.sql", "timers.sql", "prune.sql", "rows.sql"
)


class PostgresTaskStore(SqlTaskStore[BoundedConnection]):
    """Stores task logs in a PostgreSQL database that other replicas use at the same time.

    ``url`` is a libpq URL; its ``?schema=`` names the schema of the tables (``parley``). The
    server's ``synchronous_commit`` decides the durability. A replica that is silent for ``lease``
    loses its tasks to others. Reads and writes wait ``timeout`` seconds for an unavailable
    database. ``open`` migrates the schema if ``migrates``, else rejects an older one. ``clock``
    returns milliseconds since 1970, and is corrected by the database's clock; the default clock
    does not jump when the machine's clock is set.

    Raises ``ValueError`` for any other URL.
    """

    def __init__(
        self,
        url: str,
        *,
        lease: Lease | None = None,
        timeout: float = TIMEOUT_SECONDS,
        migrates: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout is a number of seconds above 0, not {timeout!r}")
        self._address = Address.of(url)
        super().__init__(self._address.name)
        self._sql = sql_for(self._address, _SQL) | audit_sql(self._address)
        self._lease = lease or Lease()
        self._timeout = timeout
        self._migrates = migrates
        self._clock = clock or steady_clock()
        self._heartbeat: Heartbeat | None = None
        self._pruner: Pruner | None = None
        self._pruning: ReaderPool[Pruner] | None = None

    @property
    def is_shared(self) -> bool:
        """True: other replicas may use the database at the same time."""
        return True

    @property
    def has_operators(self) -> bool:
        """True: ``parley store`` can change the database while it is in use."""
        return True

    @property
    def unavailable_reason(self) -> str:
        """The reason why the database cannot be reached now; empty while it can."""
        silence = self._heartbeat.silence if self._heartbeat is not None else 0
        return f"the store has been silent for {silence:.0f} seconds" if silence else ""

    def now(self) -> int:
        """Return the time by the database's clock, in ms."""
        return self._clock() + (self._heartbeat.offset if self._heartbeat else 0)

    async def open(self, committed: Committed) -> None:
        """Check or migrate the schema, and register this replica. Raises ``StoreUnavailable``."""
        if self._loop is not None:
            raise RuntimeError("the store is open already")
        loop = asyncio.get_running_loop()
        self._replica = uuid4().hex
        writer = await asyncio.to_thread(self._prepare)
        yielder = GilYielder(loop)
        self._writing = GroupWriter(
            writer, yielder=yielder, committed=committed, failed=FailedWriters().clear
        )
        readers = [PostgresReadConnection(self._address, self._timeout) for _ in range(READERS)]
        self._reading = ReaderPool(readers, yielder=yielder)
        self._pruner = Pruner(self._address, self._sql)
        self._pruning = ReaderPool([self._pruner], yielder=yielder)
        if self._heartbeat is not None:
            self._heartbeat.start()
        self._loop = loop

    def _prepare(self) -> PostgresBatchWriter:
        if self._migrates:
            done = SCHEMA.migrate(self._address)
            self._migrated = [f"{step.version} {step.name}" for step in done]
        else:
            versions = SCHEMA.inspect(self._address)
            if versions.missing:
                raise StoreUnavailable(
                    f"{self._address.name} has schema version {versions.found}, and this version "
                    f"of Parley needs {versions.known}: bring it up to date with `parley store "
                    "migrate`"
                )
        self._heartbeat = heartbeat = Heartbeat(
            self._address, self._sql, replica=self._replica, lease=self._lease, clock=self._clock
        )
        writer = PostgresBatchWriter(
            self._address,
            self._sql,
            replica=self._replica,
            lives_for=round(self._lease.time_to_live * 1000),
            now=self.now,
            timeout=self._timeout,
        )
        try:
            heartbeat.set_clock()
            writer.open()
        except psycopg.Error as error:
            writer.connection.disconnect()
            heartbeat.disconnect()
            raise explain(error, self._address) from None
        return writer

    async def close(self) -> None:
        """Finish the submitted jobs, release the leases, and disconnect. Idempotent."""
        if self._loop is None or self._writing is None or self._reading is None:
            return
        self._loop = None
        if self._pruner is not None and self._pruning is not None:
            self._pruner.stop()
            with suppress(TimeoutError):  # it may be connecting: do not wait for that
                await asyncio.wait_for(self._pruning.close(), CLOSE_SECONDS)
        await self._reading.close()
        if self._heartbeat is not None:
            await asyncio.to_thread(self._heartbeat.stop)
        await self._writing.close()

    async def list(self, query: TaskQuery) -> TaskPage:
        """Return one page of tasks."""
        return await self._read(partial(_list, sql=self._sql, query=query))

    async def claim_batch(self, agent: str, limit: int) -> Sequence[Claimed]:
        """Claim unclaimed tasks with work left, in the order of the queue."""
        return await self._run_in_background(
            partial(_claim_batch, agent=agent, limit=limit), _recover_claims
        )

    async def positions(self, task_ids: Sequence[str]) -> Sequence[LogPosition]:
        """Return the ends of tasks' logs, without tasks that the store lacks."""
        return positions_from_rows(await self._rows("positions", (texts(task_ids),)))

    async def replicas(self) -> Sequence[Replica]:
        """Return the registered replicas."""
        return [
            Replica(id=id, seen_at=seen_at, alive=alive, holds=holds)
            for id, seen_at, alive, holds in await self._rows("replicas", ())
        ]

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Set a value of a context; ``None`` removes it."""
        name = "remove_value" if value is None else "put_value"
        await self._execute(name, self._value(scope, context_id, key) | {"value": value})

    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Set a value of a context if it still is the ``expected`` one."""
        if expected is None and value is None:
            return await self.get_value(scope, context_id, key) is None
        values = self._value(scope, context_id, key) | {"expected": expected, "value": value}
        return await self._run_in_background(
            lambda writer: bool(writer.fenced_rows("compare_and_set", values)[0][0]),
            lambda writer, noted: bool(noted),
        )

    def _value(self, scope: Scope, context_id: str, key: str) -> dict[str, Any]:
        values = {"context_id": context_id, "name": key, "at": self.now()}
        return asdict(scope) | values

    async def wake(self, tasks: Mapping[str, int], now: int) -> int:
        """Make due sleeping tasks claimable, each with its queue key."""
        values = {"task_ids": texts(list(tasks)), "places": ints(list(tasks.values())), "now": now}
        [(count,)] = await self._execute("wake", values)
        woken: int = count
        return woken

    async def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; the waiting tasks become due at once."""
        value = checked_event(key, value)
        values = {"agent": agent, "name": key, "value": value, "at": self.now()}
        is_first, found = await self._run_in_background(
            partial(complete_event, values=values), partial(recover_completion, values=values)
        )
        if found is not None and bytes(found) != value:
            raise EventCompleted(agent, key)
        self._timers_changed(0)
        return is_first

    async def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it exists."""
        await self._execute("remove_push", (task_id, push_id))

    async def claim_pushes(self, agent: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Claim active push notification configurations that are unclaimed."""
        return await self._run_in_background(
            partial(_claim_pushes, agent=agent, limit=limit), _recover_pushes
        )

    async def prune(self, agent: str, ended_before: int, limit: int) -> int:
        """Remove up to ``limit`` tasks that ended before a time (ms), with all their rows.

        It works in batches, on its own connection: no writer waits for it.
        """
        pruning = self._pruning
        if self._loop is None or pruning is None:
            raise self._closed()
        values = {"agent": agent, "before": ended_before}

        async def remove(name: str, most: int) -> int:
            return await pruning.run(lambda pruner: pruner.remove(name, {**values, "limit": most}))

        removed = 0
        try:
            while removed < limit:
                most = min(limit - removed, PRUNED_RECORDS)
                count = await remove("prune", most)
                removed += count
                if not count:
                    break
            for name, most in _PRUNE_MORE.items():
                while await remove(name, most):
                    pass
            await pruning.run(Pruner.close)
        except PrunedElsewhere:
            if not removed:
                raise
        return removed

    async def change_rows(self, work: Callable[[SqlRows], T]) -> T:
        """Call ``work`` in a transaction of the writer's, and return its result."""
        results: list[T] = []

        def run(writer: PostgresBatchWriter) -> T:
            with writer.transaction() as connection:
                result = work(PostgresRows(connection.execute, writer.sql, self.now()))
                results[:] = [result]
                writer.fenced_rows("note_change", {})
            return result

        return await self._run_in_background(run, lambda writer, noted: results[0])

    async def read_rows(self, work: Callable[[SqlRows], T]) -> T:
        """Call ``work``, which only reads, and return its result."""
        now = self.now()
        return await self._read(
            lambda connection: work(PostgresRows(connection.execute, self._sql, now))
        )

    async def _execute(self, name: str, values: Sequence[Any] | Mapping[str, Any]) -> Rows:
        """Execute one statement on the writer; return its rows."""

        def run(writer: PostgresBatchWriter) -> Rows:
            cursor = writer.connection.execute(writer.sql[name], values)
            return cursor.fetchall() if cursor.description else ()

        return await self._run_in_background(run)

    async def _run_in_background(
        self,
        run: Callable[[PostgresBatchWriter], T],
        recover: Callable[[PostgresBatchWriter, Sequence[int]], T] | None = None,
    ) -> T:
        result: T = await self._submit(BackgroundOperation(run, recover))
        return result

    async def _rows(self, name: str, values: Sequence[Any] | Mapping[str, Any]) -> Rows:
        return await self._read(lambda connection: connection.rows(self._sql[name], values))

    def _texts(self, texts_: Sequence[str]) -> Texts:
        return texts(texts_)


def _list(connection: BoundedConnection, sql: dict[str, str], query: TaskQuery) -> TaskPage:
    values = list_values(query)
    states = [values["state"]] if values["state"] else STATES
    values["states"] = texts(states)
    if query.context_id:
        found, total = sql["found_in_context"], sql["count_in_context"]
    else:
        in_state = sql["found_in_state"]
        found = " UNION ALL ".join([in_state.replace("{state}", name) for name in states])
        between = sql["count_between"]
        if query.status_after is not None:
            total = between.replace("{first}", "%(first)s").replace("{last}", "%(last)s")
        elif query.not_after is not None:
            # Few tasks are newer than a paged walk: they are counted and subtracted.
            later = between.replace("{first}", "%(last)s + 1").replace("{last}", str(LAST))
            total = f"({sql['total']}) - ({later})"
        else:
            total = sql["total"]
    [(*_, count, matching), *rows] = connection.rows(
        sql["list"].replace("{found}", found).replace("{total}", total), values
    )
    tasks = [stored_task_from_row(task_id, stored) for task_id, *stored, _, _ in rows]
    return TaskPage(tuple(tasks), total=count, more=matching > len(tasks))


def _claim_batch(writer: PostgresBatchWriter, agent: str, limit: int) -> list[Claimed]:
    return _claims(writer, writer.fenced_rows("claim_batch", {"agent": agent, "limit": limit}))


def _recover_claims(writer: PostgresBatchWriter, keys: Sequence[int]) -> list[Claimed]:
    """Return the claims of ``_claim_batch``, when its answer was lost."""
    rows = writer.connection.rows(writer.sql["claimed"], (list(keys), writer.replica))
    return _claims(writer, rows)


def _claims(writer: PostgresBatchWriter, rows: Sequence[Sequence[Any]]) -> list[Claimed]:
    claims = []
    for version, *row in rows:
        if version is not None:
            head = head_from_row(row)
            writer.cache_head(head, version)
            claims.append(Claimed(head.task_id, head.epoch, head.queue_key))
    return claims


def _claim_pushes(writer: PostgresBatchWriter, agent: str, limit: int) -> list[tuple[str, bool]]:
    rows = writer.fenced_rows("claim_pushes", {"agent": agent, "limit": limit})
    return [(task_id, is_behind) for task_id, is_behind in rows if task_id is not None]


def _recover_pushes(writer: PostgresBatchWriter, keys: Sequence[int]) -> list[tuple[str, bool]]:
    """Return the tasks whose webhooks ``_claim_pushes`` claimed, when its answer was lost."""
    rows = writer.connection.rows(writer.sql["claimed_pushes"], (list(keys),))
    return [(task_id, True) for (task_id,) in rows]
