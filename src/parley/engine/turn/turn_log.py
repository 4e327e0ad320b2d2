"""The log of turns: records of the logger ``parley.turns``, with fields, for people and programs.

An event of a turn is one record, whose fields name the event, the task, the context, the skill, the
caller and the duration of the attempt. While the logger is off, a turn costs one check. The records
of a second are limited, and one further record counts the rest. A failure with a reference is
always logged; above the limit without its traceback.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from time import perf_counter
from typing import TYPE_CHECKING, Any

from parley.model.ids import log_incident
from parley.model.service import caller_of
from parley.model.tasks import TaskState

if TYPE_CHECKING:
    from parley.engine.turn.attempt import Attempt
    from parley.engine.turn.task_runner import TaskRunner

log = logging.getLogger("parley.turns")

MOST_RECORDS = 20
"""The limit of a second for records, and another one of this size for failures."""

_ENDS = {
    TaskState.COMPLETED: "completed",
    TaskState.FAILED: "failed",
    TaskState.CANCELED: "canceled",
    TaskState.REJECTED: "rejected",
    TaskState.INPUT_REQUIRED: "asked",
    TaskState.AUTH_REQUIRED: "needs authorization",
}
"""The event of a turn that leaves its task in a state."""


class _Second:
    """The records of the current second: the numbers of both kinds, and the events left out."""

    def __init__(self) -> None:
        self.ends_at = 0.0
        self.failures = self.others = 0
        self.left_out: Counter[str | TaskState] = Counter()

    def has_room(self, now: float, *, is_failure: bool) -> bool:
        """Count a record. Return whether it is within the limit."""
        if now >= self.ends_at:
            self.report()
            self.ends_at, self.failures, self.others = now + 1, 0, 0
        if is_failure:
            self.failures += 1
            return self.failures <= MOST_RECORDS
        self.others += 1
        return self.others <= MOST_RECORDS

    def leave_out(self, event: str, now: float) -> None:
        """Count an event that is not logged, and report it when the second is over."""
        if not self.left_out:
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, self.ends_at - now), self.report)
        self.left_out[event] += 1

    def report(self) -> None:
        """Log the number of the events that were left out."""
        left_out, self.left_out = self.left_out, Counter()
        if left_out:
            counts = ", ".join([f"{n} {event}" for event, n in left_out.most_common()])
            log.info("and %d more: %s", left_out.total(), counts, extra={"left_out": left_out})


_second = _Second()


def is_on() -> bool:
    """Return whether turns are logged."""
    return log.isEnabledFor(logging.INFO)


def begin(attempt: Attempt) -> None:
    """Note the start of an attempt, if turns are logged.

    The start itself is logged if it is a repeated attempt, and at level debug.
    """
    if not log.isEnabledFor(logging.INFO):
        return
    attempt.began = perf_counter()
    if attempt.number > 1:
        note("began again", attempt.runner, attempt, repeats=True)
    elif log.isEnabledFor(logging.DEBUG):
        _write(logging.DEBUG, "began", attempt.runner, attempt, {})


def note(
    event: str | TaskState, runner: TaskRunner, attempt: Attempt | None, **fields: Any
) -> None:
    """Log an event of a turn, or its end in a state, within the limit. Call it if ``is_on``."""
    now = perf_counter()
    if now < _second.ends_at and event in _second.left_out:  # the way of most, under load
        _second.left_out[event] += 1
        return
    if isinstance(event, TaskState):
        event = _ENDS.get(event, "asked")
    if not _second.has_room(now, is_failure=event == "failed"):
        _second.leave_out(event, now)
        return
    if attempt is not None and attempt.began and not fields:  # the end of a turn
        fields["duration"] = round(now - attempt.began, 6)
    _write(logging.INFO, event, runner, attempt, fields)


def failed(attempt: Attempt, failure: BaseException, *, in_task: bool) -> str:
    """Log the unexpected exception that ended a turn. Return the reference for the caller."""
    runner, now = attempt.runner, perf_counter()
    fields = facts(runner, attempt, in_task=in_task)
    what = f"the skill {attempt.request.skill.id!r}"
    if in_task:
        what = f"task {runner.task_id} of context {runner.context_id}: {what}"
    if attempt.began:
        fields["duration"] = round(now - attempt.began, 6)
    has_room = _second.has_room(now, is_failure=True)
    if not has_room:
        what = f"{what} ({type(failure).__name__}; many failures, so without traceback)"
    attempt.reference = log_incident(
        log, what, failure, has_traceback=has_room, event="failed", **fields
    )
    return attempt.reference


def facts(runner: TaskRunner, attempt: Attempt | None, *, in_task: bool = True) -> dict[str, Any]:
    """Return the fields that name a turn."""
    caller = caller_of(runner.scope.owner) if attempt is None else attempt.request.caller
    found: dict[str, Any] = {
        "agent": runner.scope.agent,
        "context_id": runner.context_id,
        "caller": caller.id or caller.client,
    }
    if in_task:
        found["task_id"] = runner.task_id
    if attempt is not None:
        found |= {"skill": attempt.request.skill.id, "turn": attempt.turn}
        found["attempt"] = attempt.number
    return found


def _write(
    level: int, event: str, runner: TaskRunner, attempt: Attempt | None, fields: dict[str, Any]
) -> None:
    in_task = runner.writer is not None
    fields |= facts(runner, attempt, in_task=in_task)
    task = f"task {runner.task_id} of context {runner.context_id}: " if in_task else ""
    what = f"the skill {attempt.request.skill.id!r} {event}" if attempt is not None else event
    log.log(level, "%s%s", task, what, extra={"event": event, **fields})
