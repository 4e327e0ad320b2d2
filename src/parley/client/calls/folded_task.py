"""The fold of a task's streamed events, within a memory limit."""

from __future__ import annotations

from msgspec.structs import replace

from parley.client.bindings import http
from parley.model.struct import encode
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.store.fold import Fold

# Some agents submit a continued task anew, and some have states of their own.
_REPEATED_STATES = (TaskState.SUBMITTED, TaskState.UNSPECIFIED)


class FoldedTask:
    """A task and the events that its stream added, complete up to the size of an answer (64 MiB).

    A stream may be endless. Beyond the limit only the ids and the status are kept up to date.
    """

    def __init__(self, task: Task) -> None:
        self._limit = http.MAX_RESPONSE
        self._fold: Fold | None = Fold(task)
        self._outline = task
        self._size = len(encode(task))
        self._drop_if_too_large()

    @property
    def is_whole(self) -> bool:
        """True while the artifacts and the history are known."""
        return self._fold is not None

    @property
    def task(self) -> Task:
        """The current task: complete, or its outline."""
        return self._outline if self._fold is None else self._fold.task

    def add(self, event: TaskStatusUpdateEvent | TaskArtifactUpdateEvent) -> None:
        """Add the next event. Raises ``IllegalEvent`` for one that cannot follow."""
        if self._fold is not None:
            if not (isinstance(event, TaskStatusUpdateEvent) and self._applied_repeated(event)):
                self._fold.apply(event)
            self._size += len(encode(event))
            self._drop_if_too_large()
        elif isinstance(event, TaskStatusUpdateEvent):
            self._outline = replace(self._outline, status=event.status)

    def _applied_repeated(self, event: TaskStatusUpdateEvent) -> bool:
        """Apply a state that ``Fold`` allows no return to; return whether it is one."""
        if self._fold is None:
            return False
        task = self._fold.task
        if event.status.state not in _REPEATED_STATES or task.state.is_terminal:
            return False
        message = task.status.message
        history = (*task.history, message) if message is not None else task.history
        self._fold = Fold(replace(task, status=event.status, history=history))
        return True

    def _drop_if_too_large(self) -> None:
        if self._fold is None or self._size <= self._limit:
            return
        self._size = len(encode(self._fold.task))  # artifacts may have replaced others
        if self._size > self._limit // 2:
            self._outline = replace(self._fold.task, artifacts=(), history=())
            self._fold = None
