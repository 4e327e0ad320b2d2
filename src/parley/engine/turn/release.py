"""How a lane leaves a task that goes on without it: let go of, taken by another, or in trouble."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from parley.engine.replies.waiters import shutting_down
from parley.engine.turn.attempt import Attempt
from parley.model.errors import InternalError
from parley.model.incident import log_incident
from parley.store.events import TurnStarted
from parley.store.task_store import (
    Append,
    Conflict,
    DuplicateReceipt,
    Fenced,
    LeaseHeld,
    StoreError,
    TaskEnded,
    TaskRecord,
    UnknownTask,
)

if TYPE_CHECKING:
    from parley.engine.turn.task_runner import TaskRunner

log = logging.getLogger("parley.agent")

ANOTHERS = (Fenced, LeaseHeld, TaskEnded, UnknownTask, Conflict)
"""What the store says when another executor has the task, or had it last."""


async def let_go(lane: TaskRunner, record: TaskRecord) -> None:
    """Let a task go that was claimed and of which no turn runs."""
    writer, executor = lane.writer, lane.executor
    seq = record.seq
    if writer is not None:
        if writer.fold.status.state.is_terminal:
            return
        await writer.flush()
        seq = writer.seq
    await executor.store.append(
        Append(
            task_id=lane.task_id,
            events=(),
            expected_seq=seq,
            turn=record.turn,
            epoch=lane.epoch,
            release=True,
        )
    )
    if record.turn_open or record.waiting or record.cancel_requested:
        executor.announce()


async def release(lane: TaskRunner, run: Attempt) -> None:
    """Let a task go in the middle of a turn, which is to be run again and does not count."""
    run.over = True
    writer, executor = lane.writer, lane.executor
    if writer is None:
        lane.senders.refuse(shutting_down())
        return
    if run.parked:
        return
    writer.write(TurnStarted(turn=run.turn, attempt=run.attempt, released=True))
    writer.let_go()
    await writer.flush()
    executor.announce()
    if executor.store.is_shared:
        lane.senders.hand_over(executor.elsewhere)
    else:
        lane.senders.resolve(writer.fold.task)


def give_up(lane: TaskRunner) -> None:
    """Tell a function once more to end, for which nobody waits any longer."""
    if lane._main is not None:
        lane._main.cancel()


def store_failed(lane: TaskRunner, error: StoreError) -> None:
    """Tell the senders, if there is more to tell them than what the log will."""
    if isinstance(error, DuplicateReceipt):
        lane.senders.repeat()
    elif isinstance(error, ANOTHERS):
        log.debug("task %s is another's by now: %s", lane.task_id, error)
    else:
        log.error("task %s: the log could not be written: %s", lane.task_id, error)
        lane.senders.refuse_all(lane.executor.unavailable(error))


def failed_unforeseen(lane: TaskRunner) -> None:
    """Keep what should not have happened from the senders, and tell the server's log."""
    reference = log_incident(log, f"task {lane.task_id}")
    lane.executor.troubled = True
    lane.senders.refuse(InternalError(f"the server failed; its log says why under {reference}"))
