"""The state of a stream: the folded task, the position, and the events still to deliver.

Does no I/O. ``follow`` and ``poll`` feed it; ``EventStream`` shows its state to the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence, Set
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from parley.client.bindings import http
from parley.client.errors import ClientError, ConnectionClosed, Disconnected, Unreachable
from parley.model.errors import A2AError, InvalidAgentResponseError
from parley.model.operations import GetTaskRequest
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import A2AService, CallContext, StreamItem
from parley.model.struct import encode
from parley.model.tasks import (
    Event,
    Replied,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    reply_of,
)
from parley.store.fold import Fold, IllegalEvent

# -- diff -------------------------------------------------------------------------------------


def diff(
    before: Task | None, now: Task, *, after: str = "", known_ids: Set[str] = frozenset()
) -> list[Event]:
    """Return events that turn ``before`` into ``now``; only ``now`` if there is no ``before``.

    Status messages between the two snapshots are in the history. They become WORKING updates
    without a timestamp, which the history does not keep. If the history has the message with the id
    ``after``, only messages behind it are new, and none with an id in ``known_ids``. New, grown or
    replaced artifacts follow, and the status comes last.
    """
    if before is None or before.id != now.id:
        return [now]
    ids: dict[str, Any] = {"task_id": now.id, "context_id": now.context_id}
    events: list[Event] = []
    known = _message_ids(before) | known_ids
    if now.status.message is not None:  # some agents repeat it in the history
        known |= {now.status.message.message_id}
    for message in _messages_after(now.history, after):
        if message.role is Role.AGENT and message.message_id not in known:
            earlier = TaskStatus(state=TaskState.WORKING, message=message)
            events.append(TaskStatusUpdateEvent(**ids, status=earlier))
    ended = now.state.is_terminal
    for artifact, append in _new_artifacts(before, now):
        events.append(
            TaskArtifactUpdateEvent(**ids, artifact=artifact, append=append, last_chunk=ended)
        )
    if now.status != before.status or any(isinstance(e, TaskStatusUpdateEvent) for e in events):
        events.append(TaskStatusUpdateEvent(**ids, status=now.status))
    return events


def new_output(before: Task | Replied, now: Task | Replied) -> Task:
    """Return ``now`` with only the artifacts and messages that ``before`` did not have.

    An artifact that grew has only its new parts; a replaced one is complete. If ``before`` is the
    task at the time of a message, the ``text`` of the result is the output of that message's turn.
    Raises ``ValueError`` for a direct message.
    """
    before, now = _task_of(before), _task_of(now)
    if before.id != now.id:
        return now
    known = _message_ids(before)
    return msgspec.structs.replace(
        now,
        artifacts=tuple(artifact for artifact, _ in _new_artifacts(before, now)),
        history=tuple(message for message in now.history if message.message_id not in known),
    )


def _task_of(answer: Task | Replied) -> Task:
    reply = reply_of(answer)
    if isinstance(reply, Message):
        raise ValueError("a direct message is no task: its text is all of its output")
    return reply


def _message_ids(before: Task) -> set[str]:
    """Return the ids of all messages; answered questions move from the status to the history."""
    known = {message.message_id for message in before.history}
    if before.status.message is not None:
        known.add(before.status.message.message_id)
    return known


def _new_artifacts(before: Task, now: Task) -> Iterator[tuple[Artifact, bool]]:
    """Yield new content of artifacts, and whether it is appended to an earlier artifact."""
    earlier = {artifact.artifact_id: artifact for artifact in before.artifacts}
    for artifact in now.artifacts:
        old = earlier.get(artifact.artifact_id)
        if old == artifact:
            continue
        added = _added_parts(old, artifact) if old is not None else None
        if added is None:
            yield artifact, False
        else:
            yield msgspec.structs.replace(artifact, parts=added), True


def _messages_after(history: Sequence[Message], message_id: str) -> Sequence[Message]:
    for index, message in enumerate(history):
        if message_id and message.message_id == message_id:
            return history[index + 1 :]
    return history


def _added_parts(old: Artifact, new: Artifact) -> tuple[Part, ...] | None:
    """Return the parts that ``new`` adds to ``old``; ``None`` if it does not extend ``old``."""
    count = len(old.parts)
    if len(new.parts) > count and new.parts[:count] == old.parts:
        return new.parts[count:]
    # Some agents join the text of all chunks into one part.
    before, after = _plain_text(old.parts), _plain_text(new.parts)
    if before is None or after is None or not after.startswith(before) or after == before:
        return None
    return (msgspec.structs.replace(new.parts[-1], text=after[len(before) :]),)


def _plain_text(parts: Sequence[Part]) -> str | None:
    texts = [part.text for part in parts]
    return None if None in texts else "".join(text for text in texts if text is not None)


# -- folded task ------------------------------------------------------------------------------

# Some agents submit a continued task again, and some have states of their own.
_REPEATED_STATES = (TaskState.SUBMITTED, TaskState.UNSPECIFIED)


class FoldedTask:
    """A task with the events of its stream applied, complete up to 64 MiB.

    A stream may be endless. Beyond the limit only the ids and the status are updated.
    """

    def __init__(self, task: Task) -> None:
        self._limit = http.MAX_RESPONSE
        self._fold: Fold | None = Fold(task)
        self._outline = task
        self._size = len(encode(task))
        self._drop_if_too_large()

    @property
    def is_whole(self) -> bool:
        """True while the artifacts and the history are complete."""
        return self._fold is not None

    @property
    def task(self) -> Task:
        """The current task: complete, or only its ids and status."""
        return self._outline if self._fold is None else self._fold.task

    def add(self, event: TaskStatusUpdateEvent | TaskArtifactUpdateEvent) -> None:
        """Add the next event. Raises ``IllegalEvent`` for an event that cannot follow."""
        if self._fold is not None:
            if not (isinstance(event, TaskStatusUpdateEvent) and self._applied_repeated(event)):
                self._fold.apply(event)
            self._size += len(encode(event))
            self._drop_if_too_large()
        elif isinstance(event, TaskStatusUpdateEvent):
            self._outline = replace(self._outline, status=event.status)

    def _applied_repeated(self, event: TaskStatusUpdateEvent) -> bool:
        """Apply a state to which ``Fold`` allows no return. Return whether it is such a state."""
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
        self._size = len(encode(self._fold.task))  # artifacts may have been replaced
        if self._size > self._limit // 2:
            self._outline = replace(self._fold.task, artifacts=(), history=())
            self._fold = None


# -- prior question ---------------------------------------------------------------------------

# The number of unchanged polls after which a turn counts as ended with the same question as before.
# A status with a timestamp does not repeat, so it gets more time.
MAX_POLLS = 8
MAX_POLLS_WITHOUT_TIMESTAMP = 3
# Seconds that a message waits for the snapshot of its task.
SNAPSHOT_TIMEOUT = 5.0


async def snapshot_before(
    service: A2AService,
    context: CallContext,
    task_id: str,
    *,
    history_length: int | None = None,
    timeout: float | None = None,
) -> Task | None:
    """Return the task that a message will continue; ``None`` if the agent does not return it.

    Takes a few seconds at most, and a quarter of the message's ``timeout``: the message is sent
    with or without the snapshot. Raises ``Unreachable`` and ``ConnectionClosed``, as sending the
    message would.
    """
    request = GetTaskRequest(id=task_id, history_length=history_length)
    within = SNAPSHOT_TIMEOUT if timeout is None else min(SNAPSHOT_TIMEOUT, timeout / 4)
    try:
        async with asyncio.timeout(within):
            return await service.get_task(request, context)
    except (Unreachable, ConnectionClosed):
        raise
    except (A2AError, ClientError, TimeoutError):
        return None  # the answer to the message will show the problem of the task


def is_settled(state: TaskState) -> bool:
    """Return whether a task has ended or waits for its caller."""
    return state.is_terminal or state.is_interrupted


def shows_prior_question(before: Task | None, now: Task, *, polls: int = 0) -> bool:
    """Return whether a task still waits for its caller with the same question as before a message.

    ``polls`` is the number of consecutive polls without a change. ``False`` without ``before``.
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
    max_polls = MAX_POLLS_WITHOUT_TIMESTAMP if now.status.timestamp is None else MAX_POLLS
    return now.state.is_interrupted and polls < max_polls


def restates_prior_question(before: Task, first: Task) -> bool:
    """Return whether the first task of a message's stream only repeats the question of ``before``.

    Some agents repeat it with another timestamp or without the message; more events follow then.
    """
    if not first.state.is_interrupted or first.id != before.id:
        return False
    asked, repeated = before.status.message, first.status.message
    return repeated is None or (asked is not None and repeated.message_id == asked.message_id)


# -- stream reader ----------------------------------------------------------------------------

logger = logging.getLogger(__name__)

# Beyond this number of artifacts the order of an artifact's chunks is not checked.
MAX_CHECKED_ARTIFACTS = 10_000


class StreamReader:
    """The progress of one reader in one task.

    For agents that number their events (``numbered``) the number is enough. For other agents the
    reader keeps the task itself, to compare it with a later snapshot. ``ends`` decides which events
    end a stream in the used protocol version; ``is_final`` is true if the last event did.

    ``before`` is the task before the reader's message continued it, if known. ``is_prior_state``:
    the last delivered state is still from before the message, such as the question that the message
    answers; the turn has no state of its own yet.
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
        self.on_cut: Callable[[], None] | None = None
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
        # The ids of artifacts that are known (once the reader has seen the task), and of completed
        # ones.
        self._known_artifacts: set[str] | None = None
        self._closed_artifacts: set[str] = set()

    @property
    def is_final(self) -> bool:
        """True if the last event ends its stream."""
        return self._last is not None and self._ends(self._last)

    @property
    def is_settled(self) -> bool:
        """True if the task has ended or waits for its caller, by what this turn delivered."""
        return self.state is not None and is_settled(self.state) and not self.is_prior_state

    def start(self, message: Message, before: Task | None) -> None:
        """Start reading the turn of ``message``; ``before`` is its task before the message."""
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
        """Resume with the task that the message continues, before its first event has arrived."""
        if self.before is not None:
            self.task_id, self.context_id = self.before.id, self.before.context_id
            self.has_begun = True

    def accept_any_state(self) -> None:
        """Treat the next state as the turn's own, whatever the task's state was before."""
        self._continues_task = self.is_prior_state = False

    def apply_item(self, item: StreamItem, *, resumed: bool, opening: bool = False) -> list[Event]:
        """Return the new events in ``item``. ``resumed``: it is the first item of a later stream.

        ``opening``: it is the first item of a stream, which has any position. Raises
        ``InvalidAgentResponseError`` for a chunk after its artifact's last one, and
        ``Disconnected`` for a number that shows that events were lost.
        """
        event = item.event
        if isinstance(event, Message):
            self.message = event
            return [event]
        if not isinstance(event, Task) and not event.task_id:  # a stream belongs to one task
            context_id = event.context_id or self.context_id
            event = msgspec.structs.replace(event, task_id=self.task_id, context_id=context_id)
        if self.numbered and item.seq is not None:
            if self.seq is not None and item.seq <= self.seq:
                return []
            if self._misses_some(item) and not opening:
                raise Disconnected(
                    f"the stream continues with event {item.seq} after event {self.seq}: some were "
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
            # A numbered reader needs no copy of the task. An agent that numbers its events may be
            # called over a binding without numbers.
            self._folded = None if self.seq is not None else FoldedTask(event)
        elif self._folded is not None:
            try:
                self._folded.add(event)
            except IllegalEvent as error:
                # The reader still gets the event; the next snapshot then replaces the whole task.
                logger.info("task %r sends an impossible event: %s", self.task_id, error)
                self._folded = None
        return [event]

    def _misses_some(self, item: StreamItem) -> bool:
        """Return whether events before this one are missing. A task includes all events before
        it."""
        if self.seq is None or item.seq is None or isinstance(item.event, Task):
            return False
        return item.seq > self.seq + 1

    def apply_snapshot(self, task: Task) -> list[Event]:
        """Return the new events in a snapshot of the task."""
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
        """Check that a chunk fits earlier chunks, which the specification (§4.2.2) leaves open."""
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
        """Return whether the task shows no more than before the turn, or at its first event."""
        if not self.is_prior_state:
            return False
        return any(
            shows_prior_question(old, task, polls=polls) for old in (self.before, self._first_task)
        )

    def _index_artifacts(self, task: Task) -> None:
        self._known_artifacts = {artifact.artifact_id for artifact in task.artifacts}
        self._closed_artifacts = set()

    def deliver(self, event: Event) -> Event:
        """Record an event that is delivered to the caller, and return it."""
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


# -- event stream -----------------------------------------------------------------------------


class EventStream:
    """The events of a message or a task: an async iterator, each event once and in order.

    ``task_id``, ``context_id`` and ``state`` are the values known so far. ``seq`` is the number of
    the last event, if the agent numbers them: ``subscribe(task_id, after=seq)`` resumes there, also
    in another process. Leaving the loop early ends the stream; the task continues.
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
        """The task before a message continued it, once the stream has begun.

        ``None`` for a message that starts a task, and if the agent did not return it.
        """
        return self._reader.before

    def on_cut(self, function: Callable[[], None]) -> None:
        """Call ``function`` whenever the connection breaks, before the stream is resumed."""
        self._reader.on_cut = function

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop reading and close the connection. Idempotent; the task continues."""
        await self._events.aclose()


# -- final text -------------------------------------------------------------------------------


def with_final_text(task: Task, last_message: Message | None, before: Task | None = None) -> Task:
    """Return an ended task with its agent's ``last_message`` in the history if it has no text.

    Some agents keep no history. For a continued task only the output of this turn counts, not text
    from ``before``.
    """
    if last_message is None or not last_message.text or not task.state.is_terminal:
        return task
    extended = replace(task, history=(*task.history, last_message))
    if before is None:
        return task if task.text else extended
    is_missing = not new_output(before, task).text and new_output(before, extended).text
    return extended if is_missing else task
