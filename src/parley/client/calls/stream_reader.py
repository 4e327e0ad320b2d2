"""The position of a reader in a task: which events it has, and which of a new one are missing.

Does no I/O. ``follow`` and ``poll`` feed it; ``EventStream`` shows its state to the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from parley.client.calls.diff import diff
from parley.client.calls.folded_task import FoldedTask
from parley.client.calls.prior_question import (
    is_settled,
    restates_prior_question,
    shows_prior_question,
)
from parley.client.errors import Disconnected
from parley.model.errors import InvalidAgentResponseError
from parley.model.parts import Message
from parley.model.service import StreamItem
from parley.model.tasks import Event, Task, TaskArtifactUpdateEvent, TaskState
from parley.store.fold import IllegalEvent

logger = logging.getLogger(__name__)

# Beyond so many artifacts the order of an artifact's chunks is no longer checked.
MAX_CHECKED_ARTIFACTS = 10_000


class StreamReader:
    """The progress of one reader in one task.

    For agents that number their events (``numbered``) the number is enough. For others the reader
    keeps the task itself, to diff it with a later snapshot. ``ends`` tells which events end a
    stream in the protocol version in use; ``is_final`` is whether the last event did.

    ``before`` is the task as it was before the reader's message continued it, if known.
    ``is_prior_state``: the last delivered state is still the one from then, such as the question
    that the message answers; the turn has no state of its own yet.
    """

    def __init__(
        self,
        *,
        numbered: bool,
        ends: Callable[[Event], bool] = lambda event: False,
        task_id: str = "",
        seq: int | None = None,
    ) -> None:
        self.numbered = numbered
        self._last: Event | None = None
        self._ends = ends
        self.before: Task | None = None
        self.is_prior_state = False
        self._continues_task = False
        self._first_task: Task | None = None
        self._message_id = ""
        self.task_id = task_id
        self.context_id = ""
        self.seq = seq
        self.state: TaskState | None = None
        self.has_begun = False
        self.message: Message | None = None
        self._folded: FoldedTask | None = None
        # Artifact ids: the known ones, once the reader has seen the task, and those with a last
        # chunk.
        self._known_artifacts: set[str] | None = None
        self._closed_artifacts: set[str] = set()

    @property
    def is_final(self) -> bool:
        """Whether the last event ends its stream."""
        return self._last is not None and self._ends(self._last)

    @property
    def is_settled(self) -> bool:
        """True if the task has ended or waits for its caller, by what this turn delivered."""
        return self.state is not None and is_settled(self.state) and not self.is_prior_state

    def start(self, message: Message, before: Task | None) -> None:
        """Start to read the turn of ``message``; ``before`` is its task from before."""
        self._message_id = message.message_id
        self._continues_task = self.is_prior_state = bool(message.task_id)
        self.before = before
        if before is not None:
            self._folded = FoldedTask(before)
            self._known_artifacts = {artifact.artifact_id for artifact in before.artifacts}

    def has_message(self, task: Task) -> bool:
        """Return whether the reader's message is in the task's history."""
        return any(message.message_id == self._message_id for message in task.history)

    def resume_before(self) -> None:
        """Resume with the task that the message continues, before any event of it came."""
        if self.before is not None:
            self.task_id, self.context_id = self.before.id, self.before.context_id
            self.has_begun = True

    def accept_any_state(self) -> None:
        """Take the next state as the turn's own, whatever the task's state was before."""
        self._continues_task = self.is_prior_state = False

    def apply_item(self, item: StreamItem, *, resumed: bool, opening: bool = False) -> list[Event]:
        """Return what is new to the reader in ``item``; ``resumed`` if it opens a later stream.

        ``opening``: it opens a stream, where the agent says where that begins. Raises
        ``InvalidAgentResponseError`` for a chunk that follows its artifact's last one, and
        ``Disconnected`` for an event whose number shows that others before it were lost.
        """
        event = item.event
        if isinstance(event, Message):
            self.message = event
            return [event]
        if not isinstance(event, Task) and not event.task_id:  # the stream is of one task
            context_id = event.context_id or self.context_id
            event = msgspec.structs.replace(event, task_id=self.task_id, context_id=context_id)
        if self.numbered and item.seq is not None:
            if self.seq is not None and item.seq <= self.seq:
                return []
            if self._misses_some(item) and not opening:
                raise Disconnected(
                    f"the stream goes on with event {item.seq} after event {self.seq}: some were "
                    "lost on the way"
                )
            self.seq = item.seq
        elif resumed and isinstance(event, Task):
            return self.apply_snapshot(event)
        if isinstance(event, TaskArtifactUpdateEvent):
            self._check_chunk(event)
        self._last = event
        if isinstance(event, Task):
            self._index_artifacts(event)
            # A reader with a number needs no copy of the task. An agent that numbers its events may
            # be called over a binding that carries no numbers.
            self._folded = None if self.seq is not None else FoldedTask(event)
        elif self._folded is not None:
            try:
                self._folded.add(event)
            except IllegalEvent as error:
                # The reader still gets the event; the next snapshot then comes as a whole.
                logger.info("task %r sends what cannot be: %s", self.task_id, error)
                self._folded = None
        return [event]

    def _misses_some(self, item: StreamItem) -> bool:
        """Return whether events are missing before this one. A task stands for all before it."""
        if self.seq is None or item.seq is None or isinstance(item.event, Task):
            return False
        return item.seq > self.seq + 1

    def apply_snapshot(self, task: Task) -> list[Event]:
        """Return what is new to the reader in a snapshot of the task."""
        known = self._folded.task if self._folded is not None and self._folded.is_whole else None
        now, asked = task, self.before.status.message if self.before is not None else None
        if known is not None and self.shows_prior_question(task):
            now = msgspec.structs.replace(task, status=known.status)
        known_ids = {asked.message_id} if asked is not None else set()
        events = diff(known, now, after=self._message_id, known_ids=known_ids)
        self._index_artifacts(task)
        self._folded = FoldedTask(task)
        self.task_id, self.context_id = task.id, task.context_id or self.context_id
        return events

    def _check_chunk(self, event: TaskArtifactUpdateEvent) -> None:
        """Check that a chunk fits the ones before; the specification (§4.2.2) leaves it open."""
        id = event.artifact.artifact_id
        if not event.append:
            self._closed_artifacts.discard(id)
        elif id in self._closed_artifacts:
            raise InvalidAgentResponseError(
                f"a chunk of artifact {id[:100]!r} came after its last chunk",
                metadata={"taskId": event.task_id, "artifactId": id[:100]},
            )
        elif self._known_artifacts is not None and id not in self._known_artifacts:
            logger.warning(
                "task %.100r: a chunk of artifact %.100r, never begun", event.task_id, id
            )
        if len(self._closed_artifacts) + len(self._known_artifacts or ()) > MAX_CHECKED_ARTIFACTS:
            self._known_artifacts, self._closed_artifacts = None, set()
        if self._known_artifacts is not None:
            self._known_artifacts.add(id)
        if event.last_chunk:
            self._closed_artifacts.add(id)

    def shows_prior_question(self, task: Task, *, polls: int = 0) -> bool:
        """Return whether the task shows only what it did before the turn, or at its first event."""
        if not self.is_prior_state:
            return False
        return any(
            shows_prior_question(old, task, polls=polls) for old in (self.before, self._first_task)
        )

    def _index_artifacts(self, task: Task) -> None:
        self._known_artifacts = {artifact.artifact_id for artifact in task.artifacts}
        self._closed_artifacts = set()

    def deliver(self, event: Event) -> Event:
        """Record an event that goes to the caller now, and return it."""
        self.has_begun = True
        if isinstance(event, Message):
            return event
        is_first = self.state is None
        self.task_id = event.id if isinstance(event, Task) else event.task_id
        self.context_id = event.context_id or self.context_id
        if isinstance(event, TaskArtifactUpdateEvent):
            return event
        self.state = event.status.state
        if not self._continues_task or not isinstance(event, Task):
            self.is_prior_state = False
        elif is_first:
            if self.before is None and (self.numbered or self.state.is_interrupted):
                self.before = event
            self.is_prior_state = self.before is not None and restates_prior_question(
                self.before, event
            )
            self._first_task = event
        else:
            self.is_prior_state = self.shows_prior_question(event)
        return event
