"""What the jobs of a task store do to its SQLite file: a batch of rows, in one transaction.

Measured with a saturated loop, events of 200 bytes, 64 and 512 records a group (two cores, SQLite
3.40, FULL): ``executemany`` takes a step for each row, and each step may lose the interpreter
(3,800 created tasks and 12,000 to 28,000 events a second); one JSON parameter and ``json_each`` in
one step 10,000 to 12,000 and 65,000, with a third more CPU; many rows of ``VALUES`` in a step 9,000
to 10,000 and 65,000. The last is in use. Without ``GilYielder`` all of them starve: 4 to 2,000
created tasks a second, by chance. On one core, or with an idle loop, it is 12,000 to 18,000 and
68,000 to 110,000 for each of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import partial

from parley.store.head import Head
from parley.store.sql_engine.batch import HEADS_KEPT, StoreJob, StoreJobResult, WriterId
from parley.store.sql_engine.jobs import clear_failures
from parley.store.sqlite.batch import SqliteBatch
from parley.store.sqlite.file import TaskFile


class SqliteStoreJobs:
    """The ``SqliteJobs`` of a task store. ``clock`` returns milliseconds."""

    def __init__(self, file: TaskFile, *, clock: Callable[[], int], replica: str) -> None:
        self._connection: sqlite3.Connection = file.writer
        self._clock = clock
        self._replica = replica
        self._heads: dict[str, Head] = {}
        self._failed_writers: set[WriterId] = set()
        self._last_key = file.last_key

    def write(self, jobs: Sequence[StoreJob], *, pessimistic: bool) -> list[StoreJobResult]:
        """Write what may be written of ``jobs`` in one transaction."""
        batch = SqliteBatch(
            self._connection,
            known=self._heads,
            failed_writers=self._failed_writers,
            new_key=self._new_key,
            at=self._clock(),
            replica=self._replica,
            pessimistic=pessimistic,
        )
        batch.load_heads(jobs)
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

    def failed(self, job: StoreJob) -> None:
        """Reject what the job's writer writes next: it may build on this job."""
        if job.writer is not None:
            self._failed_writers.add(job.writer)

    def needs_no_file(self, job: StoreJob) -> bool:
        """Let writers go on once the file is back, if the job is to do that."""
        if isinstance(job.operation, partial) and job.operation.func is clear_failures:
            self._failed_writers.difference_update(job.operation.keywords["writers"])
            return True
        return False

    def _new_key(self) -> int:
        self._last_key += 1
        return self._last_key
