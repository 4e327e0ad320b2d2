"""The question that a message answers, as opposed to one that the message's own turn asks.

A continued task shows its prior question until the turn gets a state of its own. A reader that
polls in between must not take that question for the end of the turn.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from parley.client.errors import ClientError, ConnectionClosed, Unreachable
from parley.model.errors import A2AError
from parley.model.operations import GetTaskRequest
from parley.model.service import A2AService, CallContext
from parley.model.tasks import Task, TaskState

# Unchanged polls after which the turn counts as ended with the very same question. A status with a
# timestamp does not repeat, so it gets more time.
MAX_POLLS = 8
MAX_POLLS_WITHOUT_TIMESTAMP = 3
# Seconds that a message waits for the snapshot of its task.
SNAPSHOT_TIMEOUT = 5.0


async def snapshot_before(
    service: A2AService,
    context: CallContext,
    task_id: str,
    *,
    history_length: int | None = None,
    timeout: float | None = None,
) -> Task | None:
    """Return the task that a message is about to continue; ``None`` if the agent does not tell.

    Takes a few seconds at most, and a quarter of the message's ``timeout``: the message is sent
    with or without the snapshot. Raises ``Unreachable`` and ``ConnectionClosed``, as sending the
    message would.
    """
    request = GetTaskRequest(id=task_id, history_length=history_length)
    within = SNAPSHOT_TIMEOUT if timeout is None else min(SNAPSHOT_TIMEOUT, timeout / 4)
    try:
        async with asyncio.timeout(within):
            return await service.get_task(request, context)
    except (Unreachable, ConnectionClosed):
        raise
    except (A2AError, ClientError, TimeoutError):
        return None  # the answer to the message says what is wrong with the task


def is_settled(state: TaskState) -> bool:
    """Return whether a task has ended or waits for its caller."""
    return state.is_terminal or state.is_interrupted


def shows_prior_question(before: Task | None, now: Task, *, polls: int = 0) -> bool:
    """Return whether a task still waits for its caller as it did before a message.

    ``polls`` is the number of polls in a row without a change. ``False`` without ``before``.
    """
    if before is None or before.id != now.id:
        return False
    old, asked = before.status, before.status.message
    if asked is not None and now.status.message is None:
        # Some agents move the question into the history as soon as it is answered.
        moved = any(message.message_id == asked.message_id for message in now.history)
        if moved or now.status.timestamp is not None:
            old = replace(old, message=None)
    if now.status != old:
        return False
    max_polls = MAX_POLLS_WITHOUT_TIMESTAMP if now.status.timestamp is None else MAX_POLLS
    return now.state.is_interrupted and polls < max_polls


def restates_prior_question(before: Task, first: Task) -> bool:
    """Return whether the first task of a message's stream only repeats the question of ``before``.

    Some agents send it with another timestamp or without the message; more events follow then.
    """
    if not first.state.is_interrupted or first.id != before.id:
        return False
    asked, repeated = before.status.message, first.status.message
    return repeated is None or (asked is not None and repeated.message_id == asked.message_id)
