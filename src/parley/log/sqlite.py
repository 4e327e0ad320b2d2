"""The embedded store: one SQLite file, durable before anybody is told."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from parley.log import sqlite_jobs
from parley.log.events import LoggedEvent, now_ms
from parley.log.fold import fold
from parley.log.head import payloads_of
from parley.log.lend import Lender
from parley.log.snapshot import Snapshot
from parley.log.sqlite_batch import Job, Stage, WriterId, columns, read_pushes
from parley.log.sqlite_file import SQL, SqliteFile
from parley.log.sqlite_reader import SqliteReaders, records_in
from parley.log.sqlite_writer import SqliteWriter
from parley.log.store import (
    PAGE_BYTES,
    Append,
    Committed,
    Memory,
    PushRecord,
    Receipt,
    Scope,
    StoreUnavailable,
    TaskPage,
    TaskQuery,
    TaskRecord,
    memory_of,
)
from parley.model.encoding import decode, encode
from parley.model.parts import Message
from parley.model.tasks import Task, TaskState

T = TypeVar("T")

READERS = 2
"""How many threads read: two, so that a large list does not hold up a small read."""

_LAST = 2**63 - 1
_LISTS = {
    (name, with_context): SQL[name].replace(
        "{context}", "AND t.context_id = :context_id" if with_context else ""
    )
    for name in ("list", "count")
    for with_context in (False, True)
}


class SqliteTaskStore:
    """Keeps task logs in the SQLite file at ``path``, which one process at a time can have open.

    With ``synchronous="FULL"`` what was acknowledged survives a power cut, with ``"NORMAL"`` only
    the end of the process. ``clock`` returns milliseconds since 1970. ``busy_timeout`` is how many
    seconds a write waits for another program's lock on the file.
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
        self._synchronous = synchronous
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._file: SqliteFile | None = None
        self._writing: SqliteWriter | None = None
        self._reading: SqliteReaders | None = None

    async def open(self, committed: Committed) -> None:
        """Make the store ready: lock it, bring its schema up to date, check that it is sound.

        Raises ``StoreUnavailable``, which says what is wrong with the file and what to do.
        """
        if self._loop is not None:
            raise RuntimeError("the store is open already")
        loop = asyncio.get_running_loop()
        file = await asyncio.to_thread(
            SqliteFile, self._path, self._synchronous, self._busy_timeout, READERS
        )
        lender = Lender(loop)
        self._writing = SqliteWriter(file, committed=committed, lender=lender, clock=self._clock)
        self._reading = SqliteReaders(file, lender=lender)
        self._file, self._loop = file, loop

    async def close(self) -> None:
        """Finish what is under way and let go. Idempotent."""
        if self._loop is None or self._writing is None or self._reading is None:
            return
        self._loop = None
        await self._reading.close()
        await self._writing.close()
        if self._file is not None:
            self._file.lock.release()

    def append(self, append: Append) -> asyncio.Future[int]:
        """Add records. See ``TaskStore``."""
        payloads = payloads_of(append)
        snapshot = None if append.task is None else Snapshot.of(append.task)
        exchange = [encode(message) for message in append.exchange]
        size = sum([len(payload) for payload in payloads])
        if snapshot is not None:
            size += len(snapshot.task) + len(snapshot.artifacts)
        return self._submit(
            partial(
                sqlite_jobs.append,
                append=append,
                payloads=payloads,
                snapshot=snapshot,
                exchange=exchange,
            ),
            task_id=append.task_id,
            creates=append.expected_seq == 0,
            writer=None if append.expected_seq is None else (append.task_id, append.epoch),
            size=size,
        )

    async def load(self, task_id: str) -> TaskRecord | None:
        """Return the task, at no more cost than its size."""
        return await self._read(partial(_load, task_id=task_id))

    async def memory(self, task_id: str) -> Memory:
        """Return the private records of the task that a turn needs."""
        records = await self._records(task_id, "private_records", (task_id,))
        return memory_of(records)

    async def events(self, task_id: str, after: int, limit: int) -> Sequence[LoggedEvent]:
        """Return up to ``limit`` public events with a number above ``after``, in order."""
        place = {"task_id": task_id, "after": after, "limit": limit, "bytes": PAGE_BYTES}
        return await self._records(task_id, "events", place)

    async def list(self, query: TaskQuery) -> TaskPage:
        """Return one page of tasks."""
        return await self._read(partial(_list, query=query))

    async def claim(self, task_id: str) -> int:
        """Take the task for a new executor and return the new epoch; earlier ones are fenced."""
        job = partial(sqlite_jobs.claim, task_id=task_id)
        epoch: int = await self._submit(job, task_id=task_id)
        return epoch

    async def unfinished(self, agent: str) -> Sequence[str]:
        """Return the ids of the agent's tasks that an executor has to see to, the oldest first."""
        return [task_id for (task_id,) in await self._rows("unfinished", (agent,))]

    async def parked(self, agent: str, since: int, limit: int) -> Sequence[str]:
        """Return tasks that wait for their callers since before a moment, the longest first."""
        return [task_id for (task_id,) in await self._rows("parked", (agent, since, limit))]

    async def receipt(self, scope: Scope, message_id: str) -> Receipt | None:
        """Return what was kept for a message."""
        rows = await self._rows("receipt", (*columns(scope), message_id))
        return Receipt(*rows[0]) if rows else None

    async def keep(
        self,
        scope: Scope,
        context_id: str,
        *,
        receipt: Receipt | None = None,
        exchange: Sequence[Message] = (),
    ) -> None:
        """Keep what a direct reply leaves behind: a receipt, an exchange, or both, or none."""
        await self._submit(
            partial(
                sqlite_jobs.keep,
                scope=scope,
                context_id=context_id,
                receipts=(receipt,) if receipt else (),
                exchange=[encode(message) for message in exchange],
            )
        )

    async def history(self, scope: Scope, context_id: str, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages of a context, the oldest first."""
        rows = await self._rows("history", (*columns(scope), context_id, limit))
        lines: bytes | None = rows[0][0]
        return [decode(line, Message) for line in lines.split(b"\n")] if lines else []

    async def get_value(self, scope: Scope, context_id: str, key: str) -> bytes | None:
        """Return a value that an agent keeps for a context."""
        rows = await self._rows("value", (*columns(scope), context_id, key))
        value: bytes | None = rows[0][0] if rows else None
        return value

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Keep a value for a context; ``None`` removes it."""
        await self._submit(
            partial(sqlite_jobs.set_value, scope=scope, context_id=context_id, key=key, value=value)
        )

    async def put_push(self, task_id: str, push: PushRecord) -> PushRecord:
        """Keep a push notification configuration of a task; return it as it is kept."""
        job = partial(sqlite_jobs.put_push, task_id=task_id, push=push)
        kept: PushRecord = await self._submit(job, task_id=task_id)
        return kept

    async def pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations, by id."""
        return read_pushes(await self._rows("pushes", (task_id,)))

    async def move_push(self, task_id: str, push: PushRecord) -> None:
        """Note how far a webhook was told, and its state."""
        await self._submit(partial(sqlite_jobs.move_push, task_id=task_id, push=push))

    async def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it is there."""
        await self._submit(partial(sqlite_jobs.remove_push, task_id=task_id, push_id=push_id))

    async def pushing(self, agent: str) -> Sequence[tuple[str, bool]]:
        """Return the ids of the agent's tasks with active configurations, the oldest first."""
        rows = await self._rows("pushing", (agent,))
        return [(task_id, bool(behind)) for task_id, behind in rows]

    async def prune(self, agent: str, ended_before: int, limit: int) -> int:
        """Remove up to ``limit`` tasks that ended before a moment (ms), with all that is theirs.

        Done in pieces, between which others write.
        """
        removed = 0
        while removed < limit:
            prune = partial(
                sqlite_jobs.prune, agent=agent, ended_before=ended_before, limit=limit - removed
            )
            count = await self._submit(prune)
            removed += count
            if not count:
                break
        for rest in (sqlite_jobs.prune_receipts, sqlite_jobs.prune_contexts):
            while await self._submit(partial(rest, agent=agent, before=ended_before)):
                pass
        return removed

    def _submit(
        self,
        stage: Stage,
        *,
        task_id: str = "",
        creates: bool = False,
        writer: WriterId | None = None,
        size: int = 0,
    ) -> asyncio.Future[Any]:
        if self._loop is None or self._writing is None:
            raise self._closed()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._writing.submit(Job(future, stage, task_id, creates, writer, size))
        return future

    async def _read(self, function: Callable[[sqlite3.Connection], T]) -> T:
        if self._loop is None or self._reading is None:
            raise self._closed()
        return await self._reading.run(function)

    async def _rows(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        return await self._read(lambda reading: reading.execute(SQL[name], values).fetchall())

    async def _records(
        self, task_id: str, name: str, values: Sequence[Any] | Mapping[str, Any]
    ) -> Sequence[LoggedEvent]:
        def read(reading: sqlite3.Connection) -> Sequence[LoggedEvent]:
            return records_in(task_id, reading.execute(SQL[name], values).fetchone()[0])

        return await self._read(read)

    def _closed(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self._path}: the store is closed")


def _load(reading: sqlite3.Connection, task_id: str) -> TaskRecord | None:
    row = reading.execute(SQL["load"], (task_id,)).fetchone()
    if row is None:
        return None
    agent, tenant, owner, seq, turn, turn_open, waiting, epoch, canceling, *kept = row
    return TaskRecord(
        scope=Scope(agent, tenant, owner),
        task=_task(task_id, *kept),
        seq=seq,
        turn=turn,
        turn_open=bool(turn_open),
        waiting=waiting,
        epoch=epoch,
        cancel_requested=bool(canceling),
    )


def _list(reading: sqlite3.Connection, query: TaskQuery) -> TaskPage:
    before_at, before_id = query.before or (_LAST, "")
    state = "" if query.state is TaskState.UNSPECIFIED else query.state.value
    values = {
        "agent": query.scope.agent,
        "tenant": query.scope.tenant,
        "owner": query.scope.owner,
        "context_id": query.context_id,
        "state": state,
        "first": -_LAST if query.status_after is None else query.status_after,
        "last": _LAST if query.not_after is None else query.not_after,
        "before_at": before_at,
        "before_id": before_id,
        "artifacts": query.artifacts,
        "limit": query.limit + 1,
    }
    with_context = bool(query.context_id)
    reading.execute("BEGIN")  # so that the page and the total are of one moment
    try:
        lines = reading.execute(_LISTS["list", with_context], values).fetchone()[0]
        total = reading.execute(_LISTS["count", with_context], values).fetchone()[0]
    finally:
        reading.execute("COMMIT")
    found = [line.split(b"\x1f") for line in lines.split(b"\x1e")] if lines else []
    tasks = [
        _task(task_id.decode(), body or None, artifacts or None, tail or None)
        for _, task_id, body, artifacts, tail in found[: query.limit]
    ]
    return TaskPage(tuple(tasks), total=total, more=len(found) > query.limit)


def _task(task_id: str, body: bytes | None, artifacts: bytes | None, tail: bytes | None) -> Task:
    """Return the task that a snapshot and the records after it make."""
    start = Snapshot(body, artifacts or b"").read() if body else None
    return fold([record.event for record in records_in(task_id, tail)], start)
