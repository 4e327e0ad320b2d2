"""The head of a log, and the rules for appends and claims, by which every store resolves races."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from parley.model.struct import encode
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.store.events import (
    CancelRequested,
    LoggedEvent,
    MessageReceived,
    RecordKind,
    Scope,
    TurnStarted,
    kind_of,
)
from parley.store.fold import ArtifactPiece, IllegalEvent, check, pieces_of
from parley.store.protocols.errors import (
    Conflict,
    Fenced,
    LeaseHeld,
    TaskEnded,
    TooManyWaiting,
    UnknownTask,
)
from parley.store.protocols.tables import MAX_WAITS, check_key
from parley.store.protocols.task_log import Append, LogPosition


class Head(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The state of a task's log. A store has one per task; ``key`` is the task's key in it.

    (``seq``, ``sub``) is the position of the last record. ``messages`` is the number of messages in
    the task's stored form; ``has_status_message``: the last of them is the status's, and not yet
    part of the history. ``folded`` is the number of the event up to which the stored form has the
    artifacts. Times are in milliseconds since 1970: ``ended_at`` by the store's clock,
    ``status_at`` as in the status. ``lease_owner`` is the replica that may write to the task, and
    ``epoch`` its fencing token. ``queue_key`` orders tasks without an owner: the virtual start time
    of a fair queue. ``wakes_at`` is set while the task sleeps: its turn is open, it has no owner
    and no cancellation is requested. ``base_url`` is written when the task is created, and never
    changed.
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
    queue_key: int = 0
    messages: int = 0
    has_status_message: bool = False
    folded: int = 0
    wakes_at: int | None = None
    base_url: str = ""

    @property
    def is_unfinished(self) -> bool:
        """True if the task has work left for an executor."""
        return self.ended_at is None and (
            self.turn_open or self.waiting > 0 or self.cancel_requested
        )

    @property
    def is_unclaimed(self) -> bool:
        """True if the task has work left and no lease owner, and does not sleep."""
        return not self.lease_owner and self.wakes_at is None and self.is_unfinished


class Payload(msgspec.Struct, frozen=True, gc=False):
    """The JSON that an append writes.

    ``events`` has each event, ``messages`` each message that they add to the stored form of the
    task, ``exchange`` each message for the context. ``metadata`` is the task's.
    """

    events: Sequence[bytes]
    messages: Sequence[bytes]
    artifacts: Sequence[ArtifactPiece]
    exchange: Sequence[bytes]
    metadata: bytes = b""

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        size = sum([len(event) for event in self.events])
        size += sum([len(message) for message in self.messages])
        return size + sum([len(piece.parts) for piece in self.artifacts])


def payload_of(append: Append) -> Payload:
    """Check an append, and return its JSON.

    Raises ``TypeError`` or ``ValueError`` for an append that is contradictory or cannot be written
    as JSON.
    """
    if append.expected_seq is None and any([kind_of(event).is_public for event in append.events]):
        raise ValueError("an append of public events names the head that it expects")
    if append.expected_seq == 0 and append.scope is None:
        raise ValueError("an append that creates a task says whose it is: scope is missing")
    if append.base_url:
        _check_base_url(append)
    if append.wakes_at is not None or append.waits_for:
        _check_sleep(append)
    payloads: list[bytes] = []
    messages: list[bytes] = []
    artifacts: Sequence[ArtifactPiece] = append.artifacts or ()
    metadata = b""
    given = append.payloads or map(encode, append.events)
    for event, payload in zip(append.events, given, strict=True):
        if b"\n" in payload:  # from a value that was JSON already
            payload = msgspec.json.format(payload, indent=-1)
        payloads.append(payload)
        if type(event) is TaskStatusUpdateEvent:
            if event.status.message is not None:
                messages.append(encode(event.status.message))
        elif type(event) is TurnStarted:
            messages += [encode(message) for message in event.messages]
        elif type(event) is Task:
            messages += [encode(message) for message in event.history]
            if event.status.message is not None:
                messages.append(encode(event.status.message))
            if event.metadata is not None:
                metadata = encode(event.metadata)
            if event.artifacts and append.artifacts is None:
                artifacts = pieces_of(event.artifacts)
    exchange = [encode(message) for message in append.exchange] if append.exchange else ()
    return Payload(payloads, messages, artifacts, exchange, metadata)


def _check_base_url(append: Append) -> None:
    if append.expected_seq != 0:
        raise ValueError("only the append that creates a task has a base_url")
    if "\0" in append.base_url:
        raise ValueError("a base_url has no character U+0000 in it")
    append.base_url.encode()  # raises for half of a surrogate pair


def _check_sleep(append: Append) -> None:
    if append.wakes_at is None:
        raise ValueError("an append that waits for events says when it wakes up: wakes_at")
    if not append.release or append.turn_open is False or append.expected_seq is None:
        raise ValueError("a task sleeps within a turn, which its lease owner releases")
    if len(append.waits_for) > MAX_WAITS:
        raise ValueError(f"a task waits for {MAX_WAITS} events at most")
    for key in append.waits_for:
        check_key(key)


def advance(
    head: Head | None, append: Append, payload: Payload, at: int, replica: str
) -> tuple[Head, list[LoggedEvent]]:
    """Return the head after an append by ``replica``, and its records. Decides all races.

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
        _check_append(head, append)
        scope, context_id = head.scope, head.context_id
        turn_open, epoch = head.turn_open, head.epoch
        seq, sub, state, status_at = head.seq, head.sub, head.state, head.status_at
        waiting, canceling = head.waiting, head.cancel_requested
        messages, has_status_message = head.messages, head.has_status_message
        folded = head.folded
    records = []
    stamp = None
    for event, text in zip(append.events, payload.events, strict=True):
        check(state, event)
        status = None
        if type(event) is TaskArtifactUpdateEvent:
            kind, owner, seq, sub = RecordKind.ARTIFACT, event.task_id, seq + 1, 0
        elif type(event) is TaskStatusUpdateEvent:
            kind, owner, seq, sub = RecordKind.STATUS, event.task_id, seq + 1, 0
            status = event.status
        elif type(event) is Task:
            kind, owner, seq, sub = RecordKind.TASK, event.id, seq + 1, 0
            status = event.status
            folded = seq if event.artifacts else 0
        else:
            kind, owner, sub = kind_of(event), task_id, sub + 1
            if type(event) is MessageReceived:
                waiting += 1
            elif type(event) is CancelRequested:
                canceling = True
            elif type(event) is TurnStarted and event.messages:
                has_status_message = False
        if status is not None:
            stamp = status.timestamp
            if stamp is None:
                raise IllegalEvent("a status says since when it is: its timestamp is missing")
            state, has_status_message = status.state, status.message is not None
        if owner != task_id:
            raise IllegalEvent(f"an event of task {owner} is not part of task {task_id}")
        records.append(LoggedEvent(task_id, seq, append.turn, kind, text, event, at, sub))
    if state is None:
        raise IllegalEvent("a log begins with its Task, not with nothing")
    if stamp is not None:
        status_at = stamp.milliseconds
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
        lease_owner=_next_owner(head, append, replica, turn_open=turn_open, is_over=is_over),
        queue_key=head.queue_key if head else 0,
        messages=messages + len(payload.messages),
        has_status_message=has_status_message,
        folded=folded if append.artifacts is None else seq,
        wakes_at=_next_wake(head, append, is_awake=is_over or canceling or not turn_open),
        base_url=head.base_url if head else append.base_url,
    )
    if after.is_unclaimed and not (head and head.is_unclaimed):
        after = replace(after, queue_key=append.queue_key)
    return after, records


def _next_owner(
    head: Head | None, append: Append, replica: str, *, turn_open: bool, is_over: bool
) -> str:
    """Return the lease owner after ``append``."""
    owner = head.lease_owner if head else ""
    if is_over or append.release:
        return ""
    if append.expected_seq is None:
        return owner
    if append.turn_open is False:
        return ""
    return replica if turn_open else owner


def _next_wake(head: Head | None, append: Append, *, is_awake: bool) -> int | None:
    """Return the wake-up time of the task after ``append``; ``None`` for an awake one."""
    if is_awake:
        return None
    if append.expected_seq is None:
        return head.wakes_at if head else None
    return append.wakes_at


def _check_append(head: Head, append: Append) -> None:
    """Raise the error for an ``append`` that cannot follow ``head``."""
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


def with_claim(head: Head | None, task_id: str, replica: str) -> Head:
    """Return the head with ``replica`` as lease owner, in a new epoch.

    The leases of dead replicas must have expired. Raises ``UnknownTask``, ``TaskEnded``,
    ``LeaseHeld``.
    """
    if head is None:
        raise unknown(task_id)
    if head.ended_at is not None:
        raise ended(head)
    if head.lease_owner not in ("", replica):
        raise LeaseHeld(f"task {task_id} is held by the replica {head.lease_owner}")
    if head.wakes_at is not None:
        raise LeaseHeld(f"task {task_id} sleeps")
    return replace(head, epoch=head.epoch + 1, lease_owner=replica)


def with_lease_expired(head: Head) -> Head:
    """Return the head without a lease owner, first in the queue, with a new fencing epoch."""
    return replace(head, epoch=head.epoch + 1, lease_owner="", queue_key=0)


def with_wake(head: Head, queue_key: int) -> Head:
    """Return the head of a sleeping task awake, in the queue."""
    return replace(head, wakes_at=None, queue_key=queue_key)


def with_event(head: Head) -> Head:
    """Return the head of a sleeping task that is due, as an event is complete."""
    return replace(head, wakes_at=0)


def position_of(head: Head) -> LogPosition:
    """Return the end of the task's log."""
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
    """Return the error for a task that does not exist."""
    return UnknownTask(f"there is no task {task_id} in the store")


def ended(head: Head) -> TaskEnded:
    """Return the error for a task in a terminal state."""
    return TaskEnded(f"task {head.task_id} is in {head.state.value}, and nothing follows that")
