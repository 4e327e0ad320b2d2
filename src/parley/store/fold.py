"""Folds events into the task. Only this file says which event may follow which."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from parley.model.errors import an
from parley.model.parts import Message
from parley.model.tasks import (
    TERMINAL_STATES,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.store.artifact_fold import ArtifactFold, ArtifactPiece, IllegalEvent
from parley.store.events import PrivateEvent, TaskEvent, TurnStarted

__all__ = ["Fold", "IllegalEvent", "check", "fold"]

_ONLY_INITIAL = frozenset({TaskState.UNSPECIFIED, TaskState.SUBMITTED})
_NO_STATUS = TaskStatus(state=TaskState.UNSPECIFIED)


def check(state: TaskState | None, event: TaskEvent | PrivateEvent) -> None:
    """Raise ``IllegalEvent`` when ``event`` cannot follow a log whose task is in ``state``.

    ``None`` is the state of an empty log. A log begins with its Task and has no second one;
    nothing follows a terminal state; a task is submitted only at its beginning (§4.1.3).
    """
    if state is None:
        if type(event) is not Task:
            raise IllegalEvent(f"a log begins with its Task, not with {an(type(event).__name__)}")
        if event.status.state is TaskState.UNSPECIFIED:
            raise IllegalEvent("a task begins in a state such as TASK_STATE_SUBMITTED, not without")
        if len({artifact.artifact_id for artifact in event.artifacts}) < len(event.artifacts):
            raise IllegalEvent("an artifact's id is unique within its task, and one is there twice")
    elif state in TERMINAL_STATES:
        raise IllegalEvent(f"{state.value} is terminal: no {type(event).__name__} follows it")
    elif type(event) is TaskStatusUpdateEvent:
        if event.status.state in _ONLY_INITIAL:
            raise IllegalEvent(
                f"a task does not go from {state.value} to {event.status.state.value}; "
                "it may go to any state but submitted and unspecified"
            )
    elif type(event) is Task:
        raise IllegalEvent("the log has its Task; what changes it is a status or artifact update")


class Fold:
    """Builds a task from its events.

    ``task`` is built when it is asked for, and kept; adding a chunk to an artifact costs the
    chunk, not the artifact. ``strict`` refuses chunks that our own agents must not write (see
    ``ArtifactFold``); only events, not a ``task`` to start
    with, say which artifacts are complete. ``unsaved`` names the artifacts of that ``task`` whose
    stored form lacks something.
    """

    __slots__ = ("_artifacts", "_first", "_history", "_status", "_strict", "_task")

    def __init__(
        self, task: Task | None = None, *, strict: bool = False, unsaved: Iterable[str] = ()
    ) -> None:
        self._strict = strict
        self._first: Task | None = None
        self._task: Task | None = None
        self._status = _NO_STATUS
        self._history: list[Message] = []
        self._artifacts = ArtifactFold(strict=strict)
        if task is not None:
            self._begin(task, unsaved)

    @property
    def state(self) -> TaskState | None:
        """The state that the task is in; ``None`` before the first event."""
        return None if self._first is None else self._status.state

    @property
    def status(self) -> TaskStatus:
        """The task's status. Unspecified before the first event."""
        return self._status

    @property
    def task(self) -> Task:
        """The task as it stands. Raises ``IllegalEvent`` before the first event."""
        if self._first is None:
            raise IllegalEvent("there is no task: the log is empty, and begins with its Task")
        if self._task is None:
            self._task = replace(
                self._first,
                status=self._status,
                artifacts=self._artifacts.artifacts,
                history=tuple(self._history),
            )
        return self._task

    def is_complete(self, artifact_id: str) -> bool:
        """Return whether an artifact has had its last chunk, as far as events say."""
        return self._artifacts.is_complete(artifact_id)

    def take_unsaved(self) -> list[ArtifactPiece]:
        """Return what the stored form of the artifacts lacks, and mark it as stored."""
        return self._artifacts.take_unsaved()

    def apply(self, event: TaskEvent | PrivateEvent) -> None:
        """Add the next event. Raises ``IllegalEvent`` and changes nothing when it cannot follow."""
        check(None if self._first is None else self._status.state, event)
        if type(event) is Task:
            self._begin(event, [artifact.artifact_id for artifact in event.artifacts])
        elif type(event) is TaskArtifactUpdateEvent:
            self._check_task(event.task_id)
            self._artifacts.apply(event)
            self._task = None
        elif type(event) is TaskStatusUpdateEvent:
            self._check_task(event.task_id)
            self._archive_message()
            self._status = event.status
            self._task = None
        elif type(event) is TurnStarted and event.messages:
            self._archive_message()
            self._history.extend(event.messages)
            self._task = None

    def _begin(self, task: Task, unsaved: Iterable[str]) -> None:
        self._first = self._task = task
        self._status = task.status
        self._history.extend(task.history)
        if task.artifacts:
            self._artifacts = ArtifactFold(task.artifacts, strict=self._strict, unsaved=unsaved)

    def _archive_message(self) -> None:
        """Move the message of the status into the history."""
        if self._status.message is not None:
            self._history.append(self._status.message)
            self._status = replace(self._status, message=None)

    def _check_task(self, task_id: str) -> None:
        if self._first is not None and task_id != self._first.id:
            raise IllegalEvent(f"an event of task {task_id} is not part of task {self._first.id}")


def fold(events: Iterable[TaskEvent | PrivateEvent], start: Task | None = None) -> Task:
    """Return the fold of ``events``, from ``start`` when it is given.

    Raises ``IllegalEvent`` for events that cannot follow one another.
    """
    folding = Fold(start)
    for event in events:
        folding.apply(event)
    return folding.task
