"""What follows when jobs of a group failed: their writers may write again once they know it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from parley.database.group_commit import GroupWriter
from parley.store.sql_engine import jobs as store_jobs
from parley.store.sql_engine.batch import StoreJob, WriterId


class FailedWriters:
    """Lets writers that got their error write again.

    Jobs that were submitted before that still fail: each may build on the one that failed.
    """

    def __init__(self) -> None:
        self._uncleared: set[WriterId] = set()

    def clear(self, writing: GroupWriter[StoreJob], failed: Sequence[StoreJob]) -> None:
        """Submit a job after which the writers of failed jobs may succeed."""
        writers = {job.writer for job in failed if job.writer is not None}
        if not writers:
            return
        writers |= self._uncleared
        self._uncleared = set()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(partial(self._cleared, writers))
        writing.submit(StoreJob(future, partial(store_jobs.clear_failures, writers=writers)))

    def _cleared(self, writers: set[WriterId], done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._uncleared |= writers  # with the next failure
