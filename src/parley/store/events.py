"""The records of a task's log.

Public events are the specification's own: the task, its status updates, its artifact updates.
They are numbered 1..n without a gap. Private records never leave the server; each hangs on the
number of the public event before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from parley.model.encoding import from_wire
from parley.model.parts import Message
from parley.model.struct import A2AStruct
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

TaskEvent = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


class Kind(Enum):
    """What a record is. The values are what stores keep."""

    TASK = "task"
    STATUS = "status"
    ARTIFACT = "artifact"
    RECEIVED = "received"
    TURN = "turn"
    REMEMBERED = "remembered"
    CANCEL = "cancel"

    __hash__ = object.__hash__  # an enum's own is slow

    @property
    def is_public(self) -> bool:
        """Whether readers outside the server see it, and it takes a number."""
        return self in PUBLIC_KINDS


PUBLIC_KINDS = frozenset({Kind.TASK, Kind.STATUS, Kind.ARTIFACT})


class KeptCaller(A2AStruct, frozen=True, kw_only=True):
    """The caller as a record keeps it: ``claims`` are those that the agent keeps.

    A record without one is of an anonymous caller, or was written before callers were kept.
    """

    id: str = ""
    issuer: str = ""
    authenticated: bool = False
    claims: dict[str, Any] = {}


class Received(A2AStruct, frozen=True, kw_only=True):
    """A message that waits for a turn (private). ``entry`` tells it from another of the same id.

    The rest is what its turn needs to know of the request that brought it.
    """

    entry: str
    message: Message
    accepted_output_modes: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    caller: KeptCaller | None = None


class TurnStarted(A2AStruct, frozen=True, kw_only=True):
    """A turn takes messages, or starts again (private).

    ``messages`` enter the history with it, and ``entries`` name them among those received; both
    are empty for a task's first turn, whose message the Task event holds, and for a further
    attempt. ``attempt`` is 0 for a first turn that stands in line: nobody has begun it. ``answers``
    is the key of the question that the message answers. ``live`` is set when
    a running turn took a message in passing. ``released`` is set when the attempt was let go of on
    purpose, by a server that shut down, and so does not count as a failed one. The rest is what a
    further attempt needs to know of the request.
    """

    turn: int
    attempt: int = 1
    skill: str = ""
    entries: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    answers: str = ""
    live: bool = False
    released: bool = False
    accepted_output_modes: tuple[str, ...] = ()
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()
    caller: KeptCaller | None = None


class Remembered(A2AStruct, frozen=True, kw_only=True):
    """What a step returned, kept so that it is not done again (private)."""

    key: str
    value: msgspec.Raw


class CancelRequested(A2AStruct, frozen=True, kw_only=True):
    """The caller wants the task canceled (private); without one, the server does."""

    caller: KeptCaller | None = None


PrivateEvent = Received | TurnStarted | Remembered | CancelRequested

_KINDS: dict[type, Kind] = {
    Task: Kind.TASK,
    TaskStatusUpdateEvent: Kind.STATUS,
    TaskArtifactUpdateEvent: Kind.ARTIFACT,
    Received: Kind.RECEIVED,
    TurnStarted: Kind.TURN,
    Remembered: Kind.REMEMBERED,
    CancelRequested: Kind.CANCEL,
}
TYPES: dict[Kind, type] = {kind: event for event, kind in _KINDS.items()}
_DECODERS: dict[Kind, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(event, dec_hook=from_wire) for kind, event in TYPES.items()
}


_BY_NAME = {kind.value.encode(): kind for kind in Kind}
PUBLIC_TYPES = frozenset({event for event, kind in _KINDS.items() if kind in PUBLIC_KINDS})


def kind_of(event: TaskEvent | PrivateEvent) -> Kind:
    """Return the kind under which ``event`` is kept."""
    return _KINDS[type(event)]


class LoggedEvent(msgspec.Struct, frozen=True, gc=False):
    """One record as the log holds it.

    ``payload`` is the event's canonical JSON; ``event`` is the event itself. ``at`` is in
    milliseconds since 1970. ``seq`` is its number, or for a private record the number before it;
    ``sub`` counts the private records that hang on one number, from 1, and is 0 for a public event.
    So (``seq``, ``sub``) is the order of the whole log.
    """

    task_id: str
    seq: int
    turn: int
    kind: Kind
    payload: bytes
    event: TaskEvent | PrivateEvent
    at: int
    sub: int = 0


def now_ms() -> int:
    """Return the present moment in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def steady_clock() -> Callable[[], int]:
    """Return what tells the present moment in ms since 1970, and does not jump when that is set."""
    ahead = now_ms() - int(time.monotonic() * 1000)
    return lambda: int(time.monotonic() * 1000) + ahead


def logged(
    task_id: str, seq: int, sub: int, turn: int, kind: Kind, at: int, payload: bytes
) -> LoggedEvent:
    """Return the record that a store kept as these."""
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
