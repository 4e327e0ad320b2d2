"""Writes groups of jobs to PostgreSQL, each exactly once or not at all.

A group is first written optimistically, from cached heads: one statement, one round trip, with its
own commit, so that a process that is stopped in between holds no lock. Jobs of tasks whose head had
changed are written again pessimistically, in a transaction that locks the heads.

Groups are numbered in the writer's row (see batch.sql). After a lost connection the row shows
whether the group in doubt was committed; a new generation in the row fences statements on their
way. Only when the database is unavailable for longer than the timeout is the outcome unknown: the
writers get an error that says so, and readers get the records once it is known.

One writer per process: measured on two cores together with the server (PostgreSQL 15, fsync on),
one, two and four writers that share the tasks append 49,000 to 53,000, 50,000 and 56,000 events a
second from eight streams, create 14,500 to 16,000, 13,000 and 19,000 tasks, and run 3,600 to 4,100,
3,500 and 5,000 tasks through four appends. Further writers gain only from the server's share of the
machine, and each needs a row and a connection. An append takes 0.35 ms of the server's processor,
and 0.64 ms when its plan is not kept (see connection.sql).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import psycopg

from parley.database.postgres.connection import Address, BoundedConnection
from parley.database.postgres.database import RetryingWriter, Written
from parley.store.events import LoggedEvent
from parley.store.head import Head
from parley.store.postgres.batch import MovedPush, PostgresBatch, statement
from parley.store.protocols.errors import StoreError
from parley.store.sql.batch import HEADS_KEPT, StoreJob, StoreJobResult, WriterId

logger = logging.getLogger(__name__)

KEY_EPOCH = 1_735_689_600_000
"""The zero time of keys: 2025, in ms."""

WRITERS = 1 << 13
KEYS_A_MS = 1 << 10

SLOTS = 16
"""The number of rows over which each task count is spread, so that writers rarely wait for one
another."""


class Keys:
    """Makes keys of tasks, in the order of age: time, the writer's number, a counter.

    ``now`` returns milliseconds.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self.number = 0
        self._now = now
        self._last = (0, 0)

    def new(self) -> int:
        """Return an unused key, above all earlier keys of this writer."""
        ms, n = self._last
        now = self._now() - KEY_EPOCH
        if now > ms:
            ms, n = now, 0
        elif n + 1 < KEYS_A_MS:
            n += 1
        else:
            ms, n = ms + 1, 0
        self._last = ms, n
        return (ms * WRITERS + self.number) * KEYS_A_MS + n


class BackgroundOperation:
    """An operation with a separate statement, not part of a group.

    ``run`` returns the result. ``recover`` returns it from the note in the writer's row, when the
    statement was committed and its answer was lost; without it, the statement may run twice.
    """

    def __init__(
        self,
        run: Callable[[PostgresBatchWriter], Any],
        recover: Callable[[PostgresBatchWriter, Sequence[int]], Any] | None = None,
    ) -> None:
        self.run = run
        self.recover = recover

    def __call__(self, batch: object) -> tuple[Any, Sequence[LoggedEvent]]:
        """Raise an error: it cannot be part of a group."""
        raise TypeError("a background operation is not part of a group")


class StaleGeneration(Exception):
    """The writer is fenced: its row has another generation, as the replica expired."""


class _InDoubt(msgspec.Struct, frozen=True):
    """The group that was sent and not answered: its number, and the effects of its commit.

    ``on_commit`` is called with the values in the writer's row: ``missed`` and ``noted`` (see
    batch.sql).
    """

    grp: int
    on_commit: Callable[[Sequence[int], Sequence[int]], Written[StoreJob]]


class PostgresBatchWriter(RetryingWriter[StoreJob]):
    """Writes groups, on one thread. ``now`` returns milliseconds.

    A job waits ``timeout`` seconds for an unavailable database.
    """

    def __init__(
        self,
        address: Address,
        sql: dict[str, str],
        *,
        replica: str,
        lives_for: int,
        now: Callable[[], int],
        timeout: float,
    ) -> None:
        super().__init__(address, timeout=timeout)
        self.sql = sql
        self.replica = replica
        self.slot = 0
        self.generation = 0
        self.grp = 0
        self._lives_for = lives_for
        self._now = now
        self._keys = Keys(now)
        self._heads: dict[str, Head] = {}
        self._versions: dict[int, int] = {}
        self._failed_writers: set[WriterId] = set()
        self._is_fenced = True

    def open(self) -> None:
        """Register this replica. Raises ``psycopg.Error``."""
        [(number,)] = self.connection.rows(self.sql["writer_number"])
        self._keys.number = number % WRITERS
        self.slot = number % SLOTS
        self._start_generation()

    def close(self) -> None:
        """Release this replica's leases, and deregister it."""
        try:
            for name in ("leave", "release_tasks", "release_pushes", "delete_replica"):
                self.connection.execute(self.sql[name], (self.replica,))
        except psycopg.Error:
            logger.info("%s: others will notice that this replica is gone", self._address.name)
        self.connection.disconnect()

    def write(self, group: Sequence[StoreJob]) -> list[StoreJobResult]:
        """Execute jobs: optimistically first, then the remaining ones pessimistically.

        Locked jobs, and other jobs of their tasks, come last, in order.
        """
        results: list[StoreJobResult] = []
        locked = {job.task_id for job in group if job.is_locked and job.task_id}
        optimistic: list[StoreJob] = []
        others: list[StoreJob] = []
        for job in group:
            is_other = (
                job.is_locked
                or isinstance(job.operation, BackgroundOperation)
                or job.task_id in locked
            )
            (others if is_other else optimistic).append(job)
        missed = self._write_retrying(optimistic, results, pessimistic=False)
        together: list[StoreJob] = []
        for job in (*missed, *others):
            if isinstance(job.operation, BackgroundOperation):
                self._write_all(together, results)
                together = []
                self._write_all([job], results)
            else:
                together.append(job)
        self._write_all(together, results)
        return results

    def _failed(self, job: StoreJob, error: StoreError) -> StoreJobResult:
        if job.writer is not None:
            self._failed_writers.add(job.writer)
        return super()._failed(job, error)

    def _settled(self) -> Written[StoreJob] | None:
        """Return the results of the group in doubt, if it was committed, in a new generation.

        Raises ``psycopg.Error``.
        """
        if not self._is_fenced and self.connection.is_connected:
            return None
        return self._start_generation()

    def _start_generation(self) -> Written[StoreJob] | None:
        """Set a new generation in the writer's row, which fences earlier statements.

        Return the results of the group in doubt, if it was committed. Raises ``psycopg.Error``.
        """
        rows = self.connection.rows(self.sql["start_generation"], (self.replica,))
        if not rows:
            values = {"replica": self.replica, "lives_for": self._lives_for}
            self.connection.execute(self.sql["register"], values)
            rows = self.connection.rows(self.sql["start_generation"], (self.replica,))
        self.generation, self.grp, missed, noted = rows[0]
        self._is_fenced = False
        recovered = None
        if self._in_doubt is not None and self._in_doubt.grp == self.grp:
            recovered = self._in_doubt.on_commit(missed, noted)
        self._in_doubt = None
        if recovered is None:
            self._heads.clear()
            self._versions.clear()
        return recovered

    def _execute(self, jobs: Sequence[StoreJob], *, pessimistic: bool) -> Written[StoreJob]:
        """Write the accepted ``jobs``."""
        try:
            if isinstance(jobs[0].operation, BackgroundOperation):
                return self._run_background(jobs[0], jobs[0].operation), []
            if not pessimistic:
                return self._write(jobs, pessimistic=False)()
            with self.transaction():
                follows = self._write(jobs, pessimistic=True)
            return follows()
        except StaleGeneration:
            self._is_fenced = True
            return [], [*jobs]

    def _run_background(
        self, job: StoreJob, operation: BackgroundOperation
    ) -> list[StoreJobResult]:
        grp = self.grp + 1
        if (recover := operation.recover) is not None:

            def on_commit(missed: Sequence[int], noted: Sequence[int]) -> Written[StoreJob]:
                return [(job, recover(self, noted), (), None)], []

            self._in_doubt = _InDoubt(grp, on_commit)
        try:
            result = operation.run(self)
        except StoreError as error:
            self._in_doubt = None
            return [(job, None, (), error.with_traceback(None))]
        if recover is not None:
            self.grp = grp
            self._in_doubt = None
        return [(job, result, (), None)]

    def _write(
        self, jobs: Sequence[StoreJob], *, pessimistic: bool
    ) -> Callable[[], Written[StoreJob]]:
        """Send the accepted jobs; return the results of their commit."""
        batch, staged = self._stage(jobs, pessimistic=pessimistic)
        failed_before = self._failed_writers

        def on_commit(missed: Sequence[int], noted: Sequence[int]) -> Written[StoreJob]:
            return self._commit(batch, staged, failed_before, missed, noted)

        written = batch.values()
        if written is None:
            return partial(on_commit, (), ())
        pieces, values = written
        grp = self.grp + 1
        values |= {"replica": self.replica, "generation": self.generation, "grp": grp}
        values |= {"slot": self.slot}
        self._in_doubt = _InDoubt(grp, on_commit)
        rows = self.connection.rows(statement(self._address.schema, pieces), values)
        if not rows:
            self._in_doubt = None
            raise StaleGeneration

        def follows() -> Written[StoreJob]:
            self._in_doubt = None
            self.grp = grp
            return on_commit(*rows[0])

        return follows

    def _stage(
        self, jobs: Sequence[StoreJob], *, pessimistic: bool
    ) -> tuple[PostgresBatch, list[StoreJobResult]]:
        """Add jobs to a batch. A job that a cached head rejects is tried with the stored head."""
        known: dict[str, Head] = {} if pessimistic else self._heads
        for job in jobs if pessimistic else ():  # stored versions will replace the cached ones
            self._uncache(job.task_id)
        while True:
            batch = PostgresBatch(
                self.connection,
                self.sql,
                self._versions,
                known=known,
                failed_writers=self._failed_writers,
                new_key=self._keys.new,
                at=self._now(),
                replica=self.replica,
                pessimistic=pessimistic,
            )
            batch.load_heads(jobs)
            staged = batch.stage(jobs)
            rejected = {job.task_id for job, _, _, error in staged if error} & known.keys()
            if not rejected:
                return batch, staged
            for task_id in rejected:
                self._uncache(task_id)

    def _commit(
        self,
        batch: PostgresBatch,
        staged: Sequence[StoreJobResult],
        failed_before: set[WriterId],
        missed: Sequence[int],
        noted: Sequence[int],
    ) -> Written[StoreJob]:
        """Cache the heads of a batch that committed. Return the results of its jobs."""
        again = {head.task_id for head in batch.heads.values() if head.key in missed}
        moved = batch.moved_pushes(noted)
        results: list[StoreJobResult] = []
        jobs = []
        for job, result, records, error in staged:
            if job.task_id and job.task_id in again:
                jobs.append(job)
            elif isinstance(result, MovedPush):
                results.append((job, result in moved, records, error))
            else:
                results.append((job, result, records, error))
        writers = {job.writer for job in jobs if job.writer is not None}
        self._failed_writers = (batch.failed_writers - writers) | (failed_before & writers)
        for task_id, head in batch.heads.items():
            version = 1 if batch.head_before(task_id) is None else self._versions[head.key] + 1
            self._uncache(task_id)
            self._versions.pop(head.key, None)
            if task_id not in again and head.ended_at is None:
                self.cache_head(head, version)
        if len(self._versions) > 2 * HEADS_KEPT:  # versions of heads that were read but not changed
            cached = self._heads.values()
            self._versions = {head.key: self._versions[head.key] for head in cached}
        return results, jobs

    @contextmanager
    def transaction(self) -> Iterator[BoundedConnection]:
        """A transaction of a background operation, which waits a few seconds for locks."""
        with self.connection.transaction():
            self.connection.execute(self.sql["limit_locks"], ("5s",))
            yield self.connection

    def fenced_rows(self, name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a statement with a ``writer`` piece. Raises ``StaleGeneration``."""
        own = {"replica": self.replica, "generation": self.generation, "grp": self.grp + 1}
        rows = self.connection.rows(self.sql[name], {**own, **values})
        if not rows:
            raise StaleGeneration
        return rows

    def cache_head(self, head: Head, version: int) -> None:
        """Cache the head of a task that was read from the database."""
        self._heads[head.task_id] = head
        self._versions[head.key] = version
        while len(self._heads) > HEADS_KEPT:
            self._uncache(next(iter(self._heads)))

    def _uncache(self, task_id: str) -> None:
        head = self._heads.pop(task_id, None)
        if head is not None:
            self._versions.pop(head.key, None)
