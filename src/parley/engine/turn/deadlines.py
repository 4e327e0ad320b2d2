"""When a task, or a turn of it, times out (``task_timeout``, ``turn_timeout``)."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from parley.engine.options import Options
from parley.engine.turn.private_records import PrivateRecords
from parley.engine.turn.replay import turns_in
from parley.extensions.call_chain import Chain
from parley.model.uuid7 import milliseconds_of
from parley.store.events import TurnStarted
from parley.store.protocols.task_log import TaskRecord
from parley.store.task_store import TaskStore


class Deadline(NamedTuple):
    """A time in ms by the store's clock, and the message of the task that fails at it."""

    at: int
    reason: str


class Deadlines:
    """The deadlines of an agent's tasks, computed from the log by the store's clock."""

    def __init__(self, store: TaskStore, options: Options) -> None:
        self._store = store
        self._turn = options.turn_timeout
        self._task = options.task_timeout
        self.are_set = not (self._turn is None and self._task is None)

    def for_new_task(self, chain: Chain | None) -> Deadline | None:
        """Return the deadline of a first turn that starts now."""
        now = self._store.now()
        return earliest(
            _deadline(now, self._task, "task"), _deadline(now, self._turn, "turn"), of_chain(chain)
        )

    async def for_turn(
        self, record: TaskRecord, records: PrivateRecords, turn: int
    ) -> Deadline | None:
        """Return the deadline of a task in a turn; of the task alone when ``turn`` is 0."""
        now = created = self._store.now()
        if self._task is not None or turn == 1:
            created = (await self._store.events(record.stored.task_id, 0, 1))[0].at
        started = _started(records, turn, created, now)
        return earliest(
            _deadline(created, self._task, "task"),
            _deadline(started, self._turn, "turn") if turn else None,
        )

    def of_task(self, task_id: str) -> int | None:
        """Return about when a task times out (ms): its id holds its creation time."""
        if self._task is None:
            return None
        return milliseconds_of(task_id) + _milliseconds(self._task)


def _started(records: PrivateRecords, turn: int, created: int, now: int) -> int:
    """Return when the first attempt at a turn started; ``now`` if it is about to."""
    if turn == 1 and all(started.attempt for started in turns_in(records)):
        return created  # it was not queued
    for record in records.turns:
        started = record.event
        assert isinstance(started, TurnStarted)
        if started.turn == turn and started.attempt and not started.live:
            return record.at
    return now


def _deadline(since: int, timeout: timedelta | None, what: str) -> Deadline | None:
    if timeout is None:
        return None
    reason = f"The {what} was not finished in the time that it may take ({timeout})."
    return Deadline(since + _milliseconds(timeout), reason)


def _milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def of_chain(chain: Chain | None) -> Deadline | None:
    """Return the deadline that the caller of a turn gave."""
    if chain is None or chain.deadline is None:
        return None
    reason = f"The turn was not finished by the deadline of its caller ({chain.deadline})."
    return Deadline(chain.deadline.milliseconds, reason)


def earliest(*deadlines: Deadline | None) -> Deadline | None:
    """Return the first of these deadlines."""
    return min([one for one in deadlines if one is not None], default=None)
