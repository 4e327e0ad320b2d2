"""Which turn comes next for a task that is in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from parley.engine.answer import Answer
from parley.engine.turn.attempt import Attempt
from parley.engine.turn.finish import end
from parley.engine.turn.private_records import PrivateRecords
from parley.engine.turn.replay import (
    asked_in,
    attempts_of,
    latest_of,
    pending_question,
    request_of,
    with_message_options,
)
from parley.engine.turn.task_writer import TaskWriter
from parley.model.errors import A2AError
from parley.model.parts import Message
from parley.model.tasks import TaskState
from parley.store.events import Received, TurnStarted
from parley.store.fold import Fold
from parley.store.task_store import TaskRecord

if TYPE_CHECKING:
    from parley.engine.turn.task_runner import TaskRunner

ATTEMPT_KEY = "urn:parley:attempt"
"""The metadata key of a status update that says which attempt at the turn is at work."""


async def next_attempt(lane: TaskRunner, record: TaskRecord) -> Attempt | None:
    """Return the next run of the task, after what precedes it is durable."""
    deadlines, store = lane.executor.deadlines, lane.executor.store
    has_work = record.cancel_requested or record.turn_open or record.waiting > 0
    if not (has_work or deadlines.are_set):
        return None
    if lane.writer is None:
        lane.writer = TaskWriter(
            store,
            task_id=lane.task_id,
            context_id=lane.context_id,
            scope=lane.scope,
            fold=Fold(record.task, strict=True, unsaved=record.unsaved),
            seq=record.seq,
            turn=record.turn,
            epoch=lane.epoch,
            failed=lane.failed,
        )
    if record.cancel_requested or lane.cancel_asked:
        await end(lane, TaskState.CANCELED)
        return None
    record = replace(record, task=lane.writer.fold.task)
    memory = lane.memory
    await memory.read_on(store, lane.task_id)
    if deadlines.are_set:
        turn = record.turn if record.turn_open else record.turn + 1 if record.waiting else 0
        lane.due = await deadlines.of(record, memory, turn)
        if lane.due is not None and lane.due.at <= store.now():
            await end(lane, TaskState.FAILED, lane.due.reason)
            return None
    if not lane.executor.works:
        return None
    prepare = _again if record.turn_open else _next
    run = await prepare(lane, record, memory)
    if run is not None:
        # Before the function runs: should it take the process with it, the attempt counts.
        await lane.writer.flush()
    return run


async def _next(lane: TaskRunner, record: TaskRecord, memory: PrivateRecords) -> Attempt | None:
    """Return the run of the turn that takes the first message that waits (E2)."""
    assert lane.writer is not None
    received, question = await lane.next_received(), pending_question(memory)
    if received is None:
        return None
    run = _resumed(
        lane, record, memory, turn=record.turn + 1, latest=received.message, asked=received
    )
    if question:
        run.past.answers[question] = Answer.of(received.message, replayed=False)
    lane.senders.took(received)
    lane.writer.turn = run.turn
    lane.writer.write(
        TurnStarted(
            turn=run.turn,
            entries=(received.entry,),
            messages=(received.message,),
            answers=question,
            accepted_output_modes=received.accepted_output_modes,
            extensions=received.extensions,
            caller=received.caller,
        )
    )
    _work(lane, run)
    lane.writer.open_turn(taken=1)
    return run


async def _again(lane: TaskRunner, record: TaskRecord, memory: PrivateRecords) -> Attempt | None:
    """Return a further attempt at a turn that a dead process left open (E3), or the first at one
    that stood in line.
    """
    assert lane.writer is not None
    attempts, released = attempts_of(record, memory)
    options = lane.executor.options
    if attempts > released and options.on_crash == "fail":
        await end(lane, TaskState.FAILED, "The server stopped while it worked on this task.")
        return None
    if lane.blameless and attempts:
        lane.writer.write(TurnStarted(turn=record.turn, attempt=attempts, released=True))
        released += 1
    if attempts - released >= options.max_attempts:
        said = f"The agent did not survive {options.max_attempts} attempts at this task."
        await end(lane, TaskState.FAILED, said)
        return None
    run = _resumed(
        lane,
        record,
        memory,
        turn=record.turn,
        latest=latest_of(record, memory),
        attempt=attempts + 1,
    )
    lane.writer.write(TurnStarted(turn=run.turn, attempt=run.attempt))
    _work(lane, run, {ATTEMPT_KEY: run.attempt} if attempts else None)
    lane.writer.open_turn()
    return run


def _resumed(
    lane: TaskRunner,
    record: TaskRecord,
    memory: PrivateRecords,
    *,
    turn: int,
    latest: Message | None,
    attempt: int = 1,
    asked: Received | None = None,
) -> Attempt:
    request = request_of(record, memory, lane.executor.skills, lane.executor.default_skill)
    if asked is None:
        request = asked_in(record, memory, turn, request)
    else:
        request = with_message_options(record, request, asked)
    run = Attempt(lane, request, turn=turn, attempt=attempt, latest=latest)
    run.recall(memory)
    return run


def _work(lane: TaskRunner, run: Attempt, metadata: dict[str, Any] | None = None) -> None:
    """Say that a turn is at work; its function does not run when that may not be said."""
    assert lane.writer is not None
    lane.writer.outgoing = lane.outgoing(run.request)
    try:
        lane.writer.status(TaskState.WORKING, metadata=metadata)
    except A2AError as error:
        lane.spoiled = error
