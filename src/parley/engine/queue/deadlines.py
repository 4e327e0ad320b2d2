"""When a task, or a turn of it, has had its time."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from parley.engine.options import Options
from parley.engine.turn.private_records import PrivateRecords
from parley.engine.turn.replay import turns_of
from parley.model.uuid7 import moment_of
from parley.store.events import TurnStarted
from parley.store.task_store import TaskRecord, TaskStore


class Due(NamedTuple):
    """A moment, in ms by the store's clock, and what is said when it has come."""

    at: int
    reason: str


class Deadlines:
    """The deadlines of an agent's tasks, counted by the store's clock from what the log says."""

    def __init__(self, store: TaskStore, options: Options) -> None:
        self._store = store
        self._turn = options.turn_timeout
        self._task = options.task_timeout
        self.are_set = not (self._turn is None and self._task is None)

    def of_new(self) -> Due | None:
        """Return the deadline of a first turn that begins now."""
        now = self._store.now()
        return _first(_due(now, self._task, "task"), _due(now, self._turn, "turn"))

    async def of(self, record: TaskRecord, memory: PrivateRecords, turn: int) -> Due | None:
        """Return the deadline of a task in a turn; of the task alone when ``turn`` is 0."""
        now = created = self._store.now()
        if self._task is not None or turn == 1:
            created = (await self._store.events(record.task.id, 0, 1))[0].at
        began = _began(memory, turn, created, now)
        return _first(
            _due(created, self._task, "task"),
            _due(began, self._turn, "turn") if turn else None,
        )

    def of_task(self, task_id: str) -> int | None:
        """Return about when a task has had its time (ms), as its id tells when it began."""
        if self._task is None:
            return None
        return moment_of(task_id) + _milliseconds(self._task)


def _began(memory: PrivateRecords, turn: int, created: int, now: int) -> int:
    """Return when the first attempt at a turn began; now for one that is about to."""
    if turn == 1 and all(started.attempt for started in turns_of(memory)):
        return created  # it did not stand in line
    for record in memory.turns:
        started = record.event
        assert isinstance(started, TurnStarted)
        if started.turn == turn and started.attempt and not started.live:
            return record.at
    return now


def _due(since: int, span: timedelta | None, what: str) -> Due | None:
    if span is None:
        return None
    reason = f"The {what} was not finished in the time that it may take ({span})."
    return Due(since + _milliseconds(span), reason)


def _milliseconds(span: timedelta) -> int:
    return span // timedelta(milliseconds=1)


def _first(*due: Due | None) -> Due | None:
    return min([one for one in due if one is not None], default=None)
