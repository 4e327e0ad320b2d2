"""A thread that writes to a database, a group of jobs at a time.

What is submitted within one round of the event loop goes to the thread together, and the thread
takes all that has gathered while it wrote the group before. A group is one transaction, made
durable once. There is no timer: under load groups grow, and without load a job is a group.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from parley.store.events import LoggedEvent
from parley.store.sql_engine import jobs as store_jobs
from parley.store.sql_engine.batch import Job, WriterId
from parley.store.sql_engine.gil_yield import GilYielder
from parley.store.task_store import Committed

logger = logging.getLogger(__name__)

GROUP_JOBS = 1024
GROUP_BYTES = 4 << 20
HEADS_KEPT = 10_000

Outcome = tuple[Job, Any, Sequence[LoggedEvent], BaseException | None]
"""A job, its result, the records of which readers are told, and why it failed."""


class BatchWriter(Protocol):
    """What writes a group. It is used by one thread only."""

    def write(self, group: Sequence[Job]) -> list[Outcome]:
        """Do jobs; those that succeeded are durable. Raises nothing."""
        ...

    def rest(self) -> float | None:
        """Do what is to be done after a group, when its writers were told.

        Return after how many seconds to do so again, if no group comes before. Raises nothing.
        """
        ...

    def close(self) -> None:
        """Let go of the database. Raises nothing."""
        ...


class GroupWriter:
    """Does jobs in the order in which they were submitted, and tells of them on the loop."""

    def __init__(self, desk: BatchWriter, *, committed: Committed, lender: GilYielder) -> None:
        self.desk = desk
        self._committed = committed
        self._lender = lender
        self._loop = asyncio.get_running_loop()
        self._is_closing = False
        self._gathered: list[Job] = []
        self._unforgiven: set[WriterId] = set()
        self._queue: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._ended = self._loop.create_future()
        # A daemon: a program that forgot to close the store can end, and loses nothing that it
        # was told is durable.
        self._thread = threading.Thread(target=self._run, name="parley-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Begin a job, after all that were submitted before."""
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(job)

    async def close(self) -> None:
        """Do what was submitted, then end the thread and the connection."""
        self._hand_over()
        self._is_closing = True
        self._queue.put(None)
        self._lender.begin()
        try:
            await asyncio.shield(self._ended)
        finally:
            self._lender.end()

    def _hand_over(self) -> None:
        if self._gathered:
            self._lender.begin()
            self._queue.put(self._gathered)
            self._gathered = []

    def _run(self) -> None:
        is_over = False
        while not is_over:
            group, hands, is_over = self._take(self.desk.rest())
            if group:
                outcomes = self.desk.write(group)
                is_over = not self._call(self._deliver, outcomes, hands) or is_over
        self.desk.close()
        self._call(self._ended.set_result, None)

    def _take(self, timeout: float | None) -> tuple[list[Job], int, bool]:
        """Wait for jobs, for so many seconds.

        Return what there is, in how many hands, and whether it is the last.
        """
        group: list[Job] = []
        hands = size = 0
        try:
            jobs = self._queue.get(timeout=timeout)
        except queue.Empty:
            return group, hands, False
        while jobs is not None:
            group += jobs
            hands += 1
            size += sum([job.size for job in jobs])
            if len(group) >= GROUP_JOBS or size >= GROUP_BYTES:
                return group, hands, False
            try:
                jobs = self._queue.get_nowait()
            except queue.Empty:
                return group, hands, False
        return group, hands, True

    def _call(self, function: Any, *args: object) -> bool:
        """Call a function on the loop. Return ``False`` when that is no more."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return False
        return True

    def _deliver(self, outcomes: Sequence[Outcome], hands: int) -> None:
        """Tell of a group: its readers first, then its writers."""
        told = set()
        for job, result, records, error in outcomes:
            if error is not None:
                if job.writer is not None:
                    told.add(job.writer)
                if not job.future.done():
                    job.future.set_exception(error)
                continue
            if records:
                try:
                    self._committed(records)
                except Exception:
                    logger.exception("telling of a commit failed; readers will find it later")
            if not job.future.done():
                job.future.set_result(result)
        for _ in range(hands):
            self._lender.end()
        if told and not self._is_closing:
            self._forgive(told)

    def _forgive(self, writers: set[WriterId]) -> None:
        """Let writers that were told of a failure write again.

        What was submitted before now is ahead of this and fails; what comes after may pass.
        """
        self._unforgiven |= writers
        told, self._unforgiven = self._unforgiven, set()
        job = Job(self._loop.create_future(), partial(store_jobs.forgive, writers=told))
        job.future.add_done_callback(partial(self._forgiven, told))
        self.submit(job)

    def _forgiven(self, writers: set[WriterId], done: asyncio.Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._unforgiven |= writers  # when the next are
