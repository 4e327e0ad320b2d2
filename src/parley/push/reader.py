"""The next notifications of a webhook, read from its task's log after its cursor."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from msgspec.structs import replace

from parley.model.parts import Message
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from parley.store.events import LoggedEvent, RecordKind
from parley.store.fold import CONTINUES, ArtifactFold
from parley.store.task_store import TaskStore

BATCH = 16
"""The number of events that are read at once."""


class Notification(NamedTuple):
    """A part of a log to send, up to ``seq``. Nothing follows a notification that ``is_last``.

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

    def __init__(self, store: TaskStore, task_id: str) -> None:
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


class ReplyReader:
    """Yields one notification: a direct reply, which no log has."""

    def __init__(self, message: Message) -> None:
        self._message = message

    async def after(self, cursor: int) -> list[Notification]:
        """Return the reply."""
        return [Notification(1, self._message, None, is_last=True, name=self._message.message_id)]

    def delivered(self, notification: Notification, size: int) -> None:
        """Note that the reply was delivered."""


class TaskReader:
    """Reads a task as a whole (0.3), once enough has changed.

    A task is due when its status has changed, or when its artifacts have grown by the size of the
    last notification. So the sent bytes grow in proportion to the artifacts, however small the
    chunks are. With ``only_states`` it is due at each status only.
    """

    def __init__(
        self, store: TaskStore, task_id: str, cursor: int, *, only_states: bool = False
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
    """Return whether a record is the last one of its log."""
    event = record.event
    return isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state.is_terminal


EVENTS_PER_SCAN = 64
"""The number of events that are read at once."""

_INTERRUPTED = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)


class _Due(NamedTuple):
    """A notification to build: an event, or the artifact that an event completes.

    ``name`` is the last part of its id, ``cursor`` the webhook's cursor after its delivery.
    ``until`` is the number of the last event that belongs to it.
    """

    name: str
    cursor: int
    until: int
    artifact_id: str = ""
    began: int = 0


class SignificantReader:
    """Reads a task's states, and each artifact when it is finished, from its log.

    It reads each event once, and the events from an artifact's first to its last chunk a second
    time. A new reader reads the log from its beginning, to find the unfinished artifacts. It stores
    numbers of events, not events.
    """

    def __init__(self, store: TaskStore, task_id: str) -> None:
        self._store = store
        self._task_id = task_id
        self._read = 0
        self._began: dict[str, int] = {}  # the first event of each artifact's current version
        self._unsent: dict[str, int] = {}  # the last event of each artifact with unsent changes
        self._due: deque[_Due] = deque()

    async def after(self, cursor: int) -> list[Notification]:
        """Return the next notification after a cursor."""
        while True:
            while self._due:
                due = self._due[0]
                if due.until > cursor and (found := await self._build(due)) is not None:
                    return [found]
                self._due.popleft()  # delivered by another replica, or the task is gone
            events = await self._store.events(self._task_id, self._read, EVENTS_PER_SCAN)
            if not events:
                return []
            for event in events:
                self._see(event, cursor)
            self._read = events[-1].seq

    def delivered(self, notification: Notification, size: int) -> None:
        """Note that a notification of ``size`` bytes was delivered."""
        if self._due:
            self._due.popleft()

    def _see(self, record: LoggedEvent, cursor: int) -> None:
        """Record the changes of an event, and the notifications that it makes due."""
        event = record.event
        due: list[_Due] = []
        if isinstance(event, TaskArtifactUpdateEvent):
            artifact_id = event.artifact.artifact_id
            if not event.append or artifact_id not in self._began:
                self._began[artifact_id] = record.seq
            self._unsent[artifact_id] = record.seq
            if event.last_chunk:
                due.append(self._of_artifact(artifact_id, str(record.seq), record.seq, record.seq))
        elif isinstance(event, Task | TaskStatusUpdateEvent):
            if isinstance(event, Task):
                self._began |= {each.artifact_id: record.seq for each in event.artifacts}
            state = event.status.state
            if state.is_terminal or state in _INTERRUPTED:
                # Of an artifact that no chunk finished, this is the last that is known for now.
                due += [
                    self._of_artifact(each, f"{record.seq}-{place}", record.seq - 1, record.seq)
                    for place, each in enumerate(list(self._unsent), 1)
                ]
            due.append(_Due(str(record.seq), record.seq, record.seq))
        if record.seq > cursor:
            self._due += due

    def _of_artifact(self, artifact_id: str, name: str, cursor: int, until: int) -> _Due:
        del self._unsent[artifact_id]
        return _Due(name, cursor, until, artifact_id, self._began[artifact_id])

    async def _build(self, due: _Due) -> Notification | None:
        """Return a notification, ``None`` if its events are gone."""
        if not due.artifact_id:
            for record in await self._store.events(self._task_id, due.until - 1, 1):
                event = record.event
                assert isinstance(event, Task | TaskStatusUpdateEvent)
                return Notification(
                    due.cursor, event, None, is_last(record), due.name, record.payload
                )
            return None
        update = await self._complete(due)
        if update is None:
            return None
        return Notification(due.cursor, update, None, False, due.name)

    async def _complete(self, due: _Due) -> TaskArtifactUpdateEvent | None:
        """Return an update with the complete artifact at the time of an event."""
        fold, last, read = ArtifactFold(), None, due.began - 1
        while read < due.until:
            records = await self._store.events(self._task_id, read, EVENTS_PER_SCAN)
            if not records:
                return None
            for record in records:
                read = record.seq
                event = record.event
                if read > due.until:
                    break
                if isinstance(event, Task):
                    fold = ArtifactFold(
                        each for each in event.artifacts if each.artifact_id == due.artifact_id
                    )
                elif isinstance(event, TaskArtifactUpdateEvent) and (
                    event.artifact.artifact_id == due.artifact_id
                ):
                    fold.apply(event)
                    last = event
        if last is None:
            return None
        others = {key: value for key, value in (last.metadata or {}).items() if key != CONTINUES}
        return replace(
            last, artifact=fold.artifacts[0], append=False, last_chunk=True, metadata=others or None
        )
