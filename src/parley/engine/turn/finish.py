"""How a turn's end is written down, and how everyone is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from parley.engine.content import to_parts
from parley.engine.turn.attempt import Attempt
from parley.engine.turn.outcome import Ending, of_failure, of_value
from parley.model.encoding import encode
from parley.model.errors import A2AError
from parley.model.parts import Message, Role
from parley.model.tasks import TaskState
from parley.model.uuid7 import new_id

if TYPE_CHECKING:
    from parley.engine.turn.task_runner import TaskRunner


async def settle(
    lane: TaskRunner, run: Attempt, value: object, failure: BaseException | None
) -> None:
    """End a turn whose function returned ``value``, or raised ``failure``."""
    outcome = _outcome(lane, run, value, failure)
    if isinstance(outcome, Ending):
        await _end_task(lane, run, outcome)
        return
    run.over = True
    asked = run.request
    if isinstance(outcome, Message) and (asked.extensions or asked.accepted_output_modes):
        outcome = _sent(lane, run, outcome)
    if isinstance(outcome, A2AError):
        lane.senders.refuse(outcome)
        return
    if lane.receipts or lane.executor.options.keep_history:
        await _keep(lane, run, outcome)
    if lane.push is not None:
        lane.executor.push.deliver_reply(lane.push, outcome, lane.scope)
    lane.senders.resolve(outcome)


def _outcome(
    lane: TaskRunner, run: Attempt, value: object, failure: BaseException | None
) -> Message | A2AError | Ending:
    is_logged = lane.writer is not None
    if failure is None:
        try:
            return of_value(run, value, is_logged=is_logged)
        except Exception as error:  # what the function returned cannot be sent
            return of_failure(run, error, is_logged=is_logged)
    return of_failure(run, failure, is_logged=is_logged)


async def _end_task(lane: TaskRunner, run: Attempt, ending: Ending) -> None:
    state, said = ending.state, ending.said
    try:
        if ending.artifact is not None:
            run.write_artifact(ending.artifact, last=True)
        elif state is TaskState.COMPLETED:
            run.working()
        else:
            run.writer()
    except A2AError as error:
        state, said = TaskState.FAILED, run.message(error.message)
    await end(lane, state, said)


def _sent(lane: TaskRunner, run: Attempt, reply: Message) -> Message | A2AError:
    """Return a direct reply as it goes out."""
    outgoing = lane.outgoing(run.request)
    try:
        return reply if outgoing is None else outgoing.send(reply)
    except A2AError as error:
        return error


async def _keep(lane: TaskRunner, run: Attempt, reply: Message) -> None:
    exchange = (run.latest, reply) if lane.executor.options.keep_history else ()
    receipt = lane.receipts[0] if lane.receipts else None
    if receipt is not None:
        receipt = msgspec.structs.replace(receipt, reply=encode(reply))
    await lane.executor.store.keep(lane.scope, lane.context_id, receipt=receipt, exchange=exchange)


async def end(lane: TaskRunner, state: TaskState, said: Message | str | None = None) -> None:
    """Write the task's last event, wait until it is durable, and answer everyone."""
    writer, run = lane.writer, lane.run
    assert writer is not None
    if isinstance(said, str):
        said = _said(lane, said)
    try:
        if run is not None:
            run.writer()
            run.over = True
        said = writer.status(state, said)
    except A2AError as error:
        # The task ends all the same, and says no more than why it ends so.
        writer.outgoing = None
        if run is not None:
            run.over = True
        if state is TaskState.COMPLETED:
            state = TaskState.FAILED
        said = _said(lane, error.message)
        writer.status(state, said)
    writer.close_turn(exchange=exchange(lane, run, said) if run else ())
    await writer.flush()
    lane.senders.resolve(writer.fold.task)
    lane.senders.hand_over_waiting(lane.executor.elsewhere)


def _said(lane: TaskRunner, text: str) -> Message:
    return Message(
        message_id=new_id(),
        role=Role.AGENT,
        parts=to_parts(text),
        task_id=lane.task_id,
        context_id=lane.context_id,
    )


def exchange(lane: TaskRunner, run: Attempt, closing: Message | None) -> Sequence[Message]:
    """Return what a turn adds to the context's history."""
    if not lane.executor.options.keep_history:
        return ()
    if closing is not None:
        return (run.latest, closing)
    assert lane.writer is not None
    parts = [
        part
        for artifact in lane.writer.fold.task.artifacts
        if artifact.artifact_id in run.made
        for part in artifact.parts
    ]
    if not parts:
        return (run.latest,)
    return (run.latest, run.message(parts))
