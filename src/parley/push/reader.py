"""What a webhook is to be told next: read from its task's log."""

from __future__ import annotations

from typing import NamedTuple

from parley.model.tasks import Event, Task, TaskStatusUpdateEvent
from parley.store.events import Kind, LoggedEvent
from parley.store.task_store import TaskStore

BURST = 16
"""How many events are read at once."""


class Notice(NamedTuple):
    """What is to be told of a log up to ``seq``. ``ends`` says that nothing will follow."""

    seq: int
    event: Event
    task: Task | None
    ends: bool


class EventReader:
    """Reads a task's events, each of which is told."""

    __slots__ = ("_store", "_task_id")

    def __init__(self, store: TaskStore, task_id: str) -> None:
        self._store = store
        self._task_id = task_id

    async def after(self, cursor: int) -> list[Notice]:
        """Return some of the events after a number."""
        events = await self._store.events(self._task_id, cursor, BURST)
        return [Notice(e.seq, e.event, None, _ends(e)) for e in events]  # type: ignore[arg-type]

    def took(self, notice: Notice, size: int) -> None:
        """Take note that a notice of so many bytes was told."""


class TaskReader:
    """Reads a task as it stands, which is told when enough has happened to it.

    That is when its status was told, or its artifacts grew by as much as was sent the last time: so
    what is sent grows with them and not with their square, however small their chunks are.
    """

    def __init__(self, store: TaskStore, task_id: str, cursor: int) -> None:
        self._store = store
        self._task_id = task_id
        self._seen = cursor
        self._grown = self._told = 0
        self._is_due = False

    async def after(self, cursor: int) -> list[Notice]:
        """Return the task, if it is to be told."""
        while events := await self._store.events(self._task_id, self._seen, BURST):
            for event in events:
                self._grown += len(event.payload)
                self._is_due = self._is_due or event.kind is not Kind.ARTIFACT
            self._seen = events[-1].seq
        if not self._is_due and self._grown <= self._told:
            return []
        record = await self._store.load(self._task_id)
        if record is None:
            return []
        return [Notice(record.seq, record.task, record.task, record.task.state.is_terminal)]

    def took(self, notice: Notice, size: int) -> None:
        """Take note that a notice of so many bytes was told."""
        self._seen = max(self._seen, notice.seq)
        self._grown, self._told, self._is_due = 0, size, False


def _ends(record: LoggedEvent) -> bool:
    event = record.event
    return isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state.is_terminal
