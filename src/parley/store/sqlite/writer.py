"""What writes groups of jobs to SQLite, each in one transaction.

Measured with a saturated loop, events of 200 bytes, 64 and 512 records a group (two cores, SQLite
3.40, FULL): rows given to ``executemany`` are a step each, and each step may lose the interpreter
(3,800 created tasks and 12,000 to 28,000 events a second); one JSON parameter and ``json_each`` in
one step 10,000 to 12,000 and 65,000, but a third more CPU; many rows of ``VALUES`` in a step
9,000 to 10,000 and 65,000. The last was taken. Without lending (see ``lend``) all of them
starve: 4 to 2,000 created tasks a second, as chance has it. On one core, or with an idle loop, it
is 12,000 to 18,000 and 68,000 to 110,000 whatever is done.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial

from parley.store.fold import IllegalEvent
from parley.store.head import Head
from parley.store.sql_engine.batch import Job, WriterId
from parley.store.sql_engine.group_commit import HEADS_KEPT, Outcome
from parley.store.sql_engine.jobs import forgive
from parley.store.sqlite.batch import SqliteBatch
from parley.store.sqlite.file import SQL, WAL_BYTES, SqliteFile, code_of, explain
from parley.store.task_store import StoreError, StoreUnavailable

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often files are looked at that no group was written to."""

FRESH_SECONDS = 0.05
"""How long the look after a group is as good as one before the next."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""How many seconds pass between tries to begin the write-ahead log anew."""


class SqliteBatchWriter:
    """Writes groups. ``clock`` returns milliseconds."""

    def __init__(self, file: SqliteFile, *, clock: Callable[[], int], replica: str) -> None:
        self.connection = file.writer
        self._file = file
        self._path = file.path
        self._clock = clock
        self._replica = replica
        self._heads: dict[str, Head] = {}
        self._broken: set[WriterId] = set()
        self._last_key = file.last_key
        self._seen_at = self._look_at = self._cut_at = self._pause = 0.0

    def close(self) -> None:
        """Close the connection."""
        try:
            self.connection.close()
        except sqlite3.Error:
            logger.exception("%s was not closed well; nothing is lost by that", self._path)

    def rest(self) -> float:
        """Look at the files every second, and keep the write-ahead log short.

        Return after how many seconds to do so again, if no group is written before.
        """
        watch = self._file.watch
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            watch.look()
        if watch.size > WAL_BYTES and not watch.unavailable_reason:
            return min(LOOK_SECONDS, self._shorten(now))
        self._pause = 0.0
        return LOOK_SECONDS

    def _shorten(self, now: float) -> float:
        """Begin the write-ahead log anew when readers, one after another, kept it from that.

        A reader that is still at it is not waited for: there is another try later, and later still
        while it goes on. Return after how many seconds.
        """
        if now < self._cut_at:
            return self._cut_at - now
        is_busy = True
        try:
            (timeout,) = self.connection.execute(SQL["busy_timeout"]).fetchone()
            self.connection.execute(SQL["set_busy_timeout"].replace("{ms}", "0"))
            try:
                is_busy = bool(self.connection.execute(SQL["truncate_wal"]).fetchone()[0])
            finally:
                self.connection.execute(SQL["set_busy_timeout"].replace("{ms}", str(timeout)))
        except sqlite3.Error:
            logger.warning("%s: the write-ahead log was not shortened", self._path, exc_info=True)
        if not is_busy:
            self._file.watch.size = 0
            self._pause = 0.0
            return LOOK_SECONDS
        self._pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, self._pause * 2))
        self._cut_at = now + self._pause
        return self._pause

    def write(self, group: Sequence[Job]) -> list[Outcome]:
        """Do jobs together, or one by one when that fails, so that only the guilty one fails.

        None succeeds when the file was found to be lost, before the group or after it.
        """
        watch = self._file.watch
        outcomes: list[Outcome] = [(job, None, (), None) for job in group]
        is_fresh = not watch.unavailable_reason and time.monotonic() - self._seen_at < FRESH_SECONDS
        if is_fresh or not watch.look_at_data():
            outcomes = self._try(group)
            watch.look_at_data()
        if (lost := self._file.lost()) is not None:
            return [self._refused(job, lost) for job, *_ in outcomes]
        self._seen_at = time.monotonic()
        return outcomes

    def _try(self, group: Sequence[Job]) -> list[Outcome]:
        try:
            return self._write(group, careful=False)
        except sqlite3.Error as error:
            if code_of(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                # Nobody's fault, and each further try would wait as long.
                return [self._failed(job, error) for job in group]
            logger.info("%s: a group of %d failed (%s)", self._path, len(group), error)
        except Exception:
            logger.exception("%s: a group of %d failed", self._path, len(group))
        outcomes = []
        for job in group:
            try:
                outcomes += self._write([job], careful=True)
            except Exception as error:
                outcomes.append(self._failed(job, error))
        return outcomes

    def _write(self, jobs: Sequence[Job], *, careful: bool) -> list[Outcome]:
        """Write what may be written of ``jobs`` in one transaction."""
        batch = SqliteBatch(
            self.connection,
            known=self._heads,
            broken=self._broken,
            new_key=self._new_key,
            at=self._clock(),
            replica=self._replica,
            careful=careful,
        )
        batch.look_up(jobs)
        outcomes: list[Outcome] = []
        for job in jobs:
            try:
                result, records = job.stage(batch)
                outcomes.append((job, result, records, None))
            except (StoreError, IllegalEvent) as error:
                if job.writer is not None:
                    batch.broken.add(job.writer)
                outcomes.append((job, None, (), error.with_traceback(None)))
        batch.write()
        self._broken = batch.broken
        for task_id, head in batch.heads.items():
            self._heads.pop(task_id, None)
            if head.ended_at is None:
                self._heads[task_id] = head
        while len(self._heads) > HEADS_KEPT:
            del self._heads[next(iter(self._heads))]
        return outcomes

    def _refused(self, job: Job, lost: StoreUnavailable) -> Outcome:
        if isinstance(job.stage, partial) and job.stage.func is forgive:
            # It writes nothing: whoever was told of a failure may go on when the file is there.
            self._broken.difference_update(job.stage.keywords["writers"])
            return job, 0, (), None
        return self._failed(job, lost)

    def _failed(self, job: Job, error: Exception) -> Outcome:
        if job.writer is not None:
            self._broken.add(job.writer)
        if isinstance(error, StoreUnavailable):
            return job, None, (), error
        if isinstance(error, sqlite3.Error):
            return job, None, (), explain(error, self._path)
        logger.error("%s: a job failed", self._path, exc_info=error)
        return job, None, (), StoreUnavailable(f"{self._path}: the store failed; its log says how")

    def _new_key(self) -> int:
        self._last_key += 1
        return self._last_key
