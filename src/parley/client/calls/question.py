"""The question that a message answers, told apart from what the message's turn asks.

A task that is continued shows the question until its turn gets to a state of its own. Whoever looks
at it in between must not take that for the end of the turn.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from parley.client.errors import ClientError, ConnectionClosed, Unreachable
from parley.model.errors import A2AError
from parley.model.requests import GetTaskRequest
from parley.model.service import A2AService, CallContext
from parley.model.tasks import Task, TaskState

# How many looks without news a task may wait for its turn to begin before it is believed that the
# turn has ended as it began: by asking the very same. A status with a time is not two alike.
LOOKS = 8
LOOKS_WITHOUT_TIME = 3
# How many seconds a message waits for the look at its task.
LONGEST_LOOK = 5.0


async def task_before(
    service: A2AService,
    context: CallContext,
    task_id: str,
    *,
    history_length: int | None = None,
    timeout: float | None = None,
) -> Task | None:
    """Return the task that a message is about to continue; ``None`` if the agent does not tell.

    The look takes a few seconds at most, and a quarter of the ``timeout`` that the message has: the
    message is sent whether it succeeds or not. Raises ``Unreachable`` and ``ConnectionClosed``, as
    sending the message would.
    """
    request = GetTaskRequest(id=task_id, history_length=history_length)
    within = LONGEST_LOOK if timeout is None else min(LONGEST_LOOK, timeout / 4)
    try:
        async with asyncio.timeout(within):
            return await service.get_task(request, context)
    except (Unreachable, ConnectionClosed):
        raise
    except (A2AError, ClientError, TimeoutError):
        return None  # what is wrong with the task is said in answer to the message


def is_settled(state: TaskState) -> bool:
    """Whether a task has ended, or waits for its caller."""
    return state.is_terminal or state.is_interrupted


def still_asks(before: Task | None, now: Task, *, looks: int = 0) -> bool:
    """Whether a task waits for its caller only as it did before a message: its turn is to come.

    ``looks`` is how often in a row nothing was new. Without ``before`` the task is believed.
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
    patience = LOOKS_WITHOUT_TIME if now.status.timestamp is None else LOOKS
    return now.state.is_interrupted and looks < patience


def reopens(before: Task, first: Task) -> bool:
    """Whether the task that opens a message's stream says no more than ``before`` asked.

    Some agents state the task anew, with another time or without the question; more follows then.
    """
    if not first.state.is_interrupted or first.id != before.id:
        return False
    asked, said = before.status.message, first.status.message
    return said is None or (asked is not None and said.message_id == asked.message_id)
