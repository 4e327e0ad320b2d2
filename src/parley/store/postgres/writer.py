"""What writes groups of jobs to PostgreSQL, and knows at every moment which of them were written.

A group is first tried with what is known of its tasks: one statement, one round trip, committed by
itself, so that a process that is stopped in the middle holds no lock. Tasks of which that was out
of date are done again, in a transaction that locks them.

Groups are numbered on the writer's row (see ``postgres_batch``). When a connection is lost in the
middle of one, the row says whether it was written, and moving the row's generation keeps what is
still on its way from being written later. So a group is written once or not at all. Only when the
database stays away for longer than writers wait is the outcome not known in time; they are told so,
and readers are told of the records when it is.

One writer a process: measured on two cores with the server beside it (PostgreSQL 15, fsync on),
one, two and four writers with tasks shared out among them append 49,000 to 53,000, 50,000 and
56,000 events a second from eight streams, create 14,500 to 16,000, 13,000 and 19,000 tasks, and
take 3,600 to 4,100, 3,500 and 5,000 tasks through four appends. What more writers
win they take from the server's share of the machine, and each is another row and connection. An
append alone takes 0.35 ms of the server's processor, and 0.64 when its plan is not kept (see
``postgres_link``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import psycopg

from parley.store import jitter
from parley.store.events import LoggedEvent
from parley.store.fold import IllegalEvent
from parley.store.head import Head
from parley.store.postgres.batch import Moved, PostgresBatch, statement
from parley.store.postgres.connection import Address, Link, explain, may_pass
from parley.store.postgres.keys import WRITERS, Keys
from parley.store.sql_engine.batch import Job, WriterId
from parley.store.sql_engine.group_commit import HEADS_KEPT, Outcome
from parley.store.task_store import StoreError, StoreUnavailable

logger = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 0.5
SLOTS = 16


class BackgroundOperation:
    """A job that is a statement of its own, not part of a group.

    ``run`` is given the desk and returns the result. ``recover`` is given the desk and what the
    writer's row says, when the statement was committed and its answer was lost; without it, the
    errand may be done twice.
    """

    def __init__(
        self,
        run: Callable[[PostgresBatchWriter], Any],
        recover: Callable[[PostgresBatchWriter, Sequence[int]], Any] | None = None,
    ) -> None:
        self.run = run
        self.recover = recover

    def __call__(self, batch: object) -> tuple[Any, Sequence[LoggedEvent]]:
        """Refuse to be put into a batch."""
        raise TypeError("an errand is not part of a group")


class Fence(Exception):
    """The writer's row is of another generation: this replica was buried, or began anew."""


class _Unsettled(msgspec.Struct, frozen=True):
    """What was sent without an answer yet: under which number, and what follows if it was done."""

    grp: int
    keep: Callable[[Sequence[int], Sequence[int]], tuple[list[Outcome], list[Job]]]


class PostgresBatchWriter:
    """Writes groups. ``now`` returns milliseconds; ``patience`` is how many seconds a job waits
    while the database is away.
    """

    def __init__(
        self,
        address: Address,
        sql: dict[str, str],
        *,
        replica: str,
        lives_for: int,
        now: Callable[[], int],
        patience: float,
    ) -> None:
        self.link = Link(address, patience=patience)
        self.sql = sql
        self.replica = replica
        self.slot = 0
        self.generation = 0
        self.grp = 0
        self._address = address
        self._lives_for = lives_for
        self._now = now
        self._patience = patience
        self._keys = Keys(now)
        self._heads: dict[str, Head] = {}
        self._versions: dict[int, int] = {}
        self._broken: set[WriterId] = set()
        self._is_fenced = True
        self._unsettled: _Unsettled | None = None

    def open(self) -> None:
        """Make this replica known. Raises ``psycopg.Error``."""
        [(number,)] = self.link.rows(self.sql["writer_number"])
        self._keys.number = number % WRITERS
        self.slot = number % SLOTS
        self._begin_anew()

    def close(self) -> None:
        """Say that this replica is gone, and let go of what it held."""
        try:
            for name in ("leave", "release_tasks", "release_pushes", "delete_replica"):
                self.link.execute(self.sql[name], (self.replica,))
        except psycopg.Error:
            logger.info("%s: others will find that this replica is gone", self._address.name)
        self.link.drop()

    def rest(self) -> float | None:
        """Do nothing between groups."""
        return None

    def write(self, group: Sequence[Job]) -> list[Outcome]:
        """Do jobs; those that succeeded are durable."""
        outcomes: list[Outcome] = []
        later = {job.task_id for job in group if job.is_locked and job.task_id}
        first: list[Job] = []
        then: list[Job] = []
        for job in group:
            is_later = (
                job.is_locked or isinstance(job.stage, BackgroundOperation) or job.task_id in later
            )
            (then if is_later else first).append(job)
        missed = self._part(first, outcomes, careful=False)
        run: list[Job] = []
        for job in (*missed, *then):
            if isinstance(job.stage, BackgroundOperation):
                self._carefully(run, outcomes)
                run = []
                self._part([job], outcomes, careful=True)
            else:
                run.append(job)
        self._carefully(run, outcomes)
        return outcomes

    def _carefully(self, jobs: list[Job], outcomes: list[Outcome]) -> None:
        while jobs:
            # What is missed now are tasks that another replica created at this very moment.
            jobs = self._part(jobs, outcomes, careful=True)

    def _part(self, jobs: list[Job], outcomes: list[Outcome], *, careful: bool) -> list[Job]:
        """Write jobs in one transaction; return those of tasks that had changed meanwhile."""
        pause = FIRST_PAUSE
        while jobs:
            first = min([job.begun for job in jobs])
            self.link.patience = max(2.0, first + self._patience - time.monotonic())
            try:
                if self._is_fenced or not self.link.is_up:
                    done = self._begin_anew()
                    if done is not None:
                        settled, missed = done
                        outcomes += settled
                        told = {id(job) for job, *_ in settled}
                        jobs = [job for job in jobs if id(job) not in told]
                        again = {id(job) for job in missed}
                        if careful or not any([id(job) in again for job in jobs]):
                            continue
                        return jobs
                settled, missed = self._attempt(jobs, careful=careful)
                outcomes += settled
                return missed
            except Fence:
                self._is_fenced = True
            except psycopg.Error as error:
                if self.link.is_up:
                    self._unsettled = None  # the server said that it did not do it
                if not may_pass(error):
                    if careful and len(jobs) == 1:
                        outcomes.append(self._failed(jobs[0], explain(error, self._address)))
                        return []
                    logger.info("%s: a group failed (%s)", self._address.name, error.sqlstate)
                    return self._one_by_one(jobs, outcomes)
                jobs = self._in_time(jobs, outcomes, error)
                if jobs:
                    time.sleep(pause * jitter.uniform(0.5, 1.0))
                    pause = min(LONGEST_PAUSE, pause * 2)
            except Exception:
                logger.exception("%s: a group failed", self._address.name)
                self.link.drop()
                self._is_fenced = True
                if careful and len(jobs) == 1:
                    said = f"{self._address.name}: the store failed; its log says how"
                    outcomes.append(self._failed(jobs[0], StoreUnavailable(said)))
                    return []
                return self._one_by_one(jobs, outcomes)
        return []

    def _one_by_one(self, jobs: Sequence[Job], outcomes: list[Outcome]) -> list[Job]:
        """Do jobs so that only the guilty one fails."""
        for job in jobs:
            self._carefully([job], outcomes)
        return []

    def _in_time(
        self, jobs: Sequence[Job], outcomes: list[Outcome], error: psycopg.Error
    ) -> list[Job]:
        """Fail the jobs that waited long enough; return the others."""
        until = time.monotonic() - self._patience
        for job in jobs:
            if job.begun <= until:
                failure = explain(error, self._address)
                if self._unsettled is not None:
                    failure = StoreUnavailable(f"{failure}; it is not known whether it was written")
                outcomes.append(self._failed(job, failure))
        return [job for job in jobs if job.begun > until]

    def _failed(self, job: Job, error: StoreUnavailable) -> Outcome:
        if job.writer is not None:
            self._broken.add(job.writer)
        return job, None, (), error

    def _begin_anew(self) -> tuple[list[Outcome], list[Job]] | None:
        """Take the writer's row in a new generation, and learn what became of the last group.

        Return what followed from it, if it was written. Raises ``psycopg.Error``.
        """
        rows = self.link.rows(self.sql["start_generation"], (self.replica,))
        if not rows:
            values = {"replica": self.replica, "lives_for": self._lives_for}
            self.link.execute(self.sql["register"], values)
            rows = self.link.rows(self.sql["start_generation"], (self.replica,))
        self.generation, grp, missed, told = rows[0]
        self.grp = grp
        self._is_fenced = False
        done = None
        if self._unsettled is not None and self._unsettled.grp == grp:
            done = self._unsettled.keep(missed, told)
        self._unsettled = None
        if done is None:
            self._heads.clear()
            self._versions.clear()
        return done

    def _attempt(self, jobs: Sequence[Job], *, careful: bool) -> tuple[list[Outcome], list[Job]]:
        """Write what may be written of ``jobs``.

        Raises ``Fence`` and ``psycopg.Error``, after which nothing was written or ``_unsettled``
        says what may have been.
        """
        if isinstance(jobs[0].stage, BackgroundOperation):
            return self._run(jobs[0], jobs[0].stage), []
        if not careful:
            return self._write(jobs, careful=False)
        # A process that is stopped here must not hold up others for long.
        self.link.execute("BEGIN")
        try:
            self.link.execute(self.sql["limit_locks"], ("5s",))
            done = self._write(jobs, careful=True)
        except BaseException:
            self.link.roll_back()
            raise
        return done

    def _run(self, job: Job, errand: BackgroundOperation) -> list[Outcome]:
        """Do a job that is a statement of its own."""
        grp = self.grp + 1
        if (recover := errand.recover) is not None:

            def keep(missed: Sequence[int], told: Sequence[int]) -> tuple[list[Outcome], list[Job]]:
                return [(job, recover(self, told), (), None)], []

            self._unsettled = _Unsettled(grp, keep)
        result = errand.run(self)
        if recover is not None:
            self.grp = grp
            self._unsettled = None
        return [(job, result, (), None)]

    def _write(self, jobs: Sequence[Job], *, careful: bool) -> tuple[list[Outcome], list[Job]]:
        batch, staged = self._stage(jobs, careful=careful)
        before = self._broken

        def keep(missed: Sequence[int], told: Sequence[int]) -> tuple[list[Outcome], list[Job]]:
            return self._keep(batch, staged, before, missed, told)

        found = batch.values()
        if found is None:
            if careful:
                self.link.execute("COMMIT")
            return keep((), ())
        pieces, values = found
        grp = self.grp + 1
        values |= {"replica": self.replica, "generation": self.generation, "grp": grp}
        values |= {"slot": self.slot}
        self._unsettled = _Unsettled(grp, keep)
        rows = self.link.rows(statement(self._address.schema, pieces), values)
        if not rows:
            self._unsettled = None
            raise Fence
        if careful:
            self.link.execute("COMMIT")
        self._unsettled = None
        self.grp = grp
        return keep(*rows[0])

    def _stage(self, jobs: Sequence[Job], *, careful: bool) -> tuple[PostgresBatch, list[Outcome]]:
        """Put jobs into a batch. What is refused is looked at with what the database says."""
        known: dict[str, Head] = {} if careful else self._heads
        while True:
            batch = PostgresBatch(
                self.link,
                self.sql,
                self._versions,
                known=known,
                broken=self._broken,
                new_key=self._keys.new,
                at=self._now(),
                replica=self.replica,
                careful=careful,
            )
            batch.look_up(jobs)
            staged: list[Outcome] = []
            doubtful = set()
            for job in jobs:
                try:
                    result, records = job.stage(batch)
                    staged.append((job, result, records, None))
                except (StoreError, IllegalEvent) as error:
                    if job.writer is not None:
                        batch.broken.add(job.writer)
                    staged.append((job, None, (), error.with_traceback(None)))
                    if job.task_id in known:
                        doubtful.add(job.task_id)
            if not doubtful:
                return batch, staged
            for task_id in doubtful:
                self._forget(task_id)

    def _keep(
        self,
        batch: PostgresBatch,
        staged: Sequence[Outcome],
        broken: set[WriterId],
        missed: Sequence[int],
        told: Sequence[int],
    ) -> tuple[list[Outcome], list[Job]]:
        """Know what was written. Return what became of the jobs, and which are to be done again."""
        again = {head.task_id for head in batch.heads.values() if head.key in missed}
        moves = batch.told(told)
        outcomes: list[Outcome] = []
        jobs = []
        for job, result, records, error in staged:
            if job.task_id and job.task_id in again:
                jobs.append(job)
            elif isinstance(result, Moved):
                outcomes.append((job, result in moves, records, error))
            else:
                outcomes.append((job, result, records, error))
        writers = {job.writer for job in jobs if job.writer is not None}
        self._broken = (batch.broken - writers) | (broken & writers)
        for task_id, head in batch.heads.items():
            version = 1 if batch.before(task_id) is None else self._versions[head.key] + 1
            self._forget(task_id)
            self._versions.pop(head.key, None)
            if task_id not in again and head.ended_at is None:
                self.know(head, version)
        if len(self._versions) > 2 * HEADS_KEPT:  # of heads that were looked at and not changed
            kept = self._heads.values()
            self._versions = {head.key: self._versions[head.key] for head in kept}
        return outcomes, jobs

    def know(self, head: Head, version: int) -> None:
        """Remember the head of a task, as the database has it."""
        self._heads[head.task_id] = head
        self._versions[head.key] = version
        while len(self._heads) > HEADS_KEPT:
            self._forget(next(iter(self._heads)))

    def _forget(self, task_id: str) -> None:
        head = self._heads.pop(task_id, None)
        if head is not None:
            self._versions.pop(head.key, None)
