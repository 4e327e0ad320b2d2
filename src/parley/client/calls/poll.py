"""Polling of a task: for agents that do not stream, and streams that cannot be resumed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from msgspec.structs import replace

from parley.client.calls.prior_question import is_settled
from parley.client.calls.stream_reader import StreamReader
from parley.client.retry import Retry
from parley.model.operations import GetTaskRequest
from parley.model.service import A2AService, CallContext
from parley.model.tasks import Event, Task, TaskState, TaskStatusUpdateEvent

logger = logging.getLogger(__name__)

MAX_UNCHANGED_POLLS = 12


class StallDetector:
    """Finds a task that stays in an unknown state, and so might never end.

    Some agents have states of their own; one that does not change counts as final.
    """

    def __init__(self) -> None:
        self._before: Task | None = None
        self._unchanged = 0

    def is_stalled(self, task: Task) -> bool:
        """Return whether an unknown state came without any change, poll after poll."""
        # Some agents give each answer the time at which they wrote it.
        task = replace(task, status=replace(task.status, timestamp=None))
        self._unchanged = self._unchanged + 1 if task == self._before else 0
        self._before = task
        if task.state is not TaskState.UNSPECIFIED:
            return False
        if not self._unchanged:
            logger.warning(
                "task %.100r is in a state that is unknown here; after %d polls without a change "
                "it is taken as it stands",
                task.id,
                MAX_UNCHANGED_POLLS,
            )
        return self._unchanged >= MAX_UNCHANGED_POLLS


async def poll(
    service: A2AService, context: CallContext, reader: StreamReader, retry: Retry
) -> AsyncGenerator[Event, None]:
    """Yield the events of the reader's task, worked out from one snapshot after another.

    Pauses grow while nothing happens. Ends when the task ends or waits for its caller, but goes on
    while the task only waits for the turn of the reader's message to begin.
    """
    request = GetTaskRequest(id=reader.task_id)
    quiet = 0
    stall = StallDetector()
    while True:
        task = await service.get_task(request, context)
        events = reader.apply_snapshot(task)
        quiet = 0 if events else quiet + 1
        for event in events:
            yield reader.deliver(event)
        if reader.is_settled:
            return
        if is_settled(task.state) and not reader.shows_prior_question(task, polls=quiet):
            ids: dict[str, Any] = {"task_id": task.id, "context_id": task.context_id}
            yield reader.deliver(TaskStatusUpdateEvent(**ids, status=task.status))
            return
        if stall.is_stalled(task):
            return
        await asyncio.sleep(retry.pause(quiet))
