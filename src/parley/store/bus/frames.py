"""Frames: the messages of buses.

 <version><replica> [[task, ...], [agent, ...]]       all of it text
 task = [task id, seq, sub, [record, ...]]            the log has reached (seq, sub)
 record = [seq, sub, turn, kind, time, event]

A frame of another version, which a replica of another release sends, is ignored: the store has the
same information.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from urllib.parse import quote

import msgspec

from parley.model.backoff import Backoff
from parley.model.tasks import Task
from parley.store.bus.subscriptions import LocalHints
from parley.store.events import LoggedEvent, RecordKind, logged

logger = logging.getLogger(__name__)

RECONNECT = Backoff(0.1, 5.0, jitter=(0.5, 1.0))

VERSION = b"1"
MAX_FRAME = 1 << 20
"""No frame of this version has more bytes."""

MAX_TASKS = 10_000
MAX_BYTES = 1 << 20
MAX_AGENTS = 100


class _Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    seq: int
    sub: int
    turn: int
    kind: RecordKind
    at: int
    payload: msgspec.Raw


class _Advance(msgspec.Struct, array_like=True, frozen=True, gc=False):
    task_id: str
    seq: int
    sub: int
    records: tuple[_Record, ...] = ()


class _Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    tasks: tuple[_Advance, ...]
    agents: tuple[str, ...] = ()


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Frame)


class FrameBuffer:
    """The hints that wait to be sent: the records of each task, and agents with work.

    Bounded, since a bus may be slow: beyond ``MAX_BYTES`` of events only the position of a log is
    kept, and beyond ``MAX_TASKS`` nothing.
    """

    def __init__(self, replica: str) -> None:
        self._start = VERSION + quote(replica, safe="").encode() + b" "
        self._tasks: dict[str, list[LoggedEvent]] = {}
        self._agents: set[str] = set()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._tasks or self._agents)

    def add(self, records: Sequence[LoggedEvent]) -> bool:
        """Add the records of one append. Return whether the buffer was empty."""
        is_first = not self._tasks and not self._agents
        task_id = records[0].task_id
        held = self._tasks.get(task_id)
        if held is None:
            if len(self._tasks) >= MAX_TASKS:
                return False
            held = self._tasks[task_id] = []
        if self._bytes < MAX_BYTES:
            self._bytes += sum([len(record.payload) for record in records])
            held.extend(records)
        else:
            mark = msgspec.structs.replace(records[-1], payload=b"")
            if held and not held[-1].payload:
                held[-1] = mark
            else:
                held.append(mark)
        return is_first

    def add_work(self, agent: str) -> bool:
        """Add an agent that has work. Return whether the buffer was empty."""
        is_first = not self._tasks and not self._agents
        if len(self._agents) < MAX_AGENTS:
            self._agents.add(agent)
        return is_first

    def clear(self) -> None:
        """Drop everything."""
        self._tasks = {}
        self._agents = set()
        self._bytes = 0

    def frames(self, limit: int) -> list[bytes]:
        """Remove everything, as few frames of up to ``limit`` bytes as possible.

        For a record that does not fit into a frame, only its position is sent.
        """
        tasks, agents = self._tasks, self._agents
        self.clear()
        room = limit - len(self._start) - len(b"[[],[]]")
        return list(self._packed(_pieces(tasks.values(), room), agents, room))

    def frames_by_task(self, limit: int) -> Iterator[tuple[str, bytes]]:
        """Remove the records of all tasks: yield each task's id, and a frame for it."""
        tasks, self._tasks = self._tasks, {}
        self._bytes = 0
        room = limit - len(self._start) - len(b"[[],[]]")
        for task_id, records in tasks.items():
            for piece in _pieces((records,), room):
                yield task_id, b"%b[[%b]]" % (self._start, piece)

    def heartbeat(self) -> bytes:
        """Return an empty frame, by which its replica checks that the bus works."""
        return b"%b[[],[]]" % self._start

    def is_own(self, frame: bytes) -> bool:
        """Return whether this replica sent a frame."""
        return frame.startswith(self._start)

    def _packed(self, pieces: Iterable[bytes], agents: Iterable[str], room: int) -> Iterator[bytes]:
        held: list[bytes] = []
        size = 0
        for piece in pieces:
            if held and size + len(piece) > room:
                yield b"%b[[%b]]" % (self._start, b",".join(held))
                held, size = [], 0
            held.append(piece)
            size += len(piece) + 1
        names: list[bytes] = []
        for name in map(_encode, agents):
            if (held or names) and size + len(name) > room:
                yield b"%b[[%b],[%b]]" % (self._start, b",".join(held), b",".join(names))
                held, names, size = [], [], 0
            names.append(name)
            size += len(name) + 1
        if held or names:
            yield b"%b[[%b],[%b]]" % (self._start, b",".join(held), b",".join(names))


def _pieces(tasks: Iterable[Sequence[LoggedEvent]], room: int) -> Iterator[bytes]:
    """Return the records of tasks, encoded in pieces of up to ``room`` bytes."""
    for records in tasks:
        head = len(records[0].task_id) + 60
        held: list[_Record] = []
        size = head
        for n, record in enumerate(records):
            # 60 bytes exceed the brackets and the five short fields of a record.
            length = len(record.payload) + 60
            if not record.payload or head + length > room:
                last = records[-1]
                # The records after one that is left out would leave a gap, so they are left out
                # too.
                yield _encode(_Advance(record.task_id, last.seq, last.sub, tuple(held)))
                break
            if size + length > room:
                before = held[-1]
                yield _encode(_Advance(record.task_id, before.seq, before.sub, tuple(held)))
                held, size = [], head
            held.append(_packable(record))
            size += length
            if n == len(records) - 1:
                yield _encode(_Advance(record.task_id, record.seq, record.sub, tuple(held)))


def _packable(record: LoggedEvent) -> _Record:
    payload = msgspec.Raw(record.payload)
    return _Record(record.seq, record.sub, record.turn, record.kind, record.at, payload)


def _logged(task_id: str, read: _Record) -> LoggedEvent:
    """Return a task's record as in the store. Raises ``ValueError`` for an impossible one."""
    if read.seq < 1 or read.sub < 0 or read.kind.is_public != (read.sub == 0):
        raise ValueError(f"there is no record {read.seq}.{read.sub} of the kind {read.kind.value}")
    payload = bytes(read.payload)
    record = logged(task_id, read.seq, read.sub, read.turn, read.kind, read.at, payload)
    event = record.event
    owner = event.id if isinstance(event, Task) else getattr(event, "task_id", task_id)
    if owner != task_id:
        raise ValueError("it has an event of one task among those of another")
    return record


class FrameReader:
    """Passes the hints of other replicas' frames on to ``LocalHints``. Never raises for a frame."""

    def __init__(self, hints: LocalHints) -> None:
        self._hints = hints
        self._has_warned = False

    def read(self, frame: bytes) -> None:
        """Pass on the hints of a frame."""
        version, (_, space, body) = frame[:1], frame.partition(b" ")
        if version != VERSION or not space or len(frame) > MAX_FRAME:
            self._warn("it is no frame of this version")
            return
        hints = self._hints
        try:
            found = _decoder.decode(body)
            # Everything is read first, so that no part of a broken frame is passed on.
            tasks = [
                (task, [_logged(task.task_id, record) for record in task.records])
                for task in found.tasks
                if hints.is_watched(task.task_id)
            ]
        except (ValueError, RecursionError) as error:
            self._warn(str(error))
            return
        for task, records in tasks:
            hints.publish(records)
            if not records or (records[-1].seq, records[-1].sub) < (task.seq, task.sub):
                hints.notify_seq(task.task_id, task.seq)
        for agent in found.agents:
            hints.notify_work(agent)

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("the bus sends an unreadable frame, which is ignored: %s", reason)


class FrameBus(ABC):
    """The common part of all buses: frames, and the detection of failures."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._hints: LocalHints | None = None
        self._buffer = FrameBuffer("")
        self._reader: FrameReader | None = None
        self._tried = asyncio.Event()
        self._is_failing = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"

    def publish(self, records: Sequence[LoggedEvent]) -> None:
        """Send the records of one append to the other replicas, at the next tick."""
        if self._can_send() and records and self._buffer.add(records):
            self._send_soon()

    def publish_work(self, agent: str) -> None:
        """Notify the other replicas that an agent has unclaimed work."""
        if self._can_send() and self._buffer.add_work(agent):
            self._send_soon()

    @abstractmethod
    def _can_send(self) -> bool:
        """Return whether there is a connection for sending."""

    @abstractmethod
    def _send_soon(self) -> None:
        """Send what is in the buffer, at the next tick."""

    def _begin(self, hints: LocalHints, replica: str) -> None:
        """Begin to pass on the frames of others, and to make this replica's."""
        self._hints = hints
        self._buffer = FrameBuffer(replica)
        self._reader = FrameReader(hints)
        self._tried.clear()

    def _works(self) -> None:
        """Note that the bus works."""
        if self._is_failing:
            self._is_failing = False
            logger.warning("the bus at %s works again", self._name)

    def _failed(self, error: Exception) -> None:
        """Record that the bus does not work."""
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "the bus at %s does not work, wake-up notifications are late until it does: %s",
                self._name,
                " ".join(str(error).split()),
            )


async def reconnect(session: Callable[[], Awaitable[bool]], name: str) -> None:
    """Run a session of a bus, again each time one ends, with a backoff in between.

    It returns when a session returns ``True``.
    """
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        began = loop.time()
        try:
            if await session():
                return
        except Exception:
            logger.exception("the bus at %s failed", name)
        has_lasted = loop.time() - began > RECONNECT.longest
        failures = 1 if has_lasted else failures + 1
        await asyncio.sleep(RECONNECT.delay(failures))
