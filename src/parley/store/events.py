"""The records of a task's log.

Public events are the specification's own: the task, its status updates, its artifact updates. They
are numbered 1..n without a gap. Private records never leave the server; each has the number of the
public event before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from parley.model.parts import Message
from parley.model.service import TraceContext
from parley.model.struct import A2AStruct, from_wire
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent


class Scope(msgspec.Struct, frozen=True):
    """The agent, tenant and owner of a task or context. Only its own scope finds it."""

    agent: str
    tenant: str = ""
    owner: str = ""


TaskEvent = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class RecordKind(Enum):
    """The kind of a record. The values are stored."""

    TASK = "task"
    STATUS = "status"
    ARTIFACT = "artifact"
    RECEIVED = "received"
    TURN = "turn"
    REMEMBERED = "remembered"
    CANCEL = "cancel"

    __hash__ = object.__hash__  # faster than the hash of Enum

    @property
    def is_public(self) -> bool:
        """True if it is numbered and visible to readers outside the server."""
        return self in PUBLIC_KINDS


PUBLIC_KINDS = frozenset({RecordKind.TASK, RecordKind.STATUS, RecordKind.ARTIFACT})


class StoredCaller(A2AStruct, frozen=True, kw_only=True):
    """The caller in a record. ``claims`` are the claims that the agent keeps; ``scopes`` are
    sorted.

    A record without a stored caller has an anonymous caller, or is older than this record type.
    """

    id: str = ""
    issuer: str = ""
    authenticated: bool = False
    claims: dict[str, Any] = {}
    client: str = ""
    actors: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()


class MessageReceived(A2AStruct, frozen=True, kw_only=True):
    """A message that waits for a turn (private). ``entry`` is unique; the message's id may not be.

    ``base_url`` is the agent's address as the sender sees it, ``metadata`` the request's, but
    ``chain`` is the data of the chain of calls, as received. The other fields are data of the
    request for its turn.
    """

    entry: str
    message: Message
    accepted_output_modes: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    caller: StoredCaller | None = None
    base_url: str = ""
    metadata: dict[str, Any] | None = None
    chain: dict[str, Any] | None = None
    trace: TraceContext | None = None


class TurnStarted(A2AStruct, frozen=True, kw_only=True):
    """A turn receives messages, or a further attempt at it starts (private).

    ``messages`` enter the history with it, and ``entries`` name them among the received ones; both
    are empty for a task's first turn, whose message is in the Task event, and for a further
    attempt. ``attempt`` is 0 for a first turn that is queued and has not begun. ``answers`` is the
    key of the question that the message answers. ``live`` is set when a running turn reads a
    message. ``released`` is set when a server that shuts down releases the attempt, which then does
    not count as failed; ``asleep`` when the attempt falls asleep, which continues under the same
    number when it wakes up. ``base_url`` is the agent's address as the sender of the turn's message
    sees it; the first turn's is in the task's head. The other fields are data of the request for a
    further attempt.
    """

    turn: int
    attempt: int = 1
    skill: str = ""
    entries: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    answers: str = ""
    live: bool = False
    released: bool = False
    asleep: bool = False
    accepted_output_modes: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()
    caller: StoredCaller | None = None
    base_url: str = ""
    chain: dict[str, Any] | None = None
    trace: TraceContext | None = None


class StepResult(A2AStruct, frozen=True, kw_only=True):
    """The result of a step, so that a further attempt replays it (private)."""

    key: str
    value: msgspec.Raw


class CancelRequested(A2AStruct, frozen=True, kw_only=True):
    """A request to cancel the task (private).

    ``reason`` is set if the server cancelled by itself. Without a ``reason`` the ``caller`` did, an
    anonymous one if there is none; logs of earlier versions have no reasons.
    """

    caller: StoredCaller | None = None
    reason: str = ""


PrivateEvent = MessageReceived | TurnStarted | StepResult | CancelRequested

_KINDS: dict[type, RecordKind] = {
    Task: RecordKind.TASK,
    TaskStatusUpdateEvent: RecordKind.STATUS,
    TaskArtifactUpdateEvent: RecordKind.ARTIFACT,
    MessageReceived: RecordKind.RECEIVED,
    TurnStarted: RecordKind.TURN,
    StepResult: RecordKind.REMEMBERED,
    CancelRequested: RecordKind.CANCEL,
}
TYPES: dict[RecordKind, type] = {kind: event for event, kind in _KINDS.items()}
_DECODERS: dict[RecordKind, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(event, dec_hook=from_wire) for kind, event in TYPES.items()
}
_BY_NAME = {kind.value.encode(): kind for kind in RecordKind}
PUBLIC_TYPES = frozenset({event for event, kind in _KINDS.items() if kind in PUBLIC_KINDS})


def kind_of(event: TaskEvent | PrivateEvent) -> RecordKind:
    """Return the kind of the record that ``event`` makes."""
    return _KINDS[type(event)]


class LoggedEvent(msgspec.Struct, frozen=True, gc=False):
    """One record in the form of the log.

    ``payload`` is the event's canonical JSON; ``event`` is the event itself. ``at`` is in
    milliseconds since 1970. ``seq`` is its number, or for a private record the number before it;
    ``sub`` counts the private records of one number, from 1, and is 0 for a public event. So
    (``seq``, ``sub``) is the order of the whole log.
    """

    task_id: str
    seq: int
    turn: int
    kind: RecordKind
    payload: bytes
    event: TaskEvent | PrivateEvent
    at: int
    sub: int = 0


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_clock() -> Callable[[], int]:
    """Return a clock in ms since 1970 that does not jump when the system time is set."""
    ahead = now_ms() - int(time.monotonic() * 1000)
    return lambda: int(time.monotonic() * 1000) + ahead


def logged(
    task_id: str, seq: int, sub: int, turn: int, kind: RecordKind, at: int, payload: bytes
) -> LoggedEvent:
    """Return the record in a stored row."""
    event = _DECODERS[kind].decode(payload)
    return LoggedEvent(task_id, seq, turn, kind, payload, event, at, sub)


def records_in(task_id: str, lines: bytes | None) -> list[LoggedEvent]:
    """Return the records that a query joined into one value, in the order of the log."""
    records = []
    for line in lines.split(b"\n") if lines else ():
        seq, sub, turn, kind, at, payload = line.split(b" ", 5)
        records.append(
            logged(task_id, int(seq), int(sub), int(turn), _BY_NAME[kind], int(at), payload)
        )
    return records


def payloads_in(lines: bytes | None) -> list[bytes]:
    """Return the payloads alone of such records."""
    return [line.split(b" ", 5)[-1] for line in lines.split(b"\n")] if lines else []
