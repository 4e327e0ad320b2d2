"""The head of a log: what must be known of a task to say whether an append may follow."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from parley.model.encoding import encode
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.store.artifact_fold import ArtifactPiece, pieces_of
from parley.store.events import CancelRequested, LoggedEvent, Received, TurnStarted, kind_of
from parley.store.fold import IllegalEvent, check
from parley.store.task_store import (
    Append,
    Conflict,
    Fenced,
    LeaseHeld,
    LogPosition,
    Scope,
    TaskEnded,
    TooManyWaiting,
    UnknownTask,
)


class Head(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a task's log stands. A store keeps one a task; ``key`` is the store's own name for it.

    (``seq``, ``sub``) is the place of the last record. ``messages`` is how many messages the task's
    stored form has; ``has_status_message`` says that the last of them is still that of the status,
    and no part of the history yet. ``folded`` is the number of the event up to which the stored
    form has the artifacts. Moments are in milliseconds since 1970;
    ``ended_at`` is by the store's clock, ``status_at`` what the status says. ``lease_owner`` is the
    replica that may write to the task, ``place`` where the task stands in line while nobody does.
    """

    key: int = 0
    task_id: str
    scope: Scope
    context_id: str
    state: TaskState
    status_at: int
    seq: int
    sub: int
    turn: int
    turn_open: bool
    waiting: int
    cancel_requested: bool
    epoch: int
    ended_at: int | None = None
    lease_owner: str = ""
    place: int = 0
    messages: int = 0
    has_status_message: bool = False
    folded: int = 0

    @property
    def is_unfinished(self) -> bool:
        """Whether an executor has to see to the task."""
        return self.ended_at is None and (
            self.turn_open or self.waiting > 0 or self.cancel_requested
        )

    @property
    def is_unclaimed(self) -> bool:
        """Whether an executor has to see to the task, and none does."""
        return not self.lease_owner and self.is_unfinished


class Payload(msgspec.Struct, frozen=True, gc=False):
    """What an append writes, as JSON.

    ``events`` has that of each event, ``messages`` that of each message that they add to the stored
    form of the task, ``exchange`` that of the context's. ``metadata`` is the task's own.
    """

    events: Sequence[bytes]
    messages: Sequence[bytes]
    artifacts: Sequence[ArtifactPiece]
    exchange: Sequence[bytes]
    metadata: bytes = b""

    @property
    def size(self) -> int:
        """How many bytes it has, about."""
        size = sum([len(event) for event in self.events])
        size += sum([len(message) for message in self.messages])
        return size + sum([len(piece.parts) for piece in self.artifacts])


def payload_of(append: Append) -> Payload:
    """Return what an append writes, having looked at what it asks for.

    Raises ``TypeError`` or ``ValueError`` for what cannot be written as JSON or makes no sense.
    """
    if append.expected_seq is None and any([kind_of(event).is_public for event in append.events]):
        raise ValueError("an append of public events names the head that it expects")
    if append.expected_seq == 0 and append.scope is None:
        raise ValueError("an append that creates a task says whose it is: scope is missing")
    payloads = [encode(event) for event in append.events]
    for n, payload in enumerate(payloads):
        if b"\n" in payload:  # of a value that was JSON already
            payloads[n] = msgspec.json.format(payload, indent=-1)
    messages: list[bytes] = []
    artifacts: Sequence[ArtifactPiece] = append.artifacts or ()
    metadata = b""
    for event in append.events:
        if isinstance(event, TaskStatusUpdateEvent):
            if event.status.message is not None:
                messages.append(encode(event.status.message))
        elif isinstance(event, TurnStarted):
            messages += [encode(message) for message in event.messages]
        elif isinstance(event, Task):
            messages += [encode(message) for message in event.history]
            if event.status.message is not None:
                messages.append(encode(event.status.message))
            if event.metadata is not None:
                metadata = encode(event.metadata)
            if event.artifacts and append.artifacts is None:
                artifacts = pieces_of(event.artifacts)
    exchange = [encode(message) for message in append.exchange]
    return Payload(payloads, messages, artifacts, exchange, metadata)


def advance(
    head: Head | None, append: Append, payload: Payload, at: int, replica: str
) -> tuple[Head, list[LoggedEvent]]:
    """Return the head after an append by ``replica``, and its records.

    This is where races are decided.

    Raises ``UnknownTask``, ``TaskEnded``, ``Fenced``, ``Conflict``, ``IllegalEvent`` or
    ``TooManyWaiting``.
    """
    task_id = append.task_id
    if head is None:
        if append.expected_seq != 0 or append.scope is None:
            raise unknown(task_id)
        scope, context_id, turn_open, epoch = append.scope, append.context_id, False, append.epoch
        seq, sub, state, status_at, waiting, canceling = 0, 0, None, at, 0, False
        messages, has_status_message, folded = 0, False, 0
    else:
        _check_place(head, append)
        scope, context_id = head.scope, head.context_id
        turn_open, epoch = head.turn_open, head.epoch
        seq, sub, state, status_at = head.seq, head.sub, head.state, head.status_at
        waiting, canceling = head.waiting, head.cancel_requested
        messages, has_status_message = head.messages, head.has_status_message
        folded = head.folded
    records = []
    for event, text in zip(append.events, payload.events, strict=True):
        check(state, event)
        status = None
        if isinstance(event, TaskArtifactUpdateEvent):
            owner, seq, sub = event.task_id, seq + 1, 0
        elif isinstance(event, TaskStatusUpdateEvent):
            owner, seq, sub, status = event.task_id, seq + 1, 0, event.status
        elif isinstance(event, Task):
            owner, seq, sub, status = event.id, seq + 1, 0, event.status
            folded = seq if event.artifacts else 0
        else:
            owner, sub = task_id, sub + 1
            if isinstance(event, Received):
                waiting += 1
            elif isinstance(event, CancelRequested):
                canceling = True
            elif isinstance(event, TurnStarted) and event.messages:
                has_status_message = False
        if status is not None:
            if status.timestamp is None:
                raise IllegalEvent("a status says since when it is: its timestamp is missing")
            state, status_at = status.state, status.timestamp.milliseconds
            has_status_message = status.message is not None
        if owner != task_id:
            raise IllegalEvent(f"an event of task {owner} is not part of task {task_id}")
        record = LoggedEvent(task_id, seq, append.turn, kind_of(event), text, event, at, sub)
        records.append(record)
    if state is None:
        raise IllegalEvent("a log begins with its Task, not with nothing")
    is_over = state.is_terminal
    waiting = max(0, waiting - append.taken)
    if append.max_waiting is not None and waiting > append.max_waiting and not is_over:
        raise TooManyWaiting(task_id, append.max_waiting)
    if append.turn_open is not None:
        turn_open = append.turn_open
    after = Head(
        key=head.key if head else 0,
        task_id=task_id,
        scope=scope,
        context_id=context_id,
        state=state,
        status_at=status_at,
        seq=seq,
        sub=sub,
        turn=append.turn if head is None or append.expected_seq is not None else head.turn,
        turn_open=turn_open and not is_over,
        waiting=0 if is_over else waiting,
        cancel_requested=canceling,
        epoch=epoch,
        ended_at=at if is_over else None,
        lease_owner=_holder(head, append, replica, turn_open=turn_open, is_over=is_over),
        place=head.place if head else 0,
        messages=messages + len(payload.messages),
        has_status_message=has_status_message,
        folded=folded if append.artifacts is None else seq,
    )
    if after.is_unclaimed and not (head and head.is_unclaimed):
        after = replace(after, place=append.place)
    return after, records


def _holder(
    head: Head | None, append: Append, replica: str, *, turn_open: bool, is_over: bool
) -> str:
    """Return who holds the task after ``append``."""
    before = head.lease_owner if head else ""
    if is_over or append.release:
        return ""
    if append.expected_seq is None:
        return before
    if append.turn_open is False:
        return ""
    return replica if turn_open else before


def _check_place(head: Head, append: Append) -> None:
    """Raise what keeps ``append`` from following ``head``."""
    expected = append.expected_seq
    if expected == 0:
        raise Conflict(head.task_id, 0, head.seq)
    if head.ended_at is not None:
        raise ended(head)
    if expected is None:
        return
    if append.epoch != head.epoch:
        raise Fenced(
            f"task {head.task_id} was taken over: "
            f"the append is of epoch {append.epoch}, the task in epoch {head.epoch}"
        )
    if expected != head.seq:
        raise Conflict(head.task_id, expected, head.seq)


def claimed(head: Head | None, task_id: str, replica: str) -> Head:
    """Return the head with a new epoch and holder.

    What dead replicas held is nobody's by then. Raises ``UnknownTask``, ``TaskEnded``,
    ``LeaseHeld``.
    """
    if head is None:
        raise unknown(task_id)
    if head.ended_at is not None:
        raise ended(head)
    if head.lease_owner not in ("", replica):
        raise LeaseHeld(f"task {task_id} is held by the replica {head.lease_owner}")
    return replace(head, epoch=head.epoch + 1, lease_owner=replica)


def freed(head: Head) -> Head:
    """Return the head of a task whose holder is dead: first in line, and its writer fenced."""
    return replace(head, epoch=head.epoch + 1, lease_owner="", place=0)


def place_of(head: Head) -> LogPosition:
    """Return where the task's log stands."""
    return LogPosition(
        task_id=head.task_id,
        seq=head.seq,
        sub=head.sub,
        epoch=head.epoch,
        lease_owner=head.lease_owner,
        waiting=head.waiting,
        cancel_requested=head.cancel_requested,
        ended=head.ended_at is not None,
    )


def unknown(task_id: str) -> UnknownTask:
    """Return the error for a task that is not there."""
    return UnknownTask(f"there is no task {task_id} in the store")


def ended(head: Head) -> TaskEnded:
    """Return the error for a task to which nothing can be added."""
    return TaskEnded(f"task {head.task_id} is in {head.state.value}, and nothing follows that")
