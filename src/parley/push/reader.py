"""The next notifications of a webhook, read from its task's log after its cursor."""

from __future__ import annotations

from typing import NamedTuple

from parley.model.tasks import Event, Task, TaskStatusUpdateEvent
from parley.store.events import LoggedEvent, RecordKind
from parley.store.protocols.task_log import TaskLog

BATCH = 16
"""How many events are read at once."""


class Notification(NamedTuple):
    """What to send of a log up to ``seq``. Nothing follows one that ``is_last``.

    ``name`` is the last part of its id, by default ``seq``. ``json`` is the event in the log.
    """

    seq: int
    event: Event
    task: Task | None
    is_last: bool
    name: str = ""
    json: bytes | None = None


class EventReader:
    """Reads a task's events; each is a notification."""

    __slots__ = ("_store", "_task_id")

    def __init__(self, store: TaskLog, task_id: str) -> None:
        self._store = store
        self._task_id = task_id

    async def after(self, cursor: int) -> list[Notification]:
        """Return the next batch of notifications after a cursor."""
        return [
            Notification(e.seq, e.event, None, is_last(e), json=e.payload)  # type: ignore[arg-type]
            for e in await self._store.events(self._task_id, cursor, BATCH)
        ]

    def delivered(self, notification: Notification, size: int) -> None:
        """Note that a notification of ``size`` bytes was delivered."""


class TaskReader:
    """Reads a task as a whole (0.3), once enough has changed.

    A task is due when its status changed, or when its artifacts grew by the size of the last
    notification. So the bytes sent grow in proportion to the artifacts, however small the chunks.
    With ``only_states`` it is due at each status only.
    """

    def __init__(
        self, store: TaskLog, task_id: str, cursor: int, *, only_states: bool = False
    ) -> None:
        self._only_states = only_states
        self._store = store
        self._task_id = task_id
        self._read = cursor
        self._grown = self._last_size = 0
        self._is_due = False

    async def after(self, cursor: int) -> list[Notification]:
        """Return the task, if it is due."""
        while events := await self._store.events(self._task_id, self._read, BATCH):
            for event in events:
                self._grown += len(event.payload)
                self._is_due = self._is_due or event.kind is not RecordKind.ARTIFACT
            self._read = events[-1].seq
        if not self._is_due and (self._only_states or self._grown <= self._last_size):
            return []
        record = await self._store.load(self._task_id)
        if record is None:
            return []
        return [Notification(record.seq, record.task, record.task, record.task.state.is_terminal)]

    def delivered(self, notification: Notification, size: int) -> None:
        """Note that a notification of ``size`` bytes was delivered."""
        self._read = max(self._read, notification.seq)
        self._grown, self._last_size, self._is_due = 0, size, False


def is_last(record: LoggedEvent) -> bool:
    """Return whether nothing follows a record of a log."""
    event = record.event
    return isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state.is_terminal
