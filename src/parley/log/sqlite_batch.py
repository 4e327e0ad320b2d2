"""What is to be written to a SQLite store: jobs, and the batch in which they are written together.

A job is looked at before anything is written, on the heads as they will be after the jobs before
it; one that may not be done raises, and leaves nothing in the batch.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from parley.log.events import LoggedEvent
from parley.log.head import Head
from parley.log.pushes import placed
from parley.log.snapshot import Snapshot
from parley.log.sqlite_file import SQL
from parley.log.store import (
    HISTORY_KEPT,
    DuplicateReceipt,
    PushRecord,
    PushState,
    Receipt,
    Scope,
)
from parley.model.encoding import decode, encode
from parley.model.push import TaskPushNotificationConfig
from parley.model.tasks import TaskState

ROWS_AT_ONCE = 256

WriterId = tuple[str, int]
"""Who writes to a log: the task's id, and the epoch of its executor."""

Stage = Callable[["Batch"], tuple[Any, Sequence[LoggedEvent]]]


class Job(msgspec.Struct, eq=False):
    """Something to be written.

    ``stage`` puts it into a batch and returns its result, which ``future`` gets when it is durable,
    and the records of which readers are told then. ``task_id`` is the task whose head it needs,
    which it ``creates`` or not; ``writer`` is set when the writer's next job may build on this one.
    """

    future: asyncio.Future[Any]
    stage: Stage
    task_id: str = ""
    creates: bool = False
    writer: WriterId | None = None
    size: int = 0


class Batch:
    """The rows that a group of jobs adds and changes.

    ``careful`` looks up what is otherwise left to the constraints of the tables: whether a new
    task's id or a receipt's message is there already. When a constraint fails, the group is done
    again, a job at a time and carefully, to find whose fault it was.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        known: Mapping[str, Head],
        broken: set[WriterId],
        last_key: int,
        at: int,
        careful: bool,
    ) -> None:
        self.at = at
        self.broken = set(broken)
        self.last_key = last_key
        self.heads: dict[str, Head] = {}
        self._connection = connection
        self._known = known
        self._careful = careful
        self._found: dict[str, Head] = {}
        self._records: list[tuple[Any, ...]] = []
        self._snapshots: dict[int, tuple[Any, ...]] = {}
        self._receipts: list[tuple[Any, ...]] = []
        self._statements: list[tuple[str, Sequence[Any]]] = []
        self._pushes: dict[str, dict[str, PushRecord]] = {}

    def look_up(self, jobs: Sequence[Job]) -> None:
        """Find the heads that ``jobs`` need, with one look into the database for all of them."""
        wanted = {
            job.task_id
            for job in jobs
            if job.task_id and job.task_id not in self._known and (self._careful or not job.creates)
        }
        if wanted:
            names = msgspec.json.encode(list(wanted)).decode()
            for head in read_heads(self._connection.execute(SQL["heads"], (names,)).fetchone()[0]):
                self._found[head.task_id] = head

    def head(self, task_id: str) -> Head | None:
        """Return the head of a task as it is after what is in the batch so far."""
        return self.heads.get(task_id) or self._known.get(task_id) or self._found.get(task_id)

    def read(self, name: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return what a query finds, before the batch is written."""
        return self._connection.execute(SQL[name], values).fetchall()

    def put_head(self, head: Head) -> Head:
        """Let a task have a new head; a new task gets its key."""
        if not head.key:
            self.last_key += 1
            head = msgspec.structs.replace(head, key=self.last_key)
        self.heads[head.task_id] = head
        return head

    def add_records(self, key: int, records: Sequence[LoggedEvent]) -> None:
        """Add records to the log of the task with this key."""
        self._records += [
            (key, r.seq, r.sub, r.turn, r.kind.value, r.at, r.payload) for r in records
        ]

    def put_snapshot(self, head: Head, snapshot: Snapshot) -> None:
        """Replace the snapshot of a task."""
        self._snapshots[head.key] = (head.key, head.seq, head.sub, *snapshot)

    def check_receipts(self, scope: Scope, receipts: Sequence[Receipt]) -> None:
        """Raise ``DuplicateReceipt`` when there is a receipt for one of the messages."""
        if self._careful:
            for receipt in receipts:
                if self.read("receipt", (*columns(scope), receipt.message_id)):
                    raise DuplicateReceipt(receipt.message_id)

    def add_receipts(self, scope: Scope, receipts: Sequence[Receipt]) -> None:
        """Add receipts."""
        self._receipts += [
            (*columns(scope), r.message_id, r.digest, r.task_id, r.turn, r.reply, self.at)
            for r in receipts
        ]

    def add_exchange(self, scope: Scope, context_id: str, messages: Sequence[bytes]) -> None:
        """Add messages to the history of a context."""
        if messages:
            context = (*columns(scope), context_id)
            self.add("touch_context", (*context, len(messages), self.at))
            for i, message in enumerate(reversed(messages)):
                self.add("add_history", (*context, i, message))
            self.add("trim_history", (*context, HISTORY_KEPT))

    def pushes_with(
        self, head: Head, pushes: Sequence[PushRecord], *, after: int
    ) -> dict[str, PushRecord]:
        """Return a task's push notification configurations with further ones, the last of them
        last. Raises ``TooManyPushes``.
        """
        return placed(pushes, self._pushes_of(head.task_id), head, after=after)

    def put_pushes(self, head: Head, pushes: dict[str, PushRecord], count: int) -> None:
        """Let a task have these push notification configurations, the last so many of them new."""
        self._pushes[head.task_id] = pushes
        for push in list(pushes.values())[-count:]:
            config = encode(push.config)
            rest = (push.version, push.cursor, push.state.value, push.note)
            self.add("put_push", (head.key, push.id, push.revision, config, *rest))

    def remove_push(self, task_id: str, push_id: str) -> None:
        """Remove a push notification configuration, if it is there."""
        self._pushes_of(task_id).pop(push_id, None)
        self.add("remove_push", (task_id, push_id))

    def _pushes_of(self, task_id: str) -> dict[str, PushRecord]:
        """Return a task's configurations as they are after what is in the batch so far."""
        if task_id not in self._pushes:
            found = read_pushes(self.read("pushes", (task_id,)))
            self._pushes[task_id] = {push.id: push for push in found}
        return self._pushes[task_id]

    def add(self, name: str, values: Sequence[Any]) -> None:
        """Add a statement, done after all that is written in bulk."""
        self._statements.append((SQL[name], values))

    def write(self) -> None:
        """Write it all and make it durable, or nothing of it. Raises ``sqlite3.Error``."""
        if not (self.heads or self._receipts or self._statements):
            return
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            _write_rows(connection, "add_records", self._records)
            self._write_heads(connection)
            _write_rows(connection, "put_snapshots", list(self._snapshots.values()))
            _write_rows(connection, "add_receipts", self._receipts)
            for sql, values in self._statements:
                connection.execute(sql, values)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _write_heads(self, connection: sqlite3.Connection) -> None:
        added, moved, changed, ended = [], [], [], []
        for task_id, head in self.heads.items():
            before = self._known.get(task_id) or self._found.get(task_id)
            state = head.state.value
            if before is None:
                place = (head.key, task_id, *columns(head.scope), head.context_id)
                added.append((*place, state, head.status_at, *_moved(head)[1:], head.ended_at))
            elif head.ended_at is not None:
                ended.append((*_moved(head), state, head.status_at, head.ended_at))
            elif head.state is not before.state or head.status_at != before.status_at:
                changed.append((*_moved(head), state, head.status_at))
            else:
                moved.append(_moved(head))
        _write_rows(connection, "add_heads", added)
        _write_rows(connection, "move_heads", moved)
        _write_rows(connection, "change_heads", changed)
        _write_rows(connection, "end_heads", ended)


def columns(scope: Scope) -> tuple[str, str, str]:
    """Return a scope as the tables hold it."""
    return scope.agent, scope.tenant, scope.owner


def read_pushes(rows: Sequence[Sequence[Any]]) -> list[PushRecord]:
    """Return the configurations that the query ``pushes`` found."""
    return [
        PushRecord(
            config=decode(config, TaskPushNotificationConfig),
            version=version,
            revision=revision,
            cursor=cursor,
            state=PushState(state),
            note=note,
        )
        for config, version, revision, cursor, state, note in rows
    ]


def read_heads(array: str) -> list[Head]:
    """Return the heads that the query ``heads`` found."""
    heads = []
    for key, task_id, agent, tenant, owner, context_id, state, *rest in msgspec.json.decode(array):
        status_at, seq, sub, turn, turn_open, waiting, cancel_requested, epoch, ended_at = rest
        heads.append(
            Head(
                key=key,
                task_id=task_id,
                scope=Scope(agent, tenant, owner),
                context_id=context_id,
                state=TaskState(state),
                status_at=status_at,
                seq=seq,
                sub=sub,
                turn=turn,
                turn_open=bool(turn_open),
                waiting=waiting,
                cancel_requested=bool(cancel_requested),
                epoch=epoch,
                ended_at=ended_at,
            )
        )
    return heads


def _moved(head: Head) -> tuple[Any, ...]:
    """Return what changes with every append."""
    return (
        head.key,
        head.seq,
        head.sub,
        head.turn,
        head.turn_open,
        head.waiting,
        head.cancel_requested,
        head.epoch,
    )


def _write_rows(connection: sqlite3.Connection, name: str, rows: Sequence[Sequence[Any]]) -> None:
    """Write rows in as few steps as can be."""
    done = 0
    while done < len(rows):
        count = min(ROWS_AT_ONCE, 1 << (len(rows) - done).bit_length() - 1)
        values = [value for row in rows[done : done + count] for value in row]
        connection.execute(_for_rows(name, count), values)
        done += count


@cache
def _for_rows(name: str, count: int) -> str:
    """Return a query for one row as one for ``count``, which is a power of two."""
    before, row, after = re.split(r"(?<=VALUES )(\([?, ]+\))", SQL[name])
    return before + ", ".join([row] * count) + after
