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
import os
import sqlite3
from collections.abc import Callable, Sequence

from parley.log.batch import Job, WriterId
from parley.log.fold import IllegalEvent
from parley.log.group_writer import HEADS_KEPT, Outcome
from parley.log.head import Head
from parley.log.sqlite_batch import SqliteBatch
from parley.log.sqlite_file import WAL_BYTES, SqliteFile, code_of, explain
from parley.log.store import StoreError, StoreUnavailable

logger = logging.getLogger(__name__)


class SqliteDesk:
    """Writes groups. ``clock`` returns milliseconds."""

    def __init__(self, file: SqliteFile, *, clock: Callable[[], int], replica: str) -> None:
        self.connection = file.writer
        self._path = file.path
        self._clock = clock
        self._replica = replica
        self._heads: dict[str, Head] = {}
        self._broken: set[WriterId] = set()
        self._last_key = file.last_key

    def close(self) -> None:
        """Close the connection."""
        try:
            self.connection.close()
        except sqlite3.Error:
            logger.exception("%s was not closed well; nothing is lost by that", self._path)

    def rest(self) -> None:
        """Begin the write-ahead log anew when readers, one after another, kept it from that."""
        try:
            if os.path.getsize(f"{self._path}-wal") > WAL_BYTES:
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (OSError, sqlite3.Error):
            logger.warning("%s: the write-ahead log was not shortened", self._path, exc_info=True)

    def write(self, group: Sequence[Job]) -> list[Outcome]:
        """Do jobs together, or one by one when that fails, so that only the guilty one fails."""
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

    def _failed(self, job: Job, error: Exception) -> Outcome:
        if job.writer is not None:
            self._broken.add(job.writer)
        if isinstance(error, sqlite3.Error):
            return job, None, (), explain(error, self._path)
        logger.error("%s: a job failed", self._path, exc_info=error)
        return job, None, (), StoreUnavailable(f"{self._path}: the store failed; its log says how")

    def _new_key(self) -> int:
        self._last_key += 1
        return self._last_key
