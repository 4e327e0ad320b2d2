"""The task as its stream tells it, as far as that can be kept."""

from __future__ import annotations

from msgspec.structs import replace

from parley.client.bindings import http
from parley.model.encoding import encode
from parley.model.tasks import (
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from parley.store.fold import Fold

# Agents that take up a task again submit it anew, and some have states of their own.
_RESTATED = (TaskState.SUBMITTED, TaskState.UNSPECIFIED)


class FoldedTask:
    """A task and what its stream added to it, whole while an answer could hold it (64 MiB).

    A stream has no end that its reader could rely on. What grows larger is forgotten but for the
    ids and the status, which follow the stream on.
    """

    def __init__(self, task: Task) -> None:
        self._limit = http.MAX_RESPONSE
        self._fold: Fold | None = Fold(task)
        self._outline = task
        self._size = len(encode(task))
        self._forget_what_is_too_much()

    @property
    def is_whole(self) -> bool:
        """Whether the artifacts and the history are still known."""
        return self._fold is not None

    @property
    def task(self) -> Task:
        """The task as it stands: all of it, or its outline."""
        return self._outline if self._fold is None else self._fold.task

    def add(self, event: TaskStatusUpdateEvent | TaskArtifactUpdateEvent) -> None:
        """Add the next event. Raises ``IllegalEvent`` when it cannot follow."""
        if self._fold is not None:
            if not (isinstance(event, TaskStatusUpdateEvent) and self._restates(event)):
                self._fold.apply(event)
            self._size += len(encode(event))
            self._forget_what_is_too_much()
        elif isinstance(event, TaskStatusUpdateEvent):
            self._outline = replace(self._outline, status=event.status)

    def _restates(self, event: TaskStatusUpdateEvent) -> bool:
        """Take a state that no task of ours goes back to, if it is such; whether it was."""
        if self._fold is None:
            return False
        task = self._fold.task
        if event.status.state not in _RESTATED or task.state.is_terminal:
            return False
        said = task.status.message
        history = (*task.history, said) if said is not None else task.history
        self._fold = Fold(replace(task, status=event.status, history=history))
        return True

    def _forget_what_is_too_much(self) -> None:
        if self._fold is None or self._size <= self._limit:
            return
        self._size = len(encode(self._fold.task))  # artifacts may have taken others' place
        if self._size > self._limit // 2:
            self._outline = replace(self._fold.task, artifacts=(), history=())
            self._fold = None
