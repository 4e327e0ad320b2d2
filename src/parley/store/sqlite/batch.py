"""Groups of jobs that are written to SQLite: a batch of rows, in one transaction.

Measured with a saturated loop, events of 200 bytes, 64 and 512 records a group (two cores, SQLite
3.40, FULL): ``executemany`` takes a step for each row, and each step may lose the interpreter
(3,800 created tasks and 12,000 to 28,000 events a second); one JSON parameter and ``json_each`` in
one step 10,000 to 12,000 and 65,000, with a third more CPU; many rows of ``VALUES`` in a step 9,000
to 10,000 and 65,000. The last one is used. Without ``GilYielder`` all of them starve: 4 to 2,000
created tasks a second, by chance. On one core, or with an idle loop, it is 12,000 to 18,000 and
68,000 to 110,000 for each of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from parley.database.sqlite.database import SqliteGroupWriter
from parley.database.sqlite.file import undone_on_error
from parley.model.struct import encode
from parley.store.head import Head, with_claim
from parley.store.protocols.claims import Claimed
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.webhooks import (
    ATTEMPTS_KEPT,
    DeliveryAttempt,
    PushRecord,
    PushState,
    SuspendedWebhook,
)
from parley.store.sql.batch import (
    HEADS_KEPT,
    StoreJob,
    StoreJobResult,
    WriterId,
    clear_failures,
    options_column,
    owner_column,
    pushes_from_rows,
    scope_columns,
)
from parley.store.sql.rows import statements_for
from parley.store.sqlite.file import SQL, TaskFile
from parley.store.sqlite.tables import SqliteTables, read_heads

T = TypeVar("T")


class SqliteBatch(SqliteTables):
    """The rows that a group of jobs adds and changes."""

    binary = bytearray  # for ``bytes``, ``sqlite3`` searches for an adapter each time

    def load_heads(self, jobs: Sequence[StoreJob]) -> None:
        """Load the heads that ``jobs`` need, by one query."""
        if wanted := self.heads_to_load(jobs):
            names = msgspec.json.encode(wanted).decode()
            for head in read_heads(self.read("heads", (names,))):
                self._found[head.task_id] = head

    def claim_batch(self, agent: str, limit: int) -> list[Claimed]:
        """Claim unclaimed tasks."""
        claims = []
        for found in read_heads(self.read("claimable", (agent, limit))):
            head = self.current_head(found)
            if head.is_unclaimed:
                claim = self.put_head(with_claim(head, head.task_id, self.replica))
                claims.append(Claimed(head.task_id, claim.epoch, head.queue_key))
        return claims

    def read_pushes(self, task_id: str) -> Sequence[PushRecord]:
        """Return a task's push notification configurations from the database."""
        return pushes_from_rows(self.read("pushes", (task_id,)))

    def put_push(self, head: Head, push: PushRecord) -> None:
        """Store a push notification configuration, replacing one with the same id."""
        config = encode(push.config)
        state = (push.version, push.cursor, push.state.value, push.note, push.lease_owner)
        name = (head.key, push.id, head.scope.agent, push.revision)
        self.add("put_push", (*name, config, *state, options_column(push.options), push.confirmed))

    def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it exists."""
        self.current_pushes(task_id).pop(push_id, None)
        self.add("remove_push", (task_id, push_id))
        self.add("remove_attempts_of", (task_id, push_id))

    def save_delivery(
        self, task_id: str, push: PushRecord, attempt: DeliveryAttempt | None = None
    ) -> bool:
        """Save the delivery of a webhook and an attempt, if this replica still holds it."""
        pushes = self.current_pushes(task_id)
        stored = pushes.get(push.id)
        if stored is None or (stored.revision, stored.lease_owner) != (push.revision, self.replica):
            return False
        pushes[push.id] = replace(push, lease_owner=self.replica)
        values = (push.cursor, push.state.value, push.note, self.replica, push.attempts)
        self.add("save_delivery", (*values, push.confirmed, task_id, push.id, push.revision))
        if attempt is not None:
            slot = attempt.number % ATTEMPTS_KEPT
            self.add("add_attempt", (push.id, slot, msgspec.json.encode(attempt), task_id))
        return True

    def claim_pushes(self, agent: str, limit: int) -> list[tuple[str, bool]]:
        """Claim unclaimed webhooks; return their tasks, and whether there is more to deliver."""
        found = self.read("claimable_pushes", (agent, limit))
        for key, task_id, _ in found:
            pushes = self.current_pushes(task_id)
            for push in list(pushes.values()):
                if push.state is PushState.ACTIVE and not push.lease_owner:
                    pushes[push.id] = replace(push, lease_owner=self.replica)
            self.add("claim_pushes", (self.replica, key))
        return [(task_id, bool(is_behind)) for _, task_id, is_behind in found]

    def resume_pushes(self, webhooks: Sequence[SuspendedWebhook]) -> None:
        """Resume suspended webhooks, which become unclaimed."""
        for each in webhooks:
            self.add("resume_push", (each.key, each.id))

    def write(self) -> None:
        """Write all of it durably, or nothing (``undone_on_error``). Raises ``sqlite3.Error``."""
        connection = self.connection
        is_begun = connection.in_transaction
        if not (self.heads or self._receipts or self._statements or self._counts or is_begun):
            return
        if not is_begun:
            connection.execute("BEGIN IMMEDIATE")
        _write_rows(connection, "add_records", self._records)
        self._write_heads(connection)
        _write_rows(connection, "add_messages", self._messages)
        for name in self._replaced:
            connection.execute(SQL["replace_artifact"], name)
        pieces = [row for rows in self._artifacts.values() for row in rows]
        _write_rows(connection, "add_artifacts", pieces)
        _write_rows(connection, "add_receipts", self._receipts)
        for sql, values in self._statements:
            connection.execute(sql, values)
        connection.execute("COMMIT")

    def _write_heads(self, connection: sqlite3.Connection) -> None:
        added, moved, changed, turned, rewritten = [], [], [], [], []
        counts = self._counts
        for task_id, head in self.heads.items():
            before = self.head_before(task_id)
            state = head.state._value_
            position, work = _position_columns(head), _work_columns(head)
            if before is None:
                scope = scope_columns(head.scope)
                counts[*scope, state] += 1
                name = (task_id, *scope, head.context_id, head.base_url)
                added.append((*position, *work, state, head.status_at, head.ended_at, *name))
                continue
            has_new_state = head.state is not before.state
            if has_new_state:
                scope = scope_columns(head.scope)
                counts[*scope, state] += 1
                counts[*scope, before.state._value_] -= 1
            is_changed = has_new_state or head.status_at != before.status_at
            if head.ended_at is not None or (is_changed and work != _work_columns(before)):
                rewritten.append((*position, *work, state, head.status_at, head.ended_at))
            elif is_changed:
                changed.append((*position, state, head.status_at))
            elif work != _work_columns(before):
                turned.append((*position, *work))
            else:
                moved.append(position)
        _write_rows(connection, "add_heads", added)
        _write_rows(connection, "move_heads", moved)
        _write_rows(connection, "change_heads", changed)
        _write_rows(connection, "turn_heads", turned)
        _write_rows(connection, "rewrite_heads", rewritten)
        rows = [(*name, more) for name, more in counts.items() if more]
        _write_rows(connection, "count_tasks", rows)


def _position_columns(head: Head) -> tuple[Any, ...]:
    """Return the key, the end of the log and the extent of the task's stored form."""
    stored = (head.messages, int(head.has_status_message), head.folded)
    return head.key, head.seq, head.sub, head.turn, head.epoch, *stored


def _work_columns(head: Head) -> tuple[Any, ...]:
    """Return the columns of the remaining work and the lease, or of the wake-up time."""
    work = (int(head.turn_open), head.waiting, int(head.cancel_requested))
    return *work, owner_column(head), head.queue_key, head.wakes_at


def _write_rows(connection: sqlite3.Connection, name: str, rows: Sequence[Sequence[Any]]) -> None:
    """Write rows in as few statements as possible."""
    for sql, values in statements_for(SQL[name], rows):
        connection.execute(sql, values)


class SqliteBatchWriter(SqliteGroupWriter[StoreJob]):
    """The writer of a task store. ``clock`` returns milliseconds."""

    def __init__(self, file: TaskFile, *, clock: Callable[[], int], replica: str) -> None:
        super().__init__(file)
        self._clock = clock
        self._replica = replica
        self._heads: dict[str, Head] = {}
        self._failed_writers: set[WriterId] = set()
        self._last_key = file.last_key

    def _execute(self, jobs: Sequence[StoreJob], *, pessimistic: bool) -> list[StoreJobResult]:
        batch = SqliteBatch(
            self.connection,
            known=self._heads,
            failed_writers=self._failed_writers,
            new_key=self._new_key,
            at=self._clock(),
            replica=self._replica,
            pessimistic=pessimistic,
        )
        batch.load_heads(jobs)
        with undone_on_error(self.connection):
            results = batch.stage(jobs)
            batch.write()
        self._failed_writers = batch.failed_writers
        for task_id, head in batch.heads.items():
            self._heads.pop(task_id, None)
            if head.ended_at is None:
                self._heads[task_id] = head
        while len(self._heads) > HEADS_KEPT:
            del self._heads[next(iter(self._heads))]
        return results

    def _failed(self, job: StoreJob, error: Exception) -> StoreJobResult:
        """Reject later jobs of the job's writer too, since they may build on this job."""
        if job.writer is not None:
            self._failed_writers.add(job.writer)
        return super()._failed(job, error)

    def _refuse(self, job: StoreJob, error: StoreUnavailable) -> StoreJobResult:
        """Let writers continue once the file is back, if the job permits that."""
        if isinstance(job.operation, partial) and job.operation.func is clear_failures:
            self._failed_writers.difference_update(job.operation.keywords["writers"])
            return job, None, (), None
        return super()._refuse(job, error)

    def _new_key(self) -> int:
        self._last_key += 1
        return self._last_key


def change(file: TaskFile, work: Callable[[SqliteBatch], T], at: int) -> T:
    """Change a file that no other process has open, in one transaction; return the result.

    Raises ``sqlite3.Error``.
    """
    batch = SqliteBatch(
        file.writer,
        known={},
        failed_writers=set(),
        new_key=lambda: 0,
        at=at,
        replica="",
        pessimistic=True,
    )
    with undone_on_error(file.writer):
        result = work(batch)
        batch.write()
    return result
