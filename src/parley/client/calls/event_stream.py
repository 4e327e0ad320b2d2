"""The events of a message or a task, as callers iterate over them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Self

from parley.client.calls.stream_reader import StreamReader
from parley.model.tasks import Event, Task, TaskState


class EventStream:
    """The events of a message or a task: an async iterator, each event once and in order.

    ``task_id``, ``context_id`` and ``state`` are those known so far. ``seq`` is the number of the
    last event, if the agent numbers them: ``subscribe(task_id, after=seq)`` resumes there, also in
    another process. Leaving the loop early ends the stream; the task goes on.
    """

    def __init__(self, events: AsyncGenerator[Event, None], reader: StreamReader) -> None:
        self._events = events
        self._reader = reader

    @property
    def task_id(self) -> str:
        """The id of the task, empty until it is known."""
        return self._reader.task_id

    @property
    def context_id(self) -> str:
        """The id of the context, empty until it is known."""
        return self._reader.context_id

    @property
    def state(self) -> TaskState | None:
        """The last known state of the task."""
        return self._reader.state

    @property
    def seq(self) -> int | None:
        """The number of the last event, if the agent numbers them."""
        return self._reader.seq

    @property
    def is_settled(self) -> bool:
        """True if the task has ended or waits for its caller, by the events so far.

        The question that the stream's own message answers does not count.
        """
        return self._reader.is_settled

    @property
    def before(self) -> Task | None:
        """The task as it was when a message continued it, once the stream has begun.

        ``None`` for a message that starts a task, and if the agent did not say.
        """
        return self._reader.before

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading and close the connection. Idempotent; the task goes on."""
        await self._events.aclose()
