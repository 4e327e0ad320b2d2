"""The embedded task store: one SQLite file, used by one process at a time."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

import msgspec

from parley.database.database import GilYielder, GroupWriter, ReaderPool
from parley.database.sqlite.database import SqliteReadConnection
from parley.store.audit.trail import LAST
from parley.store.events import Scope, now_ms
from parley.store.protocols.claims import Claimed, Replica
from parley.store.protocols.tables import checked_event
from parley.store.protocols.task_log import Committed, LogPosition, TaskPage, TaskQuery
from parley.store.protocols.webhooks import WEBHOOKS_PER_PAGE, SuspendedWebhook, WebhookFilter
from parley.store.snapshot import StoredTask
from parley.store.sql.batch import FailedWriters
from parley.store.sql.rows import SqlRows
from parley.store.sql.store import (
    STATES,
    SqlTaskStore,
    list_values,
    positions_from_rows,
    stored_task_from_row,
)
from parley.store.sqlite.batch import SqliteBatch, SqliteBatchWriter
from parley.store.sqlite.file import SQL, TaskFile
from parley.store.sqlite.operator import CALLS, OperatorSocket, suspended_in
from parley.store.sqlite.tables import SqliteRows

T = TypeVar("T")

READERS = 2
"""The number of reader threads: two, so that a large list does not delay a small read."""


def _found_in(states: Sequence[str]) -> str:
    found = [SQL["found_in_state"].replace("{state}", f"'{state}'") for state in states]
    return SQL["found"].replace("{found}", " UNION ALL ".join(found))


_FOUND = {state: _found_in([state]) for state in STATES} | {"": _found_in(STATES)}
_FOUND_IN_CONTEXT = SQL["found"].replace("{found}", SQL["found_in_context"])


class SqliteTaskStore(SqlTaskStore[sqlite3.Connection]):
    """Stores task logs in the SQLite file at ``path``, which one process at a time can open.

    With ``synchronous="FULL"`` acknowledged writes survive a power cut, with ``"NORMAL"`` only the
    end of the process. ``clock`` returns milliseconds since 1970. A write waits ``busy_timeout``
    seconds for another program's lock on the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        clock: Callable[[], int] = now_ms,
        busy_timeout: float = 5.0,
    ) -> None:
        self._path = Path(path).resolve()
        super().__init__(str(self._path))
        self._synchronous = synchronous
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._file: TaskFile | None = None
        self._operator: OperatorSocket | None = None

    @property
    def is_shared(self) -> bool:
        """False: no other replica can use the file at the same time."""
        return False

    @property
    def has_operators(self) -> bool:
        """True: ``parley store`` asks this process for changes."""
        return True

    @property
    def unavailable_reason(self) -> str:
        """The reason why nothing can be stored now, as of the last check: a file is missing.

        The files are checked with each group that is written, and every second.
        """
        return self._file.watch.unavailable_reason if self._file is not None else ""

    def now(self) -> int:
        """Return the time by the store's clock, in ms."""
        return self._clock()

    async def open(self, committed: Committed) -> None:
        """Lock the file, check it for damage, migrate its schema. Raises ``StoreUnavailable``."""
        if self._loop is not None:
            raise RuntimeError("the store is open already")
        loop = asyncio.get_running_loop()
        file = await asyncio.to_thread(
            TaskFile, self._path, self._synchronous, self._busy_timeout, READERS
        )
        yielder = GilYielder(loop)
        self._replica = uuid4().hex
        self._writing = GroupWriter(
            SqliteBatchWriter(file, clock=self._clock, replica=self._replica),
            yielder=yielder,
            committed=committed,
            failed=FailedWriters().clear,
        )
        readers = [SqliteReadConnection(connection, file) for connection in file.readers]
        self._reading = ReaderPool(readers, yielder=yielder)
        self._file, self._loop, self._migrated = file, loop, file.migrated
        self._operator = OperatorSocket(
            file.path,
            {
                **{name: getattr(self, name) for name in CALLS},
                "end_api_key": lambda id, expires_at, revoked_at: self.end_api_key(
                    id, expires_at=expires_at, revoked_at=revoked_at
                ),
            },
        )
        await self._operator.open()

    async def close(self) -> None:
        """Finish the submitted jobs, and close the file. Idempotent."""
        if self._loop is None or self._writing is None or self._reading is None:
            return
        if self._operator is not None:
            await self._operator.close()
        self._loop = None
        await self._reading.close()
        await self._writing.close()
        if self._file is not None:
            self._file.lock.release()
            self._file = None

    async def list(self, query: TaskQuery) -> TaskPage:
        """Return one page of tasks."""
        return await self._read(partial(_list, query=query))

    async def claim_batch(self, agent: str, limit: int) -> Sequence[Claimed]:
        """Claim unclaimed tasks with work left, in the order of the queue."""
        return await self._change(lambda batch: batch.claim_batch(agent, limit))

    async def positions(self, task_ids: Sequence[str]) -> Sequence[LogPosition]:
        """Return the ends of tasks' logs, without tasks that the store lacks."""
        rows = await self._rows("positions", (self._texts(task_ids),))
        return positions_from_rows(msgspec.json.decode(rows[0][0]))

    async def replicas(self) -> Sequence[Replica]:
        """Return this replica."""
        [(holds,)] = await self._rows("count_held", (self._replica,))
        return [Replica(id=self._replica, seen_at=self._clock(), alive=True, holds=holds)]

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Set a value of a context; ``None`` removes it."""
        await self._change(lambda batch: batch.set_value(scope, context_id, key, value))

    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Set a value of a context if it still is the ``expected`` one."""
        return await self._change(
            lambda batch: batch.compare_and_set(scope, context_id, key, expected, value)
        )

    async def wake(self, tasks: Mapping[str, int], now: int) -> int:
        """Make due sleeping tasks claimable, each with its queue key."""
        return await self._change(lambda batch: batch.wake(tasks, now))

    async def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; the waiting tasks become due at once."""
        value = checked_event(key, value)
        is_first = await self._change(lambda batch: batch.complete_event(agent, key, value))
        self._timers_changed(0)
        return is_first

    async def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it exists."""
        await self._change(lambda batch: batch.remove_push(task_id, push_id))

    async def claim_pushes(self, agent: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Claim active push notification configurations that are unclaimed."""
        return await self._change(lambda batch: batch.claim_pushes(agent, limit))

    async def prune(self, agent: str, ended_before: int, limit: int) -> int:
        """Remove up to ``limit`` tasks that ended before a time (ms), with all their rows.

        It works in batches, between which others write.
        """
        removed, more = 0, True
        while more:
            piece = partial(
                SqliteBatch.prune, agent=agent, before=ended_before, limit=limit - removed
            )
            count, more = await self._change(piece)
            removed += count
        for remove in (
            partial(SqliteBatch.prune_more, table="receipts"),
            partial(SqliteBatch.prune_more, table="events"),
            SqliteBatch.prune_contexts,
        ):
            while await self._change(partial(remove, agent=agent, before=ended_before)):
                pass
        return removed

    async def resume(self, which: WebhookFilter) -> Sequence[SuspendedWebhook]:
        """Resume webhooks for an operator."""
        found = await self._read(lambda reading: suspended_in(reading, which))
        for begin in range(0, len(found), WEBHOOKS_PER_PAGE):
            page = found[begin : begin + WEBHOOKS_PER_PAGE]
            await self._change(partial(SqliteBatch.resume_pushes, webhooks=page))
        return found

    async def change_rows(self, work: Callable[[SqlRows], T]) -> T:
        """Call ``work`` in the transaction of the next batch, and return its result."""
        return await self._change(lambda batch: work(batch.rows()))

    async def read_rows(self, work: Callable[[SqlRows], T]) -> T:
        """Call ``work``, which only reads, and return its result."""
        return await self._read(lambda reading: work(SqliteRows(reading, self.now())))

    async def _change(self, work: Callable[[SqliteBatch], T]) -> T:
        """Add a change to the next batch; return its result."""
        result: T = await self._submit(lambda batch: (work(batch), ()))
        return result

    async def _rows(
        self, name: str, values: Sequence[Any] | Mapping[str, Any]
    ) -> Sequence[Sequence[Any]]:
        return await self._read(lambda reading: reading.execute(SQL[name], values).fetchall())

    def _texts(self, texts: Sequence[str]) -> str:
        return msgspec.json.encode(texts).decode()


def _list(reading: sqlite3.Connection, query: TaskQuery) -> TaskPage:
    values = list_values(query)
    sql = _FOUND_IN_CONTEXT if query.context_id else _FOUND[values["state"]]
    reading.execute("BEGIN")  # so that the page and the total agree
    try:
        found = (reading.execute(sql, values).fetchone()[0] or "").split("\n")
        keys = _of_a_page(found, query)
        values["keys"] = f"[{','.join(keys)}]"
        lines = reading.execute(SQL["list"], values).fetchone()[0] if keys else b""
        total = _total(reading, values)
    finally:
        reading.execute("COMMIT")
    tasks = [_task(line.split(b"\x1d")) for line in lines.split(b"\x1c") if line]
    return TaskPage(tuple(tasks), total=total, more=len(found) > len(tasks) > 0)


def _of_a_page(found: Sequence[str], query: TaskQuery) -> list[str]:
    """Return the keys of the tasks that fit a page, given keys and sizes."""
    keys: list[str] = []
    held = 0
    for line in found[: query.limit]:
        key, _, size = line.partition(" ")
        if not key or held >= query.max_bytes:
            break
        keys.append(key)
        held += int(size)
    return keys


def _task(fields: Sequence[bytes]) -> StoredTask:
    """Return the task in the joined fields of the query ``list``."""
    task_id, context_id, state, status_at, *pieces = fields
    head = (msgspec.json.decode(context_id), state.decode(), int(status_at))
    return stored_task_from_row(msgspec.json.decode(task_id), (*head, *pieces))


def _total(reading: sqlite3.Connection, values: dict[str, Any]) -> int:
    """Return the number of tasks on all pages of a list.

    Few tasks are newer than a paged walk: they are counted and subtracted.
    """

    def count(name: str, **changed: Any) -> int:
        found: int = reading.execute(SQL[name], values | changed).fetchone()[0]
        return found

    if values["context_id"]:
        return count("count_in_context")
    states = [values["state"]] if values["state"] else STATES
    if values["first"] > -LAST:
        return sum([count("count_between", state=state) for state in states])
    later = 0
    if values["last"] < LAST:
        span = {"first": values["last"] + 1, "last": LAST}
        later = sum([count("count_between", state=state, **span) for state in states])
    return count("total") - later
